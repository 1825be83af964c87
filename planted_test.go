package tidemark

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// plant has the broker break rules: in all that it is made of, and in the
// Controllers and links that it makes later.
func (b *Broker) plant(p planted) {
	b.planted = p
	for _, l := range b.loops {
		l.shard.env.planted = p
	}
	if b.control.meta != nil {
		b.control.meta.planted = p
	}
	for _, l := range b.links.all() {
		l.link.cfg.planted = p
	}
}

// plantedBugs are all planted bugs, in an order that lasts, and the checkers (see
// docs/testing.md) one of which has to notice each.
var plantedBugs = []struct {
	bug    plantedBug
	name   string
	rule   string
	does   string
	caught []string
	worlds func(k *simWorldKind) // where it can show; nil: everywhere
}{
	{bugShrinkCounted, "HW-5-shrink", "HW-5", "HW leaves out who is proposed to leave before that is recorded", []string{"INV-1", "INV-6", "lost write"}, nil},
	{bugPendingReverted, "AP-3-reverted", "AP-3", "an answer that settles nothing ends the proposal", []string{"INV-1", "INV-4", "INV-6", "lost write"}, nil},
	{bugPendingKept, "AP-3-kept", "AP-3", "a proposal called ineligible stays pending", []string{"INV-10"}, nil},
	{bugPendingGivenUp, "AP-2", "AP-2", "a proposal without an answer in time, or from this Controller, is over", []string{"INV-1", "INV-4", "INV-6", "lost write"}, nil},
	{bugHWUnderMinISR, "HW-1", "HW-1", "HW moves under MinISR", []string{"MinISR"}, nil},
	{bugReportsRemembered, "D9-remembered", "D9", "reports outlive an election", []string{"INV-1", "INV-2", "INV-6", "lost write"}, nil},
	{bugUnreportedIgnored, "HW-7", "HW-7", "HW does not wait for a member without a report", []string{"INV-1", "INV-6", "lost write"}, nil},
	{bugAdmitBelowEpochStart, "IS-1-epoch-start", "IS-1", "admission looks at HW, not at the epoch's start", []string{"INV-1", "INV-2", "INV-6", "INV-7", "lost write"}, nil},
	{bugEarlierLifeCounts, "FE-7", "FE-7", "reports of an earlier life count for the next", []string{"INV-1", "INV-2", "INV-6", "lost write"}, nil},
	{bugLagByEnd, "D10-end", "D10", "only who is at the log's end keeps up", []string{"D10"}, nil},
	{bugAdmitLagging, "D10-admission", "D10", "admission does not look at the lag", []string{"D10"}, nil},
	{bugEpochEntryKept, "EC-5", "EC-5", "an entry without records is kept", []string{"INV-10"}, nil},
	{bugEpochEntryLate, "EC-8", "EC-8", "the epoch's entry comes with its first record", []string{"INV-10", "INV-3"}, nil},
	{bugCutToHW, "D12", "D12", "a new follower cuts its log to its HW", []string{"INV-1", "INV-2", "INV-6", "INV-10", "lost write"}, nil},
	{bugCutToAnswer, "FT-4", "FT-4", "a follower cuts to an epoch's end without having that epoch", []string{"INV-10", "INV-3"}, nil},
	{bugFetchUncompared, "FE-4", "FE-4", "fetches are not compared", []string{"INV-3", "INV-10", "INV-12"}, nil},
	{bugWaitersForgotten, "PR-5-forgotten", "PR-5", "appends wait beyond their leader's role", []string{"INV-10", "INV-6", "lost write", "inconsistent offset"}, nil},
	{bugWaitingIsNotAppended, "PR-5-refused", "PR-5", "the end of a role says NotAppended", []string{"aborted read"}, nil},
	{bugReadsUncommitted, "RD-1", "RD-1", "readers get all of the log", []string{"HW", "inconsistent offset", "lost write"}, nil},
	{bugFollowerHWRaised, "FT-9", "FT-9, D8", "a follower's HW is a maximum without bounds", []string{"HW", "INV-10"}, nil},
	{bugLeaderHWAssigned, "HW-4", "HW-4", "a leader's HW falls", []string{"HW"}, nil},
	{bugHWNotTold, "D13", "D13", "HW is not told without records", []string{"INV-10"}, nil},
	{bugQueuedIsStored, "D8", "D8", "promises rest on logEnd", []string{"D1", "INV-1", "INV-2", "INV-6", "INV-7", "lost write"}, nil},
	{bugReportsUnverified, "D9-unverified", "D9", "reports are believed", []string{"INV-1", "INV-2", "INV-6", "lost write"}, nil},
	{bugSameEpochAgain, "D11", "D11", "an epoch is led by two lives of a broker", []string{"INV-11", "INV-3", "epoch"}, nil},
	{bugTopicMinISR, "D19", "D19", "a leader takes MinISR from its topic", []string{"MinISR"}, nil},
	{bugClearedInISR, "D20", "D20", "a failed log is emptied at once", []string{"INV-1", "INV-2", "INV-6", "lost write"}, nil},
	{bugStreamsForgotten, "D22", "D22", "what follows a refused append of a stream is taken", []string{"order"}, nil},
	{bugISREmptied, "EL-4", "EL-4", "the last members leave, and anybody may lead", []string{"INV-1", "INV-2", "INV-6", "INV-7", "INV-10", "lost write"}, nil},
	{bugReturningReadded, "EL-8", "EL-8", "who returns is in sync", []string{"INV-1", "INV-2", "INV-6", "lost write"}, nil},
	{bugBounceUnnoticed, "BR-2", "BR-2", "a leader's new registration is not its failure", []string{"INV-10"}, nil},
	{bugProposalUnchecked, "CT-VAL", "CT-VAL", "any life of a member is admitted", []string{"INV-1", "INV-2", "INV-6", "lost write"}, nil},
	{bugVerdictEarly, "D17-early", "D17", "a verdict precedes its write", []string{"INV-1", "INV-4", "INV-6", "lost write"}, nil},
	{bugAbsentIsRefused, "D17-refused", "D17", "a write that is not there yet is called refused", []string{"INV-1", "INV-4", "INV-6", "lost write"}, nil},
	{bugGapSkipped, "D14-gap", "D14", "a link passes over what is missing", []string{"INV-10"}, nil},
	{bugDoubledDelivered, "D14-doubled", "D14", "a link delivers copies", []string{"duplicate"}, nil},
	{bugDirectoryIgnored, "D15-directory", "D15", "a replaced directory is not noted", []string{"INV-1", "INV-2", "INV-6", "INV-7", "lost write"}, nil},
	{bugReplacedForgotten, "D15-forgotten", "D15", "the mark of a replaced directory goes with the next registration", []string{"INV-1", "INV-2", "INV-6", "INV-7", "lost write"}, nil},
	{bugUncleanIgnored, "D25", "D25", "a crash in background mode is not told", []string{"INV-1", "INV-2", "INV-6", "INV-7", "lost write"}, func(k *simWorldKind) { k.background = true }},
	{bugUncleanUnasked, "EL-2", "EL-2", "the first live replica leads, unasked", []string{"EL-2"}, nil},
}

func TestPlantedBugsAreListed(t *testing.T) {
	names, rules := make(map[string]bool), make(map[string]bool)
	for _, k := range newSimCheckers() {
		rules[k.rule()] = true
	}
	for i, b := range plantedBugs {
		require.Equal(t, plantedBug(i+1), b.bug, "%s: the order is that of the constants", b.name)
		require.NotEmpty(t, b.caught, b.name)
		for _, rule := range b.caught {
			require.True(t, rules[rule], "%s: there is no checker %q", b.name, rule)
		}
		require.False(t, names[b.name], b.name)
		names[b.name] = true
	}
	require.Len(t, plantedBugs, int(bugUncleanUnasked))
	require.False(t, planted(nil).has(bugShrinkCounted))
}
