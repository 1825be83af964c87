package pebblestore_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tidemark-log/tidemark/storage"
	"github.com/tidemark-log/tidemark/storage/pebblestore"
	"github.com/tidemark-log/tidemark/storage/storagetest"
)

// probe turns a failed requirement into an answer.
type probe struct{ said string }

func (p *probe) Errorf(format string, args ...any) { p.said = fmt.Sprintf(format, args...) }
func (p *probe) FailNow()                          { panic(p) }

// shows tells whether the store is in the state of the model.
func shows(s storage.Store, m *storagetest.Model) (said string) {
	p := &probe{}
	defer func() {
		if r := recover(); r != nil && r != any(p) {
			panic(r)
		}
		said = p.said
	}()
	m.Check(p, s)
	return ""
}

// A power cut at any moment leaves a prefix of the groups, no shorter than what
// was promised, and each of them whole.
func TestPowerCut(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		mem := vfs.NewCrashableMem()
		model := storagetest.NewModel()
		for range rapid.IntRange(1, 3).Draw(rt, "lives") {
			s, err := pebblestore.Open("d", small(mem))
			require.NoError(rt, err)
			require.NoError(rt, told(s))
			require.Empty(rt, shows(s, model))
			models := []*storagetest.Model{model.Clone()}
			var d dones
			for i := range rapid.IntRange(0, 20).Draw(rt, "groups") {
				ops := model.DrawGroup(rt)
				model.Apply(ops)
				models = append(models, model.Clone())
				synced := rapid.IntRange(0, 3).Draw(rt, "unsynced") > 0
				s.Write(ops, synced, d.expect(i, synced))
				if rapid.IntRange(0, 5).Draw(rt, "wait") == 0 {
					d.all.Wait()
				}
			}
			promised := d.promised()
			percent := rapid.SampledFrom([]int{0, 0, 10, 50, 90, 100}).Draw(rt, "unsynced data kept")
			crashed := mem.CrashClone(vfs.CrashCloneCfg{
				UnsyncedDataPercent: percent,
				RNG:                 rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 1)),
			})
			require.NoError(rt, s.Close())
			d.all.Wait()
			require.Empty(rt, d.problem)
			require.NoError(rt, d.failed)

			mem = crashed
			s, err = pebblestore.Open("d", small(mem))
			require.NoError(rt, err)
			require.True(rt, s.Node().Unclean)
			found, said := -1, ""
			for k := promised; k < len(models) && found < 0; k++ {
				if said = shows(s, models[k]); said == "" {
					found = k
				}
			}
			require.NoError(rt, s.Close())
			require.GreaterOrEqual(rt, found, 0, "of %d groups %d were promised; the store shows no such prefix: %s", len(models)-1, promised, said)
			model = models[found]
			model.Reopen()
		}
	})
}

// Fence on a real disk: what a killed process leaves.
func TestFence(t *testing.T) {
	dir := t.TempDir()
	at := int64(0)
	for range 5 {
		s := open(t, dir, small(vfs.Default))
		require.Equal(t, at, endOf(t, s, logA))
		var d dones
		const groups = 40
		ends := []int64{at}
		next := at
		for i := range groups {
			op := appendOp(logA, next, batchAt(next, 2, 5000))
			next = op.End
			ends = append(ends, next)
			s.Write([]storage.Op{op}, true, d.expect(i, true))
			if i == groups/2 {
				d.all.Wait()
			}
		}
		require.NoError(t, s.Fence())
		promised := d.promised()
		d.all.Wait() // before Fence returned
		require.Empty(t, d.problem)
		require.GreaterOrEqual(t, promised, groups/2)
		_, err := s.Read(logA, 0, 1)
		require.ErrorIs(t, err, storage.ErrClosed)
		require.ErrorIs(t, write(s, appendOp(logA, next, batchAt(next, 1, 1))).Err, storage.ErrClosed)

		again := open(t, dir, small(vfs.Default)) // at once
		at = endOf(t, again, logA)
		require.Contains(t, ends[promised:], at)
		require.NoError(t, s.Close())
		require.NoError(t, s.Fence())
		require.NoError(t, write(again, appendOp(logA, at, batchAt(at, 1, 1))).Err)
		at++
		require.NoError(t, again.Close())
	}
}

// A power cut at any step of a first open, whatever part of the unsynced data it
// keeps, leaves a directory that opens, and as often as one likes.
func TestPowerCutWhileMade(t *testing.T) {
	type crash struct {
		fs *vfs.MemFS
		at string
	}
	var mu sync.Mutex
	var crashes []crash
	mem := vfs.NewCrashableMem()
	rng := rand.New(rand.NewPCG(3, 5))
	fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() != errorfs.OpIsWrite || op.Kind == errorfs.OpFileClose {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		for _, percent := range []int{0, 20, 30, 40, 50, 50, 50, 60, 70, 80, 100} {
			clone := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng})
			crashes = append(crashes, crash{clone, fmt.Sprintf("%v %s, %d %%", op.Kind, op.Path, percent)})
		}
		return nil
	}))
	s := open(t, "a/d", small(fs))
	node := s.Node()
	require.NoError(t, s.Close())
	clone := mem.CrashClone(vfs.CrashCloneCfg{})
	require.Greater(t, len(crashes), 100)
	for i, c := range crashes {
		s, err := pebblestore.Open("a/d", small(c.fs))
		require.NoError(t, err, "crash %d: %s", i, c.at)
		require.Empty(t, shows(s, storagetest.NewModel()))
		require.NoError(t, s.Close(), "crash %d: %s", i, c.at)
	}
	again := open(t, "a/d", small(clone))
	require.Equal(t, node, again.Node(), "the directory's entry survives")
	require.NoError(t, again.Close())
}

// A power cut at any step of a Close, and of the open that follows, whatever part of
// the unsynced data it keeps: a store that looks clean has everything, and no open
// looks clean once the one before it has written.
func TestPowerCutAroundCleanClose(t *testing.T) {
	type crash struct {
		fs    *vfs.MemFS
		wrote bool
		at    string
	}
	var mu sync.Mutex
	var crashes []crash
	mem := vfs.NewCrashableMem()
	rng := rand.New(rand.NewPCG(11, 5))
	watching, wrote := false, false
	fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() != errorfs.OpIsWrite {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		for _, percent := range []int{0, 30, 60, 100} {
			if watching {
				clone := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng})
				crashes = append(crashes, crash{clone, wrote, fmt.Sprintf("%v %s, %d %%", op.Kind, op.Path, percent)})
			}
		}
		return nil
	}))
	watch := func(w *bool) {
		mu.Lock()
		defer mu.Unlock()
		*w = true
	}
	s := open(t, "d", small(fs))
	watch(&watching)
	const groups = 8
	var d dones
	for i := range int64(groups) {
		s.Write([]storage.Op{appendOp(logA, i, batchAt(i, 1, 3_000))}, false, d.expect(int(i), false))
	}
	require.NoError(t, s.Close())
	s = open(t, "d", small(fs))
	require.False(t, s.Node().Unclean)
	watch(&wrote)
	s.Write([]storage.Op{{Log: logA, Kind: storage.Delete}}, false, d.expect(groups, false))
	d.all.Wait()
	require.NoError(t, s.Fence())
	require.NoError(t, s.Close())
	require.NoError(t, d.failed)

	clean := 0
	for i, c := range crashes {
		s, err := pebblestore.Open("d", small(c.fs))
		require.NoError(t, err, "crash %d: %s", i, c.at)
		if !s.Node().Unclean {
			clean++
			require.False(t, c.wrote, "crash %d: %s", i, c.at)
			require.EqualValues(t, groups, endOf(t, s, logA), "crash %d: %s", i, c.at)
		}
		require.NoError(t, s.Close())
	}
	require.Positive(t, clean)
	require.Greater(t, len(crashes), clean)
}
