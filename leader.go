package tidemark

import (
	"bytes"
	"time"

	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/record"
)

// onAppend takes an append, or refuses it before anything is stored. peer is
// the broker whose client asked.
func (r *replicaState) onAppend(now time.Duration, peer int32, a *protocol.Append) {
	code := r.admit(now, a)
	if code != protocol.OK {
		r.refuseAppend(now, peer, a, code)
		return
	}
	info, err := record.Peek(a.Batch)
	if err != nil || len(a.Batch) != info.Size {
		r.refuseAppend(now, peer, a, protocol.Corrupt)
		return
	}
	batch := a.Batch
	if peer != r.env.self {
		batch = bytes.Clone(batch) // what a transport delivered is not ours to stamp
	}
	base := r.end
	end := base + int64(info.Count)
	if r.env.planted.has(bugEpochEntryLate) {
		r.epochsChanged = r.epochs.assign(r.state.LeaderEpoch, base) || r.epochsChanged
	}
	record.Stamp(batch, base, r.state.LeaderEpoch)
	r.marks.add(now, base, &r.env.cfg)
	r.addBatch(batch, end)
	r.uncommitted = append(r.uncommitted, uncommittedRun{end: end, size: int64(len(batch))})
	r.uncommittedBytes += int64(len(batch))
	w := appendWaiter{peer: peer, request: a.Request, base: base, end: end}
	switch a.Acks {
	case protocol.AcksNone:
		p := r.env.eff.to(peer)
		p.AppendAnswers = append(p.AppendAnswers, protocol.AppendAnswer{
			Request: a.Request, Outcome: protocol.Unknown, Base: -1, Last: -1, LeaderEpoch: r.state.LeaderEpoch,
		})
	case protocol.AcksLeader:
		r.onStored = append(r.onStored, w)
	default:
		r.onCommit = append(r.onCommit, w)
	}
	r.touch()
}

// admit decides whether an append may enter the log (PR-1, D19, D22).
func (r *replicaState) admit(now time.Duration, a *protocol.Append) protocol.Code {
	epoch := r.state.LeaderEpoch
	switch {
	case r.env.unfit:
		return protocol.Unfit
	case r.role == roleFailed:
		return protocol.StorageFailed
	case r.env.stopping:
		return protocol.NotLeader // it is about to be true, and is tried again
	case a.LeaderEpoch > epoch && r.role == roleLeader:
		r.deposed(now)
		return protocol.NotLeader
	case r.role != roleLeader:
		return protocol.NotLeader
	case a.LeaderEpoch >= 0 && a.LeaderEpoch < epoch:
		return protocol.FencedEpoch
	case r.streams.refuses(now, a.Stream) && !r.env.planted.has(bugStreamsForgotten):
		return protocol.StreamRefused
	case a.Acks > protocol.AcksNone || a.Acks < protocol.AcksAll:
		return protocol.InvalidRequest
	case len(a.Batch) > r.env.cfg.MaxBatchBytes:
		return protocol.TooLarge
	case a.Acks == protocol.AcksAll && len(r.isr.committed) < r.minISR():
		return protocol.NotEnoughReplicas
	case r.env.shard.storeFull || r.uncommittedBytes+int64(len(a.Batch)) > r.maxUncommitted():
		return protocol.Overloaded
	}
	return protocol.OK
}

// maxUncommitted is how much may wait above the high watermark: the broker's limit,
// or a lower one of the topic.
func (r *replicaState) maxUncommitted() int64 {
	if n := r.topic.MaxUncommittedBytes; n > 0 {
		return min(n, r.env.cfg.MaxUncommittedBytes)
	}
	return r.env.cfg.MaxUncommittedBytes
}

// refuseAppend refuses before anything is stored. It is remembered whatever the
// role is: a replica that refuses because it does not lead yet must not take the
// next append of the stream once it does (D22).
func (r *replicaState) refuseAppend(now time.Duration, peer int32, a *protocol.Append, code protocol.Code) {
	generation := r.streams.refuse(now, a.Stream)
	p := r.env.eff.to(peer)
	p.AppendAnswers = append(p.AppendAnswers, protocol.AppendAnswer{
		Request: a.Request, Code: code, Outcome: protocol.NotAppended, Generation: generation,
		Base: -1, Last: -1, LeaderEpoch: r.state.LeaderEpoch, State: r.stateHint(),
	})
}

// deposed handles the proof that a newer leader epoch exists: step down at once
// and read the partition's own state key (D6).
func (r *replicaState) deposed(now time.Duration) {
	r.endRole(protocol.NotLeader)
	r.lookUp(now)
}

// onFetch takes a follower's fetch: it is answered at once, parked until there is
// something to send, or held until this broker knows the follower's epoch.
func (r *replicaState) onFetch(now time.Duration, from int32, fromEpoch int64, f *protocol.Fetch) {
	switch {
	case r.env.unfit:
		return
	case !r.known || f.LeaderEpoch > r.state.LeaderEpoch:
		if r.role == roleLeader {
			r.deposed(now)
		}
		r.hold(from, fromEpoch, f)
		return
	case f.LeaderEpoch < r.state.LeaderEpoch:
		r.answerFetch(from, f, protocol.FetchAnswer{Code: protocol.FencedEpoch, State: r.stateHint()})
		return
	case r.role != roleLeader:
		r.answerFetch(from, f, protocol.FetchAnswer{Code: protocol.NotLeader, State: r.stateHint()})
		return
	}
	m := r.remote(from)
	if m == nil {
		r.hold(from, fromEpoch, f) // assigned by a state that has not come here yet (FE-2)
		return
	}
	if m.brokerEpoch != 0 && m.brokerEpoch != fromEpoch && !r.env.planted.has(bugEarlierLifeCounts) {
		m.forget(now)
	}
	if r.env.planted.has(bugReportsUnverified) {
		m.brokerEpoch = fromEpoch
		r.onReport(m, f.Stored, f.StoredEpoch)
	}
	if f.Offset < r.start {
		r.answerFetch(from, f, protocol.FetchAnswer{Code: protocol.BelowStart})
		return
	}
	agreed, diverging, known := r.epochs.diverges(position{f.Offset, f.LastEpoch}, r.end)
	switch {
	case diverging && !r.env.planted.has(bugFetchUncompared):
		r.answerFetch(from, f, protocol.FetchAnswer{Code: protocol.Diverging, Agreed: agreed})
		return
	case !known || f.Offset > r.end:
		r.answerFetch(from, f, protocol.FetchAnswer{Code: protocol.OutOfRange})
		return
	}
	m.brokerEpoch = fromEpoch
	parked := *f
	m.parked, m.reading = &parked, false
	r.onReport(m, f.Stored, f.StoredEpoch)
	r.touch()
}

// hold keeps a request of an epoch, or of a replica, that this broker has not
// been told of yet. One per broker: a newer one replaces it.
func (r *replicaState) hold(from int32, fromEpoch int64, f *protocol.Fetch) {
	for i := range r.held {
		if r.held[i].from == from {
			r.held[i] = heldFetch{from, fromEpoch, *f}
			return
		}
	}
	r.held = append(r.held, heldFetch{from, fromEpoch, *f})
}

// onReport counts what a follower has stored, if it is a prefix of this log (D9).
func (r *replicaState) onReport(m *remote, stored int64, epoch int32) {
	if stored > r.end || stored < r.start || stored <= m.stored {
		return
	}
	_, diverging, known := r.epochs.diverges(position{stored, epoch}, r.end)
	if (diverging || !known) && !r.env.planted.has(bugReportsUnverified) {
		return
	}
	m.stored = stored
	r.touch()
}

// forgetEarlierLives makes unknown what brokers reported before they registered
// anew (D9). Of one that is merely gone, what it stored is still on its disk.
func (r *replicaState) forgetEarlierLives(now time.Duration) {
	if r.env.planted.has(bugEarlierLifeCounts) {
		return
	}
	for i := range r.remotes {
		m := &r.remotes[i]
		if epoch := r.env.brokers[m.id]; epoch != 0 && m.brokerEpoch != 0 && epoch != m.brokerEpoch {
			m.forget(now)
		}
	}
}

// onReportFrom handles a report that came on its own.
func (r *replicaState) onReportFrom(from int32, fromEpoch int64, rep *protocol.Report) {
	if r.role != roleLeader || rep.LeaderEpoch != r.state.LeaderEpoch {
		return
	}
	if m := r.remote(from); m != nil && m.brokerEpoch == fromEpoch {
		r.onReport(m, rep.Stored, rep.StoredEpoch)
	}
}

func (r *replicaState) answerFetch(to int32, f *protocol.Fetch, a protocol.FetchAnswer) {
	a.ID, a.LeaderEpoch, a.Offset = r.id, f.LeaderEpoch, f.Offset
	a.HW, a.LogStart = r.hw, r.start
	p := r.env.eff.to(to)
	p.FetchAnswers = append(p.FetchAnswers, a)
}

// finishLeader ends a leader's turn.
func (r *replicaState) finishLeader(now time.Duration) {
	if r.end < max(r.hw, r.epochStart) {
		r.fail(errBehindHW)
		return
	}
	r.advanceHW(now)
	r.settle()
	r.serveReads()
	for i := range r.remotes {
		m := &r.remotes[i]
		r.serve(m)
		if m.brokerEpoch != 0 && m.toldHW < r.hw && r.env.linked(m.id, m.brokerEpoch) && !r.env.planted.has(bugHWNotTold) {
			m.toldHW = r.hw
			p := r.env.eff.to(m.id)
			p.Watermarks = append(p.Watermarks, protocol.Watermark{
				ID: r.id, LeaderEpoch: r.state.LeaderEpoch, HW: r.hw, LogStart: r.start,
			})
		}
	}
	r.maybeExpand(now)
	if r.lagging() {
		r.env.shard.watchLag(now, r)
	}
}

// serve answers a parked fetch once there is something to hand out, `led` is
// durable (D11), and the link takes more bulk (D14).
func (r *replicaState) serve(m *remote) {
	f := m.parked
	if f == nil || m.reading {
		return
	}
	link := r.env.links[m.id]
	if link == nil || !link.up || link.epoch != m.brokerEpoch {
		return
	}
	if !r.ledStored || f.Offset >= r.end {
		if !m.greeted {
			r.sendBatches(m, nil) // only an answer tells the follower that the logs agree
		}
		return
	}
	if link.credit <= 0 {
		r.env.shard.starve(m.id, r)
		return
	}
	maxBytes := int(min(f.MaxBytes, r.env.cfg.FetchBytes))
	batches, ok := r.tail.read(f.Offset, r.end, maxBytes)
	if !ok {
		m.reading = true
		r.env.eff.reads = append(r.env.eff.reads, coldRead{
			id: r.id, gen: r.gen, from: f.Offset, limit: r.tail.start(r.end),
			maxBytes: maxBytes, peer: m.id, fetch: true,
		})
		return
	}
	r.sendBatches(m, batches)
}

func (r *replicaState) sendBatches(m *remote, batches [][]byte) {
	for _, b := range batches {
		r.env.links[m.id].credit -= len(b)
	}
	m.toldHW, m.greeted = r.hw, true
	r.answerFetch(m.id, m.parked, protocol.FetchAnswer{Batches: batches})
	m.parked = nil
}

// fetchRead goes on with a parked fetch whose batches came from the store.
func (r *replicaState) fetchRead(c coldRead, run []byte, err error) {
	m := r.remote(c.peer)
	if m == nil || !m.reading {
		return
	}
	m.reading = false
	r.touch()
	if c.gen != r.gen || m.parked == nil || m.parked.Offset != c.from {
		return
	}
	batches, splitErr := splitBatches(run, c.limit, c.maxBytes)
	if err != nil || splitErr != nil || len(batches) == 0 {
		r.fail(firstError(err, splitErr, errEmptyRead))
		return
	}
	if r.env.linked(m.id, m.brokerEpoch) {
		r.sendBatches(m, batches)
	}
}

// linkDown voids what a broker asked for in the session that ended (D14).
func (r *replicaState) linkDown(peer int32) {
	if m := r.remote(peer); m != nil {
		m.parked, m.reading, m.greeted, m.toldHW = nil, false, false, -1
	}
	for i := range r.held {
		if r.held[i].from == peer {
			r.held = append(r.held[:i], r.held[i+1:]...)
			break
		}
	}
	if r.role == roleFollower && r.state.Leader == peer {
		r.resetFetching()
	}
	kept := r.readers[:0]
	for _, rd := range r.readers {
		if rd.peer != peer {
			kept = append(kept, rd)
		}
	}
	r.readers = kept
	// Appends of its clients go on, but nobody there waits for them any more: the
	// same request number may mean another append by now.
	for _, queue := range [][]appendWaiter{r.onStored, r.onCommit} {
		for i := range queue {
			if queue[i].peer == peer {
				queue[i].peer = nobody
			}
		}
	}
}
