package local_test

import (
	"bytes"
	"context"
	"fmt"
	"path"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark"
	"github.com/tidemark-log/tidemark/coordination/memory"
	"github.com/tidemark-log/tidemark/storage/pebblestore"
	"github.com/tidemark-log/tidemark/transport/inproc"
)

// TestOneSyncPerAck proves what AcksAll promises: when it returns, the record's
// bytes are synced on every in-sync replica. And what it costs: one sync on each,
// for the high watermark is saved with the next write and never causes one (D13).
func TestOneSyncPerAck(t *testing.T) {
	const appends = 60
	ctx := deadline(t)
	w := openWatched(ctx, t)
	p := w.inSync(ctx, t)
	before := make([]int, len(w.disks))
	for i, d := range w.disks {
		before[i] = d.syncs()
	}
	for i := range appends {
		// 1 KiB that begins and ends with the mark: the write-ahead log has a chunk
		// header every 32 KiB, which can cut only one of the two.
		mark := fmt.Appendf(nil, "<record %04d>", i)
		value := padded(mark, 1024)
		for _, d := range w.disks {
			require.False(t, d.hasSynced(mark), "synced before it was appended")
		}
		_, err := p.Append(ctx, tidemark.Record{Value: value})
		require.NoError(t, err)
		for id, d := range w.disks {
			require.True(t, d.hasSynced(mark), "append %d was acknowledged before broker %d had synced it", i, id+1)
			require.Equal(t, i+1, d.syncs()-before[id], "syncs of broker %d after %d lone appends", id+1, i+1)
		}
	}
	status, err := p.Status(ctx)
	require.NoError(t, err)
	require.Len(t, status.ISR, 3, "the appends did not wait for every replica")
}

// TestBlockedSyncHoldsAck blocks the disk of one broker after the other: no append
// with AcksAll may be acknowledged meanwhile, whatever the other two have.
func TestBlockedSyncHoldsAck(t *testing.T) {
	ctx := deadline(t)
	w := openWatched(ctx, t)
	p := w.inSync(ctx, t)
	status, err := p.Status(ctx)
	require.NoError(t, err)
	leader := status.Leader
	for id := int32(1); id <= 3; id++ {
		role := "follower"
		if id == leader {
			role = "leader"
		}
		t.Run(fmt.Sprintf("broker %d, %s", id, role), func(t *testing.T) { blockOne(ctx, t, w, p, leader, id) })
	}
}

func blockOne(ctx context.Context, t *testing.T, w *watched, p *tidemark.Partition, leader, blocked int32) {
	disk := w.disks[blocked-1]
	held := fmt.Appendf(nil, "held by broker %d", blocked)
	w.othersStored(ctx, t, leader, 0)
	committed, err := p.Offsets(ctx)
	require.NoError(t, err)
	require.Equal(t, committed.LogEnd, committed.HighWatermark)
	waiting, release := disk.block()
	defer release()

	acked := make(chan error, 1)
	go func() {
		_, err := p.Append(ctx, tidemark.Record{Value: held})
		acked <- err
	}()
	<-waiting
	if blocked != leader {
		// The leader's own disk is enough for AcksLeader, with the other one still waiting.
		res, err := p.AppendWith(ctx, tidemark.AppendOptions{Acks: tidemark.AcksLeader}, tidemark.Record{Value: []byte("leader's")})
		require.NoError(t, err)
		require.Equal(t, committed.LogEnd+1, res.Base)
	}
	w.othersStored(ctx, t, leader, blocked)

	// What the leader knows now would commit the record if it did not wait for the
	// blocked one. The second look is a turn later, so that all has taken effect.
	rep, err := w.brokers[leader-1].Replica(ctx, "watched", 0)
	require.NoError(t, err)
	require.Equal(t, committed.HighWatermark, rep.HighWatermark, "committed without broker %d", blocked)
	require.Less(t, rep.HighWatermark, rep.LogEnd)
	select {
	case err := <-acked:
		require.FailNow(t, "acknowledged while a replica's sync was blocked", "error: %v", err)
	default:
	}

	release()
	require.NoError(t, <-acked)
	require.True(t, disk.hasSynced(held))
	rep, err = w.brokers[leader-1].Replica(ctx, "watched", 0)
	require.NoError(t, err)
	require.Greater(t, rep.HighWatermark, committed.HighWatermark)
}

// padded returns n bytes that begin and end with mark.
func padded(mark []byte, n int) []byte {
	out := append(bytes.Clone(mark), bytes.Repeat([]byte{'.'}, n-2*len(mark))...)
	return append(out, mark...)
}

// watched is a cluster of three brokers whose write-ahead logs are looked at.
type watched struct {
	disks   []*disk
	brokers []*tidemark.Broker
	client  *tidemark.Client
}

// openWatched opens the cluster. Its limits are so wide that nobody loses a role
// or leaves the ISR because of a disk that is blocked.
func openWatched(ctx context.Context, t *testing.T) *watched {
	w := &watched{}
	network := inproc.New(inproc.Options{})
	coord := memory.New(memory.Options{})
	t.Cleanup(func() { require.NoError(t, coord.Close()) })
	for id := int32(1); id <= 3; id++ {
		d := &disk{FS: vfs.NewMem(), wal: map[*walFile]bool{}}
		store, err := pebblestore.Open("data", pebblestore.Options{FS: d})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, store.Close()) })
		client := coord.Connect()
		t.Cleanup(func() { require.NoError(t, client.Close()) })
		b, err := tidemark.Open(ctx, tidemark.Config{
			ID: id, Address: fmt.Sprintf("inproc:%d", id), Store: store, Coordination: client, Transport: network.Transport(id),
			SessionTimeout: time.Minute, MaxLag: time.Minute, StoreStallLimit: time.Minute,
		})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, b.Close()) })
		w.disks = append(w.disks, d)
		w.brokers = append(w.brokers, b)
	}
	for _, b := range w.brokers {
		require.NoError(t, b.Ready(ctx))
	}
	w.client = tidemark.NewClient(func() []*tidemark.Broker { return w.brokers }, tidemark.ClientOptions{})
	return w
}

// inSync makes the partition, and returns it once it has three members, all of
// which have stored all there is.
func (w *watched) inSync(ctx context.Context, t *testing.T) *tidemark.Partition {
	require.NoError(t, w.client.Controller().EnsureTopic(ctx, "watched", tidemark.TopicConfig{
		Partitions: 1, ReplicationFactor: 3, MinISR: 2,
	}))
	p := w.client.Partition("watched", 0)
	for {
		_, err := p.Append(ctx, tidemark.Record{Value: []byte("first")})
		require.NoError(t, err)
		status, err := p.Status(ctx)
		require.NoError(t, err)
		if len(status.ISR) == 3 {
			w.othersStored(ctx, t, status.Leader, 0)
			return p
		}
	}
}

// othersStored waits until the leader knows that everybody but one broker has
// stored the whole log.
func (w *watched) othersStored(ctx context.Context, t *testing.T, leader, but int32) {
	for {
		rep, err := w.brokers[leader-1].Replica(ctx, "watched", 0)
		require.NoError(t, err)
		all := leader == but || rep.StoredEnd == rep.LogEnd
		for id := int32(1); id <= 3; id++ {
			lag, known := rep.Lags[id]
			all = all && (id == leader || id == but || known && lag == 0)
		}
		if all {
			return
		}
		require.NoError(t, ctx.Err())
	}
}

// disk is a file system that knows what of the write-ahead logs is synced.
type disk struct {
	vfs.FS

	mu      sync.Mutex
	wal     map[*walFile]bool
	done    int           // syncs of a write-ahead log that have returned
	gate    chan struct{} // not nil: syncs wait until it is closed
	waiting chan struct{} // closed by the first that waits
}

// block makes syncs wait until release is called; waiting is closed when one does.
func (d *disk) block() (waiting <-chan struct{}, release func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.gate, d.waiting = make(chan struct{}), make(chan struct{})
	return d.waiting, sync.OnceFunc(func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		close(d.gate)
		d.gate = nil
	})
}

func (d *disk) syncs() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.done
}

// hasSynced reports whether the bytes are in what is synced of a write-ahead log.
func (d *disk) hasSynced(what []byte) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for f := range d.wal {
		if bytes.Contains(f.written[:f.synced], what) {
			return true
		}
	}
	return false
}

func (d *disk) watch(name string, f vfs.File, err error) (vfs.File, error) {
	if err != nil || !strings.HasSuffix(path.Base(name), ".log") {
		return f, err
	}
	w := &walFile{File: f, disk: d}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.wal[w] = true
	return w, nil
}

func (d *disk) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := d.FS.Create(name, c)
	return d.watch(name, f, err)
}

func (d *disk) ReuseForWrite(old, name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := d.FS.ReuseForWrite(old, name, c)
	return d.watch(name, f, err)
}

// walFile is a write-ahead log: written by one goroutine from its start on.
type walFile struct {
	vfs.File
	disk    *disk
	written []byte // guarded by disk.mu, like synced
	synced  int
}

func (f *walFile) Write(p []byte) (int, error) {
	content := bytes.Clone(p) // the file below may change p
	n, err := f.File.Write(p)
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	f.written = append(f.written, content[:n]...)
	return n, err
}

func (f *walFile) Sync() error     { return f.sync(f.File.Sync) }
func (f *walFile) SyncData() error { return f.sync(f.File.SyncData) }

func (f *walFile) SyncTo(length int64) (full bool, err error) {
	full, err = f.File.SyncTo(length)
	if full && err == nil {
		err = f.sync(func() error { return nil })
	}
	return full, err
}

func (f *walFile) sync(inner func() error) error {
	d := f.disk
	d.mu.Lock()
	upTo, gate := len(f.written), d.gate
	if gate != nil {
		select {
		case <-d.waiting:
		default:
			close(d.waiting)
		}
	}
	d.mu.Unlock()
	if gate != nil {
		<-gate
	}
	err := inner()
	if err == nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		f.synced = max(f.synced, upTo)
		d.done++
	}
	return err
}
