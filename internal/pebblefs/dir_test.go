package pebblefs_test

import (
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/internal/pebblefs"
)

// watched calls see before each write, and fails the write when see errs.
func watched(fsys vfs.FS, see func(op errorfs.Op) error) vfs.FS {
	return errorfs.Wrap(fsys, errorfs.InjectorFunc(func(op errorfs.Op) error {
		// Closing what was opened for reading is no write, whatever errorfs calls it.
		if op.Kind.ReadOrWrite() != errorfs.OpIsWrite || op.Kind == errorfs.OpFileClose {
			return nil
		}
		return see(op)
	}))
}

func exists(t *testing.T, fsys vfs.FS, path string) bool {
	_, err := fsys.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false
	}
	require.NoError(t, err)
	return true
}

// What MakeDir has made is there after a power cut, whatever was there before.
func TestMakeDirSurvivesPowerCut(t *testing.T) {
	for _, dir := range []string{"d", "a/b/c/d", "/a/b", "a//b/", "has/some/more", "has", ".", "/"} {
		mem := vfs.NewCrashableMem()
		require.NoError(t, mem.MkdirAll("has/some", 0o755))
		for _, d := range []string{"", "has"} {
			require.NoError(t, pebblefs.SyncDir(mem, d))
		}
		require.NoError(t, pebblefs.MakeDir(mem, dir))
		require.True(t, exists(t, mem.CrashClone(vfs.CrashCloneCfg{}), dir), dir)
	}
}

// A MakeDir that is cut short, at any step, is finished by the next one: the process
// ended, and the power fails later.
func TestMakeDirIsFinishedByTheNext(t *testing.T) {
	killed := errors.New("killed")
	for at := 0; ; at++ {
		mem := vfs.NewCrashableMem()
		n := 0
		err := pebblefs.MakeDir(watched(mem, func(errorfs.Op) error {
			if n++; n > at {
				return killed
			}
			return nil
		}), "a/b/c")
		if n <= at {
			require.NoError(t, err)
			require.Greater(t, at, 5)
			return
		}
		if err != nil {
			require.ErrorIs(t, err, killed)
		}
		require.NoError(t, pebblefs.MakeDir(mem, "a/b/c"))
		require.True(t, exists(t, mem.CrashClone(vfs.CrashCloneCfg{}), "a/b/c"), "step %d", at)
	}
}

func TestMakeDirOnRealDisk(t *testing.T) {
	base := t.TempDir()
	for range 2 {
		require.NoError(t, pebblefs.MakeDir(vfs.Default, filepath.Join(base, "a", "b")))
		require.DirExists(t, filepath.Join(base, "a", "b"))
	}
	require.NoError(t, os.WriteFile(filepath.Join(base, "file"), nil, 0o600))
	require.ErrorIs(t, pebblefs.MakeDir(vfs.Default, filepath.Join(base, "file", "d")), syscall.ENOTDIR)
}

// A marker is whole or not there, and is not lost when it is replaced.
func TestMarkerIsWhole(t *testing.T) {
	read := func(fsys vfs.FS) string {
		f, err := fsys.Open("d/marker")
		if errors.Is(err, fs.ErrNotExist) {
			return "none"
		}
		require.NoError(t, err)
		defer f.Close()
		b, err := io.ReadAll(f)
		require.NoError(t, err)
		return string(b)
	}
	mem := vfs.NewCrashableMem()
	require.NoError(t, pebblefs.MakeDir(mem, "d"))
	rng := rand.New(rand.NewPCG(1, 1))
	before := "none"
	for _, content := range []string{"one", "two", ""} {
		steps := 0
		fsys := watched(mem, func(op errorfs.Op) error {
			steps++
			for range 20 {
				for _, percent := range []int{0, 50, 100} {
					clone := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng})
					require.Contains(t, []string{before, content}, read(clone), "%v %s", op.Kind, op.Path)
				}
			}
			return nil
		})
		require.NoError(t, pebblefs.WriteMarker(fsys, "d", "marker", []byte(content)))
		require.Greater(t, steps, 3)
		require.Equal(t, content, read(mem.CrashClone(vfs.CrashCloneCfg{})))
		before = content
	}
	broken := errors.New("broken")
	for at := 0; ; at++ {
		n := 0
		err := pebblefs.WriteMarker(watched(mem, func(errorfs.Op) error {
			if n++; n == at+1 {
				return broken
			}
			return nil
		}), "d", "marker", []byte("three"))
		if n <= at {
			require.NoError(t, err)
			break
		}
		require.ErrorIs(t, err, broken, "step %d", at)
	}
}

func TestCanonical(t *testing.T) {
	base, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	real, link := filepath.Join(base, "real"), filepath.Join(base, "link")
	require.NoError(t, os.Mkdir(real, 0o700))
	require.NoError(t, os.Symlink(real, link))
	t.Chdir(base)
	wrapped := errorfs.Wrap(vfs.Default, errorfs.InjectorFunc(func(errorfs.Op) error { return nil }))
	for _, fsys := range []vfs.FS{vfs.Default, wrapped, pebblefs.NewGuard(wrapped)} {
		for _, name := range []string{real, link, "real", "./link/", "real/../link"} {
			got, err := pebblefs.Canonical(fsys, name)
			require.NoError(t, err)
			require.Equal(t, real, got, name)
		}
		_, err = pebblefs.Canonical(fsys, "none")
		require.ErrorIs(t, err, fs.ErrNotExist)
	}
	got, err := pebblefs.Canonical(vfs.NewMem(), "x/../y")
	require.NoError(t, err)
	require.Equal(t, "x/../y", got)
}

func TestLockError(t *testing.T) {
	held := errors.New("held")
	file := filepath.Join(t.TempDir(), "LOCK")
	lock, err := vfs.Default.Lock(file)
	require.NoError(t, err)
	_, here := vfs.Default.Lock(file)
	require.NoError(t, lock.Close())
	_, missing := vfs.Default.Lock(filepath.Join(file, "none"))
	for _, tt := range []struct {
		err  error
		held bool
	}{
		{here, true},
		{syscall.EAGAIN, true},
		{syscall.EACCES, true},
		{&fs.PathError{Op: "open", Path: "LOCK", Err: syscall.EACCES}, false},
		{missing, false},
		{errors.New("disk on fire"), false},
	} {
		got := pebblefs.LockError(tt.err, held)
		require.ErrorIs(t, got, tt.err)
		require.Equal(t, tt.held, errors.Is(got, held), "%v", tt.err)
	}
}
