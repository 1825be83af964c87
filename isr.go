package tidemark

import (
	"math"
	"slices"
	"time"

	"github.com/tidemark-log/tidemark/protocol"
)

// isrState is a leader's view of who is in sync.
type isrState struct {
	committed []int32     // as the Controller recorded it: decides admission (PR-1)
	pending   *pendingISR // at most one proposal is under way
}

// pendingISR is a change of the ISR that the Controller was asked for. Until it
// is decided, the high watermark counts the larger of both sets (HW-5).
type pendingISR struct {
	proposal protocol.Proposal
	added    int32 // the candidate; -1 when the change is a shrink
	since    time.Duration
	sentAt   time.Duration
	sentTo   int32 // controller epoch
	parked   bool  // refused for being out of date: only newer state decides it now (S-55)
}

// maximal reports whether the Controller may hold the broker to be in sync.
func (s *isrState) maximal(broker int32) bool {
	return slices.Contains(s.committed, broker) || s.pending != nil && s.pending.added == broker
}

func (s *isrState) maximalSize() int {
	if s.pending != nil && s.pending.added >= 0 {
		return len(s.committed) + 1
	}
	return len(s.committed)
}

// remote is what a leader knows of another replica in this leader epoch.
type remote struct {
	id          int32
	brokerEpoch int64         // of its reports; 0: none in this epoch
	stored      int64         // -1: not reported in this epoch by this broker epoch (D9)
	since       time.Duration // not reported: since when
	parked      *protocol.Fetch
	reading     bool // a cold read for the parked fetch is under way
	greeted     bool // its first fetch in this epoch and session was answered
	toldHW      int64
	refused     refusal
}

// refusal remembers that the Controller would not admit a candidate.
type refusal struct {
	until          time.Duration
	brokerEpoch    int64
	partitionEpoch int32
}

// forget makes the replica unknown again, as at the start of an epoch (ST-14, D9).
func (m *remote) forget(now time.Duration) {
	*m = remote{id: m.id, stored: -1, since: now, toldHW: -1}
}

// lagForever is the lag of a non-member that has not reported in this epoch.
const lagForever = time.Duration(math.MaxInt64)

// lag is how long the replica has been missing what it misses (D10).
func (r *replicaState) lag(now time.Duration, m *remote) time.Duration {
	switch {
	case m.stored == r.end:
		return 0
	case m.stored >= 0 && r.env.planted.has(bugLagByEnd):
		return now - r.leadSince
	case m.stored >= 0:
		return now - r.marks.appendedAt(m.stored, r.leadSince)
	case slices.Contains(r.isr.committed, m.id):
		return now - max(m.since, r.leadSince)
	}
	return lagForever
}

// eligible reports whether the Controller would admit the replica as far as this
// leader can tell (IS-2).
func (r *replicaState) eligible(now time.Duration, m *remote) bool {
	f := m.refused
	refused := now < f.until && f.brokerEpoch == m.brokerEpoch && f.partitionEpoch == r.state.PartitionEpoch
	return m.stored >= 0 && !refused && r.env.alive(m.id, m.brokerEpoch)
}

// awaited reports whether the high watermark waits for a non-member that is
// about to join (HW-2, D10).
func (r *replicaState) awaited(now time.Duration, m *remote) bool {
	return r.eligible(now, m) && r.lag(now, m) <= r.env.cfg.JoinWindow
}

// admissible reports whether the candidate may be proposed: it has what is
// committed and what this epoch began with, and it keeps up (IS-1, IS-3, D10).
func (r *replicaState) admissible(now time.Duration, m *remote) bool {
	from, within := max(r.hw, r.epochStart), r.env.cfg.MaxLag/2
	if r.env.planted.has(bugAdmitBelowEpochStart) {
		from = r.hw
	}
	if r.env.planted.has(bugAdmitLagging) {
		within = lagForever
	}
	return m.stored >= from && r.eligible(now, m) && r.lag(now, m) <= within
}

// maybeExpand proposes one candidate, if there is one and nothing is pending.
func (r *replicaState) maybeExpand(now time.Duration) {
	if r.isr.pending != nil || !r.env.controller.reachable || !r.env.controller.storeOK {
		return
	}
	for i := range r.remotes {
		m := &r.remotes[i]
		if !r.isr.maximal(m.id) && r.admissible(now, m) {
			r.propose(now, append(slices.Clone(r.isr.committed), m.id), m.id)
			return
		}
	}
}

// maybeShrink proposes to leave out the members that lag (IS-5, IS-8).
func (r *replicaState) maybeShrink(now time.Duration) {
	if r.role != roleLeader || r.isr.pending != nil {
		return
	}
	keep := slices.Clone(r.isr.committed)
	for i := range r.remotes {
		if m := &r.remotes[i]; r.lag(now, m) > r.env.cfg.MaxLag {
			keep = slices.DeleteFunc(keep, func(id int32) bool { return id == m.id })
		}
	}
	if len(keep) < len(r.isr.committed) {
		r.propose(now, keep, -1)
	}
}

// lagging reports whether a member misses something, so that its lag must be watched.
func (r *replicaState) lagging() bool {
	for i := range r.remotes {
		if m := &r.remotes[i]; m.stored != r.end && slices.Contains(r.isr.committed, m.id) {
			return true
		}
	}
	return false
}

func (r *replicaState) propose(now time.Duration, isr []int32, added int32) {
	members := make([]protocol.Member, 0, len(isr))
	for _, id := range isr {
		epoch := int64(-1)
		if id == r.env.self {
			epoch = r.env.brokerEpoch
		} else if m := r.remote(id); m != nil && m.brokerEpoch != 0 {
			epoch = m.brokerEpoch
		}
		members = append(members, protocol.Member{ID: id, Epoch: epoch})
	}
	r.attempts++
	r.isr.pending = &pendingISR{added: added, since: now, proposal: protocol.Proposal{
		ID: r.id, LeaderEpoch: r.state.LeaderEpoch, PartitionEpoch: r.state.PartitionEpoch, Attempt: r.attempts, ISR: members,
	}}
	r.sendProposal(now)
}

func (r *replicaState) sendProposal(now time.Duration) {
	p := r.isr.pending
	p.sentAt, p.sentTo = now, r.env.controller.epoch
	p.proposal.ControllerEpoch = p.sentTo
	r.env.eff.proposals = append(r.env.eff.proposals, p.proposal)
	r.touch() // for the deadline of the next attempt
}

// resend repeats a pending proposal to a new Controller, or after a while (D17, AP-2).
func (r *replicaState) resend(now time.Duration) {
	p := r.isr.pending
	if p == nil || p.parked {
		return
	}
	due := p.sentTo != r.env.controller.epoch || now-p.sentAt >= r.env.cfg.ProposalTimeout
	switch {
	case due && r.env.planted.has(bugPendingGivenUp):
		r.isr.pending = nil
	case due:
		r.sendProposal(now)
	}
}

// verdict handles the Controller's answer to a proposal (AP-3).
func (r *replicaState) verdict(now time.Duration, v *protocol.Verdict) {
	p := r.isr.pending
	if v.ControllerEpoch < r.env.controller.epoch || r.role != roleLeader {
		return
	}
	if p == nil || p.proposal.LeaderEpoch != v.LeaderEpoch || p.proposal.Attempt != v.Attempt {
		return
	}
	switch r.env.planted.verdict(v.Code) {
	case protocol.Ineligible:
		// Certain that no copy of it was or will be applied: the old set is the whole truth.
		r.isr.pending = nil
		if m := r.remote(p.added); m != nil {
			m.refused = refusal{now + r.env.cfg.ProposalTimeout, m.brokerEpoch, r.state.PartitionEpoch}
		}
	case protocol.OK, protocol.FencedEpoch, protocol.InvalidVersion, protocol.InvalidRequest, protocol.UnknownPartition:
		// Decided, or out of date: the state in force settles it, never a guess.
		p.parked = true
		if v.State != nil {
			r.setState(now, v.State)
		}
		if r.isr.pending == p {
			r.lookUp(now)
		}
	}
	r.touch()
}

// commitISR installs the ISR of a newer state of the same leader epoch (ST-15).
func (r *replicaState) commitISR(state *protocol.PartitionState) {
	if !slices.Equal(state.ISR, r.isr.committed) {
		kind := noteExpanded
		if len(state.ISR) < len(r.isr.committed) {
			kind = noteShrunk
		}
		r.note(note{kind: kind, epoch: state.LeaderEpoch, was: r.isr.committed, isr: state.ISR})
	}
	r.isr = isrState{committed: state.ISR}
}

// mark says that the record at offset was appended at a time.
type mark struct {
	offset int64
	at     time.Duration
}

// appendMarks remembers about when which offset was appended: finely for the
// recent past, coarsely beyond, not at all once it does not matter.
type appendMarks struct {
	marks []mark
}

const marksBeforeThinning = 128

func (a *appendMarks) add(now time.Duration, offset int64, cfg *coreConfig) {
	if n := len(a.marks); n > 0 && now-a.marks[n-1].at < cfg.JoinWindow/4 {
		return
	}
	if len(a.marks) >= marksBeforeThinning {
		a.thin(now, cfg)
	}
	a.marks = append(a.marks, mark{offset, now})
}

func (a *appendMarks) thin(now time.Duration, cfg *coreConfig) {
	kept := a.marks[:0]
	for i, m := range a.marks {
		if i+1 < len(a.marks) && now-a.marks[i+1].at > 2*cfg.MaxLag {
			continue // the next one is old enough to say "too long ago"
		}
		old := now-m.at > cfg.JoinWindow
		if n := len(kept); n > 0 && old && m.at-kept[n-1].at < cfg.MaxLag/32 {
			continue
		}
		kept = append(kept, m)
	}
	a.marks = kept
}

// appendedAt is about when the record at offset was appended, never later than
// it was; since is the answer for what is older than the marks.
func (a *appendMarks) appendedAt(offset int64, since time.Duration) time.Duration {
	for i := len(a.marks) - 1; i >= 0; i-- {
		if a.marks[i].offset <= offset {
			return a.marks[i].at
		}
	}
	return since
}

// shift moves the marks forward when the leader itself was late (D10).
func (a *appendMarks) shift(by, now time.Duration) {
	for i := range a.marks {
		a.marks[i].at = min(a.marks[i].at+by, now)
	}
}
