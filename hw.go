package tidemark

import (
	"time"

	"github.com/tidemark-log/tidemark/protocol"
)

// advanceHW raises a leader's high watermark to the smallest stored end among
// the replicas it must wait for.
//
//   - HW-1: never while the committed ISR is smaller than MinISR.
//   - HW-2, HW-5: the replicas are the maximal ISR (what the Controller may have
//     recorded), the leader itself, and candidates about to join.
//   - HW-4: it never falls within an epoch.
//   - D8, HW-7: only stored ends count, and one not reported in this epoch is unknown.
func (r *replicaState) advanceHW(now time.Duration) {
	if len(r.isr.committed) < r.minISR() && !r.env.planted.has(bugHWUnderMinISR) {
		return
	}
	hw := r.stored
	for i := range r.remotes {
		m := &r.remotes[i]
		if m.stored < hw && (r.isr.maximal(m.id) || r.awaited(now, m)) && !r.overlooked(m) {
			hw = m.stored
		}
	}
	if hw > r.hw || r.env.planted.has(bugLeaderHWAssigned) {
		r.setHW(max(hw, r.start))
	}
}

// minISR is the MinISR in force: what was recorded, whatever the topic asks for by
// now (D19).
func (r *replicaState) minISR() int {
	if r.env.planted.has(bugTopicMinISR) {
		return min(int(r.topic.MinISR), len(r.state.Replicas))
	}
	return int(r.state.MinISR)
}

// setHW installs a high watermark and settles what it commits.
func (r *replicaState) setHW(hw int64) {
	r.hw = hw
	n := 0
	for n < len(r.uncommitted) && r.uncommitted[n].end <= hw {
		r.uncommittedBytes -= r.uncommitted[n].size
		n++
	}
	r.uncommitted = dropFront(r.uncommitted, n)
}

// followHW installs the high watermark that the leader told in this epoch,
// bounded by what this replica has stored (D8). It is an assignment: a new
// leader may start lower than its predecessor ended (FT-9).
func (r *replicaState) followHW() {
	switch {
	case r.role != roleFollower || !r.agreed || r.toldHW < 0:
	case r.env.planted.has(bugFollowerHWRaised):
		r.hw = max(r.hw, r.toldHW)
	default:
		r.hw = max(min(r.toldHW, r.stored), r.start)
	}
}

// uncommittedRun is a stretch of the log above the high watermark.
type uncommittedRun struct {
	end  int64
	size int64
}

// appendWaiter is an append whose acknowledgement is due once the log is stored
// (acks=1) or committed (acks=all) up to end.
type appendWaiter struct {
	peer    int32
	request uint64
	base    int64
	end     int64
}

// settle ends the appends whose records are now stored, or committed.
func (r *replicaState) settle() {
	n := 0
	for n < len(r.onStored) && r.onStored[n].end <= r.stored {
		r.ack(r.onStored[n], protocol.OK)
		n++
	}
	r.onStored = dropFront(r.onStored, n)
	n = 0
	for n < len(r.onCommit) && r.onCommit[n].end <= r.hw {
		code := protocol.OK
		if r.isr.maximalSize() < r.minISR() {
			code = protocol.NotEnoughAfter
		}
		r.ack(r.onCommit[n], code)
		n++
	}
	r.onCommit = dropFront(r.onCommit, n)
}

// nobody is the peer of an append whose asker is gone.
const nobody int32 = -1

func (r *replicaState) ack(w appendWaiter, code protocol.Code) {
	if w.peer == nobody {
		return
	}
	p := r.env.eff.to(w.peer)
	p.AppendAnswers = append(p.AppendAnswers, protocol.AppendAnswer{
		Request: w.request, Code: code, Outcome: protocol.Appended,
		Base: w.base, Last: w.end - 1, LeaderEpoch: r.state.LeaderEpoch,
	})
}

// abandon ends every waiting append: its records may be in the log of the next
// leader, or not (S-38).
func (r *replicaState) abandon(code protocol.Code) {
	outcome := protocol.Unknown
	if r.env.planted.has(bugWaitingIsNotAppended) {
		outcome = protocol.NotAppended
	}
	for _, queue := range [][]appendWaiter{r.onStored, r.onCommit} {
		for _, w := range queue {
			if w.peer == nobody {
				continue
			}
			p := r.env.eff.to(w.peer)
			p.AppendAnswers = append(p.AppendAnswers, protocol.AppendAnswer{
				Request: w.request, Code: code, Outcome: outcome,
				Base: -1, Last: -1, LeaderEpoch: r.state.LeaderEpoch, State: r.stateHint(),
			})
		}
	}
	r.onStored, r.onCommit = nil, nil
	for _, rd := range r.readers {
		r.refuseRead(rd.peer, rd.request, code)
	}
	r.readers = nil
}

// dropFront removes the first n elements, reusing the array once it is mostly empty.
func dropFront[T any](s []T, n int) []T {
	if n == 0 {
		return s
	}
	if n == len(s) {
		clear(s)
		return s[:0]
	}
	if n*2 >= len(s) {
		m := copy(s, s[n:])
		clear(s[m:])
		return s[:m]
	}
	clear(s[:n])
	return s[n:]
}
