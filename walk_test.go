package tidemark

import (
	"flag"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/storage/memstore"
)

var (
	walkSeeds = flag.Int("walk.seeds", 60, "how many seeds TestRandomWalk goes through")
	walkSeed  = flag.Uint64("walk.seed", 0, "the one seed that TestRandomWalk goes through, with a trace")
	walkSteps = flag.Int("walk.steps", 500, "how many steps a walk has before it heals")
)

// walk is one random walk over a cluster, and its healing.
func walk(t testing.TB, seed uint64, steps int, planted plantedBugs, trace bool) (simStats, error) {
	w := newSimWorld(t, seed, 3)
	w.planted = planted
	for _, b := range w.up() {
		b.broker.loops[0].shard.env.planted = planted
	}
	if trace {
		w.trace = func(format string, args ...any) {
			t.Logf("%8.3fs %s", w.now.Seconds(), fmt.Sprintf(format, args...))
		}
	}
	topic := w.createTopic("t", TopicConfig{Partitions: 2, ReplicationFactor: 3, MinISR: 2})
	for step := 0; step < steps && w.check.err == nil; step++ {
		w.step(topic)
	}
	if w.check.err == nil {
		w.heal(topic)
	}
	return w.check.stats, w.check.err
}

// step does one random thing.
func (w *simWorld) step(topic protocol.Topic) {
	up := w.up()
	b := w.all()[w.rng.IntN(len(w.brokers))]
	id := protocol.PartitionID{Topic: topic.ID, Partition: w.rng.Int32N(2)}
	switch n := w.rng.IntN(1000); {
	case n < 420 && len(w.flights) > 0:
		w.network()
	case n < 560 && len(up) > 0:
		b := up[w.rng.IntN(len(up))]
		b.store.Sync(1 + w.rng.IntN(2))
		b.run()
	case n < 720 && len(up) > 0:
		w.append(up[w.rng.IntN(len(up))], id, Acks(w.rng.IntN(3)))
	case n < 800:
		w.advance(time.Duration(w.rng.IntN(40)) * time.Millisecond)
		for _, b := range w.up() {
			b.tick()
		}
	case n < 880 && len(up) > 0:
		b := up[w.rng.IntN(len(up))]
		b.notice()
		b.callCoordination()
	case n < 900:
		w.settle(time.Duration(w.rng.IntN(300)) * time.Millisecond)
	default:
		w.fault(b, n, topic)
	}
}

// network delivers something, or misbehaves.
func (w *simWorld) network() {
	i := 0
	if w.rng.IntN(10) == 0 { // overtaking
		i = w.rng.IntN(len(w.flights))
	}
	switch w.rng.IntN(60) {
	case 0: // lost
		w.flights = append(w.flights[:i], w.flights[i+1:]...)
	case 1: // doubled, the copy late
		w.flights = append(w.flights, w.flights[i])
		w.deliver(i)
	default:
		w.deliver(i)
	}
}

// fault does something to a broker, its session, the network or the store.
func (w *simWorld) fault(b *simBroker, n int, topic protocol.Topic) {
	switch {
	case n < 928 && b.broker != nil && slices.ContainsFunc(w.all(), (*simBroker).unregistered):
		// The cluster may hold a broker to be in sync whose disk is gone, until its old
		// session ends. Taking away the others meanwhile destroys the last copies.
	case b.broker == nil:
		w.trace("broker %d restarts", b.id)
		w.check.stats.restarts++
		b.start()
	case n < 912:
		keep := w.rng.IntN(3)
		w.trace("broker %d crashes, %d of %d groups survive", b.id, keep, b.store.Pending())
		b.crash(keep)
	case n < 920:
		w.trace("broker %d crashes and restarts at once", b.id)
		b.crash(w.rng.IntN(3))
		w.check.stats.restarts++
		b.start()
	case n < 922:
		w.wipe(b, topic)
	case n < 928:
		w.trace("broker %d loses its session", b.id)
		b.loseSession()
	case n < 940:
		other := 1 + w.rng.Int32N(3)
		w.trace("cut from %d to %d", b.id, other)
		w.cut[[2]int32{b.id, other}] = true
	case n < 970:
		w.cut = make(map[[2]int32]bool)
	case n < 980:
		w.coord.LoseReplies(w.rng.IntN(2))
	case n < 986:
		w.coord.DropRequests(w.rng.IntN(2))
	default:
		w.advance(time.Duration(w.rng.IntN(1500)) * time.Millisecond)
	}
}

// unregistered reports whether the broker's earlier life may still be registered.
func (b *simBroker) unregistered() bool { return b.session == nil }

// wipe gives a broker an empty disk, unless that could destroy the last copy of
// a committed record.
func (w *simWorld) wipe(b *simBroker, topic protocol.Topic) {
	if len(w.up()) < len(w.brokers) {
		return
	}
	for n := range topic.Config.Partitions {
		if len(w.stored(topic.Name, n).ISR) < len(w.brokers) {
			return
		}
	}
	if slices.ContainsFunc(w.all(), w.replaced) {
		return
	}
	w.trace("broker %d crashes and returns with an empty disk", b.id)
	b.crash(0)
	b.directory = w.uuid()
	b.disk = memstore.NewDisk(memstore.Manual(), memstore.Directory(b.directory))
	w.check.stats.wipes++
	w.check.down(b)
	b.start()
}

// heal ends all faults, and requires that the cluster recovers within a bound:
// every ISR full, every high watermark at the log end, all logs equal.
func (w *simWorld) heal(topic protocol.Topic) {
	w.trace("heal")
	w.cut = make(map[[2]int32]bool)
	w.coord.LoseReplies(0)
	w.coord.DropRequests(0)
	for _, b := range w.all() {
		if b.broker == nil {
			b.start()
		}
	}
	const bound = 30 * time.Second
	for end := w.now + bound; w.now < end && w.check.err == nil; {
		w.settle(100 * time.Millisecond)
		if w.healed(topic) == nil {
			return
		}
	}
	if err := w.healed(topic); err != nil {
		w.check.fail("not healed after %v: %w", bound, err)
		w.describe(topic)
	}
}

func (w *simWorld) healed(topic protocol.Topic) error {
	for n := range topic.Config.Partitions {
		id := protocol.PartitionID{Topic: topic.ID, Partition: n}
		s := w.stored(topic.Name, n)
		if len(s.ISR) < 3 || s.Leader < 0 {
			return fmt.Errorf("partition %d: state %+v", n, s)
		}
		lead := w.brokers[s.Leader].broker.loops[0].shard.replicas[id]
		if lead == nil {
			return fmt.Errorf("partition %d: leader %d has no replica", n, s.Leader)
		}
		for _, b := range w.all() {
			r := b.broker.loops[0].shard.replicas[id]
			if r == nil {
				return fmt.Errorf("partition %d: broker %d has no replica", n, b.id)
			}
			if r.hw != lead.end || r.end != lead.end || r.stored != lead.end {
				return fmt.Errorf("partition %d on broker %d: %+v, leader's end %d", n, b.id, r.snapshot(w.now), lead.end)
			}
			if len(r.onCommit)+len(r.onStored) > 0 {
				return fmt.Errorf("partition %d: appends wait on broker %d", n, b.id)
			}
			a, o := w.check.logs[b.id][id].entries, w.check.logs[s.Leader][id].entries
			if len(a) > 0 && a[len(a)-1] != o[len(o)-1] {
				return fmt.Errorf("partition %d: logs of %d and %d differ: %v and %v", n, b.id, s.Leader, a, o)
			}
		}
	}
	for _, b := range w.all() {
		if n := b.broker.appends.open(); n > 0 {
			return fmt.Errorf("broker %d has %d appends without an answer", b.id, n)
		}
	}
	return nil
}

func TestRandomWalk(t *testing.T) {
	if *walkSeed != 0 {
		if _, err := walk(t, *walkSeed, *walkSteps, plantedBugs{}, true); err != nil {
			t.Fatal(err)
		}
		return
	}
	var sum simStats
	for seed := uint64(1); seed <= uint64(*walkSeeds); seed++ {
		stats, err := walk(t, seed, *walkSteps, plantedBugs{}, false)
		if err != nil {
			t.Fatalf("seed %d: %v\nagain: go test -run 'TestRandomWalk$' -walk.seed=%d -v .", seed, err, seed)
		}
		sum.add(stats)
	}
	t.Logf("%d seeds: %+v", *walkSeeds, sum)
	for name, n := range map[string]int{
		"acks": sum.acks, "elections": sum.elections, "truncations": sum.truncations,
		"lost tails": sum.lostTails, "shrinks": sum.shrinks, "expansions": sum.expansions, "wiped disks": sum.wipes,
	} {
		if n == 0 {
			t.Errorf("no %s in %d seeds: the walk is blind there", name, *walkSeeds)
		}
	}
}

// describe tells where every replica stands, for the report of a failed walk.
func (w *simWorld) describe(topic protocol.Topic) {
	for n := range topic.Config.Partitions {
		id := protocol.PartitionID{Topic: topic.ID, Partition: n}
		w.trace("partition %d stored %+v", n, w.stored(topic.Name, n))
		for _, b := range w.up() {
			if r := b.broker.loops[0].shard.replicas[id]; r != nil {
				w.trace("  broker %d life %d: %+v fetching %v agreed %v pending %+v remotes %+v controller %+v links %v",
					b.id, b.broker.epoch.Load(), *r.snapshot(w.now), r.fetching, r.agreed, r.isr.pending, r.remotes, r.env.controller, b.broker.control.links)
			}
		}
	}
	for _, b := range w.up() {
		c := b.broker.control
		w.trace("broker %d: controller %d epoch %d meta %v registry %+v", b.id, c.member.controller, c.member.controllerEpoch, c.meta != nil, c.registry)
		if c.meta != nil {
			for _, e := range c.meta.brokers {
				w.trace("   meta broker %+v", *e)
			}
			for _, e := range c.meta.writes {
				w.trace("   meta write %+v", *e)
			}
		}
	}
}

// Each planted bug is one that a rule exists to prevent; the walk must notice it.
func TestWalkNoticesPlantedBugs(t *testing.T) {
	const within = 500
	for name, planted := range map[string]plantedBugs{
		"D9: reports believed, and kept over a re-election": {believeReports: true},
		"D11: the same epoch led again after a restart":     {sameEpochAgain: true},
		"D12: a new follower cuts its log to its HW":        {cutToHW: true},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := uint64(1); seed <= within; seed++ {
				if _, err := walk(t, seed, *walkSteps, planted, false); err != nil {
					t.Logf("seed %d: %v", seed, err)
					return
				}
			}
			t.Fatalf("not noticed within %d seeds", within)
		})
	}
}
