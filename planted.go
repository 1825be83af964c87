package tidemark

import (
	"slices"
	"time"

	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/protocol"
)

// plantedBug is a rule of the protocol that is switched off on purpose, so that
// tests can show that their checkers would notice. planted_test.go has the list of
// them all, with names.
type plantedBug uint8

const (
	// Of replicas.
	bugShrinkCounted        plantedBug = iota + 1 // HW-5: the high watermark leaves out who is proposed to leave, before that is recorded
	bugPendingReverted                            // AP-3: any refusal of a proposal, also for being out of date, is taken for "not applied"
	bugPendingKept                                // AP-3: a proposal that was certainly not applied stays pending
	bugPendingGivenUp                             // AP-2: a proposal that is not answered in time, or not by this Controller, is given up
	bugHWUnderMinISR                              // HW-1: the high watermark moves though the ISR is smaller than MinISR
	bugReportsRemembered                          // D9: what followers reported is kept over an election
	bugUnreportedIgnored                          // HW-7: a member that has not reported in this epoch is not waited for
	bugAdmitBelowEpochStart                       // IS-1: a candidate needs what is below the high watermark only
	bugEarlierLifeCounts                          // FE-7: what a broker reported before it registered anew counts for its new life
	bugLagByEnd                                   // D10: who is not at the log's end lags since the leadership began
	bugAdmitLagging                               // D10: a candidate is admitted however far it lags
	bugEpochEntryKept                             // EC-5: the entry of an election without records stays when the replica follows
	bugEpochEntryLate                             // EC-8: the epoch's entry is made with its first record, not at the election
	bugCutToHW                                    // D12: a new follower begins by cutting its log to its high watermark
	bugCutToAnswer                                // FT-4: a follower cuts to where the leader's epoch ends, whether it has that epoch or not
	bugFetchUncompared                            // FE-4: a fetch is answered without a look at the epoch of the follower's last record
	bugWaitersForgotten                           // PR-5: appends that wait are not ended when the role ends
	bugWaitingIsNotAppended                       // PR-5: they are, but as if their records were not in the log
	bugReadsUncommitted                           // RD-1: readers get what is not committed
	bugFollowerHWRaised                           // FT-9, D8: a follower's high watermark is a maximum, and not bounded by what it stored
	bugLeaderHWAssigned                           // HW-4: a leader's high watermark falls when the smallest stored end does
	bugHWNotTold                                  // D13: a new high watermark is told with the next answer only
	bugQueuedIsStored                             // D8: what was given to the store counts as stored
	bugReportsUnverified                          // D9: reports count without being compared with the leader's log
	bugSameEpochAgain                             // D11: a broker leads on in the epoch that it led before it registered anew
	bugTopicMinISR                                // D19: a leader uses the MinISR that its topic asks for, not the one that is recorded
	bugClearedInISR                               // D20: a log that failed is emptied while its replica is in the ISR
	bugStreamsForgotten                           // D22: a leader that refused an append takes the next one of its stream's generation

	// Of the Controller, of links and of registrations.
	bugISREmptied        // EL-4: dead members leave though nobody leads; of an empty ISR anybody is a member
	bugReturningReadded  // EL-8: the Controller puts replicas that are back into the ISR
	bugBounceUnnoticed   // BR-2: a leader that registered anew is taken for the same life
	bugProposalUnchecked // CT-VAL: members are admitted without a look at their registrations and marks
	bugVerdictEarly      // D17: a leader is told of its new ISR before that is recorded
	bugAbsentIsRefused   // D17: what a re-read does not show is called refused, and may still arrive
	bugGapSkipped        // D14: an envelope that is missing is passed over
	bugDoubledDelivered  // D14: an envelope that came twice is delivered twice
	bugDirectoryIgnored  // D15: another directory is not noted
	bugReplacedForgotten // D15: the next registration takes the mark off
	bugUncleanIgnored    // D25: an unclean end is not told
	bugUncleanUnasked    // EL-2: whoever is there leads, though nobody asked for an unclean election
)

// planted says which bugs are planted. It is nil outside of tests.
type planted func(plantedBug) bool

// has reports whether the bug is planted.
func (p planted) has(b plantedBug) bool { return p != nil && p(b) }

// overlooked reports whether the high watermark does not wait for a member that
// it should wait for.
func (r *replicaState) overlooked(m *remote) bool {
	p := r.isr.pending
	return r.env.planted.has(bugUnreportedIgnored) && m.stored < 0 ||
		r.env.planted.has(bugShrinkCounted) && p != nil && !slices.ContainsFunc(p.proposal.ISR, func(x protocol.Member) bool { return x.ID == m.id })
}

// verdict is what a leader takes the answer to its proposal for.
func (p planted) verdict(c protocol.Code) protocol.Code {
	switch {
	case c != protocol.OK && p.has(bugPendingReverted):
		return protocol.Ineligible
	case c == protocol.Ineligible && p.has(bugPendingKept):
		return protocol.NotController
	}
	return c
}

// remembered is what a replica keeps of the others beyond its role: nothing (ST-14, D9).
func (r *replicaState) remembered() []remote {
	if !r.env.planted.has(bugReportsRemembered) {
		return nil
	}
	var kept []remote
	for _, m := range r.remotes {
		kept = append(kept, remote{id: m.id, brokerEpoch: m.brokerEpoch, stored: m.stored, since: m.since, toldHW: -1})
	}
	return kept
}

// refuseAbsent calls the proposals of a write refused that a re-read did not show,
// and reports whether there were any.
func (m *metadata) refuseAbsent(now time.Duration, w *metaWrite, kvs map[string]coordination.KV) (any bool) {
	for i := range w.parts {
		if q := w.parts[i].proposal; q != nil {
			m.verdict(q.from, &q.proposal, protocol.Ineligible, &w.parts[i].part.state)
			w.parts[i].proposal, any = nil, true
		}
	}
	if any {
		m.conflicted(now, w, kvs)
	}
	return any
}

// skip takes everything before m for received.
func (l *link) skip(m *protocol.Message) {
	before := m.Seq
	if m.Kind == protocol.Data {
		before--
	}
	l.received = max(l.received, before)
}
