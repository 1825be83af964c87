package pebblestore_test

import (
	"errors"
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

// probed is what f requires that does not hold.
func probed(f func(t require.TestingT)) (said string) {
	p := &probe{}
	defer func() {
		if r := recover(); r != nil && r != any(p) {
			panic(r)
		}
		said = p.said
	}()
	f(p)
	return ""
}

// shows tells whether the store is in the state of the model.
func shows(s storage.Store, m *storagetest.Model) (said string) {
	return probed(func(t require.TestingT) { m.Check(t, s) })
}

// A power cut at any moment leaves a prefix of the groups, no shorter than what
// was promised, and each of them whole.
func TestPowerCut(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		mem := newCrashMem()
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
			crashed := mem.cut(percent, rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 1)))
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

// cut is what a power cut leaves.
type cut struct {
	fs    *crashMem
	span  []moment // what it may show
	alive bool     // there was an open store, which nobody closed
	at    string
	rng   *rand.Rand
}

// A power cut before every write, sync, new name and removal of the mix, those of
// opening and closing too, whatever part of the unsynced data it keeps.
func TestPowerCutAtEveryWrite(t *testing.T) {
	seed := faultSeed(t)
	rng := rand.New(rand.NewPCG(seed, 0))
	mem := newCrashMem()
	h := newHistory()
	cuts := make(chan cut)
	var mu sync.Mutex
	n, over := 0, false
	fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		mu.Lock()
		defer mu.Unlock()
		if over || !writes(op) {
			return nil
		}
		percents := []int{0, 50, 100}
		if *faults != "full" {
			percents = []int{percents[rng.IntN(3)]}
		}
		for _, percent := range percents {
			least, _ := h.bounds()
			alive := h.isAlive()
			clone := mem.cut(percent, rng)
			_, most := h.bounds()
			alive = alive && h.isAlive()
			cuts <- cut{clone, h.span(least, most), alive, fmt.Sprintf("write %d (%v %s), %d %%", n, op.Kind, op.Path, percent),
				rand.New(rand.NewPCG(rng.Uint64(), 0))}
		}
		n++
		return nil
	}))
	var checkers sync.WaitGroup
	for range 2 {
		checkers.Go(func() {
			for c := range cuts {
				if err := c.check(); err != nil {
					t.Errorf("%s: %v", c.at, err)
				}
			}
		})
	}
	defer func() {
		mu.Lock()
		over = true
		mu.Unlock()
		close(cuts)
		checkers.Wait()
	}()
	h.all(t, tiny(fs))
	require.Greater(t, n, 300)
}

// check opens what the cut has left: again after another power cut during the open,
// as often as one likes, and to write on.
func (c cut) check() error {
	var second *crashMem
	var mu sync.Mutex
	n, when := 0, c.rng.IntN(40) // in one out of two opens or so
	fs := errorfs.Wrap(c.fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		mu.Lock()
		defer mu.Unlock()
		if writes(op) {
			if n == when {
				second = c.fs.cut(50, c.rng)
			}
			n++
		}
		return nil
	}))
	s, err := pebblestore.Open("d", tiny(fs))
	if err != nil {
		return err
	}
	i, err := found(s, c.span)
	if err != nil {
		return errors.Join(err, s.Close())
	}
	if !s.Node().Unclean && (c.alive || i < len(c.span)-1) {
		err = errors.New("looks clean, but was at work or lacks something")
	}
	m := c.span[i]
	if err = errors.Join(err, s.Fence()); err != nil {
		return err
	}
	for _, fs := range []*crashMem{c.fs, second} {
		if fs == nil {
			continue
		}
		if err := goesOn(fs, m); err != nil {
			return fmt.Errorf("a second time: %w", err)
		}
	}
	return nil
}

// goesOn opens a store that shows m, writes to it and opens it again.
func goesOn(fs vfs.FS, m moment) error {
	s, err := pebblestore.Open("d", tiny(fs))
	if err != nil {
		return err
	}
	if said := m.at(s); said != "" {
		return errors.Join(errors.New(said), s.Close())
	}
	m.model, m.epoch = m.model.Clone(), m.epoch+1
	m.model.Reopen()
	ops := []storage.Op{appendOp(logA, 0, batchAt(0, 2, 100)), {Log: bulkLog, Kind: storage.Delete}}
	m.model.Apply(ops)
	if err = errors.Join(told(s), write(s, ops...).Err, s.Close()); err != nil {
		return err
	}
	if s, err = pebblestore.Open("d", tiny(fs)); err != nil {
		return err
	}
	if said := m.at(s); said != "" || s.Node().Unclean {
		err = fmt.Errorf("what was written on: %q", said)
	}
	return errors.Join(err, s.Close())
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
