package tidemark

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/protocol"
)

const (
	// partitionsPerWrite bounds a transaction, so that a large failover is written
	// in parts that brokers can act on while the next ones are under way, and every
	// coordination store takes it.
	partitionsPerWrite = 100
	// rereadAfter is how long the Controller waits before it looks again at a write
	// whose fate it does not know.
	rereadAfter = 100 * time.Millisecond
)

// metaWrite is a transaction that is not decided yet.
type metaWrite struct {
	token uint64
	txn   coordination.Txn
	// The first guards of txn are those of its ops, one for one.
	parts   []partWrite
	topic   *topicEntry // whose key it writes, and
	change  *topicChange
	sweeps  *deletedTopic // of which it removes
	swept   []*partEntry  // these state keys; none: the key that names it, and
	after   clearedRecord // this is remembered then
	raise   *queuedCommand
	clear   *brokerEntry // whose marks it clears, and
	cleared lastLife     // what is left of them
	again   time.Duration
	reread  bool // a re-read, not the transaction itself, is under way
	// refused: the store said no. A guard that failed once fails for ever: revisions
	// only rise, and where the absence of a key is meant, what is left behind by its
	// deletion is guarded. So no earlier copy of the write can arrive any more.
	refused bool
}

// partWrite is one partition's next state. The proposal or the order, if any, is
// what led to it.
type partWrite struct {
	part     *partEntry
	state    protocol.PartitionState
	proposal *queuedProposal
	order    *order
	unclean  bool // an unclean election
}

// writePartitions writes states in as few transactions as they fit into: their guards
// may be more than one takes.
func (m *metadata) writePartitions(batch []partWrite) {
	var lives []coordination.Guard
	first := 0
	for i := range batch {
		batch[i].part.writing = true
		var more []coordination.Guard
		for _, g := range m.lives(&batch[i]) {
			if !slices.Contains(lives, g) && !slices.Contains(more, g) {
				more = append(more, g)
			}
		}
		if i > first && (i+1-first)+len(lives)+len(more)+1 > coordination.MaxTxnOps { // one is begin's
			m.writeStates(batch[first:i], lives)
			first, lives, more = i, nil, m.lives(&batch[i])
		}
		lives = append(lives, more...)
	}
	if first < len(batch) {
		m.writeStates(batch[first:], lives)
	}
}

func (m *metadata) writeStates(batch []partWrite, lives []coordination.Guard) {
	w := &metaWrite{parts: batch}
	for i := range batch {
		w.put(batch[i].part.key, batch[i].part.revision, batch[i].state)
	}
	w.txn.Guards = append(w.txn.Guards, lives...)
	m.begin(w)
}

// lives are guards on the registrations that a write rests on. Of an election, and
// where members leave: the leader that is there must still be in the same life, or
// the ISR would be handed to nobody (EL-4). Of a proposal: the leader that made it,
// and a member that joins (S-64). Of an unclean election also the members that it
// passes over: they must not have come back.
func (m *metadata) lives(pw *partWrite) (guards []coordination.Guard) {
	s, next := &pw.part.state, &pw.state
	if pw.proposal == nil && next.Leader != protocol.NoLeader && (next.LeaderEpoch != s.LeaderEpoch || len(next.ISR) < len(s.ISR)) {
		guards = append(guards, coordination.Guard{Key: brokerIDKey(next.Leader), Revision: next.LeaderBrokerEpoch})
	}
	if pw.unclean {
		for _, id := range s.ISR {
			if id != next.Leader {
				guards = append(guards, m.brokers[id].asItIs(id))
			}
		}
	}
	if pw.proposal == nil {
		return guards
	}
	guards = append(guards, coordination.Guard{Key: brokerIDKey(s.Leader), Revision: s.LeaderBrokerEpoch})
	for _, member := range pw.proposal.proposal.ISR {
		if !s.InISR(member.ID) && !m.planted.has(bugProposalUnchecked) {
			guards = append(guards, coordination.Guard{Key: brokerIDKey(member.ID), Revision: member.Epoch})
		}
	}
	return guards
}

// begin starts a write. Each one asserts the controller epoch in the same
// transaction, so that an old Controller cannot write (CE-4).
func (m *metadata) begin(w *metaWrite) {
	m.lastToken++
	w.token = m.lastToken
	w.txn.Guards = append(w.txn.Guards, coordination.Guard{Key: controllerEpochKey, Revision: m.epochRevision})
	m.writes[w.token] = w
	m.send(w)
}

func (m *metadata) send(w *metaWrite) {
	m.eff.writes = append(m.eff.writes, metaTxn{w.token, w.txn})
}

// onWritten takes the result of a write. An error leaves open whether it was
// applied: nothing else is done on those keys until a re-read tells (D17).
func (m *metadata) onWritten(now time.Duration, token uint64, res coordination.TxnResult, err error) {
	w := m.writes[token]
	if w == nil {
		return
	}
	switch {
	case err != nil:
		m.setStoreOK(false)
		w.again = now + rereadAfter
	case res.Applied:
		m.setStoreOK(true)
		m.applied(w, res.Revision)
	default:
		m.setStoreOK(true)
		w.refused = true
		m.lookAgain(w)
	}
}

func (m *metadata) setStoreOK(ok bool) {
	if m.storeOK != ok {
		m.storeOK, m.tellStore = ok, true
	}
}

// lookAgain reads what the write was about, and the controller epoch.
func (m *metadata) lookAgain(w *metaWrite) {
	w.reread, w.again = true, 0
	if w.raise != nil {
		m.countBrokers(w)
		return
	}
	r := metaReread{token: w.token, keys: []string{controllerEpochKey}}
	if w.topic != nil && len(w.parts) > 0 {
		r.prefix = partitionsPrefix(w.topic.topic.Name) // in one call what may be thousands of keys
	}
	for _, op := range w.txn.Ops {
		if r.prefix == "" || !strings.HasPrefix(op.Key, r.prefix) {
			r.keys = append(r.keys, op.Key)
		}
	}
	m.eff.rereads = append(m.eff.rereads, r)
}

func (m *metadata) retryWrites(now time.Duration) {
	tokens := make([]uint64, 0, len(m.writes))
	for token, w := range m.writes {
		if w.again != 0 && w.again <= now {
			tokens = append(tokens, token)
		}
	}
	slices.Sort(tokens)
	for _, token := range tokens {
		m.lookAgain(m.writes[token])
	}
}

// nextWake is when the Controller wants a turn though nothing happens; 0: never.
func (m *metadata) nextWake() time.Duration {
	at := m.waitUntil
	for _, w := range m.writes {
		if w.again != 0 && (at == 0 || w.again < at) {
			at = w.again
		}
	}
	if m.reachAt != 0 && (at == 0 || m.reachAt < at) {
		at = m.reachAt
	}
	if m.cutOff != 0 {
		return at
	}
	for _, p := range m.dirty {
		if p.retryAt != 0 && (at == 0 || p.retryAt < at) {
			at = p.retryAt
		}
	}
	return at
}

// onReread decides the fate of a write from what the store has now.
func (m *metadata) onReread(now time.Duration, token uint64, kvs map[string]coordination.KV, err error) {
	w := m.writes[token]
	if w == nil || !w.reread {
		return
	}
	w.reread = false
	if err != nil {
		m.setStoreOK(false)
		w.again = now + rereadAfter
		return
	}
	m.setStoreOK(true)
	if kvs[controllerEpochKey].Revision != m.epochRevision {
		m.resigned = errControllerMoved
		return
	}
	if w.raise != nil && len(w.txn.Ops) == 0 {
		m.brokersCounted(w, kvs)
		return
	}
	if revision, ok := writtenAs(w, kvs); ok {
		m.applied(w, revision)
		return
	}
	if w.refused || overtaken(w, kvs) {
		m.conflicted(now, w, kvs)
		return
	}
	if m.planted.has(bugAbsentIsRefused) && m.refuseAbsent(now, w, kvs) {
		return
	}
	// Absent, but it may still arrive: only the same write may be repeated.
	m.send(w)
}

// overtaken reports whether a key of the write has moved past its guard.
func overtaken(w *metaWrite, kvs map[string]coordination.KV) bool {
	for i, op := range w.txn.Ops {
		if kvs[op.Key].Revision != w.txn.Guards[i].Revision {
			return true
		}
	}
	return false
}

// writtenAs reports whether the write was applied. The keys are read one after
// the other, so some may be from before it: one that holds exactly what it put
// there, past its guard, proves the whole. A write that removes as well does so
// first: where its removal is seen, so is what it put. One that only removes is
// never proved; what it was about is looked at anew.
func writtenAs(w *metaWrite, kvs map[string]coordination.KV) (revision int64, ok bool) {
	for i, op := range w.txn.Ops {
		kv, exists := kvs[op.Key]
		if !op.Delete && exists && kv.Revision != w.txn.Guards[i].Revision && string(kv.Value) == string(op.Value) {
			return kv.Revision, true
		}
	}
	return 0, false
}

// applied installs what a write recorded; only now may anybody act on it.
func (m *metadata) applied(w *metaWrite, revision int64) {
	delete(m.writes, w.token)
	m.toSweep, m.toClear = true, true
	for i := range w.parts {
		pw := &w.parts[i]
		m.electionWritten(pw)
		m.install(pw.part, pw.state, revision)
		if pw.proposal != nil {
			m.verdict(pw.proposal.from, &pw.proposal.proposal, protocol.OK, &pw.state)
			if pw.part.proposal == pw.proposal {
				pw.part.proposal = nil
			}
		}
	}
	switch {
	case w.topic != nil:
		m.topicWritten(w, revision)
	case w.sweeps != nil:
		m.sweepWritten(w, revision)
	case w.raise != nil:
		m.answer(w.raise.origin(), protocol.OK, "", nil)
	}
	if w.clear != nil {
		w.clear.clearing = false
		if revision > w.clear.lastRevision { // else a later registration is known already
			w.clear.last, w.clear.lastRevision = w.cleared, revision
		}
	}
}

// install makes a state that the store holds the present one.
func (m *metadata) install(p *partEntry, s protocol.PartitionState, revision int64) {
	if s.LeaderEpoch != p.state.LeaderEpoch {
		p.accepted, p.forced = noEpoch, false
	}
	p.state, p.revision, p.writing, p.alone = s, revision, false, false
	p.noteFilled()
	m.markChanged(p)
	m.markDirty(p)
	m.answerCreated(p.topic)
}

func (m *metadata) markChanged(p *partEntry) {
	if !p.changed && !p.topic.gone {
		p.changed = true
		m.changed = append(m.changed, p)
	}
}

// conflicted takes what the store has instead, and has everything judged anew.
func (m *metadata) conflicted(now time.Duration, w *metaWrite, kvs map[string]coordination.KV) {
	delete(m.writes, w.token)
	m.toSweep, m.toClear = true, true
	for i := range w.parts {
		pw := &w.parts[i]
		p := pw.part
		p.writing = false
		m.answerCreated(p.topic)
		if pw.proposal != nil && p.proposal == nil {
			p.proposal = pw.proposal
		}
		var s protocol.PartitionState
		if kv, ok := kvs[p.key]; ok && kv.Revision != p.revision && json.Unmarshal(kv.Value, &s) == nil && s.Valid() == nil {
			m.install(p, s, kv.Revision)
		} else if w.topic == nil {
			// It is a registration that has changed, and it will show. Until then the same
			// judgement would lead to the same write.
			p.retryAt, p.alone = now+rereadAfter, true
		}
		m.markDirty(p)
	}
	if w.clear != nil {
		w.clear.newerLast(kvs[brokerLastKey(w.clear.id)])
	}
	switch {
	case w.topic != nil:
		m.topicConflicted(w, kvs)
	case w.sweeps != nil:
		m.sweepConflicted(w, kvs)
	case w.raise != nil:
		m.raiseLevel(*w.raise) // another broker has registered since
	}
}
