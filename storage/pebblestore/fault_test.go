package pebblestore_test

import (
	"errors"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/storage"
	"github.com/tidemark-log/tidemark/storage/pebblestore"
)

var errDisk = errors.New("disk on fire")

// failFrom makes the k-th write fail, and when always is set all later ones too.
func failFrom(k int64, always bool) (inject errorfs.Injector, reached *atomic.Bool) {
	var n atomic.Int64
	reached = &atomic.Bool{}
	return errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() != errorfs.OpIsWrite {
			return nil
		}
		if i := n.Add(1) - 1; i < k || i > k && !always {
			return nil
		}
		reached.Store(true)
		return errDisk
	}), reached
}

// work opens a store and writes enough for several memtables, tables and
// compactions. It returns what was promised.
func work(t *testing.T, fs vfs.FS) (ends []int64, promised int) {
	o := small(fs)
	s, err := pebblestore.Open("d", o)
	if err != nil {
		require.ErrorIs(t, err, errDisk)
		return []int64{0}, 0
	}
	var d dones
	ends = []int64{0}
	at, start := int64(0), int64(0)
	for i := range 24 {
		op := appendOp(logA, at, batchAt(at, 1, 30_000), batchAt(at+1, 1, 100))
		at = op.End
		ops := []storage.Op{op}
		if i%8 == 7 {
			start = at - 3
			ops = append(ops, storage.Op{Log: logA, Kind: storage.Trim, Offset: start})
		}
		ends = append(ends, at)
		s.Write(ops, true, d.expect(i, true))
		if i%6 == 5 {
			d.all.Wait()
			_, err := s.Read(logA, at-1, 1000)
			_ = err // may fail when the store did; must not panic or hang
		}
	}
	d.all.Wait()
	require.Empty(t, d.problem)
	health := s.Health()
	if d.failed != nil {
		require.ErrorIs(t, d.failed, storage.ErrPoisoned)
		require.ErrorIs(t, d.failed, errDisk)
		require.ErrorIs(t, health.Err, errDisk)
		require.ErrorIs(t, write(s, appendOp(logB, 0, batchAt(0, 1, 1))).Err, storage.ErrPoisoned)
		require.ErrorIs(t, s.SetNode(s.Node()), storage.ErrPoisoned)
	}
	err = s.Close()
	if d.failed != nil {
		require.ErrorIs(t, err, errDisk)
	}
	require.NotErrorIs(t, err, pebblestore.ErrAbandoned)
	return ends, d.promised()
}

// One write or sync fails, each in turn. No panic, no exit, every done is called,
// Close returns, and the disk holds a prefix that has all that was promised.
func TestEveryWriteFails(t *testing.T) {
	// Whether the disk recovers makes little difference: nothing is tried again.
	for _, always := range []bool{false, true} {
		step := int64(1)
		if always {
			step = 7
		}
		for k := int64(0); ; k += step {
			mem := vfs.NewCrashableMem()
			inject, reached := failFrom(k, always)
			ends, promised := work(t, errorfs.Wrap(mem, inject))
			s, err := pebblestore.Open("d", small(mem.CrashClone(vfs.CrashCloneCfg{})))
			require.NoError(t, err, "failing write %d", k)
			end := endOf(t, s, logA)
			require.Contains(t, ends[promised:], end, "failing write %d, always %v", k, always)
			if end > 0 {
				_, err := s.Read(logA, end-1, 1)
				require.NoError(t, err)
			}
			require.NoError(t, s.Close())
			if !reached.Load() {
				t.Logf("%d writes", k)
				require.Equal(t, len(ends)-1, promised)
				break
			}
		}
	}
}
