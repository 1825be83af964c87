package tidemark

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A run can be written down as a script: what kind of world it was, and what was done.

// saveSimRun writes a run that failed as a script, shortened, into -sim.save.
func saveSimRun(t *testing.T, spec simSpec, run *simRun, why error) {
	actions := shorten(t.Context(), spec, run, why)
	if _, err := simulate(t.Context(), simSpec{seed: spec.seed, kind: &run.kind, play: actions, bug: spec.bug, only: spec.only}); err != nil {
		why = err
	}
	name := filepath.Join(*simSave, fmt.Sprintf("seed-%d.txt", spec.seed))
	err := errors.Join(os.MkdirAll(*simSave, 0o755), os.WriteFile(name, []byte(scriptOf(spec.seed, &run.kind, actions, why)), 0o644))
	if err != nil {
		t.Error(err)
		return
	}
	t.Logf("seed %d: %d of %d actions are left in %s", spec.seed, len(actions), len(run.actions), name)
}

// scriptOf is the script of a run. What it prints is to be filled in by -rewrite.
func scriptOf(seed uint64, kind *simWorldKind, actions []*simAction, why error) string {
	var out strings.Builder
	if why != nil {
		fmt.Fprintf(&out, "# %s\n", strings.SplitN(why.Error(), "\n", 2)[0])
	}
	fmt.Fprintf(&out, "world seed=%d %v\n----\nok\n\nplay\n", seed, kind)
	for _, a := range actions {
		fmt.Fprintln(&out, a)
	}
	fmt.Fprintf(&out, "----\n\nrecover\n----\nok\n")
	return out.String()
}

// shortenRuns bounds how many runs the search for a shorter one may take.
const shortenRuns = 3000

// shorten leaves out of a run what does not matter for how it failed: stretches of
// actions at first, single ones in the end.
func shorten(ctx context.Context, spec simSpec, run *simRun, why error) []*simAction {
	var want *simViolation
	if !errors.As(why, &want) {
		return run.actions
	}
	runs := 0
	fails := func(actions []*simAction) bool {
		runs++
		_, err := simulate(ctx, simSpec{seed: spec.seed, kind: &run.kind, play: actions, bug: spec.bug, only: spec.only})
		var got *simViolation
		return errors.As(err, &got) && got.rule == want.rule
	}
	actions := run.actions
	for size := len(actions) / 2; size > 0; size /= 2 {
		for at := 0; at < len(actions) && runs < shortenRuns; {
			without := slices.Concat(actions[:at], actions[min(at+size, len(actions)):])
			if fails(without) {
				actions = without
			} else {
				at += size
			}
		}
	}
	return actions
}

// String is the kind as the `world` command of a script has it.
func (k *simWorldKind) String() string {
	s := fmt.Sprintf("brokers=%d partitions=%d min-isr=%d budget=%d", k.brokers, k.partitions, k.minISR, k.budget)
	if k.background {
		s += " background"
	}
	if k.lossy {
		s += " lossy"
	}
	if k.wire {
		s += " wire"
	}
	return s
}

// world starts the world of a run that was written down. How it came up is not the
// script's subject.
func (s *script) world(a scriptArgs) {
	kind := simWorldKind{
		brokers: a.num("brokers", 3), partitions: int32(a.num("partitions", 1)), minISR: int32(a.num("min-isr", 2)),
		background: a.has("background"), lossy: a.has("lossy"), wire: a.has("wire"), budget: int64(a.num("budget", 1<<20)),
	}
	s.w = kind.start(a.t.Context(), simSpec{seed: uint64(a.num("seed", 1)), logger: func(broker int32) *slog.Logger {
		return slog.New(&scriptLog{s: s, broker: broker})
	}})
	a.t.Cleanup(s.w.close)
	s.out = nil
	for name, t := range s.w.records.topics {
		s.topics[name] = t
	}
}

// play does what its lines say.
func (s *script) play(a scriptArgs) {
	for line := range strings.Lines(a.d.Input) {
		action, err := parseSimAction(strings.TrimSpace(line))
		if err != nil {
			a.d.Fatalf(a.t, "%v", err)
		}
		if n := int32(len(s.w.brokers)); action.broker > n || action.to > n {
			a.d.Fatalf(a.t, "%s: there are %d brokers", line, n)
		}
		before := len(s.out)
		if s.w.do(action); len(s.out) > before {
			s.out = slices.Insert(s.out, before, "> "+action.String())
		}
	}
}

// recover ends all faults, and has the cluster recover. What happens on the way there
// is not the script's subject.
func (s *script) recover(scriptArgs) {
	before := len(s.out)
	s.w.heal()
	s.out = s.out[:before]
}

// A run that is written down and read again is the same run, also when a bug is in it.
func TestSimScript(t *testing.T) {
	plant := func(b plantedBug) bool { return b == bugCutToHW }
	spec := simSpec{steps: 2000, bug: plant}
	var run *simRun
	var err error
	for err == nil {
		spec.seed++
		run, err = simulate(t.Context(), spec)
	}
	var again []*simAction
	for _, a := range run.actions {
		b, err := parseSimAction(a.String())
		require.NoError(t, err)
		require.Equal(t, a.String(), b.String())
		again = append(again, b)
	}
	play := simSpec{seed: spec.seed, kind: &run.kind, play: again, bug: plant}
	_, same := simulate(t.Context(), play)
	require.Equal(t, err, same)
	short := shorten(t.Context(), spec, run, err)
	require.Less(t, len(short), len(run.actions)/2)
	t.Log(scriptOf(spec.seed, &run.kind, short, err))
	_, err = simulate(t.Context(), simSpec{seed: spec.seed, kind: &run.kind, play: short, bug: plant})
	require.Error(t, err)
	_, err = simulate(t.Context(), simSpec{seed: spec.seed, kind: &run.kind, play: short})
	require.NoError(t, err, "without the bug")
}
