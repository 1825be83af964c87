package pebblefs_test

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tidemark-log/tidemark/internal/pebblefs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type quiet struct{}

func (quiet) Infof(string, ...any)  {}
func (quiet) Errorf(string, ...any) {}
func (quiet) Fatalf(string, ...any) {}

func openDB(fsys vfs.FS) (*pebble.DB, error) {
	return pebble.Open("db", &pebble.Options{
		FS: fsys, Logger: quiet{}, FormatMajorVersion: pebble.FormatWALSyncChunks,
		MaxManifestFileSize: 200, MemTableSize: 64 << 10, // many manifests
	})
}

// A power cut that keeps any part of what was not synced leaves a database that
// opens, at every step from before it is made until after manifests have followed
// each other.
func TestPowerCutBetweenManifestAndMarker(t *testing.T) {
	mem := vfs.NewCrashableMem()
	require.NoError(t, pebblefs.MakeDir(mem, "db"))
	type crash struct {
		fs *vfs.MemFS
		at string
	}
	var mu sync.Mutex
	var crashes []crash
	rng := rand.New(rand.NewPCG(7, 7))
	guard := pebblefs.NewGuard(watched(mem, func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileWrite && strings.HasSuffix(op.Path, ".log") {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		for _, percent := range []int{0, 30, 70} {
			clone := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng})
			crashes = append(crashes, crash{clone, fmt.Sprintf("%v %s, %d %%", op.Kind, op.Path, percent)})
		}
		return nil
	}))
	guard.Live()
	db, err := openDB(guard)
	require.NoError(t, err)
	for i := range 4 {
		require.NoError(t, db.Set([]byte{byte(i)}, make([]byte, 1000), pebble.Sync))
		require.NoError(t, db.Flush())
	}
	require.NoError(t, db.Close())
	require.NoError(t, guard.Err())
	<-guard.Fence()
	require.Greater(t, len(crashes), 100)
	for i, c := range crashes {
		db, err := openDB(c.fs)
		require.NoError(t, err, "crash %d: %s", i, c.at)
		require.NoError(t, db.Close())
	}
}

// Before a marker is made, and again before one is removed, the directory is synced.
func TestDirectoryIsSyncedAroundMarkers(t *testing.T) {
	var ops []string
	mem := vfs.NewMem()
	require.NoError(t, mem.MkdirAll("d", 0o755))
	guard := pebblefs.NewGuard(watched(mem, func(op errorfs.Op) error {
		ops = append(ops, fmt.Sprintf("%v %s", op.Kind, op.Path))
		return nil
	}))
	guard.Live()
	for _, name := range []string{"d/other", "d/marker.x.000002.y"} {
		f, err := guard.Create(name, vfs.WriteCategoryUnspecified)
		require.NoError(t, err)
		require.NoError(t, f.Close())
		require.NoError(t, guard.Remove(name))
	}
	create, remove, sync := fmt.Sprint(errorfs.OpKind(errorfs.OpCreate)), fmt.Sprint(errorfs.OpKind(errorfs.OpRemove)), fmt.Sprint(errorfs.OpKind(errorfs.OpFileSync))
	require.Equal(t, []string{
		create + " d/other", remove + " d/other",
		sync + " d", create + " d/marker.x.000002.y",
		sync + " d", remove + " d/marker.x.000002.y",
	}, ops)
	<-guard.Fence()
}

// What a guard says is synced is what a power cut cannot take: of a new manifest
// nothing, until its name is on the disk too.
func TestSynced(t *testing.T) {
	mem := vfs.NewCrashableMem()
	require.NoError(t, pebblefs.MakeDir(mem, "d"))
	guard := pebblefs.NewGuard(mem)
	guard.Live()
	create := func(name string) vfs.File {
		f, err := guard.Create("d/"+name, vfs.WriteCategoryUnspecified)
		require.NoError(t, err)
		return f
	}
	put := func(f vfs.File, n int) {
		_, err := f.Write(make([]byte, n))
		require.NoError(t, err)
	}
	want := pebblefs.Synced{}
	wal, manifest := create("000005.log"), create(pebblefs.ManifestName(7))
	put(wal, 10)
	put(manifest, 20)
	require.Equal(t, want, guard.Synced())
	require.NoError(t, wal.Sync())
	require.NoError(t, manifest.Sync())
	want.WAL = pebblefs.Position{Num: 5, Bytes: 10}
	require.Equal(t, want, guard.Synced())
	marker := create("marker.manifest.000001.MANIFEST-000007")
	want.Manifest = pebblefs.Position{Num: 7, Bytes: 20}
	require.Equal(t, want, guard.Synced())
	require.True(t, exists(t, mem.CrashClone(vfs.CrashCloneCfg{}), "d/MANIFEST-000007"))
	put(manifest, 1)
	put(wal, 1)
	require.NoError(t, manifest.Sync())
	require.NoError(t, wal.SyncData())
	want.Manifest.Bytes, want.WAL.Bytes = 21, 11
	require.Equal(t, want, guard.Synced())
	next := create("MANIFEST-000009")
	put(next, 5)
	require.NoError(t, next.Sync())
	require.Equal(t, want, guard.Synced())
	require.NoError(t, errors.Join(wal.Close(), manifest.Close(), next.Close(), marker.Close()))
	<-guard.Fence()
}

var errDisk = errors.New("disk on fire")

// The first failure is told once, to whom it may concern, also when that asks late;
// from then on nothing reaches the disk and the caller sees only success.
func TestFailureIsHidden(t *testing.T) {
	mem := vfs.NewMem()
	writes, broken := 0, false
	guard := pebblefs.NewGuard(watched(mem, func(errorfs.Op) error {
		writes++
		if broken {
			return errDisk
		}
		return nil
	}))
	var told []error
	guard.Notify(func(err error) { told = append(told, err) })
	guard.Live()
	f, err := guard.Create("f", vfs.WriteCategoryUnspecified)
	require.NoError(t, err)
	broken = true
	n, err := f.Write([]byte("abc"))
	require.NoError(t, err)
	require.Equal(t, 3, n)
	require.Equal(t, []error{errDisk}, told)
	require.ErrorIs(t, guard.Err(), errDisk)

	reached := writes
	require.NoError(t, f.Sync())
	require.NoError(t, f.Close())
	require.NoError(t, guard.Rename("f", "g"))
	require.NoError(t, guard.Remove("f"))
	require.NoError(t, guard.MkdirAll("d", 0o755))
	g, err := guard.Create("marker.x.000001.y", vfs.WriteCategoryUnspecified)
	require.NoError(t, err)
	require.NoError(t, errors.Join(g.Sync(), g.Close()))
	guard.Fail(errors.New("later"))
	require.Equal(t, reached, writes)
	require.Len(t, told, 1)
	late := 0
	guard.Notify(func(err error) { late++ })
	require.Equal(t, 1, late)
	<-guard.Fence()
}

// Until Live errors are returned: nobody is there yet who does not survive them.
func TestErrorsBeforeLive(t *testing.T) {
	guard := pebblefs.NewGuard(watched(vfs.NewMem(), func(errorfs.Op) error { return errDisk }))
	_, err := guard.Create("f", vfs.WriteCategoryUnspecified)
	require.ErrorIs(t, err, errDisk)
	_, err = guard.Create("marker.x.000001.y", vfs.WriteCategoryUnspecified)
	require.ErrorIs(t, err, errDisk)
	require.ErrorIs(t, guard.MkdirAll("d", 0o755), errDisk)
	require.ErrorIs(t, guard.Err(), errDisk)
}

// closing is a file whose Close hangs.
type closing struct {
	vfs.File
	hung, until chan struct{}
}

func (f closing) Close() error {
	close(f.hung)
	<-f.until
	return f.File.Close()
}

type closingFS struct {
	vfs.FS
	hung, until chan struct{}
}

func (c closingFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := c.FS.Create(name, category)
	return closing{f, c.hung, c.until}, err
}

// Fence does not wait for the disk, also not when a handle cannot be closed.
func TestFenceWhileCloseHangs(t *testing.T) {
	fsys := closingFS{vfs.NewMem(), make(chan struct{}), make(chan struct{})}
	guard := pebblefs.NewGuard(fsys)
	guard.Live()
	_, err := guard.Create("f", vfs.WriteCategoryUnspecified)
	require.NoError(t, err)
	idle := guard.Fence()
	<-fsys.hung
	require.Equal(t, idle, guard.Fence(), "and may be called again")
	require.ErrorIs(t, guard.Err(), pebblefs.ErrFenced)
	require.Zero(t, guard.Writing())
	select {
	case <-idle:
		t.Fatal("the handle is not closed")
	default:
	}
	close(fsys.until)
	<-idle
}

// Fence frees the lock when the write that is under way has returned, not before.
func TestFenceWaitsForWrite(t *testing.T) {
	mem := vfs.NewMem()
	hung, release := make(chan struct{}), make(chan struct{})
	guard := pebblefs.NewGuard(watched(mem, func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileWrite {
			close(hung)
			<-release
		}
		return nil
	}))
	_, err := guard.Lock("LOCK")
	require.NoError(t, err)
	guard.Live()
	f, err := guard.Create("f", vfs.WriteCategoryUnspecified)
	require.NoError(t, err)
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = f.Write([]byte("abc")) })
	<-hung
	idle := guard.Fence()
	require.Equal(t, 1, guard.Writing())
	select {
	case <-idle:
		t.Fatal("fenced under a write")
	default:
	}
	_, err = mem.Lock("LOCK")
	require.Error(t, err)
	close(release)
	<-idle
	wg.Wait()
	lock, err := mem.Lock("LOCK")
	require.NoError(t, err)
	require.NoError(t, lock.Close())
	require.ErrorIs(t, guard.Err(), pebblefs.ErrFenced)
	_, err = guard.Open("f")
	require.ErrorIs(t, err, pebblefs.ErrFenced)
	_, err = f.Read(make([]byte, 1))
	require.ErrorIs(t, err, pebblefs.ErrFenced)

	r, err := mem.Open("f")
	require.NoError(t, err)
	b, err := io.ReadAll(r)
	require.NoError(t, err)
	require.Equal(t, "abc", string(b), "a write that had begun goes through")
	require.NoError(t, r.Close())
}
