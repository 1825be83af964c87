package pebblestore_test

import (
	"bytes"
	"hash/crc32"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/storage"
	"github.com/tidemark-log/tidemark/storage/pebblestore"
)

// gate holds operations back, and makes them fail.
type gate struct {
	mu    sync.Mutex
	which func(errorfs.Op) bool // what hangs; nil: nothing
	until chan struct{}         // closed by open
	hung  chan struct{}         // closed when something hangs
	err   error
}

func newGate() *gate { return &gate{} }

// hang makes the operations hang that which chooses, until open. The channel is closed
// when one does.
func (g *gate) hang(which func(errorfs.Op) bool) <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.which, g.until, g.hung = which, make(chan struct{}), make(chan struct{})
	return g.hung
}

// open ends hang.
func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.which != nil {
		close(g.until)
		g.which = nil
	}
}

// fail makes writes fail with err, those that hang too once they do not.
func (g *gate) fail(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.err = err
}

func (g *gate) String() string { return "gate" }

func (g *gate) MaybeError(op errorfs.Op) error {
	g.mu.Lock()
	until := g.until
	if g.which == nil || !g.which(op) {
		until = nil
	} else {
		select {
		case <-g.hung:
		default:
			close(g.hung)
		}
	}
	g.mu.Unlock()
	if until != nil {
		<-until
	}
	if !writes(op) {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.err
}

func writes(op errorfs.Op) bool { return op.Kind.ReadOrWrite() == errorfs.OpIsWrite }

// A hang that ends within the bound costs nothing.
func TestSlowDisk(t *testing.T) {
	mem := vfs.NewCrashableMem()
	g := newGate()
	s := open(t, "d", small(errorfs.Wrap(mem, g)))
	hung := g.hang(wal)
	var d dones
	s.Write([]storage.Op{appendOp(logA, 0, batchAt(0, 3, 10))}, true, d.expect(0, true))
	<-hung
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	g.open()
	require.NoError(t, <-closed)
	require.Equal(t, 1, d.promised())
}

func wal(op errorfs.Op) bool { return writes(op) && strings.HasSuffix(op.Path, ".log") }

// of chooses operations by kind and by what their path contains.
func of(part string, kinds ...errorfs.OpKind) func(errorfs.Op) bool {
	return func(op errorfs.Op) bool { return slices.Contains(kinds, op.Kind) && strings.Contains(op.Path, part) }
}

// hang is one case of TestEveryCallHangs.
type hang struct {
	which func(errorfs.Op) bool
	reads bool // so may reads
	once  bool // one call, else the k-th and all that come later
	fence bool // the store is ended by Fence, else by Close
	alive bool // the next store is at work when the calls come back, else it is closed
}

// on holds back what hangs from the k-th on.
func (x hang) on(g *gate, k int64) <-chan struct{} {
	n := int64(-1)
	return g.hang(func(op errorfs.Op) bool {
		if !x.which(op) {
			return false
		}
		n++
		return n == k || n > k && !x.once
	})
}

// hung is a mix that hangs.
type hung struct {
	hang
	t     *testing.T
	mem   *crashMem
	g     *gate
	h     *history
	old   *pebblestore.Store // whose call it is
	ended chan error         // the mix is over
	least int                // of the line, when it began to hang
}

// at goes through the mix until the k-th call hangs; nil: that is over. It runs in
// virtual time, which stands still during a hang of Open: there Pebble has a lock for
// which others wait.
func (x hang) at(t *testing.T, k int64) (w *hung, beyond bool) {
	w = &hung{hang: x, t: t, mem: newCrashMem(), g: newGate(), h: newHistory(), ended: make(chan error, 1)}
	w.h.unread = true
	begun := x.on(w.g, k)
	var current atomic.Pointer[pebblestore.Store] // nil during Open
	go func() {
		var err error
		for s := (*pebblestore.Store)(nil); len(w.h.steps) > 0 && err == nil; {
			current.Store(nil)
			if s, err = w.h.open(tiny(errorfs.Wrap(w.mem, w.g))); err == nil {
				current.Store(s)
				err = w.h.life(s)
			}
		}
		w.ended <- err
	}()
	select {
	case <-begun:
	case err := <-w.ended:
		require.NoError(t, err)
		w.g.open()
		return nil, true
	}
	if w.old = current.Load(); w.old == nil { // Open waits as long as it takes, and has lost nothing then
		w.g.open()
		require.NoError(t, <-w.ended)
		require.NoError(t, w.h.problem)
		return nil, false
	}
	w.least, _ = w.h.bounds()
	return w, false
}

// end ends the store that hangs, after a while.
func (w *hung) end() {
	t, h := w.t, w.h
	defer w.g.open()
	if err := h.dones.failure(); err != nil { // a Close of the mix has given up
		require.ErrorIs(t, err, storage.ErrClosed, "dones wait")
	}
	start := time.Now()
	if w.fence {
		if err := w.old.Fence(); err != nil || !w.reads { // Fence does not wait for reads
			require.ErrorIs(t, err, pebblestore.ErrAbandoned)
		}
		require.LessOrEqual(t, time.Since(start), closeTimeout)
	} else {
		require.ErrorIs(t, w.old.Close(), pebblestore.ErrAbandoned)
		require.LessOrEqual(t, time.Since(start), 2*closeTimeout)
	}
	require.ErrorIs(t, w.old.Health().Err, storage.ErrClosed)
	if err := <-w.ended; err != nil {
		require.ErrorIs(t, err, pebblestore.ErrAbandoned)
	}
	require.LessOrEqual(t, h.closeTook, 2*closeTimeout)
	if err := h.dones.failure(); err != nil {
		require.ErrorIs(t, err, storage.ErrClosed)
	}
	_, most := h.bounds()
	c := cut{fs: w.mem.cut(0, nil), span: h.span(w.least, most), rng: rand.New(rand.NewPCG(1, 1))}
	require.NoError(t, c.check(), "power cut")
	w.goOn()
}

// goOn opens the store again beside the old one, whose calls come back.
func (w *hung) goOn() {
	t, h, o := w.t, w.h, tiny(w.mem)
	s, err := h.open(o)
	require.NoError(t, err)
	require.NoError(t, h.problem)
	if w.alive {
		w.g.open() // from here on the old one's calls return
	}
	require.NoError(t, h.life(s))
	h.all(t, o)
	before := files(t, w.mem, "d")
	w.g.open()
	<-w.old.Released()
	if !w.alive {
		require.Equal(t, before, files(t, w.mem, "d"))
	}
	s, err = h.open(o)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	require.NoError(t, h.problem)
}

const closeTimeout = 10 * time.Second // the default

// A disk that stops to answer at any call of the mix: groups that are not done wait,
// Close and Fence end in bounded time all the same, and the directory can be opened
// again and used while calls of the old store are still inside the disk. When they
// come back they change nothing.
func TestEveryCallHangs(t *testing.T) {
	seed := faultSeed(t)
	theMix() // not in a bubble
	for name, x := range map[string]hang{
		"a write":   {which: writes, once: true},
		"all calls": {which: func(errorfs.Op) bool { return true }, reads: true},
		"all syncs": {which: syncs},
	} {
		t.Run(name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 2))
			places(t, seed, 17, func(k int64) (beyond bool) {
				for i := range 4 {
					x.fence, x.alive = i&1 == 0, i&2 == 0
					if *faults != "full" {
						x.fence, x.alive = rng.IntN(2) == 0, rng.IntN(2) == 0
					}
					synctest.Test(t, func(t *testing.T) {
						var w *hung
						if w, beyond = x.at(t, k); w != nil {
							time.Sleep(time.Minute)
							w.end()
						}
					})
					require.False(t, t.Failed(), "place %d, fence %v, next store alive %v", k, x.fence, x.alive)
					if *faults != "full" {
						break
					}
				}
				return beyond
			})
		})
	}
}

// hangs are what the disk does not answer in TestAbandonOnDisk.
var hangs = map[string]func(errorfs.Op) bool{
	"new WAL":                  of(".log", errorfs.OpCreate, errorfs.OpReuseForWrite),
	"new table":                of(".sst", errorfs.OpCreate),
	"removal":                  of("", errorfs.OpRemove),
	"clean marker: its rename": of("CLEAN", errorfs.OpRename),
	"any write":                writes,
}

// TestEveryCallHangs on the operating system's files, in real time.
func TestAbandonOnDisk(t *testing.T) {
	for name, which := range hangs {
		t.Run(name, func(t *testing.T) {
			abandon(t, t.TempDir(), which, strings.HasPrefix(name, "clean"))
		})
	}
}

// abandon is one case. late says that only Close makes the calls that hang.
func abandon(t *testing.T, dir string, which func(errorfs.Op) bool, late bool) {
	g := newGate()
	o := small(errorfs.Wrap(vfs.Default, g))
	o.CloseTimeout = 20 * time.Millisecond
	if late {
		o.CloseTimeout = 2 * time.Second // for all that comes before
	}
	old := open(t, dir, o)
	var d dones
	groups := fill(old, &d, 0, 4) // some of it is in tables
	d.all.Wait()
	hung := g.hang(which)
	defer g.open()
	groups = fill(old, &d, groups, 60) // tables, compactions, new WALs: one of them hangs

	if late {
		d.all.Wait()
	} else {
		<-hung
	}
	require.ErrorIs(t, old.Close(), pebblestore.ErrAbandoned)
	d.all.Wait()
	require.Empty(t, d.problem)
	select {
	case <-old.Released():
		t.Fatal("nothing hangs")
	default:
	}

	next := open(t, dir, small(vfs.Default))
	require.True(t, next.Node().Unclean)
	require.NoError(t, told(next))
	at := endOf(t, next, logA)
	require.GreaterOrEqual(t, at, int64(d.promised()))
	require.LessOrEqual(t, at, int64(groups))
	var e dones
	fill(next, &e, int(at), 40)
	e.all.Wait()
	require.NoError(t, e.failed)
	at += 40
	require.NoError(t, next.Close())
	before := files(t, vfs.Default, dir)

	g.open()
	<-old.Released()
	require.Equal(t, before, files(t, vfs.Default, dir))
	next = open(t, dir, small(vfs.Default))
	require.False(t, next.Node().Unclean)
	intact(t, next, at)
	require.NoError(t, next.Close())
}

// fill writes n groups, of which the first is the log's i-th, without waiting.
func fill(s storage.Store, d *dones, i, n int) (next int) {
	for ; n > 0; n-- {
		op := appendOp(logA, int64(i), batchAt(int64(i), 1, 30_000))
		s.Write([]storage.Op{op}, true, d.expect(d.count(), true))
		i++
	}
	return i
}

// intact reads the log [0, end) that fill has written.
func intact(t *testing.T, s storage.Store, end int64) {
	require.Equal(t, end, endOf(t, s, logA))
	for at := int64(0); at < end; at++ {
		r, err := s.Read(logA, at, 1)
		require.NoError(t, err)
		require.True(t, bytes.Equal(batchAt(at, 1, 30_000), r.Batches), "batch %d", at)
	}
}

// files has a sum of each file below dir that somebody may read: not of the manifest
// that the current one has replaced and Pebble keeps, and not of a marker that was
// never finished.
func files(t *testing.T, fs vfs.FS, dir string) map[string]uint32 {
	out := map[string]uint32{}
	names, err := fs.List(dir)
	require.NoError(t, err)
	slices.Sort(names)
	manifest := ""
	for _, name := range names {
		path := fs.PathJoin(dir, name)
		info, err := fs.Stat(path)
		require.NoError(t, err)
		if info.IsDir() {
			maps.Copy(out, files(t, fs, path))
			continue
		}
		if strings.HasSuffix(name, ".new") {
			continue
		}
		if strings.HasPrefix(name, "MANIFEST-") {
			delete(out, manifest)
			manifest = path
		}
		out[path] = crc32.ChecksumIEEE(readFile(t, fs, path))
	}
	return out
}
