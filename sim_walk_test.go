package tidemark

import "strconv"

// simRun is one run: a world, what is done to it, and how it ended.
type simRun struct {
	w       *simWorld
	kind    simWorldKind
	choose  simChoices
	work    []simFault
	faults  []simFault
	total   int   // of the faults' weights
	trouble int   // how often something goes wrong, and
	relief  int   // how often that ends, of 256
	calm    int   // how often everything arrives at once, of 256 times
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
	func(r *simRun) *simAction {
		return &simAction{verb: "lag", broker: r.broker(), kind: r.one("loop", "control")}
	},
	func(r *simRun) *simAction { return r.onBroker("hang") },
	func(r *simRun) *simAction {
		return &simAction{verb: "fail", broker: r.broker(), kind: r.one("failing", "full")}
	},
	func(r *simRun) *simAction {
		if !r.w.lossy && !r.w.controllerKnows() {
			return nil // what is under way may count on it
		}
		return &simAction{verb: "wipe", broker: r.broker(), kind: r.one("soon", "late")}
	},
	func(r *simRun) *simAction {
		if !r.w.lossy {
			return nil // until it is said, others may leave the damaged one as the only one in sync
		}
		return r.onPartition("damage", r.one("part", "whole"), 0)
	},
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
		a.kind = strconv.Itoa(int(r.broker()))
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

// newSimWork returns what has to happen for a cluster to work, and how often it does,
// of 256; the rest of the time everything happens once.
func newSimWork() []simFault {
	return []simFault{
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
		{2, func(r *simRun) *simAction { return r.calmly(&simAction{verb: "settle", n: r.choose.intn(200)}) }},
	}
}

func (r *simRun) any() int32 { return 1 + int32(r.choose.intn(len(r.w.brokers))) }

// draw draws which faults the run has, and how often.
func (r *simRun) draw() {
	r.trouble, r.relief = 1+r.choose.intn(24), 4+r.choose.intn(16)
	r.work = newSimWork()
	r.calm = [...]int{256, 256, 64, 8}[r.choose.intn(4)]
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
	for _, kind := range r.work {
		if n -= kind.weight; n < 0 {
			return kind.make(r)
		}
	}
	return r.calmly(&simAction{verb: "round"})
}

// calmly does what lets everything arrive, or in a run that is not calm, where a
// message, a write or a call may be under way for long, some one thing.
func (r *simRun) calmly(a *simAction) *simAction {
	if r.calm < 256 && r.choose.intn(256) >= r.calm {
		return r.work[r.choose.intn(4)].make(r)
	}
	return a
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
		add(b.behind != "", "catch")
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
