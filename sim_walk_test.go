package tidemark

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tidemark-log/tidemark/protocol"
)

// simRun is one run: a world, what is done to it, and how it ended.
type simRun struct {
	w       *simWorld
	kind    simWorldKind
	choose  simChoices
	faults  []simFault
	total   int   // of the faults' weights
	trouble int   // how often something goes wrong, and
	relief  int   // how often that ends, of 256
	last    int32 // the broker chosen last: troubles do not come alone
	actions []*simAction
}

// simFault is a kind of action that a run does now and then, and how often. Each run
// has some of the kinds only, each with a weight of its own, so that every mixture
// comes about.
type simFault struct {
	weight int
	make   func(r *simRun) *simAction
}

// simFaultKinds are all kinds of faults and of changes by an operator.
var simFaultKinds = []func(r *simRun) *simAction{
	func(r *simRun) *simAction { return r.onFlight("drop") },
	func(r *simRun) *simAction { return r.onFlight("double") },
	func(r *simRun) *simAction { return r.onFlight("misdeliver") },
	func(r *simRun) *simAction { return &simAction{verb: "repeat", n: r.choose.intn(simPast)} },
	func(r *simRun) *simAction { return &simAction{verb: "cut", broker: r.broker(), to: r.broker()} },
	func(r *simRun) *simAction { return &simAction{verb: "isolate", broker: r.broker()} },
	func(r *simRun) *simAction { return &simAction{verb: "tick", n: r.choose.intn(1500)} },
	func(r *simRun) *simAction { return &simAction{verb: "wall", n: r.choose.intn(7200_000) - 3600_000} },
	func(r *simRun) *simAction { return r.onBroker("pause") },
	func(r *simRun) *simAction { return r.onBroker("hang") },
	func(r *simRun) *simAction {
		return &simAction{verb: "fail", broker: r.broker(), kind: r.one("failing", "full")}
	},
	func(r *simRun) *simAction {
		return &simAction{verb: "wipe", broker: r.broker(), kind: r.one("soon", "late")}
	},
	func(r *simRun) *simAction { return r.onPartition("damage", r.one("part", "whole"), 0) },
	func(r *simRun) *simAction { return r.onPartition("flip", "", r.choose.intn(16)) },
	func(r *simRun) *simAction {
		return &simAction{verb: "crash", broker: r.broker(), n: r.choose.intn(3)}
	},
	func(r *simRun) *simAction {
		return &simAction{verb: "bounce", broker: r.broker(), n: r.choose.intn(3)}
	},
	func(r *simRun) *simAction { return r.onBroker("expire") },
	func(r *simRun) *simAction {
		return &simAction{verb: r.one("expire", "sever", "isolate"), broker: r.controller()}
	},
	func(r *simRun) *simAction {
		return &simAction{verb: "upset", broker: r.controller(), kind: r.one("drop", "lose", "late", "last")}
	},
	func(r *simRun) *simAction { return r.onBroker("sever") },
	func(r *simRun) *simAction { return &simAction{verb: "outage"} },
	func(r *simRun) *simAction {
		return &simAction{verb: "create", broker: r.broker(), topic: r.topic(), partition: 1, kind: r.one("clean", "unclean"), n: 1 + r.choose.intn(3)}
	},
	func(r *simRun) *simAction {
		return &simAction{verb: "alter", broker: r.broker(), topic: r.topic(), n: 1 + r.choose.intn(3)}
	},
	func(r *simRun) *simAction { return &simAction{verb: "grow", broker: r.broker(), topic: r.topic()} },
	func(r *simRun) *simAction { return &simAction{verb: "delete", broker: r.broker(), topic: "u"} },
	func(r *simRun) *simAction {
		return r.onPartition("elect", r.one("preferred", "preferred", "unclean"), -1)
	},
}

// broker chooses a broker: the one of the last time, for troubles do not come alone,
// one that has a part in something, or any.
func (r *simRun) broker() int32 {
	switch r.choose.intn(8) {
	case 0, 1:
		if r.last != 0 {
			return r.last
		}
	case 2:
		return r.controller()
	case 3, 4:
		if id, ok := r.part(); ok {
			return id
		}
	}
	r.last = r.any()
	return r.last
}

// part chooses the leader of a partition, or a replica that is not in sync.
func (r *simRun) part() (int32, bool) {
	ids := r.w.check.allPartitions()
	if len(ids) == 0 {
		return 0, false
	}
	s := r.w.records.states[ids[r.choose.intn(len(ids))]]
	if r.choose.intn(2) == 0 {
		return max(s.Leader, 1), true
	}
	for _, id := range s.Replicas {
		if !s.InISR(id) {
			r.last = id
			return id, true
		}
	}
	return 0, false
}

// controller is mostly the broker that acts as Controller.
func (r *simRun) controller() int32 {
	for _, b := range r.w.up() {
		if b.broker.control.meta != nil && r.choose.intn(4) > 0 {
			return b.id
		}
	}
	return r.any()
}

func (r *simRun) topic() string { return r.one("t", "u") }

func (r *simRun) one(of ...string) string { return of[r.choose.intn(len(of))] }

func (r *simRun) onBroker(verb string) *simAction {
	return &simAction{verb: verb, broker: r.broker()}
}

// onFlight acts on a message in flight: mostly on the oldest.
func (r *simRun) onFlight(verb string) *simAction {
	if len(r.w.flights) == 0 {
		return nil
	}
	i := 0
	if r.choose.intn(8) == 0 {
		i = r.choose.intn(min(len(r.w.flights), 256))
	}
	f := r.w.flights[i]
	a := &simAction{verb: verb, broker: f.msg.From, to: f.to}
	for _, g := range r.w.flights[:i] {
		if g.msg.From == a.broker && g.to == a.to {
			a.n++
		}
	}
	if verb == "misdeliver" {
		a.kind = string('0' + rune(r.broker()))
	}
	return a
}

// onPartition acts on one of the partitions that exist.
func (r *simRun) onPartition(verb, kind string, n int) *simAction {
	ids := r.w.check.allPartitions()
	if len(ids) == 0 {
		return nil
	}
	id := ids[r.choose.intn(len(ids))]
	via := r.any()
	if verb == "damage" || verb == "flip" {
		via = r.broker()
	}
	return &simAction{verb: verb, broker: via, topic: r.w.records.states[id].topic, partition: id.Partition, kind: kind, n: n}
}

// simWorkKinds are what has to happen for a cluster to work, and how often it does,
// of 256; the rest of the time everything happens once.
var simWorkKinds = []simFault{
	{92, func(r *simRun) *simAction { return r.onFlight("deliver") }},
	{34, func(r *simRun) *simAction { return &simAction{verb: "store", broker: r.any(), n: 1 + r.choose.intn(2)} }},
	{12, func(r *simRun) *simAction { return &simAction{verb: "call", broker: r.any(), n: r.choose.intn(2)} }},
	{10, func(r *simRun) *simAction {
		return &simAction{verb: "look", broker: r.any(), n: r.choose.intn(len(simWatches))}
	}},
	{20, func(r *simRun) *simAction {
		return r.onPartition("append", r.one("all", "all", "leader", "none"), r.choose.intn(2))
	}},
	{12, func(r *simRun) *simAction { return r.onPartition("produce", "", 1+r.choose.intn(3)) }},
	{6, func(r *simRun) *simAction { return r.onPartition("fetch", "", r.choose.intn(32)) }},
	{4, func(r *simRun) *simAction { return &simAction{verb: "read", broker: r.any()} }},
	{10, func(r *simRun) *simAction { return &simAction{verb: "tick", n: r.choose.intn(40)} }},
	{2, func(r *simRun) *simAction { return &simAction{verb: "settle", n: r.choose.intn(200)} }},
}

func (r *simRun) any() int32 { return 1 + int32(r.choose.intn(len(r.w.brokers))) }

// draw draws which faults the run has, and how often.
func (r *simRun) draw() {
	r.trouble, r.relief = 1+r.choose.intn(24), 4+r.choose.intn(16)
	for _, kind := range simFaultKinds {
		if r.choose.intn(2) == 0 {
			weight := 1 + r.choose.intn(8)
			r.faults = append(r.faults, simFault{weight, kind})
			r.total += weight
		}
	}
}

// next chooses an action: most of the time something that has to happen for the
// cluster to work, sometimes a fault, and then its end.
func (r *simRun) next() *simAction {
	n := r.choose.intn(256)
	if n -= r.trouble; n < 0 {
		return r.fault()
	}
	if n -= r.relief; n < 0 {
		return r.repair()
	}
	for i, kind := range simWorkKinds {
		if n -= kind.weight; n < 0 {
			return simWorkKinds[i].make(r)
		}
	}
	return &simAction{verb: "round"}
}

func (r *simRun) fault() *simAction {
	if r.total == 0 {
		return nil
	}
	n := r.choose.intn(r.total)
	for _, f := range r.faults {
		if n -= f.weight; n < 0 {
			return f.make(r)
		}
	}
	return nil
}

// repair ends one of the faults that are there.
func (r *simRun) repair() *simAction {
	var due []*simAction
	for _, b := range r.w.all() {
		add := func(is bool, verb string) {
			if is {
				due = append(due, &simAction{verb: verb, broker: b.id})
			}
		}
		add(b.broker == nil, "restart")
		add(b.broker != nil && b.broker.unfitReason() != nil, "bounce")
		add(b.paused, "resume")
		add(b.severed, "rejoin")
		add(b.hung, "unhang")
	}
	if len(r.w.cut) > 0 {
		due = append(due, &simAction{verb: "mend"})
	}
	if r.w.outage {
		due = append(due, &simAction{verb: "back"})
	}
	if n := len(r.w.late); n > 0 {
		due = append(due, &simAction{verb: "arrive", n: r.choose.intn(n)})
	}
	if len(due) == 0 {
		return nil
	}
	return due[r.choose.intn(len(due))]
}

// walk does up to so many actions, and then has the world heal.
func (r *simRun) walk(steps int) {
	r.draw()
	for range steps {
		if r.choose.spent() || r.w.check.violation != nil {
			break
		}
		if a := r.next(); a != nil {
			r.do(a)
		}
	}
	r.heal()
}

// play does what another run did.
func (r *simRun) play(actions []*simAction) {
	for _, a := range actions {
		if r.w.check.violation == nil {
			r.do(a)
		}
	}
	r.heal()
}

func (r *simRun) do(a *simAction) {
	r.actions = append(r.actions, a)
	r.w.do(a)
}

func (r *simRun) heal() {
	if r.w.check.violation == nil {
		r.w.heal()
	}
}

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

// heal ends all faults, and requires that the cluster recovers, takes records again,
// and then is silent; and that all disks are equal.
func (w *simWorld) heal() {
	err := w.recover()
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
		b.paused = false
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
// a world where copies were destroyed, settle for what is left.
func (w *simWorld) operate() {
	for _, b := range w.up() {
		again := false // a log is repaired once in the life of a broker (D20)
		for _, n := range b.faults {
			again = again || n > 1
		}
		if again || b.broker.unfitReason() != nil {
			b.crash(1 << 20)
			b.start()
		}
	}
	if !w.lossy || w.now%time.Second > 100*time.Millisecond {
		return
	}
	for _, id := range w.check.allPartitions() {
		if s := w.records.states[id]; s.Leader < 0 {
			w.do(&simAction{verb: "elect", broker: 1, topic: s.topic, partition: id.Partition, kind: "unclean", n: -1})
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

// silent requires that nothing is sent but heartbeats.
func (w *simWorld) silent() error {
	w.past = nil
	w.settle(2 * simSession)
	for _, f := range w.past {
		if !f.msg.Payload.Empty() {
			return errNotSilent(f.msg)
		}
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
		if n := b.broker.appends.open() + b.broker.reads.open(); n > 0 {
			return errWaits(b.id, n)
		}
		for id, r := range b.broker.loops[0].shard.replicas {
			if w.records.deleted[id.Topic] || w.records.states[id] == nil && !r.stranger {
				return errLeftOver(b.id, id)
			}
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
	if lead == nil || len(s.ISR) < len(s.Replicas) {
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
