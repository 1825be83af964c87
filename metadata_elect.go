package tidemark

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/protocol"
)

// partView is a partition's view of the brokers, for its elections.
type partView struct {
	m *metadata
	p *partEntry
}

func (v partView) registered(broker int32) int64 {
	b := v.m.brokers[broker]
	if b != nil && v.p.outages[broker].lasts(b.epoch) {
		return 0
	}
	return b.life()
}

func (v partView) holding(broker int32) holding {
	return v.m.brokers[broker].holding(v.p.topic.topic.Config.Background)
}

func (v partView) emptied(broker int32) bool {
	return v.p.outages[broker].emptied(v.m.brokers[broker].life())
}

// holding is what the broker has of a partition, by the marks on it.
func (b *brokerEntry) holding(background bool) holding {
	switch {
	case b != nil && b.last.Replaced:
		return holdsNothing
	case b != nil && b.last.Unclean && background:
		return holdsPart
	}
	return holdsAll
}

func (v partView) reached(broker int32) bool {
	return v.m.reached(broker) && !v.m.brokers[broker].stops()
}

// outage is why a broker cannot carry a partition.
type outage struct {
	brokerEpoch int64 // it ends with this registration
	leaderEpoch int32 // that was in force when it was first told
	repairable  bool  // a damaged log that may be cleared (D20)
	repaired    bool  // it was, and can be filled
	filled      bool  // it was in sync since
}

// life is the broker's present broker epoch; 0: none.
func (b *brokerEntry) life() int64 {
	if b == nil {
		return 0
	}
	return b.epoch
}

// asItIs is a guard that holds while the broker is in this life, or is not
// registered. Absence is held by what every registration writes and nothing removes.
func (b *brokerEntry) asItIs(id int32) coordination.Guard {
	switch {
	case b == nil:
		return coordination.Guard{Key: brokerLastKey(id)}
	case b.epoch == 0:
		return coordination.Guard{Key: brokerLastKey(id), Revision: b.lastRevision}
	}
	return coordination.Guard{Key: brokerIDKey(id), Revision: b.epoch}
}

// newerLast takes what the store has of the broker's last life, which a write that
// clears its marks did not expect. It may be newer than what the watch has shown.
func (b *brokerEntry) newerLast(kv coordination.KV) {
	b.clearing = false
	var last lastLife
	if kv.Revision > b.lastRevision && json.Unmarshal(kv.Value, &last) == nil {
		b.last, b.lastRevision = last, kv.Revision
	}
}

// lasts reports whether the outage keeps the broker from the partition in a life.
func (o outage) lasts(brokerEpoch int64) bool { return o.brokerEpoch == brokerEpoch && !o.repaired }

// emptied reports whether the broker has, in a life, only what it got since its log
// was cleared.
func (o outage) emptied(brokerEpoch int64) bool {
	return o.brokerEpoch == brokerEpoch && o.repaired && !o.filled
}

// failed notes that a broker refused an order for good (D16). A damaged log is
// repaired once in the life of a broker: one that fails again stays out.
func (p *partEntry) failed(broker int32, brokerEpoch int64, damaged bool) {
	o, known := p.outages[broker]
	switch {
	case !known || o.brokerEpoch != brokerEpoch:
		o = outage{brokerEpoch: brokerEpoch, leaderEpoch: p.state.LeaderEpoch, repairable: damaged}
	case o.repaired:
		o.repairable, o.repaired = false, false
	}
	p.setOutage(broker, o)
}

func (p *partEntry) setOutage(broker int32, o outage) {
	if p.outages == nil {
		p.outages = make(map[int32]outage)
	}
	p.outages[broker] = o
}

// recovered notes that a follower's log was cleared in an epoch that began after it
// had failed. From then on its leader may propose it again.
func (p *partEntry) recovered(broker int32, brokerEpoch int64) {
	o, known := p.outages[broker]
	if (!known || o.brokerEpoch != brokerEpoch) && !p.state.InISR(broker) {
		// An earlier Controller repaired it, or this one in an earlier life.
		p.setOutage(broker, outage{brokerEpoch: brokerEpoch, leaderEpoch: p.state.LeaderEpoch, repaired: true})
		return
	}
	if o.lasts(brokerEpoch) && o.repairable && p.state.LeaderEpoch > o.leaderEpoch && !p.state.InISR(broker) {
		o.repaired = true
		p.outages[broker] = o
	}
}

// noteFilled notes which of the logs that were cleared have been in sync since.
func (p *partEntry) noteFilled() {
	for id, o := range p.outages {
		if o.repaired && p.state.InISR(id) {
			o.filled = true
			p.outages[id] = o
		}
	}
}

// repairs reports whether a damaged log waits for the write that lets its replica
// clear it: one without the replica in the ISR, in a leader epoch of its own (D20).
func (m *metadata) repairs(p *partEntry) bool {
	for id, o := range p.outages {
		b := m.brokers[id]
		if b != nil && o.lasts(b.epoch) && o.repairable && (p.state.InISR(id) || p.state.LeaderEpoch <= o.leaderEpoch) {
			return true
		}
	}
	return false
}

// election is what a partition's elections are to respect.
func (m *metadata) election(p *partEntry) election {
	e := election{refused: p.forced, floor: p.floor, renew: m.repairs(p)}
	if p.topic.topic.Config.UncleanElection || m.planted.has(bugUncleanUnasked) {
		e.unclean = uncleanBySetting
	}
	return e
}

// uncleanElection is one that was recorded.
type uncleanElection struct {
	topic       string
	partition   int32
	leader      int32
	leaderEpoch int32
	was         []int32 // the ISR before it
}

// elected is the write of what an election came to.
func (m *metadata) elected(p *partEntry, s protocol.PartitionState, o *order) partWrite {
	s.ControllerEpoch = m.epoch
	unclean := s.UncleanEpoch > p.state.UncleanEpoch && !chosenAsItIs(&p.state, s.Leader, s.LeaderBrokerEpoch)
	return partWrite{part: p, state: s, order: o, unclean: unclean}
}

// electionWritten notes that an election was recorded, before its state is installed.
func (m *metadata) electionWritten(pw *partWrite) {
	if o := pw.order; o != nil {
		o.written, o.leader, o.epoch = true, pw.state.Leader, pw.state.LeaderEpoch
	}
	if pw.unclean {
		m.eff.unclean = append(m.eff.unclean, uncleanElection{
			topic: pw.part.topic.topic.Name, partition: pw.part.id.Partition,
			leader: pw.state.Leader, leaderEpoch: pw.state.LeaderEpoch, was: pw.part.state.ISR,
		})
	}
}

// order is an election that was asked for (EL-2, EL-3), until the one that it
// elected has accepted.
type order struct {
	kind    protocol.CommandKind
	broker  int32 // ElectUnclean: whom; -1: whoever is there
	origins []commandOrigin

	written bool // what follows is recorded
	leader  int32
	epoch   int32
}

// onElect takes the order to hold an election. A copy of one that is under way
// joins it.
func (m *metadata) onElect(q queuedCommand) {
	c := &q.command
	p := m.parts[protocol.PartitionID{Topic: c.Topic.ID, Partition: c.Partition}]
	if p == nil || !p.topic.written {
		m.answer(q.origin(), protocol.UnknownPartition, "", nil)
		return
	}
	for _, o := range p.orders {
		if o.kind == c.Kind && o.broker == c.Broker {
			o.origins = append(o.origins, q.origin())
			return
		}
	}
	if len(p.orders) == 0 {
		m.ordered = append(m.ordered, p)
	}
	p.orders = append(p.orders, &order{kind: c.Kind, broker: c.Broker, origins: []commandOrigin{q.origin()}})
	m.markDirty(p)
}

// nextOrdered is the write that the oldest order for a partition leads to. Those
// that lead to none are answered.
func (m *metadata) nextOrdered(p *partEntry) (w partWrite, ok bool) {
	p.orders = slices.DeleteFunc(p.orders, func(o *order) bool {
		if ok || o.written {
			return false
		}
		s, code, why := m.carryOut(p, o)
		if code == protocol.OK {
			w, ok = m.elected(p, s, o), true
			return false
		}
		m.answerOrder(o, code, why)
		return true
	})
	return w, ok
}

// carryOut decides an order. What the state of the brokers demands is done already.
func (m *metadata) carryOut(p *partEntry, o *order) (s protocol.PartitionState, code protocol.Code, why string) {
	e, view := m.election(p), partView{m, p}
	first := p.state.Replicas[0]
	preferred := o.kind == protocol.ElectPreferred
	switch {
	case preferred && p.state.Leader == first:
		return s, protocol.NotNeeded, fmt.Sprintf("broker %d leads", first)
	case preferred:
		e.preferred = true
	case p.state.Leader != protocol.NoLeader:
		return s, protocol.NotNeeded, fmt.Sprintf("broker %d leads", p.state.Leader)
	case o.broker < 0:
		e.unclean = uncleanByOrder
	default:
		e.unclean = func(s *protocol.PartitionState, c candidates) int32 {
			return firstToLead(s, c, func(b int32) bool { return b == o.broker })
		}
	}
	s, changed := decide(&p.state, view, e, m.planted)
	switch {
	case changed:
		return s, protocol.OK, ""
	case preferred:
		return s, protocol.NoCandidate, fmt.Sprintf("broker %d %s", first, absence(&p.state, view, first))
	}
	for _, b := range p.state.ISR {
		if view.registered(b) != 0 && vouches(&p.state, view, b) {
			return s, protocol.NoCandidate, fmt.Sprintf("broker %d is in sync and registered, but not reached", b)
		}
	}
	if o.broker >= 0 {
		return s, protocol.NoCandidate, fmt.Sprintf("broker %d is not there", o.broker)
	}
	return s, protocol.NoCandidate, "no replica that is there can lead"
}

// absence says why the broker may not lead.
func absence(s *protocol.PartitionState, c candidates, b int32) string {
	switch {
	case !s.InISR(b):
		return "is not in sync"
	case c.registered(b) == 0:
		return "is not there"
	}
	return "is not reached"
}

// answerOrders ends the orders whose leader has accepted, or has lost the
// leadership before it could, or whose partition is gone.
func (m *metadata) answerOrders() {
	m.ordered = slices.DeleteFunc(m.ordered, func(p *partEntry) bool {
		p.orders = slices.DeleteFunc(p.orders, func(o *order) bool { return m.answerIfOver(p, o) })
		return len(p.orders) == 0
	})
}

func (m *metadata) answerIfOver(p *partEntry, o *order) bool {
	s := &p.state
	switch {
	case m.parts[p.id] != p:
		m.answerOrder(o, protocol.UnknownPartition, "")
	case !o.written || s.Leader == o.leader && p.accepted != s.LeaderEpoch:
		return false
	case s.Leader != o.leader && p.accepted != o.epoch:
		m.answerOrder(o, protocol.NoCandidate, fmt.Sprintf("broker %d was elected and lost the leadership before it accepted", o.leader))
	default:
		m.answerOrder(o, protocol.OK, "")
	}
	return true
}

func (m *metadata) answerOrder(o *order, code protocol.Code, why string) {
	for _, origin := range o.origins {
		m.answer(origin, code, why, nil)
	}
}

// dropOrders has whoever gave an order look for the next Controller.
func (m *metadata) dropOrders() {
	for _, p := range m.ordered {
		for _, o := range p.orders {
			m.answerOrder(o, protocol.NotController, "")
		}
		p.orders = nil
	}
	m.ordered = nil
	for _, q := range m.stops {
		m.answer(q.origin(), protocol.NotController, "", nil)
	}
	m.stops = nil
}

// ground is what new partitions of a topic can be placed on.
func (m *metadata) ground(t *protocol.Topic) ground {
	g := ground{racks: make(map[int32]string), carried: make(map[int32]load)}
	for id, b := range m.brokers {
		g.racks[id] = b.last.Rack
		if b.epoch != 0 && b.holding(t.Config.Background) == holdsAll && m.reached(id) && !b.stops() {
			g.live = append(g.live, id)
		} else {
			g.down = append(g.down, id)
		}
	}
	slices.Sort(g.live)
	slices.Sort(g.down)
	for _, p := range m.parts {
		g.carry(p.state.Replicas)
	}
	for _, w := range m.writes {
		for i := range w.parts {
			if len(w.parts[i].part.state.Replicas) == 0 { // on its way to be created
				g.carry(w.parts[i].state.Replicas)
			}
		}
	}
	return g
}

// carry counts the replicas of a partition.
func (g *ground) carry(replicas []int32) {
	for i, b := range replicas {
		l := g.carried[b]
		l.replicas++
		if i == 0 {
			l.leaders++ // the preferred one: where leadership goes back to
		}
		g.carried[b] = l
	}
}

// clearMarks takes the marks of a replaced directory and of an unclean end off a
// broker once no ISR and no ELR rests on what it lost (D15, D25).
func (m *metadata) clearMarks() {
	if !m.toClear {
		return
	}
	m.toClear = false
	var ids []int32
	for id, b := range m.brokers {
		if (b.last.Replaced || b.last.Unclean) && b.epoch != 0 && !b.clearing {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	for _, id := range ids {
		b := m.brokers[id]
		last := b.last
		last.Replaced = last.Replaced && m.vouchedFor(b, false)
		last.Unclean = last.Unclean && m.vouchedFor(b, true)
		if last == b.last {
			continue
		}
		b.clearing = true
		m.begin(&metaWrite{clear: b, cleared: last, txn: coordination.Txn{
			Guards: []coordination.Guard{{Key: brokerLastKey(id), Revision: b.lastRevision}},
			Ops:    []coordination.Op{{Key: brokerLastKey(id), Value: marshal(last)}},
		}})
	}
}

// vouchedFor reports whether some partition counts on the broker's data, or may
// do so once a write under way is decided. background: of such topics only.
func (m *metadata) vouchedFor(b *brokerEntry, background bool) bool {
	if len(m.unreadable) > 0 {
		return true // what cannot be read may count on it (D3)
	}
	for _, p := range m.parts {
		switch s := &p.state; {
		case background && !p.topic.topic.Config.Background:
		case p.writing && slices.Contains(s.Replicas, b.id):
			return true
		case chosenAsItIs(s, b.id, b.epoch):
		case s.InISR(b.id) || slices.Contains(s.ELR, b.id):
			return true
		}
	}
	return false
}
