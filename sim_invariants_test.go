package tidemark

import (
	"slices"

	"github.com/tidemark-log/tidemark/protocol"
)

// The invariants of docs/protocol.md, one type each.
type (
	inv1  struct{}                              // whoever is recorded to be in sync has all that is committed
	inv2  struct{}                              // a cleanly elected leader has all that is committed
	inv3  struct{}                              // logs with the same epoch at an offset are equal up to there
	inv4  struct{}                              // a leader counts with everybody who is recorded to be in sync
	inv5  struct{}                              // what is committed at an offset stays
	inv6  struct{}                              // what was acknowledged is in the log of every later leader
	inv7  struct{}                              // what is committed never shrinks
	inv8  struct{}                              // the leader is in the ISR, or there is none
	inv9  struct{}                              // a follower of a linked leader fetches, a leader does not
	inv10 struct{}                              // once faults end everything recovers
	inv11 struct{ leaders map[simTerm]simLife } // one life of one broker leads in an epoch
	inv12 struct{}                              // epochs in a log never fall
)

type simTerm struct {
	id    protocol.PartitionID
	epoch int32
}

// simLife is one registration of a broker.
type simLife struct {
	broker int32
	epoch  int64
}

func (inv1) rule() string   { return "INV-1" }
func (inv2) rule() string   { return "INV-2" }
func (inv3) rule() string   { return "INV-3" }
func (inv4) rule() string   { return "INV-4" }
func (inv5) rule() string   { return "INV-5" }
func (inv6) rule() string   { return "INV-6" }
func (inv7) rule() string   { return "INV-7" }
func (inv8) rule() string   { return "INV-8" }
func (inv9) rule() string   { return "INV-9" }
func (inv10) rule() string  { return "INV-10" }
func (*inv11) rule() string { return "INV-11" }
func (inv12) rule() string  { return "INV-12" }

// newSimCheckers returns all checkers, each anew.
func newSimCheckers() []simChecker {
	return []simChecker{
		inv1{}, inv2{}, inv3{}, inv4{}, inv5{}, inv6{}, inv7{}, inv8{}, inv9{}, inv10{},
		&inv11{leaders: make(map[simTerm]simLife)}, inv12{},
		lostWrite{}, inconsistentOffset{}, abortedRead{}, &duplicate{at: make(map[string]int64)}, &inOrder{}, &highWatermark{}, samePrefix{},
		&epochs{acks: make(map[simTerm]int32)}, finalSweep{}, minISR{}, &lagBounds{ends: make(map[simCopy]*simMarks)}, storedAck{}, vanishedTopic{}, foundBroken{},
		grounded{}, lastResort{}, refusedEarly{}, ledFirst{},
	}
}

func (k inv1) replica(c *simCheck, v *simView) {
	if v.leads() && int(v.now.hw) <= len(v.log.entries) {
		k.members(c, v.p, v.log.entries[:max(v.now.hw, 0)], v)
	}
}

func (k inv1) state(c *simCheck, id protocol.PartitionID, _, is *simState) {
	k.members(c, c.partition(id), nil, "the Controller")
}

// members checks that whoever is recorded to be in sync has what was ever committed,
// and what a leader is about to commit.
func (k inv1) members(c *simCheck, p *simPartition, now []simEntry, who any) {
	s := c.w.records.states[p.id]
	if len(now) < len(p.committed) {
		now = p.committed
	}
	if s == nil || len(now) == 0 {
		return
	}
	for _, id := range s.ISR {
		if c.excused(id, p.id) {
			continue
		}
		if have := c.onDisk(id, p.id); len(have) < len(now) || have[len(now)-1] != now[len(now)-1] {
			c.fail(k, "broker %d is in sync in %s and has stored %d, %d are committed: %v", id, p.id, len(have), len(now), who)
		}
	}
}

func (k inv2) state(c *simCheck, id protocol.PartitionID, was, is *simState) {
	if was == nil || is.LeaderEpoch == was.LeaderEpoch || is.Leader < 0 || is.UncleanEpoch == is.LeaderEpoch {
		return
	}
	if last := c.w.records.last[is.Leader]; c.excused(is.Leader, id) && !last.Replaced && !(last.Unclean && c.background(id)) {
		return // what is wrong with its copy is not known to anybody yet
	}
	p := c.partition(id)
	have := c.onDisk(is.Leader, id)
	for o := range p.committed {
		if o >= len(have) || have[o] != p.committed[o] {
			c.fail(k, "broker %d was elected for epoch %d of %s, has stored %d, and not what is committed at %d of %d", is.Leader, is.LeaderEpoch, id, len(have), o, len(p.committed))
			return
		}
	}
}

func (k inv3) replica(c *simCheck, v *simView) {
	if v.was.open == v.now.open && v.was.end == v.now.end && v.was.gen == v.now.gen {
		return
	}
	for other := int32(1); other <= int32(len(c.w.brokers)); other++ {
		o := c.logs[other][v.r.id]
		if o == nil || other == v.b.id {
			continue
		}
		for i := min(len(v.log.entries), len(o.entries)) - 1; i >= 0; i-- {
			if v.log.entries[i].epoch != o.entries[i].epoch {
				continue
			}
			if v.log.entries[i].prefix != o.entries[i].prefix {
				c.fail(k, "%v and broker %d have epoch %d at offset %d, and differ at or before it", v, other, v.log.entries[i].epoch, i)
			}
			break
		}
	}
}

func (k inv4) replica(c *simCheck, v *simView) {
	s := c.w.records.states[v.r.id]
	if v.now.role != roleLeader || s == nil || s.LeaderEpoch != v.now.epoch || s.Leader != v.b.id {
		return
	}
	for _, id := range s.ISR {
		if !v.r.isr.maximal(id) {
			c.fail(k, "broker %d is recorded to be in sync, %v does not count with it: %v and %+v", id, v, v.r.isr.committed, v.r.isr.pending)
		}
	}
}

func (k inv5) replica(c *simCheck, v *simView) {
	if !v.leads() || v.goesOn() && v.was.hw == v.now.hw {
		return
	}
	for o := 0; o < len(v.p.committed) && o < int(v.now.hw) && o < len(v.log.entries); o++ {
		if v.log.entries[o] != v.p.committed[o] {
			c.fail(k, "%v has %v committed at %d, it was %v", v, v.log.entries[o], o, v.p.committed[o])
			return
		}
	}
}

func (k inv5) read(c *simCheck, p *simPartition, rec *Record, ans *protocol.ReadAnswer) {
	if o := int(rec.Offset); o < len(p.committed) && p.committed[o].value != string(rec.Value) {
		c.fail(k, "a reader got %s at %d in epoch %d, %v is committed there", rec.Value, o, ans.LeaderEpoch, p.committed[o])
	}
}

// has checks that a leader of the newest epoch has what was acknowledged.
func (k inv6) has(c *simCheck, p *simPartition, entries []simEntry, o int64, value string) {
	if o >= int64(len(entries)) || entries[o].value != value {
		c.fail(k, "broker %d leads epoch %d of %s without the acknowledged %s at offset %d; its log ends at %d", p.leader, p.newest, p.id, value, o, len(entries))
	}
}

func (k inv6) replica(c *simCheck, v *simView) {
	if !v.leads() || !v.now.ledStored || v.now.epoch < v.p.newest || v.goesOn() && v.was.ledStored {
		return
	}
	for o, value := range v.p.inOrder() {
		k.has(c, v.p, v.log.entries, o, value)
	}
}

func (k inv6) answer(c *simCheck, p *simPartition, a *simAppend, ans *protocol.AppendAnswer) {
	r := c.w.replica(p.leader, p.id)
	if a.acks == AcksAll && r != nil && r.role == roleLeader && r.state.LeaderEpoch == p.newest {
		k.has(c, p, c.log(c.w.brokers[p.leader], r).entries, ans.Base, a.value)
	}
}

func (k inv7) replica(c *simCheck, v *simView) {
	// A successor that is the whole ISR covers more before its leadership is on its disk.
	if v.leads() && v.now.ledStored && v.now.epoch == v.p.newest && v.now.epoch >= v.p.by && int(v.now.end) < len(v.p.committed) {
		c.fail(k, "%v has log end %d, %d were committed", v, v.now.end, len(v.p.committed))
	}
}

func (k inv8) state(c *simCheck, id protocol.PartitionID, _, is *simState) {
	switch {
	case len(is.ISR) == 0:
		c.fail(k, "%s: the ISR is empty", id)
	case is.Leader >= 0 && !is.InISR(is.Leader):
		c.fail(k, "%s: leader %d is not in the ISR %v", id, is.Leader, is.ISR)
	}
	for i, member := range is.ISR {
		if !is.Assigned(member) || slices.Contains(is.ISR[:i], member) || slices.Contains(is.ELR, member) {
			c.fail(k, "%s: ISR %v, ELR %v of %v", id, is.ISR, is.ELR, is.Replicas)
		}
	}
}

func (k inv9) replica(c *simCheck, v *simView) {
	// While a turn has something left to do the replica is not yet as it will be.
	if v.r.touched {
		return
	}
	if v.now.role == roleFollower && v.now.linked && !v.now.throttled && !v.now.fetching {
		c.fail(k, "%v does not fetch from broker %d, though they are linked", v, v.r.state.Leader)
	}
	if v.now.role == roleLeader && v.now.fetching {
		c.fail(k, "%v fetches", v)
	}
}

func (k *inv11) replica(c *simCheck, v *simView) {
	if v.now.role != roleLeader || !v.now.ledStored {
		return
	}
	term, me := simTerm{v.r.id, v.now.epoch}, simLife{v.b.id, v.now.life}
	if who, ok := k.leaders[term]; ok && who != me {
		c.fail(k, "%v, and so did broker %d in life %d", v, who.broker, who.epoch)
	}
	k.leaders[term] = me
}

func (k inv12) replica(c *simCheck, v *simView) {
	from := 1
	if v.was.open == v.now.open && v.was.gen == v.now.gen {
		from = max(1, int(v.was.end))
	}
	for i := from; i < len(v.log.entries); i++ {
		if v.log.entries[i].epoch < v.log.entries[i-1].epoch {
			c.fail(k, "%v: the epoch falls from %d to %d at offset %d", v, v.log.entries[i-1].epoch, v.log.entries[i].epoch, i)
			return
		}
	}
}
