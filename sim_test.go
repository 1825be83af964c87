package tidemark

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
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
	acks, reads, elections, truncations, lostTails, shrinks, expansions, unknown, refused                          int
	crashes, restarts, wipes, damages, diskFaults, pauses, lateWrites, commands, lost, fragments, twoDown, allDown int
}

// all are the counters and their names.
func (s *simStats) all() map[string]*int {
	return map[string]*int{
		"acks": &s.acks, "reads": &s.reads, "elections": &s.elections, "truncations": &s.truncations, "lost tails": &s.lostTails,
		"shrinks": &s.shrinks, "expansions": &s.expansions, "unknown": &s.unknown, "refused": &s.refused,
		"crashes": &s.crashes, "restarts": &s.restarts, "wipes": &s.wipes, "damages": &s.damages, "disk faults": &s.diskFaults,
		"pauses": &s.pauses, "late writes": &s.lateWrites, "commands": &s.commands, "lost": &s.lost, "two down": &s.twoDown, "all down": &s.allDown, "fragments": &s.fragments,
	}
}

func (s *simStats) add(o simStats) {
	from := o.all()
	for name, n := range s.all() {
		*n += *from[name]
	}
}

// zero names the counters that are 0.
func (s *simStats) zero() (names []string) {
	for name, n := range s.all() {
		if *n == 0 {
			names = append(names, name)
		}
	}
	return names
}

// simSpec says what a run is made from.
type simSpec struct {
	seed   uint64
	steps  int
	kind   *simWorldKind         // nil: drawn
	choose simChoices            // nil: of the seed
	play   []*simAction          // when there is a kind: what is done, and nothing else
	worlds func(k *simWorldKind) // narrows the kind that was drawn; nil: it does not
	bug    planted
	only   []string // the rules that count; nil: all
	trace  func(format string, args ...any)
	logger func(broker int32) *slog.Logger
}

// simulate goes through one run. A panic of a broker is a violation like others.
func simulate(ctx context.Context, spec simSpec) (run *simRun, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	run = &simRun{choose: spec.choose}
	if run.choose == nil {
		run.choose = newSeedChoices(spec.seed)
	}
	defer func() {
		if p := recover(); p != nil {
			if spec.trace != nil {
				spec.trace("%s", debug.Stack())
			}
			err = &simViolation{"panic", fmt.Sprint(p)}
		}
	}()
	if spec.kind == nil {
		run.kind = drawWorldKind(run.choose)
		if spec.worlds != nil {
			spec.worlds(&run.kind)
		}
	} else {
		run.kind = *spec.kind
	}
	run.w = run.kind.start(ctx, spec)
	defer run.w.close()
	if spec.kind != nil {
		run.play(spec.play)
	} else {
		run.walk(spec.steps)
	}
	return run, run.w.check.err()
}

// TestSim goes through random runs: one line for each seed that fails, one for all.
func TestSim(t *testing.T) {
	if *simSeeds < 1 {
		t.Fatalf("-sim.seeds=%d: at least one", *simSeeds)
	}
	start := *simStart
	if start == 0 {
		start = rand.Uint64N(1 << 40)
	}
	var (
		sum    simStats
		next   atomic.Uint64
		failed int
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
					spec.trace = func(format string, args ...any) { t.Logf("seed %d: "+format, append([]any{seed}, args...)...) }
				}
				run, err := simulate(t.Context(), spec)
				if err != nil && *simSave != "" {
					saveSimRun(t, spec, run, err)
				}
				mu.Lock()
				if err != nil {
					failed++
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
	t.Logf("%d seeds of %d steps from %d on, %d failed: %+v", *simSeeds, *simSteps, start, failed, sum)
	if zero := sum.zero(); len(zero) > 0 && *simSeeds >= 300 && *simSteps >= 2000 { // no matter of chance any more
		t.Errorf("no %s in %d seeds: the simulator is blind there", strings.Join(zero, ", "), *simSeeds)
	}
}
