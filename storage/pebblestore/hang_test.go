package pebblestore_test

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
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

// hangs are what the disk does not answer in TestAbandon.
var hangs = map[string]func(errorfs.Op) bool{
	"sync of the WAL":            of(".log", errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo),
	"write to the WAL":           of(".log", errorfs.OpFileWrite),
	"new WAL":                    of(".log", errorfs.OpCreate, errorfs.OpReuseForWrite),
	"new table":                  of(".sst", errorfs.OpCreate),
	"write to a table":           of(".sst", errorfs.OpFileWrite),
	"sync of a table":            of(".sst", errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo),
	"write to the manifest":      of("MANIFEST", errorfs.OpFileWrite),
	"sync of the manifest":       of("MANIFEST", errorfs.OpFileSync, errorfs.OpFileSyncData),
	"removal":                    of("", errorfs.OpRemove),
	"sync of the directory":      of("", errorfs.OpFileSync), // tables and WALs use other calls, or come first
	"any write":                  writes,
	"clean marker: new":          of("CLEAN", errorfs.OpCreate),
	"clean marker: its rename":   of("CLEAN", errorfs.OpRename),
	"every call, reads included": func(errorfs.Op) bool { return true },
}

// A disk that does not answer: Close ends in bounded time all the same, and the
// directory can be opened again and used while the calls of the old store are still
// inside the disk. When they come back they change nothing.
func TestAbandon(t *testing.T) {
	for name, which := range hangs {
		for _, end := range []string{"close", "fence"} {
			if strings.HasPrefix(name, "clean") && end == "fence" {
				continue // gets never that far
			}
			for _, alive := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s, %s, next open alive %v", name, end, alive), func(t *testing.T) {
					abandon(t, vfs.NewMem(), "d", which, end, alive, strings.HasPrefix(name, "clean"))
				})
			}
		}
	}
}

// The same on the operating system's files.
func TestAbandonOnDisk(t *testing.T) {
	for _, name := range []string{"new WAL", "new table", "removal", "clean marker: its rename", "any write"} {
		t.Run(name, func(t *testing.T) {
			abandon(t, vfs.Default, t.TempDir(), hangs[name], "close", false, strings.HasPrefix(name, "clean"))
		})
	}
}

// abandon is one case. late says that only Close makes the calls that hang.
func abandon(t *testing.T, fs vfs.FS, dir string, which func(errorfs.Op) bool, how string, alive, late bool) {
	g := newGate()
	o := small(errorfs.Wrap(fs, g))
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
	if how == "close" {
		require.ErrorIs(t, old.Close(), pebblestore.ErrAbandoned)
	} else {
		require.ErrorIs(t, old.Fence(), pebblestore.ErrAbandoned)
	}
	d.all.Wait()
	require.Empty(t, d.problem)
	require.ErrorIs(t, old.Health().Err, storage.ErrClosed)
	select {
	case <-old.Released():
		t.Fatal("nothing hangs")
	default:
	}

	next := open(t, dir, small(fs))
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
	intact(t, next, at)
	var before map[string]uint32
	if !alive {
		require.NoError(t, next.Close())
		before = files(t, fs, dir)
	}

	g.open()
	if alive {
		fill(next, &e, int(at), 30) // while the old one's calls return
		at += 30
	}
	<-old.Released()
	if !alive {
		require.Equal(t, before, files(t, fs, dir))
		next = open(t, dir, small(fs))
		require.False(t, next.Node().Unclean)
	}
	e.all.Wait()
	require.NoError(t, e.failed)
	intact(t, next, at)
	require.NoError(t, next.Fence())
	next = open(t, dir, small(fs))
	require.True(t, next.Node().Unclean, "the old one cannot say otherwise")
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

// files has a sum of each file below dir, apart from the manifest that the current
// one has replaced: Pebble keeps it, but nobody reads it any more.
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
		if strings.HasPrefix(name, "MANIFEST-") {
			delete(out, manifest)
			manifest = path
		}
		out[path] = crc32.ChecksumIEEE(readFile(t, fs, path))
	}
	return out
}

// A store that the disk has failed is closed and opened again in the same process,
// with an error at each write in turn, those of Close and Open too. Whoever was told
// that all is well finds all there, and clean; whoever finds it clean as well.
func TestEveryWriteFailsAndReopen(t *testing.T) {
	for _, always := range []bool{false, true} {
		step := int64(1)
		if always {
			step = 9
		}
		for k := int64(0); ; k += step {
			mem := vfs.NewMem()
			inject, reached := failFrom(k, always)
			broken := &errorfs.Toggle{Injector: inject}
			broken.On()
			fs := errorfs.Wrap(mem, broken)
			at, promised, fine := int64(0), int64(0), true
			for life := range 4 {
				if life == 3 {
					broken.Off() // the disk is repaired
				}
				s, err := pebblestore.Open("d", small(fs))
				if err != nil {
					require.ErrorIs(t, err, errDisk)
					fine = fine && at == 0 // a store that was never made has nothing to regret
					continue
				}
				end := endOf(t, s, logA)
				require.GreaterOrEqual(t, end, promised, "write %d", k)
				require.LessOrEqual(t, end, at, "write %d", k)
				if fine {
					require.Equal(t, at, end, "write %d", k)
				}
				if !s.Node().Unclean {
					require.Equal(t, at, end, "write %d: clean", k)
				}
				if err := told(s); err != nil {
					require.ErrorIs(t, err, errDisk)
				}
				var d dones
				at = int64(fill(s, &d, int(end), 5))
				d.all.Wait()
				promised = max(promised, end+int64(d.promised()))
				err = s.Close()
				if fine = err == nil; !fine {
					require.ErrorIs(t, err, errDisk)
				} else {
					require.Equal(t, at, promised)
				}
			}
			s := open(t, "d", small(mem))
			require.True(t, fine)
			require.False(t, s.Node().Unclean)
			intact(t, s, at)
			require.NoError(t, s.Close())
			if !reached.Load() {
				t.Logf("%d writes", k)
				break
			}
		}
	}
}
