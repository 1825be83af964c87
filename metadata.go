package tidemark

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/protocol"
)

// metadata is the Controller's state machine: registrations, proposals, replies
// and commands go in; guarded writes to the coordination store and orders to
// brokers come out. Nothing is ordered before the write it rests on succeeded.
//
// It works by level, not by edge: whatever happens marks partitions as dirty, and
// the end of the turn compares what each is with what it should be.
type metadata struct {
	self          int32
	epoch         int32 // controller epoch
	epochRevision int64 // of its key: every write is guarded by it (CE-4)

	brokers map[int32]*brokerEntry
	topics  map[string]*topicEntry
	parts   map[protocol.PartitionID]*partEntry
	dirty   []*partEntry
	changed []*partEntry    // since the last feed
	created []*topicEntry   // or altered
	removed []protocol.UUID // topics deleted since the last feed

	deleted  map[protocol.UUID]*deletedTopic
	cleared  clearedTopics
	settling []*topicEntry // that commands wait for, and something happened to in this turn

	writes    map[uint64]*metaWrite // not yet decided
	lastToken uint64
	storeOK   bool
	tellStore bool // storeOK changed since the last feed
	resigned  error

	ordered []*partEntry // with orders that are not answered yet
	stops   []queuedCommand
	toClear bool // something happened that a mark on a broker may depend on
	toSweep bool // or what is left of a deleted topic
	toGrow  bool // or what a topic still has to be given

	perWrite int // partitions

	unreadable []error       // what of the store could not be read
	waitUntil  time.Duration // a cold start: nothing is decided until then, unless all are there
	session    time.Duration // SessionTimeout; 0: not told yet, and nothing is held against a broker
	cutOff     time.Duration // since when fewer than half of the brokers are reached; 0: they are not
	reachAt    time.Duration // when a broker may cease to be reached; 0: none
	planted    planted
	eff        metaEffects
}

// metaEffects are what a turn of the Controller wants done.
type metaEffects struct {
	writes  []metaTxn
	rereads []metaReread
	out     map[int32]*protocol.Payload
	unclean []uncleanElection // that were recorded
	resign  error             // the epoch is over, and why
}

type metaTxn struct {
	token uint64
	txn   coordination.Txn
}

type metaReread struct {
	token  uint64
	keys   []string
	prefix string // read after the keys, and all of it; "": nothing
}

// brokerEntry is what the Controller knows of a broker.
type brokerEntry struct {
	id           int32
	epoch        int64 // 0: not registered
	last         lastLife
	lastRevision int64
	clearing     bool // a write that clears Replaced or Unclean is under way
	feed         brokerFeed
	reach        reach
	stopping     int64 // the broker epoch in which it said that it is about to stop; 0: none
}

type topicEntry struct {
	topic      protocol.Topic
	assignment [][]int32 // as the topic's key has it
	revision   int64
	written    bool            // its keys exist
	gone       bool            // it was deleted
	busy       bool            // a write of its key is under way
	unmade     int32           // partitions that are still to be made, the last ones
	stuck      bool            // they cannot be
	parts      []*partEntry    // those whose state can be read
	unread     []*partEntry    // the others: their keys alone
	others     []queuedCommand // that name the same topic, until it is not busy
	waiting    []commandOrigin // commands that end when the topic is settled
}

type queuedCommand struct {
	from      int32
	fromEpoch int64
	command   protocol.Command
}

type commandOrigin struct {
	broker      int32
	brokerEpoch int64
	request     uint64
}

// partEntry is what the Controller knows of a partition.
type partEntry struct {
	id       protocol.PartitionID
	key      string
	topic    *topicEntry
	state    protocol.PartitionState
	revision int64
	dirty    bool
	changed  bool
	writing  bool
	proposal *queuedProposal
	accepted int32 // the leader epoch that its leader took up; -1: none yet
	floor    int32 // a new leader epoch must exceed it
	forced   bool  // the present leader epoch was refused
	outages  map[int32]outage
	orders   []*order // elections that were asked for
	refused  refusedAttempt
	retryAt  time.Duration // after a conflict that left the key as it was; 0: at once
	alone    bool          // after such a conflict: what another partition's write rests on must not hold this one up
}

// refusedAttempt is the newest proposal that was called ineligible. Its leader
// has gone back to the old ISR, so no copy of it may be applied any more.
type refusedAttempt struct {
	leaderEpoch int32
	attempt     uint64
}

// refuse remembers an attempt. Every leader epoch counts its own.
func (p *partEntry) refuse(prop *protocol.Proposal) {
	attempt := prop.Attempt
	if p.refused.leaderEpoch == prop.LeaderEpoch {
		attempt = max(attempt, p.refused.attempt)
	}
	p.refused = refusedAttempt{prop.LeaderEpoch, attempt}
}

type queuedProposal struct {
	from     int32
	proposal protocol.Proposal
}

// newMetadata begins a controller epoch from a complete view of the store (CE-7).
// A key that cannot be read is left alone, and so is what it is about: one bad
// partition never stops another (D7).
func newMetadata(self, epoch int32, epochRevision int64, kvs []coordination.KV) *metadata {
	m := &metadata{
		self: self, epoch: epoch, epochRevision: epochRevision, storeOK: true, toClear: true, toSweep: true, toGrow: true,
		perWrite: partitionsPerWrite,
		brokers:  make(map[int32]*brokerEntry), topics: make(map[string]*topicEntry),
		parts: make(map[protocol.PartitionID]*partEntry), writes: make(map[uint64]*metaWrite),
		deleted: make(map[protocol.UUID]*deletedTopic),
	}
	for _, load := range []func(coordination.KV) error{m.loadTopic, m.loadDeleted, m.loadCleared, m.loadPartition} {
		for _, kv := range kvs {
			if err := load(kv); err != nil {
				m.unreadable = append(m.unreadable, err)
			}
		}
	}
	return m
}

func (m *metadata) loadTopic(kv coordination.KV) error {
	if _, _, isState := parsePartitionKey(kv.Key); isState || len(kv.Key) <= len(topicsPrefix) || kv.Key[:len(topicsPrefix)] != topicsPrefix {
		return nil
	}
	var rec topicRecord
	if err := readTopic(kv, &rec); err != nil {
		return err
	}
	m.topics[rec.Name] = &topicEntry{topic: rec.Topic, assignment: rec.Assignment, unmade: rec.Unmade, revision: kv.Revision, written: true}
	return nil
}

func (m *metadata) loadPartition(kv coordination.KV) error {
	name, n, isState := parsePartitionKey(kv.Key)
	if !isState {
		return nil
	}
	t := m.topics[name]
	if t == nil && m.leftOver(name, n, kv) {
		return nil
	}
	if t == nil || n >= t.topic.Config.Partitions {
		return fmt.Errorf("tidemark: key %s belongs to no topic", kv.Key)
	}
	p := &partEntry{
		id: protocol.PartitionID{Topic: t.topic.ID, Partition: n}, key: kv.Key, topic: t, revision: kv.Revision, accepted: noEpoch, floor: noEpoch,
	}
	err := json.Unmarshal(kv.Value, &p.state)
	if err == nil {
		err = p.state.Valid()
	}
	if err != nil {
		t.unread = append(t.unread, p)
		return fmt.Errorf("tidemark: key %s: %w", kv.Key, err)
	}
	t.parts = append(t.parts, p)
	m.parts[p.id] = p
	m.markDirty(p)
	return nil
}

// meet takes the first view of the brokers. Where this one alone is there, of
// several, the whole cluster is probably starting: the others are given half of a
// session, so that it does not take all leaderships and shrink every ISR to itself.
func (m *metadata) meet(now, session time.Duration, view map[int32]brokerView) {
	m.session = session
	m.onRegistry(view)
	if m.missing() > 0 && m.missing() == len(m.brokers)-1 {
		m.waitUntil = now + session/2
	}
}

// missing is how many known brokers are not registered.
func (m *metadata) missing() (n int) {
	for _, b := range m.brokers {
		if b.epoch == 0 {
			n++
		}
	}
	return n
}

func (m *metadata) markDirty(p *partEntry) {
	if !p.dirty && !p.topic.gone {
		p.dirty = true
		m.dirty = append(m.dirty, p)
	}
}

// brokerView is one broker as the coordination store has it.
type brokerView struct {
	epoch        int64 // 0: not registered
	last         lastLife
	lastRevision int64
}

// onRegistry takes the registrations as they are now. A broker under another
// epoch than before has failed and started, whatever was seen in between (BR-2).
func (m *metadata) onRegistry(view map[int32]brokerView) {
	for id := range view {
		if m.brokers[id] == nil {
			m.brokers[id] = &brokerEntry{id: id}
		}
	}
	m.toClear = true
	moved := make(map[int32]bool)
	for id, b := range m.brokers {
		v := view[id]
		if v.lastRevision >= b.lastRevision {
			if v.last.Replaced != b.last.Replaced || v.last.Unclean != b.last.Unclean {
				moved[id] = true
			}
			b.last, b.lastRevision = v.last, v.lastRevision
		}
		if v.epoch != b.epoch {
			moved[id] = true
			b.epoch = v.epoch
		}
	}
	m.markAll(moved)
}

// markAll marks the partitions that some brokers carry.
func (m *metadata) markAll(brokers map[int32]bool) {
	if len(brokers) == 0 {
		return
	}
	for _, p := range m.parts {
		if slices.ContainsFunc(p.state.Replicas, func(b int32) bool { return brokers[b] }) {
			p.retryAt = 0 // what it waited for may be what is told now
			m.markDirty(p)
		}
	}
}

// onProposal takes a leader's wish for another ISR. It is looked at when nothing
// else about the partition is under way.
func (m *metadata) onProposal(from int32, fromEpoch int64, prop protocol.Proposal) {
	b, p := m.brokers[from], m.parts[prop.ID]
	if b == nil || b.epoch != fromEpoch {
		return
	}
	if p == nil {
		m.verdict(from, &prop, protocol.UnknownPartition, nil)
		return
	}
	p.proposal = &queuedProposal{from, prop}
	m.markDirty(p)
}

// judge decides what a proposal deserves (CT-VAL). OK means that it is to be
// written, or that it is in force already.
func (m *metadata) judge(p *partEntry, q *queuedProposal) (isr []int32, code protocol.Code) {
	s, prop := &p.state, &q.proposal
	for _, member := range prop.ISR {
		if slices.Contains(isr, member.ID) || !s.Assigned(member.ID) {
			return nil, protocol.InvalidRequest
		}
		isr = append(isr, member.ID)
	}
	switch {
	case prop.ControllerEpoch != m.epoch, prop.LeaderEpoch > s.LeaderEpoch, prop.PartitionEpoch > s.PartitionEpoch:
		return nil, protocol.NotController
	case prop.LeaderEpoch < s.LeaderEpoch:
		return nil, protocol.FencedEpoch
	case q.from != s.Leader || !slices.Contains(isr, q.from):
		return nil, protocol.InvalidRequest
	case sameMembers(isr, s.ISR):
		return nil, protocol.OK // an answer was lost (S-114)
	case prop.PartitionEpoch < s.PartitionEpoch:
		return nil, protocol.InvalidVersion
	}
	if p.refused.leaderEpoch == prop.LeaderEpoch && prop.Attempt <= p.refused.attempt {
		return nil, protocol.Ineligible
	}
	view := partView{m, p}
	for _, member := range prop.ISR {
		if m.planted.has(bugProposalUnchecked) {
			break
		}
		epoch := view.registered(member.ID)
		unknown := member.Epoch < 0 && s.InISR(member.ID)
		if !unknown && (epoch == 0 || epoch != member.Epoch) || !vouches(s, view, member.ID) {
			return nil, protocol.Ineligible
		}
		if m.brokers[member.ID].stops() && !s.InISR(member.ID) {
			return nil, protocol.Ineligible
		}
	}
	return isr, protocol.OK
}

func sameMembers(a, b []int32) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(x int32) bool { return !slices.Contains(b, x) })
}

func (m *metadata) verdict(to int32, prop *protocol.Proposal, code protocol.Code, s *protocol.PartitionState) {
	v := protocol.Verdict{
		ID: prop.ID, ControllerEpoch: m.epoch, LeaderEpoch: prop.LeaderEpoch, PartitionEpoch: prop.PartitionEpoch,
		Attempt: prop.Attempt, Code: code,
	}
	if s != nil {
		state := s.Clone()
		v.State = &state
	}
	out := m.to(to)
	out.Verdicts = append(out.Verdicts, v)
}

// onReply takes a broker's answer to an order to lead or follow.
func (m *metadata) onReply(from int32, fromEpoch int64, r protocol.OrderReply) {
	b, p := m.brokers[from], m.parts[r.ID]
	if b == nil || b.epoch != fromEpoch || p == nil || r.LeaderEpoch != p.state.LeaderEpoch {
		return
	}
	switch {
	case r.Accepted && from == p.state.Leader:
		p.accepted = r.LeaderEpoch
		m.answerCreated(p.topic)
		return
	case r.Accepted:
		p.recovered(from, fromEpoch)
		return
	case r.Code == protocol.StorageFailed || r.Code == protocol.Unfit:
		p.failed(from, fromEpoch, r.Code == protocol.StorageFailed)
	default:
		p.floor = max(p.floor, r.Above)
		p.forced = true
	}
	m.markDirty(p)
}

// finish ends a turn: it writes what should change and tells brokers what did.
func (m *metadata) finish(now time.Duration) metaEffects {
	m.retryWrites(now)
	m.watchReach(now)
	if m.resigned == nil {
		m.reconcile(now)
		m.clearMarks()
		m.sweep()
		m.answerSettled()
		m.answerOrders()
		m.answerStops()
		m.feedBrokers()
		m.watchAnswers(now)
	}
	eff := m.eff
	eff.resign = m.resigned
	m.eff = metaEffects{}
	return eff
}

// reconcile turns what should change into guarded writes, many partitions to one.
func (m *metadata) reconcile(now time.Duration) {
	if m.waitUntil > now && m.missing() > 0 {
		return
	}
	m.waitUntil = 0
	if m.cutOff != 0 {
		return
	}
	slices.SortFunc(m.dirty, func(a, b *partEntry) int {
		return cmp.Compare(a.key, b.key)
	})
	var batch []partWrite
	apart := make(map[int32][]partWrite)
	later := m.dirty[:0]
	for _, p := range m.dirty {
		if p.writing || p.retryAt > now {
			later = append(later, p)
			continue
		}
		p.dirty, p.retryAt = false, 0
		switch w, ok := m.next(p); {
		case ok && p.alone && (w.proposal != nil || w.unclean):
			m.writePartitions([]partWrite{w})
		case ok && p.alone: // with those that rest on the same registration
			leader := w.state.Leader
			if apart[leader] = append(apart[leader], w); len(apart[leader]) == m.perWrite {
				m.writePartitions(apart[leader])
				delete(apart, leader)
			}
		case ok:
			batch = append(batch, w)
		}
		if len(batch) == m.perWrite {
			m.writePartitions(batch)
			batch = nil
		}
	}
	clear(m.dirty[len(later):])
	m.dirty = later
	m.writePartitions(batch)
	for _, leader := range slices.Sorted(maps.Keys(apart)) {
		m.writePartitions(apart[leader])
	}
	m.growOn()
}

// next is the write that a partition needs, if it needs one. What the brokers'
// state demands comes first; a proposal that this overtakes is judged again.
func (m *metadata) next(p *partEntry) (partWrite, bool) {
	q := p.proposal
	s, changed := decide(&p.state, partView{m, p}, m.election(p), m.planted)
	if want := m.minISR(p); s.MinISR != want {
		if !changed {
			s, changed = p.state.Clone(), true
			s.PartitionEpoch++
		}
		s.MinISR = want
	}
	if changed {
		return m.elected(p, s, nil), true
	}
	p.forced = false
	if w, ok := m.nextOrdered(p); ok {
		return w, true
	}
	p.proposal = nil
	if q == nil {
		return partWrite{}, false
	}
	isr, code := m.judge(p, q)
	if code == protocol.Ineligible {
		p.refuse(&q.proposal)
	}
	if code != protocol.OK || isr == nil {
		m.verdict(q.from, &q.proposal, code, &p.state)
		return partWrite{}, false
	}
	s = p.state.Clone()
	s.ISR = isr
	s.PartitionEpoch++
	s.ControllerEpoch = m.epoch
	if m.planted.has(bugVerdictEarly) {
		m.verdict(q.from, &q.proposal, protocol.OK, &s)
	}
	return partWrite{part: p, state: s, proposal: q}, true
}

// to returns the payload under construction for a broker.
func (m *metadata) to(broker int32) *protocol.Payload {
	p := m.eff.out[broker]
	if p == nil {
		p = &protocol.Payload{}
		if m.eff.out == nil {
			m.eff.out = make(map[int32]*protocol.Payload)
		}
		m.eff.out[broker] = p
	}
	return p
}
