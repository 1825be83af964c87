package tidemark

import (
	"errors"
	"flag"
	"runtime"
	"slices"
	"sync"
	"testing"
)

var simPlanted = flag.Int("sim.planted", 500, "within how many seeds TestSimNoticesPlantedBugs requires that a planted bug is noticed")

// Each planted bug is one that a rule exists to prevent. The invariant that it breaks,
// named beforehand, has to notice it; what others notice does not count.
func TestSimNoticesPlantedBugs(t *testing.T) {
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	var all sync.WaitGroup
	for _, bug := range plantedBugs {
		all.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			plant := func(b plantedBug) bool { return b == bug.bug }
			for seed := uint64(1); seed <= uint64(*simPlanted); seed++ {
				_, err := simulate(t.Context(), simSpec{seed: seed, steps: *simSteps, bug: plant, only: bug.caught, worlds: bug.worlds})
				if v := (*simViolation)(nil); errors.As(err, &v) && slices.Contains(bug.caught, v.rule) {
					t.Logf("%s (%s): seed %d: %.200s", bug.name, bug.does, seed, v)
					return
				}
			}
			t.Errorf("%s (%s): not noticed by %v within %d seeds", bug.name, bug.does, bug.caught, *simPlanted)
		})
	}
	all.Wait()
}
