package pebblecoord_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestCrashUnderLoad cuts the power again and again while several clients write.
func TestCrashUnderLoad(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		seed := rapid.Uint64().Draw(rt, "seed")
		percent := rapid.SampledFrom([]int{0, 0, 30, 70, 100}).Draw(rt, "percent")
		rng := rand.New(rand.NewPCG(seed, 0))
		fs := vfs.NewCrashableMem()
		s := open(t, fs, "data")
		j := newJournal()
		var wg sync.WaitGroup
		crash := make(chan struct{}, 1)
		for w := range 3 {
			c := s.Connect()
			wg.Go(func() {
				sess, err := c.NewSession(ctx, time.Hour)
				if err != nil {
					return
				}
				for n := range 12 {
					_, _ = j.do(ctx, c, put(fmt.Sprintf("e/%d/%d", w, n), "", sess.ID()))
					_, _ = j.do(ctx, c, put(fmt.Sprintf("k/%d/%d", w, n), "v", ""))
					if w == 0 && n == int(seed%12) {
						crash <- struct{}{}
					}
				}
			})
		}
		<-crash
		var clone *vfs.MemFS
		before := j.during(func() {
			clone = fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng})
		})
		wg.Wait()
		if err := s.Close(); err != nil {
			rt.Fatal(err)
		}
		if err := before.check(clone); err != nil {
			rt.Fatal(err)
		}
	})
}

// atWrites calls f before each write.
func atWrites(fs vfs.FS, f func(op errorfs.Op)) vfs.FS {
	var mu sync.Mutex
	return errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
			mu.Lock()
			defer mu.Unlock()
			f(op)
		}
		return nil
	}))
}

// TestCrashAtEveryStep cuts the power before each write, and once more during the open
// that follows; with large values, which have the database start new files, before some.
func TestCrashAtEveryStep(t *testing.T) {
	if testing.Short() {
		cutAtEach(t, "", 5, 20, 0, 50, 100)
	} else {
		cutAtEach(t, "", 1, 100, 0, 50, 50, 50, 50, 100)
	}
	step := 61
	if *matrix {
		step = 1
	}
	cutAtEach(t, large, step, 3, 0, 50, 100)
}

// cutAtEach keeps so many percent of what was not synced, by chance which.
func cutAtEach(t *testing.T, value string, step, atLeast int, percents ...int) {
	mem := vfs.NewCrashableMem()
	j := newJournal()
	rng := rand.New(rand.NewPCG(1, 2))
	cut := func(mem *vfs.MemFS, percent int) *vfs.MemFS {
		return mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng})
	}
	at := 0
	require.NoError(t, live(t, atWrites(mem, func(op errorfs.Op) {
		if at++; at%step != 0 {
			return
		}
		for _, percent := range percents {
			before, left := j.copy(), cut(mem, percent)
			var again *vfs.MemFS
			writes := 0
			if err := before.check(atWrites(left, func(errorfs.Op) {
				if writes++; rng.IntN(writes) == 0 {
					again = cut(left, 50)
				}
			})); err != nil {
				t.Errorf("crash at write %d (%v %s), %d %%: %v", at, op.Kind, op.Path, percent, err)
				continue
			}
			before.open[&attempt{ops: put("next", "", "").Ops}] = true // by check
			if err := before.check(again); err != nil {
				t.Errorf("second crash after %d (%v %s), %d %%: %v", at, op.Kind, op.Path, percent, err)
			}
		}
	}), j, value))
	require.Greater(t, at/step, atLeast)
}
