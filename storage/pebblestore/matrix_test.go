package pebblestore_test

import (
	"flag"
	"math/rand/v2"
	"testing"
)

var (
	faults     = flag.String("faults", "sample", "how many places of the mix the tests of faults go through: sample or full")
	faultsSeed = flag.Uint64("faults.seed", 0, "the seed of their sample; 0: a new one")
)

// faultSeed is the seed of what a test of faults chooses. What Pebble does in the
// background is not chosen by it.
func faultSeed(t *testing.T) uint64 {
	seed := *faultsSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("repeat with: go test ./storage/pebblestore -count=1 -run '^%s$' -faults %s -faults.seed %d", t.Name(), *faults, seed)
	return seed
}

// places calls at for the places of the mix, until that says that it is beyond the
// last: for all, or for one out of stride, the first by chance.
func places(t *testing.T, seed uint64, stride int64, at func(k int64) (beyond bool)) {
	if testing.Short() {
		stride *= 5
	}
	first := rand.New(rand.NewPCG(seed, 1)).Int64N(stride)
	if *faults == "full" {
		first, stride = 0, 1
	}
	k := first
	for !at(k) {
		k += stride
	}
	t.Logf("%d places, one out of %d", k, stride)
}
