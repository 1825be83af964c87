package tidemark

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/tidemark-log/tidemark/protocol"
)

// simAction is one thing that is done to a world. It says all of what is done, so
// that a run can be written down, done again, and shortened. What does not apply,
// because the broker is down or the message is not there, does nothing.
type simAction struct {
	verb      string
	broker    int32 // or the sender
	to        int32 // the addressee
	topic     string
	partition int32
	n         int    // how many, which one, or milliseconds
	kind      string // a variant
}

// simVerb is a kind of action: which fields it has, and what it does.
type simVerb struct {
	fields string // of simAction, in the order in which they are written
	do     func(w *simWorld, a *simAction)
}

// simVerbs has the fields of all kinds of actions. A world has a table of its own, for
// what actions do may not depend on a variable that depends on them.
var simVerbs = newSimVerbs()

// newSimVerbs returns all kinds of actions. In scripts they are the lines of `play`.
func newSimVerbs() map[string]simVerb {
	return map[string]simVerb{
		// The network: the n-th message in flight from one broker to another.
		"deliver":    {"broker to n", func(w *simWorld, a *simAction) { w.flight(a, w.deliver) }},
		"drop":       {"broker to n", func(w *simWorld, a *simAction) { w.flight(a, w.dropFlight) }},
		"double":     {"broker to n", (*simWorld).doDouble},
		"misdeliver": {"broker to n kind", (*simWorld).doMisdeliver}, // kind: to whom
		"repeat":     {"n", (*simWorld).doRepeat},                    // a message sent earlier comes once more
		"cut":        {"broker to", (*simWorld).doCut},
		"isolate":    {"broker", (*simWorld).doIsolate},
		"mend":       {"", func(w *simWorld, _ *simAction) { clear(w.cut) }},

		// Time and what happens in it.
		"tick":   {"n", (*simWorld).doTick},
		"round":  {"", func(w *simWorld, _ *simAction) { w.round(); w.advance(5 * time.Millisecond) }},
		"settle": {"n", func(w *simWorld, a *simAction) { w.settle(a.ms()) }},
		"wall":   {"n", func(w *simWorld, a *simAction) { w.wall += a.ms() }}, // the wall clocks step
		"pause":  {"broker", (*simWorld).doPause},
		"resume": {"broker", (*simWorld).doResume},
		"lag":    {"broker kind", (*simWorld).doLag}, // kind: loop, control: which of its loops falls behind the other
		"catch":  {"broker", (*simWorld).doCatchUp},

		// Disks.
		"store":  {"broker n", (*simWorld).doStore},
		"read":   {"broker", func(w *simWorld, a *simAction) { w.brokers[a.broker].readCold() }},
		"hang":   {"broker", (*simWorld).doHang},
		"unhang": {"broker", func(w *simWorld, a *simAction) { w.brokers[a.broker].hang(false) }},
		"fail":   {"broker kind", (*simWorld).doFail},                   // kind: failing, full
		"wipe":   {"broker kind", (*simWorld).doWipe},                   // kind: soon, late: whether its sessions ended before
		"damage": {"broker topic partition kind", (*simWorld).doDamage}, // kind: part, whole
		"flip":   {"broker topic partition n", (*simWorld).doFlip},

		// Processes and sessions.
		"crash":   {"broker n", (*simWorld).doCrash},
		"restart": {"broker", (*simWorld).doRestart},
		"bounce":  {"broker n", (*simWorld).doBounce},
		"expire":  {"broker", (*simWorld).doExpire},

		// The coordination store.
		"look":   {"broker n", func(w *simWorld, a *simAction) { w.brokers[a.broker].look(a.n) }},
		"call":   {"broker n", func(w *simWorld, a *simAction) { w.brokers[a.broker].call(a.n) }},
		"upset":  {"broker kind", (*simWorld).doUpset}, // kind: drop, lose, late, last
		"arrive": {"n", (*simWorld).doArrive},
		"sever":  {"broker", (*simWorld).doSever},
		"rejoin": {"broker", func(w *simWorld, a *simAction) { w.brokers[a.broker].severed = false }},
		"outage": {"", func(w *simWorld, _ *simAction) { w.outage = true }},
		"back":   {"", func(w *simWorld, _ *simAction) { w.outageOver() }},

		// Clients.
		"append":  {"broker topic partition kind n", (*simWorld).doAppend}, // kind: all, leader, none; n: retries
		"produce": {"broker topic partition n", (*simWorld).doProduce},
		"fetch":   {"broker topic partition n", (*simWorld).doRead}, // from n
		"create":  {"broker topic partition kind n", (*simWorld).doCreate},
		"alter":   {"broker topic n", (*simWorld).doAlter}, // MinISR n
		"grow":    {"broker topic", (*simWorld).doGrow},
		"delete":  {"broker topic", (*simWorld).doDelete},
		"elect":   {"broker topic partition kind n", (*simWorld).doElect}, // kind: preferred, unclean; n: whom
	}
}

func (a *simAction) ms() time.Duration { return time.Duration(a.n) * time.Millisecond }

// String is the action as a script has it.
func (a *simAction) String() string {
	var out strings.Builder
	out.WriteString(a.verb)
	for _, field := range strings.Fields(simVerbs[a.verb].fields) {
		fmt.Fprintf(&out, " %s=%s", field, a.field(field, nil))
	}
	return out.String()
}

// field reads a field by its name, having set it if value is not nil.
func (a *simAction) field(name string, value *string) string {
	number := func(p *int32) string {
		if value != nil {
			n, _ := strconv.Atoi(*value)
			*p = int32(n)
		}
		return strconv.Itoa(int(*p))
	}
	text := func(p *string) string {
		if value != nil {
			*p = *value
		}
		return *p
	}
	switch name {
	case "broker":
		return number(&a.broker)
	case "to":
		return number(&a.to)
	case "partition":
		return number(&a.partition)
	case "topic":
		return text(&a.topic)
	case "kind":
		return text(&a.kind)
	}
	n := int32(a.n)
	s := number(&n)
	a.n = int(n)
	return s
}

// parseSimAction reads what String wrote.
func parseSimAction(line string) (*simAction, error) {
	verb, args, err := datadriven.ParseLine(line)
	if err != nil {
		return nil, err
	}
	v, ok := simVerbs[verb]
	if !ok {
		return nil, fmt.Errorf("unknown action %q", verb)
	}
	a := &simAction{verb: verb}
	for _, arg := range args {
		if !slices.Contains(strings.Fields(v.fields), arg.Key) || len(arg.Vals) != 1 {
			return nil, fmt.Errorf("%s: what is %v?", line, arg)
		}
		if got := a.field(arg.Key, &arg.Vals[0]); got != arg.Vals[0] {
			return nil, fmt.Errorf("%s: %v is not a number", line, arg)
		}
	}
	if fields := strings.Fields(v.fields); slices.Contains(fields, "broker") && a.broker < 1 || slices.Contains(fields, "to") && a.to < 1 {
		return nil, fmt.Errorf("%s: which broker?", line)
	}
	return a, nil
}

// do does an action.
func (w *simWorld) do(a *simAction) {
	w.trace("%v", a)
	if int(a.broker) > len(w.brokers) || int(a.to) > len(w.brokers) {
		return // of a larger world
	}
	w.verbs[a.verb].do(w, a)
}

// flight applies do to the index of the message that an action means.
func (w *simWorld) flight(a *simAction, do func(i int)) {
	n := a.n
	for i := range w.flights {
		if f := &w.flights[i]; f.msg.From == a.broker && f.to == a.to {
			if n == 0 {
				do(i)
				return
			}
			n--
		}
	}
}

func (w *simWorld) dropFlight(i int) { w.flights = slices.Delete(w.flights, i, i+1) }

func (w *simWorld) doDouble(a *simAction) {
	w.flight(a, func(i int) {
		w.flights = append(w.flights, w.flights[i])
		w.deliver(i)
	})
}

func (w *simWorld) doMisdeliver(a *simAction) {
	other, _ := strconv.Atoi(a.kind)
	w.flight(a, func(i int) {
		if w.brokers[int32(other)] != nil {
			w.hand(simFlight{int32(other), w.flights[i].msg})
		}
	})
}

func (w *simWorld) doRepeat(a *simAction) {
	if a.n < len(w.past) {
		w.hand(w.past[a.n])
	}
}

func (w *simWorld) doCut(a *simAction) { w.cut[[2]int32{a.broker, a.to}] = true }

func (w *simWorld) doIsolate(a *simAction) {
	for other := range w.brokers {
		w.cut[[2]int32{a.broker, other}], w.cut[[2]int32{other, a.broker}] = true, true
	}
}

func (w *simWorld) doTick(a *simAction) {
	w.advance(a.ms())
	for _, b := range w.up() {
		b.tick()
	}
}

func (w *simWorld) doPause(a *simAction) {
	if b := w.brokers[a.broker]; b.broker != nil && w.mayDisturb(b) {
		b.paused = true
		w.check.stats.pauses++
	}
}

func (w *simWorld) doResume(a *simAction) {
	b := w.brokers[a.broker]
	b.paused = false
	b.run()
}

// doLag keeps one of a broker's loops from running while the other one goes on.
func (w *simWorld) doLag(a *simAction) {
	if b := w.brokers[a.broker]; b.broker != nil && w.mayDisturb(b) {
		b.behind = a.kind
	}
}

func (w *simWorld) doCatchUp(a *simAction) {
	b := w.brokers[a.broker]
	b.behind = ""
	b.run()
}

func (w *simWorld) doStore(a *simAction) {
	if b := w.brokers[a.broker]; b.broker != nil && !b.paused {
		b.store.Sync(a.n)
		b.run()
	}
}

func (w *simWorld) doHang(a *simAction) {
	if w.maySpoil() {
		w.brokers[a.broker].hang(true)
	}
}

var errSimDisk = map[string]error{"failing": errors.New("input/output error"), "full": errors.New("no space left on device")}

// doFail makes the disk take no more. What it has stays; the process has to be
// started again.
func (w *simWorld) doFail(a *simAction) {
	if b := w.brokers[a.broker]; b.broker != nil && w.mayDisturb(b) && w.maySpoil() {
		b.disk.FailWrites(errSimDisk[a.kind])
		w.check.stats.diskFaults++
	}
}

// doWipe brings a broker back with an empty disk.
func (w *simWorld) doWipe(a *simAction) {
	b := w.brokers[a.broker]
	registered, ok, _ := w.reader.Get(w.ctx, brokerIDKey(b.id))
	soon := ok && a.kind == "soon"
	if !w.mayDestroy(b, !ok || soon && w.mayDisturb(b)) {
		return
	}
	if b.broker != nil {
		b.crash(0)
	}
	if soon {
		w.expire(registered.Session)
	}
	b.directory = w.uuid()
	b.disk = w.memDisk(b.directory)
	clear(b.damaged)
	clear(b.flipped)
	w.check.stats.wipes++
	w.check.down(b)
	b.start()
}

// doDamage has a broker find one of its logs damaged when it comes back.
func (w *simWorld) doDamage(a *simAction) {
	b, id := w.brokers[a.broker], w.id(a)
	if !w.mayDestroy(b, false) || !w.soundElsewhere(b, id) {
		return
	}
	if b.broker != nil {
		b.crash(1 << 20)
	}
	if b.disk.Damage(id, a.kind == "whole") {
		b.damaged[id] = false
		w.check.stats.damages++
	}
	b.start()
}

// doFlip flips a bit on the disk, for whoever reads there. Nobody knows until then: by
// that time the broker may be the only one in sync, so that no budget can allow for it.
func (w *simWorld) doFlip(a *simAction) {
	b, id := w.brokers[a.broker], w.id(a)
	if r := w.replica(b.id, id); r != nil && w.lossy && int64(a.n) < r.stored && w.soundElsewhere(b, id) {
		b.flipped[id] = int64(a.n)
		w.check.stats.damages++
	}
}

func (w *simWorld) id(a *simAction) protocol.PartitionID {
	return protocol.PartitionID{Topic: w.records.topics[a.topic].ID, Partition: a.partition}
}

func (w *simWorld) doCrash(a *simAction) {
	if b := w.brokers[a.broker]; b.broker != nil && w.mayDisturb(b) && w.mayCrash(b) {
		b.crash(a.n)
	}
}

func (w *simWorld) doRestart(a *simAction) {
	if b := w.brokers[a.broker]; b.broker == nil {
		w.check.stats.restarts++
		b.start()
	}
}

func (w *simWorld) doBounce(a *simAction) {
	if b := w.brokers[a.broker]; b.broker != nil && w.mayDisturb(b) && w.mayCrash(b) {
		b.crash(a.n)
		w.check.stats.restarts++
		b.start()
	}
}

func (w *simWorld) doExpire(a *simAction) {
	if b := w.brokers[a.broker]; b.session != nil && w.mayDisturb(b) {
		w.expire(b.session.ID())
	}
}

var simCoordFaults = map[string]simCoordFault{"drop": coordDrop, "lose": coordLose, "late": coordLate, "last": coordLast}

func (w *simWorld) doUpset(a *simAction) {
	if b := w.brokers[a.broker]; b.broker != nil {
		b.client.faults = append(b.client.faults, simCoordFaults[a.kind])
	}
}

func (w *simWorld) doArrive(a *simAction) {
	if a.n < len(w.late) && !w.outage {
		w.check.stats.lateWrites++
		w.arrive(a.n)
	}
}

func (w *simWorld) doSever(a *simAction) {
	if b := w.brokers[a.broker]; b.broker != nil && w.mayDisturb(b) {
		b.severed = true
	}
}

// mayDestroy reports whether the fault budget allows to take away what a broker
// has. One whose registration is gone has to be in no ISR. Otherwise every partition
// of it is whole elsewhere, and nothing is under way that could take those copies out of
// the count: while it is registered it may be in an ISR tomorrow for what it had yesterday.
func (w *simWorld) mayDestroy(b *simBroker, gone bool) bool {
	counts := false
	for id, s := range w.records.states {
		counts = counts || !w.records.deleted[id.Topic] && s.InISR(b.id)
	}
	if w.lossy || gone && !counts {
		return true
	}
	if !w.controllerKnows() {
		return false // it may be about to take a member out that is back by now
	}
	for _, x := range w.all() {
		if x.broker == nil || x.session == nil || x.paused || x.severed || x.behind != "" || x.broker.unfitReason() != nil || w.inDoubt(x) {
			return false
		}
		if _, alive := w.sessions[x.session.ID()]; !alive {
			return false
		}
	}
	for id, s := range w.records.states {
		if w.records.deleted[id.Topic] || !s.Assigned(b.id) {
			continue
		}
		if len(s.ISR) < len(s.Replicas) || s.Leader < 0 || len(s.ISR) < 2 || s.LeaderBrokerEpoch != w.records.live[s.Leader] {
			return false
		}
		for _, x := range w.all() {
			if r := w.replica(x.id, id); r != nil && r.isr.pending != nil {
				return false
			}
		}
	}
	return true
}

// controllerKnows reports whether there is a Controller, of the present term, that has
// heard of all registrations in force, and has nothing under way that rests on others.
func (w *simWorld) controllerKnows() bool {
	for _, b := range w.up() {
		meta := b.broker.control.meta
		if meta == nil || meta.epoch != w.records.term {
			continue
		}
		if len(meta.writes)+len(meta.dirty)+len(b.calls)+len(w.late) > 0 {
			return false
		}
		for id, epoch := range w.records.live {
			if known := meta.brokers[id]; known == nil || known.epoch != epoch {
				return false
			}
		}
		return true
	}
	return false
}

// soundElsewhere reports whether another copy of a partition is not damaged. If all
// were, nothing but the deletion of the topic would help.
func (w *simWorld) soundElsewhere(b *simBroker, id protocol.PartitionID) bool {
	s := w.records.states[id]
	return s != nil && slices.ContainsFunc(s.Replicas, func(other int32) bool {
		x := w.brokers[other]
		_, flipped := x.flipped[id]
		return x != b && !flipped && !x.isDamaged(id)
	})
}

// mayCrash reports whether the budget allows a crash: in background mode it takes
// away what was acknowledged and not yet synced.
func (w *simWorld) mayCrash(b *simBroker) bool { return !w.background || w.mayDestroy(b, false) }

// maySpoil reports whether the budget allows a disk to get stuck: in background mode
// its broker goes on acknowledging what will be gone when it is started again.
func (w *simWorld) maySpoil() bool { return !w.background || w.lossy }

// mayDisturb reports whether the budget allows to disturb a broker: not while the
// cluster may count on another one that lacks what it vouches for. Where it is recorded
// that a directory was replaced, nobody counts on that broker, whoever else is away; in
// background mode whoever else goes down may lose something as well.
func (w *simWorld) mayDisturb(b *simBroker) bool {
	return w.lossy || !slices.ContainsFunc(w.all(), func(x *simBroker) bool {
		return x != b && w.inDoubt(x) && (w.background || !w.isReplaced(x))
	})
}

// isReplaced reports whether what is wrong with a broker's copies is that it has
// another directory, and that is recorded, by a registration which is in force.
func (w *simWorld) isReplaced(b *simBroker) bool {
	last := w.records.last[b.id]
	return last.Replaced && last.Directory == b.directory && len(b.damaged)+len(b.flipped) == 0 && w.records.live[b.id] != 0
}

// inDoubt reports whether somebody counts on what the broker lacks, or may lack.
func (w *simWorld) inDoubt(b *simBroker) bool {
	doubtful := w.records.doubtful(b, w.background) ||
		w.background && (b.broker == nil || w.records.last[b.id].Incarnation != b.reg.incarnation)
	for id, s := range w.records.states {
		_, flipped := b.flipped[id]
		if s.InISR(b.id) && !w.records.deleted[id.Topic] && (doubtful || flipped || b.isDamaged(id)) {
			return true
		}
	}
	return false
}
