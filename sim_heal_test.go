package tidemark

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tidemark-log/tidemark/protocol"
)

// heal ends all faults, and requires that the cluster recovers, takes records again,
// and then is silent; and that all disks are equal.
func (w *simWorld) heal() {
	err := w.recover()
	if err == nil {
		err = w.carryOn()
	}
	if err == nil {
		err = w.tryAppends()
	}
	if err == nil {
		err = w.until(healBound, w.healed)
	}
	if err == nil {
		err = w.silent()
	}
	w.notHealed(err)
	if w.check.violation == nil {
		w.check.sweep()
	}
}

// healBound is how long a cluster may take to recover.
const healBound = 40 * time.Second

// recover ends all faults, and requires that everything is well within a bound.
func (w *simWorld) recover() error {
	w.trace("heal")
	w.healing = true
	clear(w.cut)
	w.outageOver()
	for len(w.late) > 0 {
		w.arrive(0)
	}
	for _, b := range w.all() {
		b.hang(false)
		b.disk.FailWrites(nil)
		b.severed = false
		if b.broker == nil {
			b.start()
		}
		b.client.faults = nil
		b.paused, b.behind = false, ""
		b.run()
	}
	err := w.until(healBound, w.healed)
	w.notHealed(err)
	if w.check.violation == nil {
		for _, id := range w.check.allPartitions() {
			lostWrite{}.healed(w.check, id, w.check.logs[w.records.states[id].Leader][id].entries)
		}
	}
	return err
}

func (w *simWorld) notHealed(err error) {
	if err != nil && w.check.violation == nil {
		w.check.fail(inv10{}, "not healed after %v: %v", healBound, err)
		w.describe()
	}
}

// until settles the world until a condition holds; it returns why it does not.
func (w *simWorld) until(bound time.Duration, cond func() error) (err error) {
	for end := w.now + bound; w.now < end && w.check.violation == nil; {
		w.settle(100 * time.Millisecond)
		w.operate()
		if err = cond(); err == nil {
			return nil
		}
	}
	return err
}

// operate does what an operator has to: start a broker again that gave up, and, in
// a world where copies were destroyed or may lack their ends, settle for what is left.
func (w *simWorld) operate() {
	for _, b := range w.up() {
		again := false // a log is repaired once in the life of a broker (D20)
		for _, n := range b.faults {
			again = again || n > 1
		}
		unfit := b.broker.unfitReason()
		if unfit != nil && b.healed {
			w.check.fail(inv10{}, "broker %d was started on a sound disk and gave up: %v", b.id, unfit)
		}
		if again || unfit != nil {
			b.crash(1 << 20)
			b.start()
		}
	}
	if !w.lossy && !w.background || w.now%time.Second > 100*time.Millisecond {
		return
	}
	for _, id := range w.check.allPartitions() {
		s, whom := w.records.states[id], -1
		if !w.lossy {
			whom = int(s.ISR[0]) // all of them ended uncleanly (D25)
		}
		if s.Leader < 0 {
			w.do(&simAction{verb: "elect", broker: 1, topic: s.topic, partition: id.Partition, kind: "unclean", n: whom})
		}
	}
}

// tryAppends requires that every partition takes a record.
func (w *simWorld) tryAppends() error {
	for _, id := range w.check.allPartitions() {
		a := &simAppend{value: "last" + id.String(), acks: AcksAll}
		if err := w.until(10*time.Second, func() error {
			switch {
			case a.acked || w.records.deleted[id.Topic]:
				return nil
			case a.under == 0:
				w.send(w.brokers[1], id, a)
			}
			return errNotTaken
		}); err != nil {
			return err
		}
	}
	return nil
}

// carryOn requires that one broker that is away, in the world's way, does not keep the
// others from taking records, and that it comes back (EL-1, EL-4, D10, D16, D18).
func (w *simWorld) carryOn() error {
	away := w.brokers[1+int32(w.values)%int32(len(w.brokers))]
	via := w.brokers[1+int32(w.values+1)%int32(len(w.brokers))]
	within := 3 * simSession // its session, or its links, and an election
	how := w.values / len(w.brokers) % 5
	switch how {
	case 0:
		away.crash(1 << 20)
	case 1:
		w.doIsolate(&simAction{broker: away.id})
		away.severed = true
	case 2:
		away.paused = true
	case 3:
		if w.background && !w.lossy {
			return nil // it loses what it acknowledged
		}
		away.hang(true)
		away.healed = false // it is to give up
		within += away.config().StoreStallLimit
	case 4:
		if len(w.brokers) < 3 {
			return nil // each of two reaches half of them
		}
		// Its session lives: only the links tell (D18), and only its lag makes it leave (D10).
		within += away.config().MaxLag * 3 / 2
		w.doIsolate(&simAction{broker: away.id})
		if away.broker.control.meta != nil {
			within += 6 * simSession // until it resigns, and the next one knows whom it reaches
		}
	}
	w.trace("broker %d is away: %d", away.id, how)
	for _, id := range w.check.allPartitions() {
		a := &simAppend{value: "without" + id.String(), acks: AcksAll}
		for end := w.now + within; !a.acked && !w.records.deleted[id.Topic] && w.suffice(id, away.id); {
			if w.now >= end || w.check.violation != nil {
				return fmt.Errorf("%w: %s, without broker %d: %+v", errNotTaken, id, away.id, w.records.states[id].PartitionState)
			}
			if a.under == 0 {
				w.send(via, id, a)
			}
			w.settle(50 * time.Millisecond)
		}
	}
	return w.recover()
}

// suffice reports whether a partition has replicas enough without a broker. MinISR may
// just be about to rise.
func (w *simWorld) suffice(id protocol.PartitionID, without int32) bool {
	s := w.records.states[id]
	return len(s.Replicas) > 1 && (!s.Assigned(without) || len(s.Replicas) > int(s.MinISR))
}

// silent requires that nothing is sent but heartbeats.
func (w *simWorld) silent() error {
	w.chatter = nil
	if w.settle(2 * simSession); w.chatter != nil {
		return errNotSilent(w.chatter)
	}
	return nil
}

// healed says what is still missing; nil: nothing is.
func (w *simWorld) healed() error {
	for _, id := range w.check.allPartitions() {
		if err := w.healedPartition(id); err != nil {
			return err
		}
	}
	for _, b := range w.all() {
		if _, _, whole, _ := b.broker.view.topic(""); !whole || b.session == nil || w.records.live[b.id] != b.broker.epoch.Load() {
			return errNotThere(b.id)
		}
		if n := b.broker.appends.open() + b.broker.reads.open() + b.broker.commands.open(); n > 0 {
			return errWaits(b.id, n)
		}
		for id, r := range b.broker.loops[0].shard.replicas {
			if w.records.deleted[id.Topic] || w.records.states[id] == nil && !r.stranger {
				return errLeftOver(b.id, id)
			}
		}
	}
	for _, q := range w.commands {
		if !q.over && q.via.broker == q.broker {
			return errWaits(q.via.id, 1)
		}
	}
	for id, s := range w.records.states {
		if w.records.deleted[id.Topic] {
			return errNotCleared(s.topic)
		}
	}
	for key := range w.records.clear {
		return errNotCleared(key)
	}
	return nil
}

func (w *simWorld) healedPartition(id protocol.PartitionID) error {
	s := w.records.states[id]
	lead := w.replica(s.Leader, id)
	if lead == nil || lead.role != roleLeader || s.LeaderBrokerEpoch != w.records.live[s.Leader] || len(s.ISR) < len(s.Replicas) {
		return errNotWhole(id, s)
	}
	for _, broker := range s.Replicas {
		r := w.replica(broker, id)
		switch {
		case r == nil:
			return errNotWhole(id, s)
		case r.hw != lead.end || r.end != lead.end || r.stored != lead.end:
			return errBehind(broker, id, r, w.now)
		case len(r.onCommit)+len(r.onStored)+len(r.readers)+len(r.held) > 0:
			return errWaits(broker, 1)
		}
		have, want := w.check.log(w.brokers[broker], r).entries, w.check.log(w.brokers[s.Leader], lead).entries
		if !slices.Equal(have, want) {
			return errDiffer(broker, s.Leader, id)
		}
	}
	return nil
}

var errNotTaken = errors.New("a record is not taken")

func errNotSilent(m *protocol.Message) error {
	return fmt.Errorf("broker %d sends %+v to %d", m.From, m.Payload, m.To)
}

func errNotThere(broker int32) error {
	return fmt.Errorf("broker %d is not registered, or does not have the whole image", broker)
}

func errWaits(broker int32, n int) error {
	return fmt.Errorf("%d calls wait on broker %d", n, broker)
}

func errLeftOver(broker int32, id protocol.PartitionID) error {
	return fmt.Errorf("broker %d has a replica of %s, which does not exist", broker, id)
}

func errNotCleared(topic string) error {
	return fmt.Errorf("the deleted topic %s is not cleared away", topic)
}

func errNotWhole(id protocol.PartitionID, s *simState) error {
	return fmt.Errorf("%s: state %+v", id, s.PartitionState)
}

func errBehind(broker int32, id protocol.PartitionID, r *replicaState, now time.Duration) error {
	return fmt.Errorf("%s on broker %d: %+v", id, broker, *r.snapshot(now))
}

func errDiffer(a, b int32, id protocol.PartitionID) error {
	return fmt.Errorf("%s: the logs of brokers %d and %d differ", id, a, b)
}

// describe tells where every replica stands, for the trace of a run that did not heal.
func (w *simWorld) describe() {
	for _, id := range w.check.allPartitions() {
		w.trace("%s stored %+v", id, w.records.states[id].PartitionState)
		for _, b := range w.up() {
			if r := w.replica(b.id, id); r != nil {
				w.trace("  broker %d life %d: %+v fault %v fetching %v agreed %v pending %+v remotes %+v controller %+v links %v",
					b.id, b.broker.epoch.Load(), *r.snapshot(w.now), r.fault, r.fetching, r.agreed, r.isr.pending, r.remotes, r.env.controller, b.broker.control.links)
			}
		}
	}
	for _, b := range w.up() {
		c := b.broker.control
		w.trace("broker %d: session %v unfit %v controller %d epoch %d meta %v registry %+v", b.id, b.session != nil, b.broker.unfitReason(), c.member.controller, c.member.controllerEpoch, c.meta != nil, c.registry)
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
