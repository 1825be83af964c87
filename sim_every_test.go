package tidemark

import (
	"bytes"
	"flag"
	"fmt"
	"hash/fnv"
	"testing"

	"github.com/stretchr/testify/require"
)

var simDepth = flag.Int("sim.depth", 3, "how many actions TestSimEverySmallWorld combines")

// smallActions are what can happen next in a small world.
func smallActions(w *simWorld) (all []*simAction) {
	for _, b := range w.all() {
		if b.broker == nil {
			all = append(all, &simAction{verb: "restart", broker: b.id})
			continue
		}
		all = append(all,
			&simAction{verb: "crash", broker: b.id},
			&simAction{verb: "bounce", broker: b.id, n: 1},
			&simAction{verb: "store", broker: b.id, n: 1},
			&simAction{verb: "expire", broker: b.id},
		)
		for _, to := range w.all() {
			if to != b {
				all = append(all, &simAction{verb: "deliver", broker: b.id, to: to.id})
			}
		}
	}
	return append(all,
		&simAction{verb: "append", broker: 1, topic: "t", kind: "all"},
		&simAction{verb: "round"},
		&simAction{verb: "tick", n: 600},
	)
}

// All combinations of a few actions on a small cluster with an append under way, each
// followed by a recovery.
func TestSimEverySmallWorld(t *testing.T) {
	for _, kind := range []simWorldKind{
		{brokers: 2, partitions: 1, minISR: 1, budget: 1 << 20},
		{brokers: 2, partitions: 1, minISR: 2, budget: 2 << 10},
	} {
		t.Run(fmt.Sprint(&kind), func(t *testing.T) {
			t.Parallel()
			choose, worlds := &everyChoice{}, 0
			for more := true; more; more = choose.next() {
				run := &simRun{choose: choose, kind: kind}
				run.w = kind.start(t.Context(), simSpec{seed: 1})
				run.do(&simAction{verb: "append", broker: 1, topic: "t", kind: "all"})
				for range *simDepth {
					all := smallActions(run.w)
					run.do(all[choose.intn(len(all))])
				}
				run.w.recover()
				run.w.close()
				require.NoError(t, run.w.check.err(), scriptOf(1, &kind, run.actions, nil))
				worlds++
			}
			t.Logf("%d worlds", worlds)
		})
	}
}

// The same choices give the same run, to the last word of its trace.
func TestSimRepeats(t *testing.T) {
	for seed := uint64(1); seed <= 20; seed++ {
		var traces [2]uint64
		for i := range traces {
			h := fnv.New64a()
			_, err := simulate(t.Context(), simSpec{seed: seed, steps: 500, trace: func(format string, args ...any) {
				fmt.Fprintf(h, format+"\n", args...)
			}})
			require.NoError(t, err)
			traces[i] = h.Sum64()
		}
		require.Equal(t, traces[0], traces[1], "seed %d", seed)
	}
}

// taping notes the choices of a seed on a tape.
type taping struct {
	seedChoices
	tape bytes.Buffer
}

func (c *taping) intn(n int) int {
	x := c.seedChoices.intn(n)
	switch {
	case n <= 1:
	case n <= 256:
		c.tape.WriteByte(byte(x))
	default:
		c.tape.Write([]byte{byte(x >> 8), byte(x)})
	}
	return x
}

// FuzzSim has the fuzzer drive runs: every byte is a choice.
func FuzzSim(f *testing.F) {
	for seed := range uint64(8) {
		c := &taping{seedChoices: *newSeedChoices(seed)}
		_, err := simulate(f.Context(), simSpec{seed: 1, steps: 150, choose: c})
		require.NoError(f, err)
		f.Add(c.tape.Bytes())
	}
	f.Fuzz(func(t *testing.T, tape []byte) {
		if run, err := simulate(t.Context(), simSpec{seed: 1, steps: len(tape), choose: &tapeChoices{tape}}); err != nil {
			t.Fatalf("%v\n%s", err, scriptOf(1, &run.kind, run.actions, err))
		}
	})
}
