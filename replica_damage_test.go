package tidemark

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/storage"
)

var errRigDisk = errors.New("a flipped byte")

func kinds(ops []storage.Op) (out []storage.Kind) {
	for _, op := range ops {
		out = append(out, op.Kind)
	}
	return out
}

// D20: a log that failed is emptied only in an epoch after the one in which its
// failure was told, by a replica that is in no ISR, under a leader that is another broker.
func TestFailedLogIsClearedOnceTheControllerLetIt(t *testing.T) {
	g := newRig(t, 0, 2, 1, 1, 2)
	g.leader(2, 3)
	g.stored()
	eff := g.turn(func() { g.r.fail(errRigDisk) })
	require.Equal(t, []protocol.OrderReply{{ID: g.id, LeaderEpoch: 3, Code: protocol.StorageFailed}}, eff.replies,
		"a follower tells as well")

	for name, change := range map[string]func(s *protocol.PartitionState){
		"the same epoch":       func(s *protocol.PartitionState) { s.ISR = []int32{2, 3} },
		"still in the ISR":     func(s *protocol.PartitionState) { s.ISR, s.LeaderEpoch = []int32{1, 2, 3}, 4 },
		"still in the ELR":     func(s *protocol.PartitionState) { s.ISR, s.ELR, s.LeaderEpoch = []int32{2, 3}, []int32{1}, 5 },
		"no leader to refill":  func(s *protocol.PartitionState) { s.Leader, s.LeaderBrokerEpoch, s.LeaderEpoch = -1, -1, 6 },
		"not assigned anymore": func(s *protocol.PartitionState) { s.Replicas, s.ISR, s.LeaderEpoch = []int32{2, 3}, []int32{2, 3}, 7 },
	} {
		t.Run(name, func(t *testing.T) {
			kept := g.state.Clone()
			was := *g.r
			eff := g.become(change)
			require.Empty(t, eff.ops)
			require.Equal(t, roleFailed, g.r.role)
			g.state, *g.r = kept, was
		})
	}

	eff = g.become(func(s *protocol.PartitionState) { s.ISR, s.LeaderEpoch = []int32{2, 3}, 8 })
	require.Equal(t, []storage.Kind{storage.Delete, storage.Meta}, kinds(eff.ops))
	require.EqualValues(t, 7, *eff.ops[1].Led, "a damaged log may have forgotten")
	require.Empty(t, eff.replies, "not before it is on the disk")
	require.Equal(t, []int64{0, -1}, []int64{sentFetch(t, eff, 2).Offset, int64(sentFetch(t, eff, 2).LastEpoch)})
	eff = g.stored()
	require.Equal(t, []protocol.OrderReply{{ID: g.id, LeaderEpoch: 8, Accepted: true}}, eff.replies)
	eff = g.turn(func() { s := g.state.Clone(); g.s.onState(g.now, g.id, &s) })
	require.Len(t, eff.replies, 1, "the Controller may be another one by now")
	eff = g.become(func(s *protocol.PartitionState) { s.Leader, s.LeaderBrokerEpoch, s.LeaderEpoch = -1, -1, 9 })
	require.Equal(t, []protocol.OrderReply{{ID: g.id, LeaderEpoch: 9, Accepted: true}}, eff.replies, "it may be the only one of use")
	g.leader(2, 10)

	g.answer(protocol.FetchAnswer{HW: 1, Batches: [][]byte{stamped(t, 0, 1, 1)}})
	g.stored()
	require.Equal(t, []int64{0, 1, 1, 1}, []int64{g.r.start, g.r.end, g.r.stored, g.r.hw})
}

// What a log led before it was cleared it never leads again (D11).
func TestClearedLogKeepsWhatItLed(t *testing.T) {
	g := newRig(t, 0, 0)
	g.lead(3, 1, 2, 3)
	g.append(AcksLeader, 1)
	g.stored()
	g.turn(func() { g.r.fail(errRigDisk) })
	g.state.ISR = []int32{2, 3}
	eff := g.leader(2, 4)
	require.EqualValues(t, 3, *eff.ops[1].Led)
	g.stored()
	logs, err := g.store.Logs()
	require.NoError(t, err)
	require.Equal(t, storage.State{Led: 3}, logs[g.id])
}

// Writes of the content that was given up come back late, refused: they do not
// poison the log that took its place.
func TestRefusedWritesOfAnEarlierGenerationDoNotMatter(t *testing.T) {
	g := newRig(t, 0, 0)
	g.lead(3, 1, 2, 3)
	g.append(AcksLeader, 1) // not completed
	g.turn(func() { g.r.fail(errRigDisk) })
	g.state.ISR = []int32{2, 3}
	g.leader(2, 4)
	g.turn(func() { g.s.onStored(g.id, 1, errRigDisk) })
	require.Equal(t, roleFollower, g.r.role)
	g.turn(func() { g.s.onStored(g.id, 2, errRigDisk) })
	require.Equal(t, roleFailed, g.r.role, "its own writes do")
}

// A log that its leader contradicts is not damage that a disk explains: it stays as
// it is, for it may hold what nobody else has (D12).
func TestContradictedLogIsNotCleared(t *testing.T) {
	for _, fault := range contradictions {
		g := newRig(t, 0, 2, 1, 1, 2)
		g.leader(2, 3)
		g.stored()
		g.turn(func() { g.r.fail(fault) })
		g.state.ISR = []int32{2, 3}
		require.Empty(t, g.leader(2, 4).ops, fault)
		require.Equal(t, roleFailed, g.r.role)
	}
}

// D12, EL-2: what was committed is cut only under a leader that was elected
// uncleanly since, and the loss is told.
func TestOnlyAnUncleanElectionCutsWhatWasCommitted(t *testing.T) {
	diverging := protocol.FetchAnswer{Code: protocol.Diverging, Agreed: protocol.EpochEnd{Epoch: 1, End: 1}}
	for _, c := range []struct {
		unclean int32
		cut     bool
	}{{0, false}, {1, false}, {2, true}, {5, true}} {
		g := newRig(t, 0, 3, 1, 1, 1) // all three committed, in epoch 1
		g.state.UncleanEpoch = c.unclean
		g.leader(2, 5)
		eff := g.answer(diverging)
		if !c.cut {
			require.Equal(t, roleFailed, g.r.role, c)
			require.ErrorIs(t, g.r.fault, errCutsCommitted)
			continue
		}
		require.Equal(t, []int64{1, 1}, []int64{g.r.end, g.r.hw}, c)
		require.Contains(t, eff.notes, note{id: g.id, kind: noteLost, epoch: 5, from: 3, to: 1})
	}
}

// Once the log has agreed with a leader elected since, the licence is used up.
func TestLicenceToCutEndsWithTheFirstAgreement(t *testing.T) {
	g := newRig(t, 0, 3, 1, 1, 1)
	g.state.UncleanEpoch = 2
	g.leader(2, 5)
	g.answer(protocol.FetchAnswer{HW: 3})
	g.leader(2, 6)
	g.answer(protocol.FetchAnswer{Code: protocol.Diverging, Agreed: protocol.EpochEnd{Epoch: 1, End: 1}})
	require.Equal(t, roleFailed, g.r.role)
	require.ErrorIs(t, g.r.fault, errCutsCommitted)
}

// EL-2: an unclean election is told once. That its winner begins another epoch is no
// election.
func TestUncleanElectionIsToldOnce(t *testing.T) {
	g := newRig(t, 0, 3, 1, 1, 1)
	unclean := func(eff *effects) (n int) {
		for _, x := range eff.notes {
			if x.kind == noteUnclean {
				n++
			}
		}
		return n
	}
	g.leader(3, 4)
	require.Zero(t, unclean(&g.eff))
	g.state.UncleanEpoch = 5
	require.Equal(t, 1, unclean(g.leader(2, 5)))
	g.state.UncleanEpoch = 6
	require.Zero(t, unclean(g.leader(2, 6)))
	g.state.UncleanEpoch = 7
	require.Equal(t, 1, unclean(g.leader(3, 7)))
}
