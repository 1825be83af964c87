package tidemark

import (
	"errors"
	"slices"
	"time"

	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/storage"
)

// role is what a replica does at present.
type role uint8

const (
	roleNone     role = iota // no role: not assigned, no leader to follow, resigned, or not yet told
	roleFollower             // fetches from the leader
	roleLeader               // serves appends, reads and fetches
	roleFailed               // its log is damaged or its disk failed (D7)
)

func (r role) String() string {
	return [...]string{"none", "follower", "leader", "failed"}[r]
}

// replicaState is the protocol of one copy of one partition. Its methods are the
// steps: each takes the time and what happened, changes the state, and adds to
// the effects of its env. The same steps give the same effects.
type replicaState struct {
	env *env
	id  protocol.PartitionID

	// What the Controller recorded. known is false until the first state came.
	state    protocol.PartitionState
	known    bool
	topic    protocol.TopicConfig // zero until it is told
	role     role
	fault    error // roleFailed: why
	failedIn int32 // the highest leader epoch that the Controller was told of a failure in; noEpoch: none
	clears   int   // how often the log was emptied after a failure (D20), and
	cleared  bool  // that the last time is on the disk; the Controller is told with every state
	deleting bool  // the topic is deleted, and the log with it (D21)
	stranger bool  // known from messages only

	// The log. end is logEnd and stored is storedEnd of the present generation (D8).
	start, end, stored, hw int64
	gen                    uint64
	epochs                 epochHistory
	led                    int32 // highest epoch led, ever; durable before a record of it leaves (D11)
	tail                   tail
	inflight               []pendingOp // ops given to the store, in order
	fresh                  [][]byte    // batches of this turn, not yet an op
	freshBase              int64
	epochsChanged          bool

	// As leader.
	epochStart       int64
	leadSince        time.Duration
	ledStored        bool
	remotes          []remote
	isr              isrState
	attempts         uint64 // proposals made
	marks            appendMarks
	onStored         []appendWaiter
	onCommit         []appendWaiter
	uncommitted      []uncommittedRun
	uncommittedBytes int64
	readers          []parkedRead

	// As follower.
	agreed    bool  // the first answer of this epoch that did not diverge has come (D9)
	agreedIn  int32 // the last epoch in which one came, or this replica led, since the open; noEpoch: none
	throttled bool  // waits in the shard until the store has caught up
	fetching  bool  // a fetch is under way
	toldHW    int64
	reported  int64 // stored end last told to the leader in this session; -1: none

	lookupAt  time.Duration // when the state key was last asked for, and nothing newer came; 0: it is not
	refetchAt time.Duration // when to ask again after an unusable answer; 0: never

	streams refusedStreams
	held    []heldFetch // fetches of an epoch that is not known here yet (D6)
	wake    time.Duration
	touched bool
	queued  bool // in the shard's lagging set

	starving []int32 // peers whose link has to take more before something can be sent
}

// pendingOp is an op that the store has not completed.
type pendingOp struct {
	gen   uint64
	end   int64
	bytes int64
	led   int32 // makes `led` durable as this epoch; noEpoch: does not touch it
	last  bool  // deletes the log for good
	clear int   // which clearing after a failure it completes (D20); 0: none
}

type heldFetch struct {
	from      int32
	fromEpoch int64
	fetch     protocol.Fetch
}

// errBehindHW is the damage of a log that is shorter than what it once knew to be committed.
var errBehindHW = errors.New("tidemark: log ends below its own high watermark")

// errNoEpochs is the damage of a log with records and without an epoch history (D12).
var errNoEpochs = errors.New("tidemark: log has records but no leader epochs")

// newReplica begins with what an open of the store showed, all of which is durable.
func newReplica(e *env, id protocol.PartitionID, s storage.State) *replicaState {
	r := &replicaState{
		env: e, id: id, start: s.Start, end: s.End, stored: s.End, hw: min(max(s.HW, s.Start), s.End),
		led: s.Led, epochs: epochHistory{entries: slices.Clone(s.Epochs)}, toldHW: -1, reported: -1, failedIn: noEpoch, agreedIn: noEpoch,
	}
	switch {
	case s.Damaged != nil:
		r.fail(s.Damaged)
	case s.HW > s.End:
		r.fail(errBehindHW)
	case s.End > s.Start && len(s.Epochs) == 0:
		r.fail(errNoEpochs)
	}
	return r
}

// touch has the shard finish this replica at the end of the turn.
func (r *replicaState) touch() {
	if !r.touched {
		r.touched = true
		r.env.shard.touched = append(r.env.shard.touched, r)
	}
}

func (r *replicaState) note(n note) {
	n.id = r.id
	r.env.eff.notes = append(r.env.eff.notes, n)
}

func (r *replicaState) remote(id int32) *remote {
	for i := range r.remotes {
		if r.remotes[i].id == id {
			return &r.remotes[i]
		}
	}
	return nil
}

// stateHint is the state in force as far as this replica knows, for whoever is behind.
func (r *replicaState) stateHint() *protocol.PartitionState {
	if !r.known {
		return nil
	}
	s := r.state
	return &s
}

// setState takes up a partition state that the Controller recorded, from
// whichever way it came. An older one is ignored (ST-11).
func (r *replicaState) setState(now time.Duration, s *protocol.PartitionState) {
	if r.deleting || r.known && (s.PartitionEpoch < r.state.PartitionEpoch || s.LeaderEpoch < r.state.LeaderEpoch) {
		return
	}
	newEpoch := !r.known || s.LeaderEpoch > r.state.LeaderEpoch
	newer := !r.known || s.PartitionEpoch > r.state.PartitionEpoch
	if r.known && s.UncleanEpoch > r.state.UncleanEpoch && !chosenAsItIs(&r.state, s.Leader, s.LeaderBrokerEpoch) {
		r.note(note{kind: noteUnclean, epoch: s.UncleanEpoch, leader: s.Leader})
	}
	r.state, r.known = *s, true
	if newer {
		r.lookupAt = 0
	}
	leads := s.Leader == r.env.self && r.env.sameLife(s.LeaderBrokerEpoch)
	if r.role == roleFailed && r.mayClear() {
		r.clear()
	}
	switch {
	case r.role == roleFailed:
		r.reportFailure()
		return
	case r.env.unfit:
		if s.Leader == r.env.self {
			r.reply(false, 0, protocol.Unfit)
		}
		return
	case leads && r.role == roleLeader && !newEpoch:
		r.syncRemotes(now)
		if newer {
			r.commitISR(&r.state)
		}
		if r.ledStored {
			r.reply(true, 0, protocol.OK) // the answer to this order may have been lost
		}
	case leads:
		// If it resigned in this epoch it refuses, for an epoch is never led twice (D11);
		// it says so each time, for the answer may have been lost.
		r.lead(now)
	case newEpoch || r.role == roleLeader || r.role == roleNone:
		r.follow()
	}
	r.reportClearing() // what the Controller heard of it may have been lost
	r.releaseHeld(now)
	r.touch()
}

// releaseHeld looks again at the fetches that came before the state did (D6).
func (r *replicaState) releaseHeld(now time.Duration) {
	held := r.held
	r.held = nil
	for i := range held {
		if r.env.alive(held[i].from, held[i].fromEpoch) {
			r.onFetch(now, held[i].from, held[i].fromEpoch, &held[i].fetch)
		}
	}
}

// lead takes up a leadership: the epoch entry and `led` go to the store first,
// before any record of the epoch exists (EC-8, D11).
func (r *replicaState) lead(now time.Duration) {
	epoch := r.state.LeaderEpoch
	last := r.epochs.last()
	r.endRole(protocol.NotLeader)
	if (epoch <= r.led || epoch <= last) && !r.env.planted.has(bugSameEpochAgain) {
		code := protocol.BehindLog
		if epoch <= r.led {
			code = protocol.LedBefore
		}
		r.reply(false, max(r.led, last), code)
		return
	}
	if r.end < r.hw {
		r.fail(errBehindHW)
		r.reply(false, 0, protocol.StorageFailed)
		return
	}
	r.role, r.agreedIn = roleLeader, epoch
	r.epochStart, r.leadSince, r.led, r.ledStored = r.end, now, epoch, false
	if !r.env.planted.has(bugEpochEntryLate) {
		r.epochs.assign(epoch, r.end)
	}
	r.epochsChanged = false
	led := epoch
	r.emit(storage.Op{Kind: storage.Meta, HW: r.hw, Epochs: r.epochList(), Led: &led}, pendingOp{end: r.end, led: epoch})
	r.isr = isrState{committed: r.state.ISR}
	r.syncRemotes(now)
	r.marks = appendMarks{}
	r.uncommitted, r.uncommittedBytes = nil, 0
	if r.end > r.hw {
		r.uncommitted = append(r.uncommitted, uncommittedRun{end: r.end})
	}
	r.note(note{kind: noteLeader, epoch: epoch, isr: r.state.ISR})
}

// syncRemotes keeps one remote per other assigned replica; what is known of
// those that stay is kept (ST-15).
func (r *replicaState) syncRemotes(now time.Duration) {
	r.remotes = slices.DeleteFunc(r.remotes, func(m remote) bool { return !r.state.Assigned(m.id) })
	for _, id := range r.state.Replicas {
		if id != r.env.self && r.remote(id) == nil {
			m := remote{id: id}
			m.forget(now)
			r.remotes = append(r.remotes, m)
		}
	}
}

// follow takes up, or starts anew, the role of a follower in the state's epoch (ST-17, ST-18).
func (r *replicaState) follow() {
	r.endRole(protocol.NotLeader)
	switch {
	case !r.state.Assigned(r.env.self) || r.state.Leader == protocol.NoLeader || r.state.Leader == r.env.self:
		return
	case r.state.LeaderEpoch < r.epochs.last():
		r.reply(false, r.epochs.last(), protocol.BehindLog)
		return
	}
	r.role = roleFollower
	if r.env.planted.has(bugCutToHW) && r.end > r.hw {
		r.cut(r.hw)
	}
	r.note(note{kind: noteFollower, epoch: r.state.LeaderEpoch})
}

// endRole leaves the present role: waiting clients hear at once (S-38).
func (r *replicaState) endRole(code protocol.Code) {
	if r.role == roleFailed {
		return
	}
	if r.role == roleLeader {
		r.note(note{kind: noteResigned, epoch: r.led, code: code})
	}
	r.flushFresh()
	if !r.env.planted.has(bugWaitersForgotten) {
		r.abandon(code)
	}
	r.role, r.isr, r.remotes = roleNone, isrState{}, r.remembered()
	r.uncommitted, r.uncommittedBytes = nil, 0
	r.resetFetching()
	r.agreed, r.toldHW = false, -1
}

// lookUp has the partition's own state key read, again and again until newer
// state has come, from there or from the Controller (D6).
func (r *replicaState) lookUp(now time.Duration) {
	r.lookupAt = now
	r.env.eff.lookups = append(r.env.eff.lookups, r.id)
	r.touch() // for the deadline of the next attempt
}

// reply answers the Controller's order to lead or follow.
func (r *replicaState) reply(accepted bool, above int32, code protocol.Code) {
	r.env.eff.replies = append(r.env.eff.replies, protocol.OrderReply{
		ID: r.id, LeaderEpoch: r.state.LeaderEpoch, Accepted: accepted, Above: above, Code: code,
	})
}

// newBrokerEpoch ends every role held before a registration (D11), and looks
// anew at the state in force: it may have come before the registration did.
func (r *replicaState) newBrokerEpoch(now time.Duration) {
	r.endRole(protocol.NotLeader)
	r.held = nil
	r.touch()
	if r.known {
		s := r.state
		r.setState(now, &s)
	}
}

// emit adds an op for this log to the turn's group.
func (r *replicaState) emit(op storage.Op, p pendingOp) {
	r.flushFresh()
	op.Log = r.id
	p.gen = r.gen
	r.env.eff.ops = append(r.env.eff.ops, op)
	if op.Kind != storage.Append || !r.topic.Background {
		r.env.eff.synced = true // what an epoch or a cut rests on is on the disk in any mode (D11)
	}
	r.inflight = append(r.inflight, p)
}

// flushFresh turns the batches of this turn into one append op.
func (r *replicaState) flushFresh() {
	if len(r.fresh) == 0 {
		return
	}
	op := storage.Op{Kind: storage.Append, Offset: r.freshBase, Batches: r.fresh, End: r.end, HW: r.hw}
	if r.epochsChanged {
		op.Epochs, r.epochsChanged = r.epochList(), false
	}
	var size int64
	for _, b := range r.fresh {
		size += int64(len(b))
	}
	r.fresh = nil
	r.emit(op, pendingOp{end: r.end, bytes: size, led: noEpoch})
}

func (r *replicaState) epochList() []storage.EpochEntry {
	if r.epochs.entries == nil {
		return []storage.EpochEntry{}
	}
	return r.epochs.entries
}

// opsStored handles the completion of the oldest n ops of this log. Those of an
// earlier generation say nothing about the present content (D8).
func (r *replicaState) opsStored(n int) {
	for _, p := range r.inflight[:n] {
		if p.gen == r.gen {
			r.stored = max(r.stored, p.end)
		}
		if p.led == r.led && r.role == roleLeader && !r.ledStored {
			r.ledStored = true
			r.reply(true, 0, protocol.OK)
		}
		if p.clear != 0 && p.clear == r.clears && r.role != roleFailed {
			r.cleared = true
			r.reportClearing()
		}
		if p.last {
			r.env.shard.gone(r)
		}
	}
	r.inflight = dropFront(r.inflight, n)
	r.touch()
}

// unstoredBytes is how much was given to the store and is not yet completed.
func (r *replicaState) unstoredBytes() int64 {
	var n int64
	for _, p := range r.inflight {
		n += p.bytes
	}
	return n
}

// addBatch puts a batch at the log's end; the op follows at the end of the turn.
func (r *replicaState) addBatch(b []byte, end int64) {
	if len(r.fresh) == 0 {
		r.freshBase = r.end
	}
	r.fresh = append(r.fresh, b)
	r.tail.push(cachedBatch{base: r.end, end: end, bytes: b})
	r.env.shard.cached(r, int64(len(b)))
	r.end = end
	if r.env.planted.has(bugQueuedIsStored) {
		r.stored = end
	}
}

// finish ends the turn for this replica: one op, one look at the high watermark,
// whatever that allows.
func (r *replicaState) finish(now time.Duration) {
	r.touched = false
	r.flushFresh()
	switch r.role {
	case roleLeader:
		r.finishLeader(now)
	case roleFollower:
		r.finishFollower()
	}
	if at, ok := r.deadline(now); ok {
		r.env.shard.schedule(r, at)
	}
}

// deadline is when this replica wants a turn though nothing happens to it. It
// follows from the state alone, so that no wake-up can be forgotten.
func (r *replicaState) deadline(now time.Duration) (at time.Duration, ok bool) {
	sooner := func(t time.Duration) {
		if !ok || t < at {
			at, ok = t, true
		}
	}
	if r.role == roleFollower && r.refetchAt != 0 {
		sooner(r.refetchAt)
	}
	if r.lookupAt != 0 {
		sooner(r.lookupAt + r.env.cfg.ProposalTimeout)
	}
	if r.role != roleLeader {
		return at, ok
	}
	if p := r.isr.pending; p != nil && !p.parked {
		sooner(p.sentAt + r.env.cfg.ProposalTimeout)
	}
	for i := range r.readers {
		if !r.readers[i].reading {
			sooner(r.readers[i].deadline)
		}
	}
	for i := range r.remotes {
		m := &r.remotes[i]
		if m.refused.until > now {
			sooner(m.refused.until)
		}
		if m.stored < r.end && !r.isr.maximal(m.id) && r.awaited(now, m) {
			// Once it is over the high watermark waits for it no longer.
			sooner(r.marks.appendedAt(m.stored, r.leadSince) + r.env.cfg.JoinWindow + 1)
		}
	}
	return at, ok
}

// onWake handles a wake-up that was asked for.
func (r *replicaState) onWake(now time.Duration) {
	if r.lookupAt != 0 && now >= r.lookupAt+r.env.cfg.ProposalTimeout {
		r.lookUp(now)
	}
	switch r.role {
	case roleLeader:
		r.resend(now)
		r.expireReads(now)
	case roleFollower:
		if r.refetchAt != 0 && now >= r.refetchAt {
			r.resetFetching()
		}
	}
	r.touch()
}
