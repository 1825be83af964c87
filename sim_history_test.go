package tidemark

import (
	"slices"
	"time"

	"github.com/tidemark-log/tidemark/protocol"
)

// What clients must be able to rely on, whatever happens, and the rules of this
// protocol that no single log shows: one type each.
type (
	lostWrite          struct{}                             // what was acknowledged is in all logs in the end
	inconsistentOffset struct{}                             // acknowledgements, reads and logs agree on what is at an offset
	abortedRead        struct{}                             // what was refused is in no log
	duplicate          struct{ at map[string]int64 }        // what was sent once is committed once
	inOrder            struct{}                             // a producer's records are acknowledged in the order in which it sent them
	highWatermark      struct{}                             // it never falls within an epoch, and stays within what is stored
	samePrefix         struct{}                             // below its high watermark every replica has what is committed
	epochs             struct{ acks map[simTerm]int32 }     // one broker acknowledges in an epoch; what is recorded only moves on
	finalSweep         struct{}                             // in the end all disks have the same
	minISR             struct{}                             // with fewer in sync than asked for, nothing becomes committed
	lagBounds          struct{ ends map[simCopy]*simMarks } // who keeps up stays, who does not is not admitted
	storedAck          struct{}                             // what a leader acknowledged by itself is on its disk
	foundBroken        struct{}                             // a log can be read
	vanishedTopic      struct{}                             // no topic goes unless somebody deletes it
	grounded           struct{}                             // what a recorded state rests on is so when it is recorded
	lastResort         struct{}                             // nobody gives up records unless told to, and while there is no other way
	refusedEarly       struct{}                             // what cannot be acknowledged is not taken
	ledFirst           struct{}                             // nobody has a record of an epoch before its leader's disk knows of it
)

func (lostWrite) rule() string          { return "lost write" }
func (inconsistentOffset) rule() string { return "inconsistent offset" }
func (abortedRead) rule() string        { return "aborted read" }
func (*duplicate) rule() string         { return "duplicate" }
func (*inOrder) rule() string           { return "order" }
func (*highWatermark) rule() string     { return "HW" }
func (samePrefix) rule() string         { return "prefix" }
func (*epochs) rule() string            { return "epoch" }
func (finalSweep) rule() string         { return "final sweep" }
func (minISR) rule() string             { return "MinISR" }
func (*lagBounds) rule() string         { return "D10" }
func (storedAck) rule() string          { return "D1" }
func (foundBroken) rule() string        { return "unreadable" }
func (grounded) rule() string           { return "grounds" }
func (lastResort) rule() string         { return "EL-2" }
func (refusedEarly) rule() string       { return "PR-1" }
func (ledFirst) rule() string           { return "D11" }

func (k refusedEarly) replica(c *simCheck, v *simView) {
	r := v.r
	if v.now.role != roleLeader || !v.goesOn() || len(r.onCommit) == 0 {
		return
	}
	if last := r.onCommit[len(r.onCommit)-1]; last.base >= v.was.end && len(r.isr.committed) < int(r.state.MinISR) && v.was.partitionEpoch == v.now.partitionEpoch {
		c.fail(k, "%v took an append with acks=all at %d, ISR %v, MinISR %d", v, last.base, r.isr.committed, r.state.MinISR)
	}
	if limit := r.env.cfg.MaxUncommittedBytes; r.uncommittedBytes > limit {
		c.fail(k, "%v has %d bytes that are not committed, the limit is %d", v, r.uncommittedBytes, limit)
	}
}

func (k ledFirst) replica(c *simCheck, v *simView) {
	n := len(v.log.entries)
	if v.now.role != roleFollower || n == 0 || v.log.entries[n-1].epoch != v.now.epoch {
		return
	}
	if lead := c.w.replica(v.r.state.Leader, v.r.id); lead != nil && lead.role == roleLeader && lead.state.LeaderEpoch == v.now.epoch && !lead.ledStored {
		c.fail(k, "%v has records of the epoch, which the disk of broker %d does not know yet", v, v.r.state.Leader)
	}
}

func (vanishedTopic) rule() string { return "D21" }

// healed checks, once everything has recovered, that what was acknowledged is there.
func (k lostWrite) healed(c *simCheck, id protocol.PartitionID, log []simEntry) {
	for o, value := range c.partition(id).inOrder() {
		if o >= int64(len(log)) || log[o].value != value {
			c.fail(k, "%s: %s was acknowledged at %d; the log ends at %d", id, value, o, len(log))
		}
	}
}

func (k inconsistentOffset) answer(c *simCheck, p *simPartition, a *simAppend, ans *protocol.AppendAnswer) {
	if a.acks != AcksAll {
		return
	}
	o := int(ans.Base)
	switch was, again := p.acked[ans.Base]; {
	case again && was != a.value:
		c.fail(k, "%s: acknowledged at %d in epoch %d was %s, and now %s", p.id, o, ans.LeaderEpoch, was, a.value)
	case o >= len(p.committed) || p.committed[o].value != a.value:
		c.fail(k, "%s: %s was acknowledged at %d, which is not what is committed there; %d are", p.id, a.value, o, len(p.committed))
	}
}

func (k inconsistentOffset) read(c *simCheck, p *simPartition, rec *Record, ans *protocol.ReadAnswer) {
	if rec.Offset >= int64(len(p.committed)) || rec.Offset >= ans.HW {
		c.fail(k, "%s: a reader got %s at %d, with HW %d; %d are committed", p.id, rec.Value, rec.Offset, ans.HW, len(p.committed))
	}
}

func (k *duplicate) replica(c *simCheck, v *simView) {
	if !v.leads() || v.p.unclean > 0 {
		return
	}
	for o := len(v.p.committed); o < int(v.now.hw) && o < len(v.log.entries); o++ {
		value := v.log.entries[o].value
		if was, ok := k.at[value]; ok && was != int64(o) && !c.appends[value].again {
			c.fail(k, "%s was sent once and is committed at %d and %d", value, was, o)
		}
		k.at[value] = int64(o)
	}
}

func (k *inOrder) answer(c *simCheck, at *simPartition, a *simAppend, ans *protocol.AppendAnswer) {
	p := a.producer
	if p == nil || a.again || at.unclean > 0 { // what was given up left its offsets to others
		return
	}
	for _, other := range p.acked {
		if other.number < a.number && other.offset > ans.Base || other.number > a.number && other.offset < ans.Base {
			c.fail(k, "%s was sent as number %d and acknowledged at %d, %s as number %d at %d", a.value, a.number, ans.Base, other.value, other.number, other.offset)
		}
	}
	p.acked = append(p.acked, a)
}

func (k *highWatermark) replica(c *simCheck, v *simView) {
	switch n := &v.now; {
	case n.role == roleFailed:
	case n.hw < n.start || n.hw > n.stored || n.stored > n.end:
		c.fail(k, "%v has log start %d, HW %d, stored %d, log end %d", v, n.start, n.hw, n.stored, n.end)
	case n.stored > v.b.durable[v.r.id] && len(v.r.inflight) > 0:
		c.fail(k, "%v takes %d for stored, its disk has %d", v, n.stored, v.b.durable[v.r.id])
	case v.goesOn() && n.hw < v.was.hw && (n.role != roleFollower || v.was.agreed): // the first answer of an epoch may lower it (FT-9)
		c.fail(k, "%v: HW falls from %d to %d", v, v.was.hw, n.hw)
	}
}

func (k samePrefix) replica(c *simCheck, v *simView) {
	if v.now.role == roleFailed || v.goesOn() && v.was.hw == v.now.hw || v.p.unclean > 0 && v.r.agreedIn < v.p.unclean {
		return
	}
	for o := 0; o < int(v.now.hw) && o < len(v.log.entries); o++ {
		if o >= len(v.p.committed) {
			if v.leads() {
				return // it commits this by itself, just now
			}
			c.fail(k, "%v has HW %d, nobody committed more than %d", v, v.now.hw, o)
			return
		}
		if v.log.entries[o] != v.p.committed[o] {
			c.fail(k, "%v has HW %d and %v at %d, committed is %v", v, v.now.hw, v.log.entries[o], o, v.p.committed[o])
			return
		}
	}
}

func (k *epochs) answer(c *simCheck, p *simPartition, a *simAppend, ans *protocol.AppendAnswer) {
	term := simTerm{p.id, ans.LeaderEpoch}
	if who, ok := k.acks[term]; ok && who != a.leader {
		c.fail(k, "%s: brokers %d and %d acknowledge in epoch %d", p.id, who, a.leader, term.epoch)
	}
	k.acks[term] = a.leader
}

func (k *epochs) state(c *simCheck, id protocol.PartitionID, was, is *simState) {
	switch {
	case was == nil:
	case is.PartitionEpoch != was.PartitionEpoch+1:
		c.fail(k, "%s: partition epoch %d follows %d", id, is.PartitionEpoch, was.PartitionEpoch)
	case is.LeaderEpoch < was.LeaderEpoch || is.ControllerEpoch < was.ControllerEpoch:
		c.fail(k, "%s: leader epoch %d, controller epoch %d follow %d and %d", id, is.LeaderEpoch, is.ControllerEpoch, was.LeaderEpoch, was.ControllerEpoch)
	case is.LeaderEpoch == was.LeaderEpoch && (is.Leader != was.Leader || is.LeaderBrokerEpoch != was.LeaderBrokerEpoch):
		c.fail(k, "%s: the leader changes within epoch %d: %+v, %+v", id, is.LeaderEpoch, was, is)
	}
}

// state checks that a state is of the Controller's present term, and that whoever it
// makes leader or takes in is registered, in the life that it names, and has not lost
// what it had (CE-4, EL-4, CT-VAL, D17).
func (k grounded) state(c *simCheck, id protocol.PartitionID, was, is *simState) {
	w := c.w.records
	if is.ControllerEpoch != w.term && (was == nil || is.ControllerEpoch != was.ControllerEpoch) {
		c.fail(k, "%s: written in term %d, it is %d by now", id, is.ControllerEpoch, w.term)
	}
	if was == nil || is.Leader < 0 || is.LeaderEpoch == was.LeaderEpoch && slices.Equal(is.ISR, was.ISR) {
		return
	}
	if w.live[is.Leader] != is.LeaderBrokerEpoch {
		c.fail(k, "%s: leader %d in life %d, it is %d by now: %+v", id, is.Leader, is.LeaderBrokerEpoch, w.live[is.Leader], is)
	}
	for _, member := range is.ISR {
		last := w.last[member]
		if !was.InISR(member) && is.UncleanEpoch == was.UncleanEpoch && (w.live[member] == 0 || last.Replaced || last.Unclean && c.background(id)) {
			c.fail(k, "%s: broker %d joins, registered as %d, %+v", id, member, w.live[member], last)
		}
	}
}

func (k minISR) replica(c *simCheck, v *simView) {
	if v.now.role != roleLeader || !v.goesOn() || v.now.hw <= v.was.hw {
		return
	}
	if s := &v.r.state; len(s.ISR) < int(s.MinISR) {
		c.fail(k, "%v: HW rises from %d to %d, ISR %v, MinISR %d", v, v.was.hw, v.now.hw, s.ISR, s.MinISR)
	}
}

// simCopy is one leadership.
type simCopy struct {
	open  *Broker
	id    protocol.PartitionID
	epoch int32
}

// simMarks says when which offset was appended.
type simMarks struct {
	since time.Duration
	ends  []mark // at a time the log's end rose from offset
}

func (m *simMarks) appendedAt(offset int64) time.Duration {
	at := m.since
	for _, e := range m.ends {
		if e.offset > offset {
			break
		}
		at = e.at
	}
	return at
}

func (k *lagBounds) replica(c *simCheck, v *simView) {
	if v.now.role != roleLeader {
		return
	}
	now, at := v.b.broker.now(), simCopy{v.now.open, v.r.id, v.now.epoch}
	marks := k.ends[at]
	if marks == nil {
		marks = &simMarks{since: v.r.leadSince}
		k.ends[at] = marks
	}
	if v.goesOn() && v.now.end > v.was.end {
		marks.ends = append(marks.ends, mark{v.was.end, now})
	}
	p := v.now.pending
	if p == nil || p == v.was.pending {
		return
	}
	cfg := &v.r.env.cfg
	// How late a slow leader's marks are moved forward is its own affair: an admission
	// is judged by its own count.
	if m := v.r.remote(p.added); m != nil && v.r.lag(now, m) > cfg.MaxLag/2 {
		c.fail(k, "%v would admit broker %d, which lags %v", v, m.id, v.r.lag(now, m))
	}
	for _, id := range v.r.isr.committed {
		m := v.r.remote(id)
		if p.added >= 0 || m == nil || slices.ContainsFunc(p.proposal.ISR, func(m protocol.Member) bool { return m.ID == id }) {
			continue
		}
		lag := v.r.lag(now, m)
		if m.stored >= 0 {
			// The leader's own marks are this coarse (D10).
			lag = min(lag, now-marks.appendedAt(m.stored)+cfg.MaxLag/32+cfg.JoinWindow/4)
		}
		if lag <= cfg.MaxLag {
			c.fail(k, "%v would leave out broker %d, which lags %v: stored %d of %d", v, id, lag, m.stored, v.now.end)
		}
	}
}

func (k storedAck) answer(c *simCheck, p *simPartition, a *simAppend, ans *protocol.AppendAnswer) {
	r, stored := c.w.replica(a.leader, p.id), c.w.brokers[a.leader].durable[p.id]
	if r != nil && r.role == roleLeader && r.state.LeaderEpoch == ans.LeaderEpoch && stored <= ans.Base {
		c.fail(k, "%s: broker %d acknowledged %s at %d, and has stored %d", p.id, a.leader, a.value, ans.Base, stored)
	}
}

// state allows an unclean election only where somebody asked for one, with an order or
// by the topic's configuration, and no member was there that could have led (EL-1, EL-2).
func (k lastResort) state(c *simCheck, id protocol.PartitionID, was, is *simState) {
	if was == nil || is.UncleanEpoch <= was.UncleanEpoch {
		return
	}
	if !c.w.asked[id] && !c.w.records.topics[is.topic].Config.UncleanElection {
		c.fail(k, "%s: broker %d was elected uncleanly for epoch %d, and nobody asked for that: %+v", id, is.Leader, is.LeaderEpoch, was.PartitionState)
	}
	for _, member := range was.ISR {
		b, r := c.w.brokers[member], c.w.replica(member, id)
		_, flipped := b.flipped[id]
		// Long enough for the decision to have known of it.
		ok := r != nil && c.w.now-c.w.records.since[member] > 3*simSession && r.role != roleFailed && b.faults[id] == 0 && c.w.records.live[member] != 0 && b.broker.unfitReason() == nil
		if member != is.Leader && ok && !flipped && !c.excused(member, id) {
			c.fail(k, "%s: broker %d was elected uncleanly, member %d was there", id, is.Leader, member)
		}
	}
}

// gone checks that somebody deleted a topic that went.
func (k vanishedTopic) gone(c *simCheck, topic string) {
	if !c.w.given[topic] {
		c.fail(k, "the topic %s is deleted, and nobody asked for that", topic)
	}
}
