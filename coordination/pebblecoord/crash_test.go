package pebblecoord_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tidemark-log/tidemark/coordination/pebblecoord"
)

// journal is what writers were told, as of some moment.
type journal struct {
	mu   sync.Mutex
	puts map[string]int64 // persistent keys and the revision of their put
	high int64            // highest revision that anybody saw
}

func (j *journal) note(key string, revision int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.high = max(j.high, revision)
	if key != "" {
		j.puts[key] = revision
	}
}

func (j *journal) copy() *journal {
	j.mu.Lock()
	defer j.mu.Unlock()
	c := &journal{puts: make(map[string]int64), high: j.high}
	for k, v := range j.puts {
		c.puts[k] = v
	}
	return c
}

// check opens what a crash left and compares it with what was answered before.
func (j *journal) check(fs vfs.FS) (err error) {
	s, err := pebblecoord.Open("data", pebblecoord.Options{FS: fs})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	c := s.Connect()
	kvs, rev, err := c.List(ctx, "")
	if err != nil {
		return err
	}
	if rev < j.high {
		return fmt.Errorf("revision %d after %d", rev, j.high)
	}
	got := make(map[string]int64)
	for _, kv := range kvs {
		if kv.Session != "" {
			return fmt.Errorf("ephemeral key %q survived", kv.Key)
		}
		got[kv.Key] = kv.Revision
	}
	for key, revision := range j.puts {
		if got[key] != revision {
			return fmt.Errorf("answered put of %q at %d: found %d", key, revision, got[key])
		}
	}
	res, err := c.Do(ctx, put("next", "", ""))
	if err == nil && res.Revision <= j.high {
		err = fmt.Errorf("revision %d again", res.Revision)
	}
	return err
}

// TestCrashUnderLoad cuts the power again and again while several clients write.
func TestCrashUnderLoad(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		seed := rapid.Uint64().Draw(rt, "seed")
		percent := rapid.SampledFrom([]int{0, 0, 30, 70, 100}).Draw(rt, "percent")
		rng := rand.New(rand.NewPCG(seed, 0))
		fs := vfs.NewCrashableMem()
		s := open(t, fs, "data")
		j := &journal{puts: make(map[string]int64)}
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
					if res, err := c.Do(ctx, put(fmt.Sprintf("e/%d/%d", w, n), "", sess.ID())); err == nil {
						j.note("", res.Revision)
					}
					key := fmt.Sprintf("k/%d/%d", w, n)
					if res, err := c.Do(ctx, put(key, "v", "")); err == nil {
						j.note(key, res.Revision)
					}
					if w == 0 && n == int(seed%12) {
						crash <- struct{}{}
					}
				}
			})
		}
		<-crash
		before := j.copy()
		clone := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng})
		wg.Wait()
		if err := s.Close(); err != nil {
			rt.Fatal(err)
		}
		if err := before.check(clone); err != nil {
			rt.Fatal(err)
		}
	})
}

// TestCrashAtEveryStep cuts the power before each file operation of a short life.
func TestCrashAtEveryStep(t *testing.T) {
	type crash struct {
		fs      *vfs.MemFS
		journal *journal
		op      string
	}
	var mu sync.Mutex
	var crashes []crash
	mem := vfs.NewCrashableMem()
	j := &journal{puts: make(map[string]int64)}
	rng := rand.New(rand.NewPCG(1, 2))
	fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
			mu.Lock()
			defer mu.Unlock()
			before := j.copy()
			for _, percent := range []int{0, 50} {
				clone := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng})
				crashes = append(crashes, crash{clone, before, fmt.Sprintf("%v %s, %d %%", op.Kind, op.Path, percent)})
			}
		}
		return nil
	}))
	for life := range 2 {
		s := open(t, fs, "data")
		c := s.Connect()
		sess, err := c.NewSession(ctx, time.Hour)
		require.NoError(t, err)
		for n := range 3 {
			key := fmt.Sprintf("k/%d/%d", life, n)
			j.note(key, do(t, c, put(key, "v", "")))
			j.note("", do(t, c, put("e/"+key, "v", sess.ID())))
		}
		require.NoError(t, s.Close())
	}
	require.Greater(t, len(crashes), 50)
	for i, c := range crashes {
		require.NoError(t, c.journal.check(c.fs), "crash %d of %d: %s", i, len(crashes), c.op)
	}
}
