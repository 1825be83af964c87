package tidemark

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/protocol"
)

// S-35: while the committed ISR is below MinISR the high watermark stands still,
// also when an expansion that would suffice is under way.
func TestS035WatermarkWaitsForMinISR(t *testing.T) {
	g := newRig(t, 0, 0, repeated(0, 10)...)
	g.state.MinISR = 3
	g.lead(1, 1, 2)
	g.fetch(2, 10)
	require.EqualValues(t, 0, g.r.hw, "two of three")
	eff := g.fetch(3, 10)
	require.Equal(t, [][]int32{{1, 2, 3}}, proposed(eff))
	require.Equal(t, 3, g.r.isr.maximalSize())
	g.fetch(2, 10)
	require.EqualValues(t, 0, g.r.hw, "proposed is not recorded")
	g.granted()
	require.EqualValues(t, 10, g.r.hw)
}

// S-48: a candidate needs what is committed, and what the leader's epoch began with.
func TestS048AdmissionNeedsEpochStart(t *testing.T) {
	g := newRig(t, 0, 1, joined(repeated(8, 2), repeated(9, 3))...)
	g.lead(10, 1, 3)
	g.append(AcksLeader, 2)
	g.stored()
	require.EqualValues(t, 5, g.r.epochStart)
	require.Empty(t, proposed(g.fetch(2, 0)))
	require.Empty(t, proposed(g.fetch(2, 1)), "at the high watermark, which may be stale")
	require.Empty(t, proposed(g.fetch(2, 4)))
	eff := g.fetch(2, 5)
	require.Equal(t, [][]int32{{1, 3, 2}}, proposed(eff))
	require.Equal(t, []int32{1, 3}, g.r.isr.committed, "until the Controller has recorded it")
	g.granted()
	require.Equal(t, []int32{1, 3, 2}, g.r.isr.committed)
}

// S-48: and at least what is committed in this epoch.
func TestS048AdmissionNeedsWatermark(t *testing.T) {
	g := newRig(t, 0, 0, 0, 0)
	g.lead(1, 1, 3)
	g.append(AcksLeader, 1)
	g.append(AcksLeader, 1)
	g.stored()
	g.fetch(3, 4)
	require.EqualValues(t, 4, g.r.hw)
	require.Empty(t, proposed(g.fetch(2, 3)))
	require.Equal(t, [][]int32{{1, 3, 2}}, proposed(g.fetch(2, 4)))
}

// S-49: what a leader knew of a replica in an earlier epoch counts for nothing, also
// when the leader is the same: the replica must have fetched in this epoch.
func TestS049ReportsDieWithTheEpoch(t *testing.T) {
	g := newRig(t, 0, 0, repeated(0, 4)...)
	g.lead(1, 1, 3)
	// Broker 2 is out of the ISR, and nobody is asked to admit it.
	g.turn(func() { g.s.onController(g.now, controllerView{epoch: 1, storeOK: true}) })
	g.fetch(2, 4)
	g.fetch(3, 4)
	require.EqualValues(t, 4, g.r.hw)
	g.turn(func() { g.s.onController(g.now, controllerView{epoch: 1, reachable: true, storeOK: true}) })
	require.NotNil(t, g.r.isr.pending, "now it is proposed")

	eff := g.leader(1, 2)
	require.Nil(t, g.r.isr.pending, "the proposal ended with its epoch")
	require.Empty(t, proposed(eff))
	require.Empty(t, proposed(g.stored()))
	require.EqualValues(t, -1, g.r.remote(2).stored)
	require.EqualValues(t, -1, g.r.remote(3).stored)
	g.append(AcksLeader, 1)
	g.stored()
	require.EqualValues(t, 4, g.r.hw, "nor does the high watermark move on what was said before (HW-7)")
	require.Equal(t, [][]int32{{1, 3, 2}}, proposed(g.fetch(2, 4)))
}

// S-51: a follower that has everything stays, however long it is silent; once it
// misses a record, MaxLag is what it has.
func TestS051IdleFollowerStays(t *testing.T) {
	g := newRig(t, 0, 0, 0, 0)
	g.lead(1, 1, 2)
	g.fetch(2, 2)
	g.tick(g.s.env.cfg.MaxLag)
	require.Zero(t, g.s.next(0), "nothing to watch: no timer either")
	require.Empty(t, proposed(g.tick(time.Hour)))

	g.append(AcksLeader, 1)
	require.Empty(t, proposed(g.tick(g.s.env.cfg.MaxLag)), "not yet longer than MaxLag")
	eff := g.tick(g.s.env.cfg.MaxLag/4 + time.Millisecond)
	require.Equal(t, [][]int32{{1}}, proposed(eff))
}

// Slow, stuck and silent followers differ in nothing but what they have stored (D10).
func TestRuleLag(t *testing.T) {
	// Every second a record; broker 2 stores it `behind` later.
	for _, c := range []struct {
		behind time.Duration
		leaves bool
	}{{time.Second, false}, {9 * time.Second, false}, {12 * time.Second, true}} {
		g := newRig(t, 0, 0)
		g.lead(1, 1, 2)
		g.fetch(2, 0)
		left := false
		for second := range 40 {
			g.append(AcksLeader, 1)
			g.stored()
			if n := int64(second) - int64(c.behind/time.Second); n >= 0 {
				g.from(2, &protocol.Payload{Reports: []protocol.Report{{ID: g.id, LeaderEpoch: 1, Stored: n + 1, StoredEpoch: 1}}})
			}
			left = left || len(g.tick(time.Second).proposals) > 0
		}
		require.Equal(t, c.leaves, left, "%v behind", c.behind)
	}
}

// S-53: a smaller ISR moves the high watermark only once it is recorded, because
// until then the Controller may still elect who is left out.
func TestS053ShrinkCountsOnceRecorded(t *testing.T) {
	g := newRig(t, 0, 0, repeated(0, 9)...)
	g.lead(1, 1, 2, 3)
	request := g.append(AcksAll, 1)
	g.stored()
	g.fetch(2, 10)
	eff := g.tick(2 * g.s.env.cfg.MaxLag)
	require.Equal(t, [][]int32{{1, 2}}, proposed(eff))
	for range 3 {
		require.EqualValues(t, 0, g.r.hw)
		require.True(t, g.r.isr.maximal(3))
		require.Equal(t, []int32{1, 2, 3}, g.r.isr.committed)
		eff = g.tick(g.s.env.cfg.ProposalTimeout)
		require.Equal(t, [][]int32{{1, 2}}, proposed(eff), "no answer: sent again, though nothing else happens")
	}
	eff = g.granted()
	require.Equal(t, []int32{1, 2}, g.r.isr.committed)
	require.EqualValues(t, 10, g.r.hw)
	require.Equal(t, protocol.OK, endedIn(eff)[request].Code)
}

// A pending proposal goes to a new Controller at once (D17).
func TestRuleProposalGoesToNewController(t *testing.T) {
	g := newRig(t, 0, 0, 0)
	g.lead(1, 1, 2)
	require.Len(t, g.fetch(3, 1).proposals, 1)
	view := controllerView{epoch: 2, reachable: true, storeOK: true}
	eff := g.turn(func() { g.s.onController(g.now, view) })
	require.Len(t, eff.proposals, 1)
	eff = g.turn(func() { g.s.onController(g.now, view) })
	require.Empty(t, eff.proposals, "it was sent to that one")

	p := g.r.isr.pending.proposal
	late := protocol.Verdict{
		ID: g.id, ControllerEpoch: 1, LeaderEpoch: p.LeaderEpoch, PartitionEpoch: p.PartitionEpoch, Attempt: p.Attempt, Code: protocol.Ineligible,
	}
	g.from(1, &protocol.Payload{Verdicts: []protocol.Verdict{late}})
	require.NotNil(t, g.r.isr.pending, "an old Controller decides nothing")
}

// Expansions are proposed only while the Controller can record them (D10).
func TestRuleNoExpansionWithoutController(t *testing.T) {
	for _, away := range []controllerView{{epoch: 1, storeOK: true}, {epoch: 1, reachable: true}} {
		g := newRig(t, 0, 0, 0)
		g.s.env.controller = away
		g.lead(1, 1, 2)
		require.Empty(t, g.fetch(3, 1).proposals)
		eff := g.turn(func() { g.s.onController(g.now, controllerView{epoch: 1, reachable: true, storeOK: true}) })
		require.Equal(t, [][]int32{{1, 2, 3}}, proposed(eff))
	}
}

// S-55: a proposal that was refused for resting on another state stays in force
// for the high watermark and is not sent again: newer state decides it.
func TestS055OutdatedProposalStaysPending(t *testing.T) {
	for _, code := range []protocol.Code{protocol.InvalidVersion, protocol.FencedEpoch, protocol.InvalidRequest, protocol.UnknownPartition} {
		g := newRig(t, 0, 0, repeated(0, 4)...)
		g.state.MinISR = 1
		g.lead(1, 1)
		g.fetch(2, 4)
		g.append(AcksLeader, 1)
		g.stored()
		require.EqualValues(t, 4, g.r.hw)
		eff := g.verdict(code, nil)
		require.Equal(t, []protocol.PartitionID{g.id}, eff.lookups, "%v: it reads the partition's key", code)
		require.Empty(t, eff.proposals)
		require.Empty(t, g.tick(time.Minute).proposals, "%v: not sent again", code)
		require.Equal(t, []int32{1}, g.r.isr.committed)
		require.True(t, g.r.isr.maximal(2))
		require.EqualValues(t, 4, g.r.hw, "%v: what broker 2 lacks is not committed", code)

		g.become(func(s *protocol.PartitionState) { s.ISR = []int32{1, 2} })
		require.Nil(t, g.r.isr.pending)
		require.Equal(t, []int32{1, 2}, g.r.isr.committed)
	}
}

// S-56: a proposal that was refused for good is over, and the candidate is neither
// waited for nor proposed again at once (D10).
func TestS056RefusedCandidate(t *testing.T) {
	refused := func(t *testing.T) *rig {
		g := newRig(t, 0, 0, repeated(0, 4)...)
		g.state.MinISR = 1
		g.lead(1, 1)
		require.Len(t, g.fetch(2, 4).proposals, 1)
		eff := g.verdict(protocol.Ineligible, nil)
		require.Nil(t, g.r.isr.pending)
		require.Equal(t, []int32{1}, g.r.isr.committed)
		require.False(t, g.r.isr.maximal(2))
		require.Empty(t, eff.proposals)
		require.Empty(t, g.fetch(2, 4).proposals, "not at its next fetch")
		return g
	}
	t.Run("is not waited for", func(t *testing.T) {
		g := refused(t)
		g.append(AcksLeader, 1)
		g.stored()
		require.EqualValues(t, 5, g.r.hw)
	})
	t.Run("is proposed again after ProposalTimeout, unasked", func(t *testing.T) {
		g := refused(t)
		require.Empty(t, g.tick(g.s.env.cfg.ProposalTimeout-time.Millisecond).proposals)
		require.Len(t, g.tick(time.Millisecond).proposals, 1)
	})
	t.Run("is proposed again in another life", func(t *testing.T) {
		g := refused(t)
		g.turn(func() { g.s.onBrokers(g.now, map[int32]int64{1: life(1), 2: life(2) + 10, 3: life(3)}) })
		g.turn(func() { g.s.onLink(2, life(2)+10, true) })
		require.Len(t, g.fetch(2, 4).proposals, 1)
	})
	t.Run("is proposed again on another partition epoch", func(t *testing.T) {
		g := refused(t)
		eff := g.become(func(s *protocol.PartitionState) {})
		require.Len(t, eff.proposals, 1)
	})
}

// S-58: one proposal at a time.
func TestS058OneProposalAtATime(t *testing.T) {
	g := newRig(t, 0, 0, repeated(0, 4)...)
	g.lead(1, 1, 3)
	g.append(AcksLeader, 1)
	g.stored()
	require.Equal(t, [][]int32{{1}}, proposed(g.tick(2*g.s.env.cfg.MaxLag)), "broker 3 is silent")
	require.Empty(t, g.fetch(2, 5).proposals, "broker 2 has everything, and waits")
	require.Empty(t, g.turn(func() { g.r.touch() }).proposals)
	require.Equal(t, [][]int32{{1, 2}}, proposed(g.granted()), "its turn")
	require.Empty(t, g.tick(g.s.env.cfg.ProposalTimeout/2).proposals)
}

// S-63: only the life of a broker that is registered can be proposed, and what an
// earlier life reported is unknown.
func TestS063EarlierLife(t *testing.T) {
	t.Run("a candidate", func(t *testing.T) {
		g := newRig(t, 0, 0, 0, 0)
		g.s.env.brokers[3] = life(3) + 10
		g.lead(1, 1, 2)
		eff := g.turn(func() {
			g.s.onPayload(g.now, 3, life(3), &protocol.Payload{Fetches: []protocol.Fetch{{ID: g.id, LeaderEpoch: 1, Offset: 2, Stored: 2}}})
		})
		require.Empty(t, eff.proposals, "not as long as another life is registered")
		eff = g.turn(func() { g.s.onBrokers(g.now, map[int32]int64{1: life(1), 2: life(2), 3: life(3)}) })
		require.Len(t, eff.proposals, 1)
		require.Equal(t, []protocol.Member{{ID: 1, Epoch: life(1)}, {ID: 2, Epoch: -1}, {ID: 3, Epoch: life(3)}}, eff.proposals[0].ISR,
			"each with the life of its reports")
	})
	t.Run("a member", func(t *testing.T) {
		g := newRig(t, 0, 0)
		g.lead(1, 1, 2)
		g.append(AcksLeader, 1)
		g.stored()
		g.fetch(2, 0)
		next := life(2) + 10
		g.turn(func() { g.s.onBrokers(g.now, map[int32]int64{1: life(1), 2: next, 3: life(3)}) })
		require.EqualValues(t, -1, g.r.remote(2).stored)
		g.turn(func() {
			g.s.onPayload(g.now, 2, life(2), &protocol.Payload{Reports: []protocol.Report{{ID: g.id, LeaderEpoch: 1, Stored: 1, StoredEpoch: 1}}})
		})
		require.EqualValues(t, 0, g.r.hw, "a report of the earlier life commits nothing")
		g.turn(func() { g.s.onLink(2, next, true) })
		g.fetch(2, 1)
		require.EqualValues(t, 1, g.r.hw)
	})
}

// S-67: another partition epoch of the same leadership changes the ISR and
// nothing else.
func TestS067SameEpochKeepsReports(t *testing.T) {
	g := newRig(t, 0, 0, repeated(0, 2)...)
	g.lead(1, 1, 2, 3)
	g.append(AcksLeader, 3)
	g.stored()
	g.fetch(2, 4)
	g.fetch(3, 5)
	g.tick(time.Second)
	before := *g.r.remote(2)
	since, start, marks := g.r.leadSince, g.r.epochStart, len(g.r.marks.marks)
	waiting := g.append(AcksAll, 1)

	eff := g.become(func(s *protocol.PartitionState) { s.ISR = []int32{1, 2} })
	require.Equal(t, roleLeader, g.r.role)
	require.Equal(t, []int32{1, 2}, g.r.isr.committed)
	require.Equal(t, before, *g.r.remote(2))
	require.Equal(t, []any{since, start}, []any{g.r.leadSince, g.r.epochStart})
	require.GreaterOrEqual(t, len(g.r.marks.marks), marks)
	require.NotContains(t, endedIn(eff), waiting)
	require.Empty(t, eff.ops, "nothing is written anew")

	old := g.state.Clone()
	old.PartitionEpoch, old.ISR = old.PartitionEpoch-1, []int32{1, 2, 3}
	g.turn(func() { g.s.onState(g.now, g.id, &old) })
	require.Equal(t, []int32{1, 2}, g.r.isr.committed, "an older state is ignored")
}

// HW-2: the high watermark waits for a replica that is about to join, so that it
// can catch up at all; but not for longer than JoinWindow.
func TestRuleWatermarkWaitsForCandidates(t *testing.T) {
	join := func(t *testing.T) *rig {
		g := newRig(t, 0, 0, repeated(0, 4)...)
		g.lead(1, 1, 2)
		g.turn(func() { g.s.onController(g.now, controllerView{epoch: 1, storeOK: true}) }) // so that it stays a candidate
		g.fetch(2, 4)
		g.fetch(3, 4)
		require.EqualValues(t, 4, g.r.hw)
		g.append(AcksLeader, 1)
		g.stored()
		g.fetch(2, 5)
		return g
	}
	t.Run("until it has it", func(t *testing.T) {
		g := join(t)
		require.EqualValues(t, 4, g.r.hw, "broker 3 reported in time, and is about to join")
		g.fetch(3, 5)
		require.EqualValues(t, 5, g.r.hw)
	})
	t.Run("until JoinWindow is over, without anything happening", func(t *testing.T) {
		g := join(t)
		g.tick(g.s.env.cfg.JoinWindow)
		require.EqualValues(t, 4, g.r.hw)
		g.tick(time.Millisecond)
		require.EqualValues(t, 5, g.r.hw)
	})
	t.Run("not once its broker is gone", func(t *testing.T) {
		g := join(t)
		g.turn(func() { g.s.onBrokers(g.now, map[int32]int64{1: life(1), 2: life(2)}) })
		require.EqualValues(t, 5, g.r.hw)
	})
	t.Run("not when it never reported in this epoch", func(t *testing.T) {
		g := newRig(t, 0, 0, repeated(0, 4)...)
		g.lead(1, 1, 2)
		g.fetch(2, 4)
		require.EqualValues(t, 4, g.r.hw)
	})
}

// D10: a candidate must keep up, not only have what is committed: the high
// watermark may stand still for other reasons.
func TestRuleAdmissionNeedsToKeepUp(t *testing.T) {
	g := newRig(t, 0, 0)
	g.lead(1, 1, 2) // broker 2 is silent, so nothing is committed
	g.append(AcksLeader, 1)
	g.stored()
	g.tick(g.s.env.cfg.MaxLag/2 + time.Millisecond)
	require.Empty(t, g.fetch(3, 0).proposals, "it has all that is committed, and lacks a record of long ago")
	require.Len(t, g.fetch(3, 1).proposals, 1)
}

// D10: a leader whose own loop or store was late does not blame its followers for
// it, and does not use that excuse twice running.
func TestRuleLateLeaderBlamesNobody(t *testing.T) {
	lagging := func(t *testing.T) *rig {
		g := newRig(t, 0, 0)
		g.lead(1, 1, 2)
		g.fetch(2, 0)
		g.append(AcksLeader, 1)
		return g
	}
	t.Run("its loop", func(t *testing.T) {
		g := lagging(t)
		late := g.s.next(0) + g.s.env.cfg.MaxLag // a pass that should have been long ago
		g.now = late
		require.Empty(t, g.turn(func() {}).proposals)
		require.LessOrEqual(t, g.r.lag(g.now, g.r.remote(2)), g.s.env.cfg.MaxLag/4+time.Millisecond, "its lateness is not broker 2's lag")
		require.Equal(t, [][]int32{{1}}, proposed(g.tick(2*g.s.env.cfg.MaxLag)), "in time from then on")
	})
	t.Run("its store", func(t *testing.T) {
		g := lagging(t)
		cfg := g.s.env.cfg
		g.s.storeAge = cfg.MaxLag
		require.Empty(t, g.tick(cfg.MaxLag/4).proposals)
		require.True(t, g.s.lagLate)
		// The store hangs on: the second pass counts.
		g.s.storeAge = 2 * cfg.MaxLag
		g.tick(cfg.MaxLag / 4)
		require.False(t, g.s.lagLate)
	})
	t.Run("never twice running", func(t *testing.T) {
		g := lagging(t)
		for pass := range 40 {
			g.now = g.s.lagPassAt
			g.s.storeAge += g.s.env.cfg.MaxLag / 4
			g.turn(func() {})
			require.Equal(t, pass%2 == 1, g.s.lagLate, "pass %d", pass)
		}
	})
}
