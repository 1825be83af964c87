package pebblestore_test

import (
	"bytes"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/storage"
	"github.com/tidemark-log/tidemark/storage/pebblestore"
)

// tree lists a directory with its files' contents.
func tree(t *testing.T, dir string) map[string]string {
	out := map[string]string{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			out[path] = "directory"
			return err
		}
		b, err := os.ReadFile(path)
		out[path] = string(b)
		return err
	}))
	return out
}

func TestForeignDirectoryIsLeftAlone(t *testing.T) {
	for name, c := range map[string]struct {
		make func(dir string)
		want error
	}{
		"a file": {func(dir string) {
			require.NoError(t, os.WriteFile(filepath.Join(dir, "notes.txt"), []byte("mine"), 0o600))
		}, storage.ErrForeign},
		"another program's database": {func(dir string) {
			db, err := pebble.Open(dir, &pebble.Options{Logger: quiet{}})
			require.NoError(t, err)
			require.NoError(t, db.Set([]byte("k"), []byte("v"), pebble.Sync))
			require.NoError(t, db.Close())
		}, storage.ErrForeign},
		"a home without a marker": {func(dir string) {
			require.NoError(t, os.Mkdir(filepath.Join(dir, "db-000001"), 0o700))
			require.NoError(t, os.WriteFile(filepath.Join(dir, "db-000001", "x"), nil, 0o600))
		}, storage.ErrForeign},
		"another program's marker": {func(dir string) {
			require.NoError(t, os.WriteFile(filepath.Join(dir, "TIDEMARK"), []byte("something else"), 0o600))
		}, storage.ErrForeign},
		"a newer format": {func(dir string) {
			require.NoError(t, os.WriteFile(filepath.Join(dir, "TIDEMARK"), []byte("tidemark pebblestore format 2\nwhatever"), 0o600))
		}, storage.ErrFormat},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			c.make(dir)
			before := tree(t, dir)
			_, err := pebblestore.Open(dir, pebblestore.Options{})
			require.ErrorIs(t, err, c.want)
			require.Equal(t, before, tree(t, dir))
		})
	}
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err := pebblestore.Open(file, pebblestore.Options{})
	require.ErrorIs(t, err, storage.ErrForeign)
}

type quiet struct{}

func (quiet) Infof(string, ...any)  {}
func (quiet) Errorf(string, ...any) {}
func (quiet) Fatalf(string, ...any) {}

// A database behind our marker that this package did not make.
func TestForeignDatabaseBehindMarker(t *testing.T) {
	mem := vfs.NewMem()
	require.NoError(t, open(t, "d", small(mem)).Close())
	db, err := pebble.Open(home(t, mem), &pebble.Options{FS: mem, Logger: quiet{}})
	require.NoError(t, err)
	require.NoError(t, db.Set([]byte{1, 'f'}, []byte{0, 0, 0, 9}, pebble.Sync))
	require.NoError(t, db.Close())
	_, err = pebblestore.Open("d", small(mem))
	require.ErrorIs(t, err, storage.ErrFormat)

	db, err = pebble.Open(home(t, mem), &pebble.Options{FS: mem, Logger: quiet{}})
	require.NoError(t, err)
	require.NoError(t, db.Delete([]byte{1, 'f'}, pebble.Sync))
	require.NoError(t, db.Close())
	_, err = pebblestore.Open("d", small(mem))
	require.ErrorIs(t, err, storage.ErrForeign)
}

func TestInUseUnderAnotherName(t *testing.T) {
	dir := t.TempDir()
	real, link := filepath.Join(dir, "real"), filepath.Join(dir, "link")
	s := open(t, real, pebblestore.Options{})
	require.NoError(t, os.Symlink(real, link))
	_, err := pebblestore.Open(link, pebblestore.Options{})
	require.ErrorIs(t, err, storage.ErrInUse)
	_, err = pebblestore.Open(real, pebblestore.Options{})
	require.ErrorIs(t, err, storage.ErrInUse)
	require.NoError(t, write(s, appendOp(logA, 0, batchAt(0, 1, 1))).Err)
	require.NoError(t, s.Close())
	s = open(t, link, pebblestore.Options{})
	require.EqualValues(t, 1, endOf(t, s, logA))
	require.NoError(t, s.Close())
}

func TestNotWritable(t *testing.T) {
	denied := errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
			return &fs.PathError{Op: "open", Path: op.Path, Err: fs.ErrPermission}
		}
		return nil
	})
	mem := vfs.NewMem()
	_, err := pebblestore.Open("d", small(errorfs.Wrap(mem, denied)))
	require.ErrorIs(t, err, fs.ErrPermission)
	require.NotErrorIs(t, err, storage.ErrInUse)
	require.NoError(t, open(t, "d", small(mem)).Close())
	_, err = pebblestore.Open("d", small(errorfs.Wrap(mem, denied)))
	require.ErrorIs(t, err, fs.ErrPermission)
	require.NotErrorIs(t, err, storage.ErrInUse)
}

// A marker of a clean end speaks for one life: not for one that it does not name, and
// not when it is torn.
func TestCleanMarkerOfAnotherLife(t *testing.T) {
	for content, unclean := range map[string]bool{"db-000001\n": false, "db-000002\n": true, "db-000001": true, "": true} {
		mem := vfs.NewMem()
		require.NoError(t, open(t, "d", small(mem)).Close())
		require.Equal(t, "db-000001\n", string(readFile(t, mem, "d/db-000001/CLEAN")))
		f, err := mem.Create("d/db-000001/CLEAN", vfs.WriteCategoryUnspecified)
		require.NoError(t, err)
		_, err = f.Write([]byte(content))
		require.NoError(t, err)
		require.NoError(t, f.Close())
		s := open(t, "d", small(mem))
		require.Equal(t, unclean, s.Node().Unclean, "%q", content)
		_, err = mem.Stat("d/db-000002/CLEAN")
		require.ErrorIs(t, err, fs.ErrNotExist, "of a store that is open")
		require.NoError(t, s.Close())
	}
}

// A marker without a database is no new store (D3).
func TestDatabaseGone(t *testing.T) {
	mem := vfs.NewMem()
	require.NoError(t, open(t, "d", small(mem)).Close())
	require.NoError(t, mem.RemoveAll("d/db-000001"))
	_, err := pebblestore.Open("d", small(mem))
	require.ErrorIs(t, err, storage.ErrDamaged)
}

// What the first open leaves when it is cut short does not look foreign.
func TestOpenAfterInterruptedFirstOpen(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "db-000001"), 0o700))
	for _, name := range []string{"LOCK", "TIDEMARK.new"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	require.NoError(t, os.Mkdir(filepath.Join(dir, "lost+found"), 0o700))
	s := open(t, dir, pebblestore.Options{})
	n := s.Node()
	require.NoError(t, s.Close())
	s = open(t, filepath.Join(dir, ".", "x", ".."), pebblestore.Options{})
	require.Equal(t, n, s.Node())
	require.NoError(t, s.Close())
}

func TestLoggerHearsOfFailure(t *testing.T) {
	var out bytes.Buffer
	inject := errorfs.InjectorFunc(func(errorfs.Op) error { return nil })
	fail := &errorfs.Toggle{Injector: errorfs.InjectorFunc(func(op errorfs.Op) error {
		if strings.HasSuffix(op.Path, ".log") && op.Kind == errorfs.OpFileSyncData {
			return errDisk
		}
		return inject.MaybeError(op)
	})}
	o := small(errorfs.Wrap(vfs.NewMem(), fail))
	o.Logger = slog.New(slog.NewTextHandler(&out, nil))
	s := open(t, "d", o)
	require.Empty(t, out.String())
	fail.On()
	require.ErrorIs(t, write(s, appendOp(logA, 0, batchAt(0, 1, 1))).Err, errDisk)
	require.ErrorIs(t, s.Close(), errDisk)
	require.Contains(t, out.String(), "disk on fire")
}
