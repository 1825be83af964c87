package tidemark

import (
	"errors"
	"fmt"
	"time"

	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/record"
	"github.com/tidemark-log/tidemark/storage"
)

// errTruncateTwice is the damage of a follower that would have to cut what its
// leader had already accepted as a prefix of its own log (D9).
var errTruncateTwice = errors.New("tidemark: log diverged after its leader had agreed to it")

// errUnrelated is the damage of a log whose last epoch the leader cannot place (D3, D12).
var errUnrelated = errors.New("tidemark: leader cannot place the end of this log")

// errCutsCommitted is the damage of a log that its leader contradicts where it
// was committed. Nothing but an unclean election, which the state then tells of,
// can bring that about.
var errCutsCommitted = errors.New("tidemark: leader contradicts what was committed here")

// resetFetching forgets what was asked of the leader in a session that is over.
func (r *replicaState) resetFetching() {
	r.fetching, r.reported, r.refetchAt = false, -1, 0
}

// finishFollower ends a follower's turn: one fetch under way at all times, and
// the stored end reported as soon as it moved.
func (r *replicaState) finishFollower() {
	r.followHW()
	if !r.env.linked(r.state.Leader, r.state.LeaderBrokerEpoch) && !r.env.planted.has(bugSameEpochAgain) {
		return
	}
	full := r.env.shard.storeFull
	if !r.fetching && full && !r.throttled {
		r.throttled = true
		r.env.shard.throttled = append(r.env.shard.throttled, r)
	}
	if !r.fetching && !full && r.unstoredBytes() <= r.env.cfg.MaxUnstoredBytes {
		r.fetching = true
		r.reported = r.stored
		p := r.env.eff.to(r.state.Leader)
		p.Fetches = append(p.Fetches, protocol.Fetch{
			ID: r.id, LeaderEpoch: r.state.LeaderEpoch,
			Offset: r.end, LastEpoch: r.epochs.epochBefore(r.end, r.start),
			Stored: r.stored, StoredEpoch: r.epochs.epochBefore(r.stored, r.start),
			MaxBytes: r.env.cfg.FetchBytes,
		})
	} else if r.agreed && r.stored > r.reported {
		r.reported = r.stored
		p := r.env.eff.to(r.state.Leader)
		p.Reports = append(p.Reports, protocol.Report{
			ID: r.id, LeaderEpoch: r.state.LeaderEpoch,
			Stored: r.stored, StoredEpoch: r.epochs.epochBefore(r.stored, r.start),
		})
	}
}

// onFetchAnswer handles what the leader sent. Only the answer to the fetch that
// is under way counts (FT-3).
func (r *replicaState) onFetchAnswer(now time.Duration, from int32, fromEpoch int64, a *protocol.FetchAnswer) {
	if r.role != roleFollower || !r.fromLeader(from, fromEpoch) {
		return
	}
	if a.LeaderEpoch != r.state.LeaderEpoch || !r.fetching || a.Offset != r.end {
		return
	}
	r.touch()
	switch a.Code {
	case protocol.OK:
		r.fetching = false
		r.accept(now, a)
	case protocol.Diverging:
		r.fetching = false
		r.truncate(a.Agreed)
	case protocol.BelowStart:
		r.fetching = false
		if a.LogStart > r.end {
			r.reset(a.LogStart)
		} else {
			r.fail(errUnrelated)
		}
	case protocol.OutOfRange:
		r.fail(errUnrelated)
	case protocol.Corrupt:
		r.refetchLater(now)
	default:
		// The sender knows another epoch, or leads no longer. Until newer state comes,
		// from here or from the Controller, the fetch counts as under way (FT-6).
		if a.State != nil {
			r.setState(now, a.State)
		}
	}
}

// accept stores the batches of an answer and takes its high watermark.
func (r *replicaState) accept(now time.Duration, a *protocol.FetchAnswer) {
	if !r.agreed {
		r.agreed, r.agreedIn = true, r.state.LeaderEpoch
		// An entry without records, from an election of this replica, means nothing now (EC-5).
		if !r.env.planted.has(bugEpochEntryKept) {
			r.epochsChanged = r.epochs.truncateFromEnd(r.end) || r.epochsChanged
		}
	}
	for _, b := range a.Batches {
		info, err := record.Peek(b)
		if err != nil || info.Base != r.end || info.Epoch > r.state.LeaderEpoch || info.Epoch < r.epochs.last() {
			// Not what a leader of this epoch can send: asked for again, in a while (S-29).
			r.refetchLater(now)
			return
		}
		r.epochsChanged = r.epochs.assign(info.Epoch, info.Base) || r.epochsChanged
		r.addBatch(b, info.End())
	}
	r.told(a.HW, a.LogStart)
}

// fromLeader reports whether a message comes from the leader, in the life that
// the Controller chose (D11).
func (r *replicaState) fromLeader(from int32, fromEpoch int64) bool {
	return from == r.state.Leader && (fromEpoch == r.state.LeaderBrokerEpoch || r.env.planted.has(bugSameEpochAgain))
}

// refetchLater asks for the same again after a while.
func (r *replicaState) refetchLater(now time.Duration) {
	r.fetching, r.refetchAt = true, now+r.env.cfg.JoinWindow
}

// onWatermark handles a high watermark that came on its own.
func (r *replicaState) onWatermark(from int32, fromEpoch int64, w *protocol.Watermark) {
	if r.role != roleFollower || !r.fromLeader(from, fromEpoch) {
		return
	}
	if w.LeaderEpoch == r.state.LeaderEpoch && r.agreed {
		r.told(w.HW, w.LogStart)
		r.touch()
	}
}

// told takes the leader's high watermark and log start. Within an epoch the
// former only rises; the latter is followed no further than what is committed here.
func (r *replicaState) told(hw, logStart int64) {
	r.toldHW = max(r.toldHW, hw)
	r.followHW()
	if start := min(logStart, r.hw); start > r.start {
		r.flushFresh()
		r.start = start
		r.epochs.truncateFromStart(start)
		r.emit(storage.Op{Kind: storage.Trim, Offset: start, HW: r.hw, Epochs: r.epochList()}, pendingOp{end: r.end, led: noEpoch})
	}
}

// truncate cuts the log back to where it agrees with the leader's (FT-4, D12).
// The fetch that follows carries the new last epoch and is compared again.
func (r *replicaState) truncate(agreed protocol.EpochEnd) {
	if r.agreed {
		r.fail(errTruncateTwice)
		return
	}
	target := r.epochs.truncationTarget(agreed, r.start, r.end)
	if r.env.planted.has(bugCutToAnswer) {
		target = max(min(agreed.End, r.end), r.start)
	}
	if target >= r.end {
		r.fail(fmt.Errorf("%w: told to agree at %d in epoch %d", errUnrelated, agreed.End, agreed.Epoch))
		return
	}
	if target < r.hw {
		if max(r.epochs.epochBefore(r.hw, r.start), r.agreedIn) >= r.state.UncleanEpoch {
			r.fail(fmt.Errorf("%w: %d is below the high watermark %d", errCutsCommitted, target, r.hw))
			return
		}
		r.note(note{kind: noteLost, epoch: r.state.LeaderEpoch, from: r.hw, to: target})
	}
	r.cut(target)
}

// cut removes everything at or above target.
func (r *replicaState) cut(target int64) {
	r.flushFresh()
	r.note(note{kind: noteTruncated, epoch: r.state.LeaderEpoch, from: r.end, to: target})
	r.env.shard.uncached(r.tail.truncate(target))
	r.epochs.truncateFromEnd(target)
	r.newGeneration(target, min(r.hw, target))
	r.emit(storage.Op{Kind: storage.Truncate, Offset: target, HW: r.hw, Epochs: r.epochList()}, pendingOp{end: target, led: noEpoch})
}

// reset empties the log and begins it again at the leader's log start (LG-3).
func (r *replicaState) reset(start int64) {
	r.flushFresh()
	r.note(note{kind: noteReset, epoch: r.state.LeaderEpoch, from: r.end, to: start})
	r.forgetLog(start)
	r.emit(storage.Op{Kind: storage.Reset, Offset: start, HW: start, Epochs: r.epochList()}, pendingOp{end: start, led: noEpoch})
}

// forgetLog leaves an empty log that begins at start, in memory.
func (r *replicaState) forgetLog(start int64) {
	r.fresh = nil
	r.env.shard.uncached(r.tail.truncate(0))
	r.epochs.clear()
	r.start = start
	r.newGeneration(start, start)
}

// newGeneration begins another content of the same log: completions of what was
// written before say nothing about it (D8).
func (r *replicaState) newGeneration(end, hw int64) {
	r.gen++
	r.end, r.hw = end, hw
	r.stored = min(r.stored, end)
	r.epochsChanged = false
}
