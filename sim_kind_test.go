package tidemark

import (
	"context"
	"fmt"
)

// simWorldKind is what a world is like: drawn at its beginning.
type simWorldKind struct {
	brokers    int
	partitions int32
	minISR     int32
	background bool
	lossy      bool
	wire       bool
	budget     int64 // memory of a broker
}

// start starts such a world, with a topic.
func (k *simWorldKind) start(ctx context.Context, spec simSpec) *simWorld {
	w := startSimWorld(ctx, spec.seed, k.brokers, spec.bug, func(w *simWorld) {
		w.lossy, w.background = k.lossy, k.background
		if w.wire = k.wire; w.wire {
			w.maxMessage = 170 // hardly anything goes without fragments
		}
		w.adjust = func(c *Config) {
			c.MemoryBudget = k.budget
			if spec.logger != nil {
				c.Logger = spec.logger(c.ID)
			}
		}
		w.check.only = spec.only
		if spec.trace != nil {
			w.trace = func(format string, args ...any) {
				spec.trace("%8.3fs %s", w.now.Seconds(), fmt.Sprintf(format, args...))
			}
		}
	})
	w.trace("%+v", *k)
	w.createTopic("t", TopicConfig{
		Partitions: k.partitions, ReplicationFactor: min(3, int32(k.brokers)), MinISR: k.minISR, Background: k.background,
	})
	return w
}

func drawWorldKind(choose simChoices) simWorldKind {
	k := simWorldKind{brokers: 3, partitions: 1 + int32(choose.intn(2)), minISR: 2, budget: 1 << 20}
	switch choose.intn(8) {
	case 0:
		k.minISR = 1
	case 1:
		k.brokers = 4
	case 2:
		k.brokers, k.minISR = 2, 1
	}
	k.background = choose.intn(6) == 0
	k.lossy = choose.intn(8) == 0
	k.wire = choose.intn(10) == 0
	if choose.intn(3) == 0 {
		k.budget = 2 << 10 // hardly anything stays in memory
	}
	return k
}
