package faultfs_test

import (
	"io"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tidemark-log/tidemark/chaos/internal/faultfs"
	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/storage"
	"github.com/tidemark-log/tidemark/storage/pebblestore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestFull(t *testing.T) {
	mem, d := vfs.NewMem(), &faultfs.Disk{}
	fs := d.Wrap(mem)
	f, err := fs.Create("f", vfs.WriteCategoryUnspecified)
	require.NoError(t, err)
	_, err = f.Write([]byte("ok"))
	require.NoError(t, err)
	d.SetFull(true)
	n, err := f.Write([]byte("1234"))
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.Equal(t, 2, n, "a write is torn")
	_, err = fs.Create("g", vfs.WriteCategoryUnspecified)
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.ErrorIs(t, fs.MkdirAll("dir", 0o755), syscall.ENOSPC)
	require.NoError(t, f.Sync())
	require.NoError(t, fs.Rename("f", "h"))
	d.SetFull(false)
	_, err = f.Write([]byte("5"))
	require.NoError(t, err)
	require.NoError(t, f.Close())
	g, err := fs.Open("h")
	require.NoError(t, err)
	all, err := io.ReadAll(g)
	require.NoError(t, err)
	require.Equal(t, "ok125", string(all))
	require.NoError(t, g.Close())
}

func TestStalled(t *testing.T) {
	d := &faultfs.Disk{}
	f, err := d.Wrap(vfs.NewMem()).Create("f", vfs.WriteCategoryUnspecified)
	require.NoError(t, err)
	d.SetStalled(true)
	d.SetStalled(true)
	done := make(chan error, 2)
	go func() {
		_, err := f.Write([]byte("x"))
		done <- err
	}()
	go func() { done <- f.Sync() }()
	require.Eventually(t, func() bool { return d.Hung() == 2 }, 10*time.Second, time.Millisecond)
	require.Empty(t, done)
	d.SetStalled(false)
	require.NoError(t, <-done)
	require.NoError(t, <-done)
	require.NoError(t, f.Close())
}

// A store on a disk that is full fails, and is as good as new once there is room and
// it was opened again.
func TestStoreOnFullDisk(t *testing.T) {
	dir, d := t.TempDir(), &faultfs.Disk{}
	o := pebblestore.Options{FS: d.Wrap(vfs.Default)}
	s, err := pebblestore.Open(dir, o)
	require.NoError(t, err)
	id := storage.LogID{Topic: protocol.UUID{1}}
	write := func(s storage.Store) error {
		done := make(chan error, 1)
		s.Write([]storage.Op{{Log: id, Kind: storage.Meta}}, true, func(r storage.Result) { done <- r.Err })
		return <-done
	}
	require.NoError(t, write(s))
	d.SetFull(true)
	require.ErrorIs(t, write(s), syscall.ENOSPC)
	require.Error(t, s.Health().Err)
	require.Error(t, s.Close())
	_, err = pebblestore.Open(dir, o)
	require.Error(t, err)
	d.SetFull(false)
	s, err = pebblestore.Open(dir, o)
	require.NoError(t, err)
	require.NoError(t, write(s))
	require.NoError(t, s.Close())
}
