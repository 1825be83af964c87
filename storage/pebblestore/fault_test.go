package pebblestore_test

import (
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/storage"
	"github.com/tidemark-log/tidemark/storage/pebblestore"
)

var errDisk = errors.New("disk on fire")

// fault is a way in which a disk fails.
type fault struct {
	which func(errorfs.Op) bool
	err   error
	once  bool // the k-th such operation only, else all from it on
	torn  bool // half of what is written gets there
}

var everyFault = map[string]fault{
	"a write":           {which: notSyncs, err: errDisk, once: true},
	"all writes":        {which: notSyncs, err: errDisk},
	"a sync":            {which: syncs, err: errDisk, once: true},
	"all syncs":         {which: syncs, err: errDisk},
	"a torn write":      {which: of("", errorfs.OpFileWrite), err: errDisk, once: true, torn: true},
	"a full disk":       {which: takesSpace, err: syscall.ENOSPC},
	"a full disk, torn": {which: takesSpace, err: syscall.ENOSPC, torn: true},
	"everything":        {which: writes, err: errDisk},
}

func syncs(op errorfs.Op) bool {
	return op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData || op.Kind == errorfs.OpFileSyncTo
}

func notSyncs(op errorfs.Op) bool { return writes(op) && !syncs(op) }

// takesSpace is true also of syncs: some file systems find out only then.
func takesSpace(op errorfs.Op) bool {
	return writes(op) && op.Kind != errorfs.OpRemove && op.Kind != errorfs.OpFileClose && op.Kind != errorfs.OpLock
}

// failing is a file system with a fault from its k-th operation on.
type failing struct {
	vfs.FS
	fault
	k       int64
	n       atomic.Int64
	reached atomic.Bool
}

func (f fault) on(fs vfs.FS, k int64) *failing {
	x := &failing{fault: f, k: k}
	x.FS = errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if f.torn && op.Kind == errorfs.OpFileWrite {
			return nil // see tornFile
		}
		return x.next(op)
	}))
	return x
}

func (x *failing) next(op errorfs.Op) error {
	if !x.which(op) {
		return nil
	}
	if i := x.n.Add(1) - 1; i < x.k || i > x.k && x.once {
		return nil
	}
	x.reached.Store(true)
	return x.err
}

func (x *failing) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := x.FS.Create(name, c)
	return tornFile{f, x, name}, err
}

func (x *failing) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := x.FS.ReuseForWrite(from, to, c)
	return tornFile{f, x, to}, err
}

// tornFile writes a half where it fails.
type tornFile struct {
	vfs.File
	fs   *failing
	path string
}

func (f tornFile) Write(p []byte) (int, error) {
	if f.fs.torn {
		if err := f.fs.next(errorfs.Op{Kind: errorfs.OpFileWrite, Path: f.path}); err != nil {
			n, _ := f.File.Write(p[:len(p)/2])
			return n, err
		}
	}
	return f.File.Write(p)
}

// fails goes through the mix on a disk that fails at its k-th operation, with the
// store opened again as often as given.
func (f fault) fails(t *testing.T, k int64, reopen int) (h *history, mem *crashMem, reached bool) {
	mem = newCrashMem()
	fs := f.on(mem, k)
	h = newHistory()
	for failures := 0; failures <= reopen && len(h.steps) > 0; {
		s, err := h.open(tiny(fs))
		if err == nil {
			if err = h.life(s); err != nil {
				require.ErrorIs(t, err, storage.ErrPoisoned, "place %d", k)
			}
		}
		if err != nil {
			failures++
			require.ErrorIs(t, err, f.err, "place %d", k)
			require.NotErrorIs(t, err, pebblestore.ErrAbandoned, "place %d", k)
		}
		require.NoError(t, h.problem, "place %d", k)
	}
	return h, mem, fs.reached.Load()
}

// An error at each write and each sync in turn, for once or for good, and then the
// power fails. No panic, no exit, every done is called and none of them lies, Close
// returns, and the disk holds a prefix that has all that was promised.
func TestEveryWriteFails(t *testing.T) {
	seed := faultSeed(t)
	for name, f := range everyFault {
		t.Run(name, func(t *testing.T) {
			places(t, seed, 17, func(k int64) (beyond bool) {
				h, mem, reached := f.fails(t, k, 0)
				least, most := h.bounds()
				c := cut{fs: mem.cut(0, nil), span: h.span(least, most), rng: rand.New(rand.NewPCG(seed, uint64(k)))}
				require.NoError(t, c.check(), "place %d", k)
				return !reached
			})
		})
	}
}

// A store that the disk has failed is closed and opened again in the same process,
// where it can be, and once the disk is sound the mix goes on to its end. Whoever was
// told that all is well finds all there, and clean; whoever finds it clean as well.
func TestEveryWriteFailsAndReopen(t *testing.T) {
	seed := faultSeed(t)
	for name, f := range everyFault {
		t.Run(name, func(t *testing.T) {
			places(t, seed, 31, func(k int64) (beyond bool) {
				h, mem, reached := f.fails(t, k, 2)
				h.all(t, tiny(mem))
				s, err := h.open(tiny(mem))
				require.NoError(t, err, "place %d", k)
				require.NoError(t, s.Close())
				require.NoError(t, h.problem, "place %d", k)
				return !reached
			})
		})
	}
}
