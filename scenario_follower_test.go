package tidemark

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/protocol"
)

// second adds partition 1 to a rig's shard: an empty log that follows the rig's leader.
func (g *rig) second() *replicaState {
	id := g.id
	id.Partition = 1
	s := g.state.Clone()
	g.turn(func() { g.s.onState(g.now, id, &s) })
	return g.s.replicas[id]
}

// S-11: a follower's high watermark is what it was told, as far as it has stored it;
// a cut leaves it where it is, a reset sets all ends to one offset.
func TestS011WatermarkThroughCutsAndResets(t *testing.T) {
	g := newRigOf(t, 2, rigConfig(), 0, 0)
	g.leader(1, 1)
	ends := func() []int64 { return []int64{g.r.start, g.r.end, g.r.stored, g.r.hw} }
	append3 := func(epoch int32, hw int64) {
		var batches [][]byte
		for i := range int64(3) {
			batches = append(batches, stamped(t, g.r.end+i, epoch, 1))
		}
		g.answer(protocol.FetchAnswer{HW: hw, Batches: batches})
		g.stored()
	}
	append3(1, 0)
	require.Equal(t, []int64{0, 3, 3, 0}, ends())
	g.answer(protocol.FetchAnswer{HW: 1})
	require.Equal(t, []int64{0, 3, 3, 1}, ends())
	g.answer(protocol.FetchAnswer{HW: 5})
	require.Equal(t, []int64{0, 3, 3, 3}, ends(), "not above what is stored")
	append3(1, 3)
	require.Equal(t, []int64{0, 6, 6, 5}, ends(), "it was told 5")

	g.leader(3, 2)
	g.answer(protocol.FetchAnswer{Code: protocol.Diverging, Agreed: protocol.EpochEnd{Epoch: 1, End: 5}, HW: 6})
	require.Equal(t, []int64{0, 5, 5, 5}, ends(), "a cut down to it")
	g.stored()
	append3(2, 5)
	require.Equal(t, []int64{0, 8, 8, 5}, ends())
	g.answer(protocol.FetchAnswer{Code: protocol.BelowStart, LogStart: 14})
	require.Equal(t, []int64{14, 14, 8, 14}, ends(), "a reset: nothing of it is stored yet")
	g.stored()
	require.Equal(t, []int64{14, 14, 14, 14}, ends())
}

// S-14: the last writer of an epoch history is right.
func TestS014LastWriterOfTheHistory(t *testing.T) {
	build := func(pairs ...int64) (h epochHistory) {
		for i := 0; i < len(pairs); i += 2 {
			h.assign(int32(pairs[i]), pairs[i+1])
		}
		return h
	}
	for _, c := range []struct {
		writes, want []int64
	}{
		{[]int64{2, 9, 3, 9}, []int64{3, 9}}, // an epoch without a record
		{[]int64{2, 6, 3, 5}, []int64{3, 5}}, // it began before what was thought of the last
		{[]int64{2, 6, 2, 8}, []int64{2, 6}}, // the same epoch goes on
		{[]int64{5, 11, 6, 12, 7, 13, 7, 12}, []int64{5, 11, 7, 12}},
		{[]int64{1, 0, 4, 10, 2, 7}, []int64{1, 0, 2, 7}}, // a lower epoch takes the place of a higher one
	} {
		h := build(c.writes...)
		require.Equal(t, entries(c.want...), h.entries, "%v", c.writes)
	}
	h := build(5, 11, 6, 12, 7, 13, 7, 12)
	for epoch, want := range map[int32]protocol.EpochEnd{
		5: {Epoch: 5, End: 12}, 6: {Epoch: 5, End: 12}, 4: {Epoch: 4, End: 11}, 7: {Epoch: 7, End: 20},
	} {
		got, ok := h.endOffsetFor(epoch, 20)
		require.True(t, ok)
		require.Equal(t, want, got, "epoch %d", epoch)
	}
	_, ok := h.endOffsetFor(8, 20)
	require.False(t, ok, "an epoch that has not begun has no end")
}

// S-20: a leader of a newer epoch refuses one partition's fetch. That partition waits
// for the newer state; the others of the same leader go on.
func TestS020FencedPartitionWaitsAlone(t *testing.T) {
	g := newRigOf(t, 2, rigConfig(), 0, 0)
	g.leader(1, 1)
	other := g.second()
	eff := g.from(1, &protocol.Payload{FetchAnswers: []protocol.FetchAnswer{
		{ID: g.id, LeaderEpoch: 1, Code: protocol.FencedEpoch},
		{ID: other.id, LeaderEpoch: 1, Batches: [][]byte{stamped(t, 0, 1, 1)}},
	}})
	f := sentFetch(t, eff, 1)
	require.NotNil(t, f)
	require.Equal(t, other.id, f.ID, "the other one goes on")
	require.EqualValues(t, 1, f.Offset)
	require.Equal(t, roleFollower, g.r.role)
	for range 10 {
		require.Nil(t, sentFetch(t, g.tick(time.Minute), 1), "it is not asked again in that epoch")
	}
	f = sentFetch(t, g.leader(1, 2), 1)
	require.NotNil(t, f, "newer state has it go on")
	require.Equal(t, [2]int64{0, 2}, [2]int64{int64(f.ID.Partition), int64(f.LeaderEpoch)})
}

// S-23: the answer that would cut a log comes when its replica follows that leader no
// longer. Nothing is cut.
func TestS023RoleEndsBeforeTheAnswer(t *testing.T) {
	for name, next := range map[string]func(g *rig){
		"it leads":            func(g *rig) { g.lead(2, 1, 2) },
		"nobody leads":        func(g *rig) { g.leader(-1, 2) },
		"no longer assigned":  func(g *rig) { g.unassign() },
		"another one leads":   func(g *rig) { g.leader(3, 2) },
		"its broker is unfit": func(g *rig) { g.turn(func() { g.s.onUnfit() }) },
		"its log has failed":  func(g *rig) { g.turn(func() { g.r.fail(errEmptyRead) }) },
	} {
		for i, a := range []protocol.FetchAnswer{
			{Code: protocol.Diverging, Agreed: protocol.EpochEnd{Epoch: 0, End: 1}},
			{Code: protocol.BelowStart, LogStart: 9},
			{Code: protocol.Diverging, Agreed: protocol.EpochEnd{Epoch: 0, End: 1}},
		} {
			g := newRig(t, 0, 1, 0, 0, 1)
			g.leader(2, 1)
			next(g)
			g.stored()
			a.ID, a.LeaderEpoch, a.Offset = g.id, 1, 3
			if i == 2 {
				a.LeaderEpoch = g.r.state.LeaderEpoch // nor when its sender names the new epoch
			}
			eff := g.from(2, &protocol.Payload{FetchAnswers: []protocol.FetchAnswer{a}})
			require.Empty(t, eff.ops, "%s: %v", name, a.Code)
			require.Equal(t, []int64{0, 3, 1}, []int64{g.r.start, g.r.end, g.r.hw}, "%s: %v", name, a.Code)
		}
	}
}

// S-69, S-24: a follower hears that the ISR has changed within its leader's epoch. Its
// fetch under way stays the one under way, and what was agreed stays agreed.
func TestS069ISRChangeLeavesFollowersAlone(t *testing.T) {
	g := newRigOf(t, 2, rigConfig(), 0, 0)
	require.NotNil(t, sentFetch(t, g.leader(1, 1), 1))
	g.answer(protocol.FetchAnswer{Batches: [][]byte{stamped(t, 0, 1, 1)}, HW: 1})
	g.stored()
	require.True(t, g.r.agreed)
	for _, isr := range [][]int32{{1, 2}, {1}, {1, 2, 3}} {
		eff := g.become(func(s *protocol.PartitionState) { s.ISR = isr })
		require.Empty(t, eff.out, "it has nothing to say")
		require.Empty(t, eff.ops)
		require.True(t, g.r.agreed)
		require.True(t, g.r.fetching)
		require.EqualValues(t, 1, g.r.hw)
	}
	g.answer(protocol.FetchAnswer{Batches: [][]byte{stamped(t, 1, 1, 1)}})
	require.EqualValues(t, 2, g.r.end, "the answer to the fetch of before still counts")
}

// S-27: a follower ends below the leader's log start: what it lacks exists nowhere any
// more. It is emptied, once, and filled from there. A tail of its own across that place
// is cut instead, and what is left below follows the leader's log start.
func TestS027FollowerBelowTheLeadersLogStart(t *testing.T) {
	for name, c := range map[string]struct {
		start    int64
		follower []int32
		resets   int
	}{
		"one record of an old epoch":  {2, []int32{0}, 1},
		"a log that is not there yet": {2, nil, 1},
		"a tail of its own below it":  {9, []int32{0, 1, 1, 1}, 1},
		"a tail of its own across it": {2, []int32{0, 1, 1, 1}, 0}, // there is a place where both agree
	} {
		t.Run(name, func(t *testing.T) {
			p := &pair{leader: newRigOf(t, 1, rigConfig(), c.start, c.start+1, 4), follower: newRigOf(t, 2, rigConfig(), 0, 0, c.follower...)}
			for _, g := range []*rig{p.leader, p.follower} {
				g.state.Replicas, g.state.ISR, g.state.MinISR = []int32{1, 2}, []int32{1}, 1
			}
			p.leader.leader(1, 5)
			p.leader.stored()
			p.leader.append(AcksLeader, 1)
			p.leader.stored()
			p.leader.eff = effects{}
			p.follower.leader(1, 5)
			p.talk(t)
			require.Equal(t, []int64{c.start, c.start + 2, c.start + 2, c.start + 2},
				[]int64{p.follower.r.start, p.follower.r.end, p.follower.r.stored, p.follower.r.hw})
			require.Equal(t, p.leader.bytes(), p.follower.bytes())
			require.Equal(t, p.leader.r.epochs.entries, p.follower.r.epochs.entries)
			resets := 0
			for _, a := range p.answers {
				if a.Code == protocol.BelowStart {
					resets++
				}
			}
			require.Equal(t, c.resets, resets)
		})
	}
}

// S-30: the store refuses one log, or its bytes are damaged. That replica fails, says
// so once, and stays failed; the others of the same shard, and of the same leader, go on.
func TestS030OneBadLogStopsNoOther(t *testing.T) {
	for name, spoil := range map[string]func(g *rig){
		"its write is refused": func(g *rig) {
			g.answer(protocol.FetchAnswer{Batches: [][]byte{stamped(g.t, 2, 1, 1)}})
			g.fails = errors.New("refused")
			g.stored()
			g.fails = nil
		},
		"it contradicts its leader where it is committed": func(g *rig) {
			g.answer(protocol.FetchAnswer{Code: protocol.Diverging, Agreed: protocol.EpochEnd{Epoch: 0, End: 0}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := newRigOf(t, 2, rigConfig(), 0, 1, 0, 0)
			g.leader(1, 1)
			other := g.second()
			g.eff = effects{}
			spoil(g)
			require.Equal(t, roleFailed, g.r.role)
			failed := slices.IndexFunc(g.eff.notes, func(n note) bool { return n.kind == noteDamaged })
			require.GreaterOrEqual(t, failed, 0)
			require.Error(t, g.eff.notes[failed].err)
			for i := range int64(3) {
				eff := g.from(1, &protocol.Payload{FetchAnswers: []protocol.FetchAnswer{
					{ID: other.id, LeaderEpoch: 1, Offset: i, HW: i, Batches: [][]byte{stamped(t, i, 1, 1)}},
				}})
				require.Empty(t, eff.notes, "it says so once")
				g.stored()
			}
			require.Equal(t, []int64{3, 3, 2}, []int64{other.end, other.stored, other.hw})
			require.Nil(t, sentFetch(t, g.leader(3, 2), 3), "what is damaged is not refilled by itself")
			require.Equal(t, roleFailed, g.r.role)
		})
	}
}

// S-31: answers about partitions that were not asked for, or that are not here, do nothing.
func TestS031AnswersNobodyAskedFor(t *testing.T) {
	g := newRigOf(t, 2, rigConfig(), 0, 0, 0, 0, 0)
	g.leader(1, 1)
	g.answer(protocol.FetchAnswer{}) // the next fetch goes out
	require.True(t, g.r.fetching)
	other := g.id
	other.Partition = 7
	for _, a := range []protocol.FetchAnswer{
		{ID: other, LeaderEpoch: 1, Offset: 0, Code: protocol.Diverging, Agreed: protocol.EpochEnd{Epoch: 0, End: 0}},
		{ID: other, LeaderEpoch: 1, Offset: 0, Batches: [][]byte{stamped(t, 0, 1, 1)}},
		{ID: g.id, LeaderEpoch: 1, Offset: 2, Code: protocol.BelowStart, LogStart: 9},
		{ID: g.id, LeaderEpoch: 1, Offset: 4, Batches: [][]byte{stamped(t, 4, 1, 1)}},
	} {
		eff := g.from(1, &protocol.Payload{FetchAnswers: []protocol.FetchAnswer{a}})
		require.Empty(t, eff.ops)
		require.Empty(t, eff.out)
	}
	require.Nil(t, g.s.replicas[other], "no replica is made for an answer")
	require.EqualValues(t, []int64{0, 3}, []int64{g.r.start, g.r.end})
	g.r.fetching = false // as if none were under way
	eff := g.answer(protocol.FetchAnswer{Batches: [][]byte{stamped(t, 3, 1, 1)}})
	require.Empty(t, eff.ops)
	require.EqualValues(t, 3, g.r.end)
}

// S-130: a log whose partition this broker is not assigned, or knows nothing of, is
// served to nobody and stays as it is.
func TestS130StrayLogs(t *testing.T) {
	for name, told := range map[string]bool{"assigned to others": true, "of no topic that is known": false} {
		t.Run(name, func(t *testing.T) {
			g := newRig(t, 0, 2, 0, 0, 0)
			before, err := g.store.Logs()
			require.NoError(t, err)
			if told {
				g.become(func(s *protocol.PartitionState) {
					s.Replicas, s.ISR, s.Leader, s.LeaderBrokerEpoch, s.LeaderEpoch = []int32{2, 3}, []int32{2, 3}, 2, life(2), 9
				})
			}
			require.Equal(t, roleNone, g.r.role)
			_, code := g.offsets(0)
			require.Equal(t, protocol.NotLeader, code)
			g.append(AcksLeader, 1)
			require.NotNil(t, g.eff.out[1])
			require.Equal(t, protocol.NotLeader, g.eff.out[1].AppendAnswers[0].Code)
			for _, a := range []protocol.FetchAnswer{{Code: protocol.BelowStart, LogStart: 9}, {Code: protocol.Diverging, Agreed: protocol.EpochEnd{Epoch: 0, End: 1}}} {
				a.ID, a.LeaderEpoch, a.Offset = g.id, 9, 3
				g.from(2, &protocol.Payload{FetchAnswers: []protocol.FetchAnswer{a}})
			}
			g.tick(time.Hour)
			after, err := g.store.Logs()
			require.NoError(t, err)
			require.Equal(t, before, after)
		})
	}
}

// S-132: a follower follows the leader's log start up to its own high watermark and
// not beyond, and never back.
func TestS132LogStartStaysBelowTheWatermark(t *testing.T) {
	g := newRigOf(t, 2, rigConfig(), 0, 0, repeated(0, 6)...)
	g.leader(1, 1)
	for _, c := range []struct{ hw, leaderStart, start int64 }{{2, 1, 1}, {2, 4, 2}, {4, 4, 4}, {5, 3, 4}, {9, 9, 6}} {
		g.answer(protocol.FetchAnswer{HW: c.hw, LogStart: c.leaderStart})
		g.stored()
		require.Equal(t, c.start, g.r.start, "high watermark %d, leader's log start %d", c.hw, c.leaderStart)
		require.LessOrEqual(t, g.r.start, g.r.hw)
		logs, err := g.store.Logs()
		require.NoError(t, err)
		require.Equal(t, c.start, logs[g.id].Start, "on disk")
		require.EqualValues(t, 6, logs[g.id].End)
	}
}

// R14: every pair of short logs that two fast failovers can leave. The follower's log
// becomes the leader's, cut only where they differ.
func TestR14EveryPairOfShortLogs(t *testing.T) {
	const epochs, records = 3, 4
	logs := [][]int32{nil}
	for i := 0; i < len(logs); i++ {
		if l := logs[i]; len(l) < records {
			for e := max(lastOf(l), 0); e < epochs; e++ {
				logs = append(logs, append(slices.Clip(slices.Clone(l)), e))
			}
		}
	}
	pairs := 0
	for _, leader := range logs {
		for _, follower := range logs {
			if !oneLeaderAnEpoch(leader, follower) {
				continue
			}
			pairs++
			same := commonLength(leader, follower)
			p := newPair(t, epochs, int64(same), int64(same), leader, follower)
			p.leader.append(AcksLeader, 1)
			p.leader.stored()
			p.leader.eff = effects{}
			p.talk(t)
			what := fmt.Sprintf("leader %v, follower %v", leader, follower)
			require.Equal(t, roleFollower, p.follower.r.role, what)
			require.True(t, slices.Equal(p.leader.bytes(), p.follower.bytes()), what)
			for _, c := range p.cuts {
				require.GreaterOrEqual(t, c.to, int64(same), "cuts what both have: %s", what)
			}
			require.LessOrEqual(t, len(p.cuts), max(1, distinct(follower[same:])), what)
		}
	}
	require.Greater(t, pairs, 300)
}

func commonLength(a, b []int32) (n int) {
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

// oneLeaderAnEpoch reports whether two logs can be: behind their common part no epoch
// is in both, for an epoch has one leader, which writes one log; and an epoch that goes
// on behind it in one of them began in the common part or is not in the other.
func oneLeaderAnEpoch(a, b []int32) bool {
	n := commonLength(a, b)
	for _, e := range a[n:] {
		if slices.Contains(b[n:], e) {
			return false
		}
	}
	return true
}
