package tidemark

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"reflect"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

var (
	simSeeds = flag.Int("sim.seeds", 60, "how many seeds TestSim goes through")
	simStart = flag.Uint64("sim.start", 1, "the first seed; 0: drawn, and told")
	simSteps = flag.Int("sim.steps", 2000, "how many steps a run has before it heals")
	simTrace = flag.Bool("sim.trace", false, "print what happens in each run")
	simSave  = flag.String("sim.save", "", "a directory for scripts of the seeds that fail, shortened")
)

// simStats counts what runs went through.
type simStats struct {
	acks, reads, elections, truncations, lostTails, shrinks, expansions, unknown, refused        int
	crashes, restarts, wipes, damages, diskFaults, pauses, lateWrites, commands, lost, fragments int
}

func (s *simStats) add(o simStats) {
	into, from := reflect.ValueOf(s).Elem(), reflect.ValueOf(o)
	for i := range into.NumField() {
		f := (*int)(into.Field(i).Addr().UnsafePointer())
		*f += int(from.Field(i).Int())
	}
}

// zero names the counters that are 0.
func (s *simStats) zero() (names []string) {
	v := reflect.ValueOf(*s)
	for i := range v.NumField() {
		if v.Field(i).Int() == 0 {
			names = append(names, v.Type().Field(i).Name)
		}
	}
	return names
}

// simSpec says what a run is made from.
type simSpec struct {
	seed   uint64
	steps  int
	choose simChoices // nil: of the seed
	bug    planted
	only   []string // the rules that count; nil: all
	trace  func(format string, args ...any)
}

// simulate goes through one run. A panic of a broker is a violation like others.
func simulate(ctx context.Context, spec simSpec) (run *simRun, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	choose := spec.choose
	if choose == nil {
		choose = newSeedChoices(spec.seed)
	}
	kind := drawWorldKind(choose)
	run = &simRun{}
	defer func() {
		if p := recover(); p != nil {
			err = &simViolation{"panic", fmt.Sprintf("%v\n%s", p, debug.Stack())}
		}
	}()
	w := startSimWorld(ctx, spec.seed, kind.brokers, spec.bug, func(w *simWorld) {
		run.w = w
		w.lossy, w.background = kind.lossy, kind.background
		if w.wire = kind.wire; w.wire {
			w.maxMessage = 170 // hardly anything goes without fragments
		}
		w.adjust = func(c *Config) { c.MemoryBudget = kind.budget }
		w.check.only = spec.only
		if spec.trace != nil {
			w.trace = func(format string, args ...any) {
				spec.trace("%8.3fs %s", w.now.Seconds(), fmt.Sprintf(format, args...))
			}
		}
	})
	w.trace("%+v", kind)
	w.createTopic("t", TopicConfig{
		Partitions: kind.partitions, ReplicationFactor: min(3, int32(kind.brokers)), MinISR: kind.minISR, Background: kind.background,
	})
	run = newSimRun(w, choose)
	run.walk(spec.steps)
	return run, w.check.err()
}

// TestSim goes through random runs: one line for each seed that fails, one for all.
func TestSim(t *testing.T) {
	start := *simStart
	if start == 0 {
		start = rand.Uint64N(1 << 40)
	}
	var (
		sum    simStats
		next   atomic.Uint64
		failed []uint64
		mu     sync.Mutex
		all    sync.WaitGroup
	)
	for range runtime.GOMAXPROCS(0) {
		all.Go(func() {
			for {
				seed := start + next.Add(1) - 1
				if seed >= start+uint64(*simSeeds) {
					return
				}
				spec := simSpec{seed: seed, steps: *simSteps}
				if *simTrace {
					spec.trace = t.Logf
				}
				run, err := simulate(t.Context(), spec)
				mu.Lock()
				if err != nil {
					failed = append(failed, seed)
					t.Errorf("seed %d: %v; again: go test . -run '^TestSim$' -sim.seeds=1 -sim.start=%d -sim.steps=%d -sim.trace -v", seed, err, seed, *simSteps)
				}
				if run.w != nil {
					sum.add(run.w.check.stats)
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	slices.Sort(failed)
	t.Logf("%d seeds of %d steps from %d on, %d failed: %+v", *simSeeds, *simSteps, start, len(failed), sum)
	if zero := sum.zero(); len(zero) > 0 && *simSeeds >= 60 {
		t.Errorf("no %s in %d seeds: the simulator is blind there", strings.Join(zero, ", "), *simSeeds)
	}
}
