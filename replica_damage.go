package tidemark

import (
	"errors"
	"fmt"

	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/storage"
)

// A log that failed is out of use: it has no role and takes no writes (D7). The
// Controller is told, takes the replica out of the ISR and raises the leader epoch
// for it; then, and not before, the log may be emptied and filled again from its
// leader (D20).

// fail poisons this log: no role, no write, no retry (D7).
func (r *replicaState) fail(err error) {
	if r.role == roleFailed {
		return
	}
	r.fresh = nil
	r.env.shard.uncached(r.tail.truncate(0))
	r.endRole(protocol.StorageFailed)
	r.role, r.fault = roleFailed, because(fmt.Errorf("tidemark: partition %s", r.id), err)
	r.note(note{kind: noteDamaged, epoch: r.state.LeaderEpoch, err: r.fault})
	if r.env.planted.has(bugClearedInISR) && r.mayClear() {
		r.clear()
		r.follow()
		return
	}
	r.reportFailure()
}

// opsRefused handles the oldest n ops of this log, which the store did not apply.
// Those of a generation that is over do not matter any more.
func (r *replicaState) opsRefused(n int, err error) {
	present := false
	for _, p := range r.inflight[:n] {
		present = present || p.gen == r.gen
	}
	r.inflight = dropFront(r.inflight, n)
	switch {
	case r.deleting:
		r.deleting = false // tried again when the Controller says so again
		r.fail(err)
	case present:
		r.fail(err)
	}
}

// reportFailure tells the Controller that this replica cannot do what it was chosen for.
func (r *replicaState) reportFailure() {
	if r.known && r.state.Assigned(r.env.self) {
		r.failedIn = max(r.failedIn, r.state.LeaderEpoch)
		r.reply(false, 0, protocol.StorageFailed)
	}
}

// contradictions are failures that no disk explains. Such a log may hold what
// nobody else has: it is kept as it is, for somebody to look at (D12).
var contradictions = [...]error{errCutsCommitted, errTruncateTwice, errUnrelated, errNoEpochs}

// mayClear reports whether the log that failed may be emptied: nobody counts on it,
// and what it said before is of an earlier leader epoch (D20).
func (r *replicaState) mayClear() bool {
	for _, c := range contradictions {
		if errors.Is(r.fault, c) {
			return false
		}
	}
	s := &r.state
	uncounted := r.failedIn != noEpoch && s.LeaderEpoch > r.failedIn && !s.InISR(r.env.self) && !s.Eligible(r.env.self)
	return (uncounted || r.env.planted.has(bugClearedInISR)) &&
		s.Assigned(r.env.self) && s.Leader != protocol.NoLeader && s.Leader != r.env.self
}

// clear empties a log that failed. What it once led stays known (D11): a damaged
// log may not say, but the epoch in force was raised for this, and is above it all.
func (r *replicaState) clear() {
	r.note(note{kind: noteReset, epoch: r.state.LeaderEpoch, from: r.end, to: 0})
	r.role, r.fault, r.cleared = roleNone, nil, false
	r.clears++
	r.forgetLog(0)
	r.led = max(r.led, r.state.LeaderEpoch-1)
	led := r.led
	r.emit(storage.Op{Kind: storage.Delete}, pendingOp{led: noEpoch})
	r.emit(storage.Op{Kind: storage.Meta, Epochs: r.epochList(), Led: &led}, pendingOp{led: noEpoch, clear: r.clears})
}

// reportClearing tells the Controller that the log was emptied and is of use again,
// also where nobody leads: then it may be the only one that is (EL-2).
func (r *replicaState) reportClearing() {
	if r.known && r.state.InISR(r.env.self) {
		r.cleared = false // it was filled since
	}
	if r.cleared && (r.role == roleFollower || r.role == roleNone) {
		r.reply(true, 0, protocol.OK)
	}
}
