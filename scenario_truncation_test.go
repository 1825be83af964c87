package tidemark

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/storage"
)

// pair is a leader (broker 1) and a follower (broker 2) that talk to each other
// without delay.
type pair struct {
	leader, follower *rig
	answers          []protocol.FetchAnswer // all that the leader gave
	cuts             []note
}

func newPair(t testing.TB, epoch int32, leaderHW, followerHW int64, leader, follower []int32) *pair {
	p := &pair{
		leader:   newRigOf(t, 1, rigConfig(), 0, leaderHW, leader...),
		follower: newRigOf(t, 2, rigConfig(), 0, followerHW, follower...),
	}
	for _, g := range []*rig{p.leader, p.follower} {
		g.state.Replicas, g.state.ISR, g.state.MinISR = []int32{1, 2}, []int32{1}, 1
	}
	p.leader.leader(1, epoch)
	p.leader.stored()
	p.follower.leader(1, epoch)
	return p
}

// talk carries messages between the two until neither has anything to say.
func (p *pair) talk(t testing.TB) {
	toLeader, toFollower := take(&p.follower.eff, 1), take(&p.leader.eff, 2)
	for range 100 {
		if toLeader.Empty() && toFollower.Empty() {
			return
		}
		if !toLeader.Empty() {
			toFollower.Merge(take(p.leader.from(2, &toLeader), 2))
			toLeader = protocol.Payload{}
			for len(p.leader.cold) > 0 {
				toFollower.Merge(take(p.leader.read(), 2))
			}
		}
		p.answers = append(p.answers, toFollower.FetchAnswers...)
		if !toFollower.Empty() {
			toLeader.Merge(take(p.follower.from(1, &toFollower), 1))
			p.cuts = append(p.cuts, truncations(&p.follower.eff)...)
			toFollower = protocol.Payload{}
			toLeader.Merge(take(p.follower.stored(), 1))
		}
	}
	t.Fatal("leader and follower go on for ever")
}

func take(eff *effects, to int32) protocol.Payload {
	p := eff.out[to]
	if p == nil {
		return protocol.Payload{}
	}
	delete(eff.out, to)
	return *p
}

func truncations(eff *effects) (cuts []note) {
	for _, n := range eff.notes {
		if n.kind == noteTruncated {
			cuts = append(cuts, n)
		}
	}
	return cuts
}

// bytes is the log as the disk has it.
func (g *rig) bytes() []byte {
	logs, err := g.store.Logs()
	require.NoError(g.t, err)
	var all []byte
	for at := logs[g.id].Start; at < logs[g.id].End; {
		res, err := g.store.Read(g.id, at, 1<<20)
		require.NoError(g.t, err)
		batches, err := splitBatches(res.Batches, logs[g.id].End, 1<<30)
		require.NoError(g.t, err)
		all = append(all, res.Batches...)
		at += int64(len(batches))
	}
	return all
}

// S-6: two logs that have nothing in common are compared epoch by epoch, from the
// follower's last one down, until nothing is left of the follower's.
func TestS006NothingInCommon(t *testing.T) {
	p := newPair(t, 6, 0, 0, []int32{1, 3, 5}, []int32{0, 2, 4})
	p.talk(t)
	require.NotEmpty(t, p.cuts)
	require.LessOrEqual(t, len(p.cuts), 3, "one round per epoch of the follower")
	require.EqualValues(t, 0, p.cuts[len(p.cuts)-1].to)
	require.Equal(t, p.leader.bytes(), p.follower.bytes())
	require.Equal(t, []int64{0, 3, 3}, []int64{p.follower.r.start, p.follower.r.end, p.follower.r.hw})
}

// S-7: the follower's tail is of an epoch that the leader does not have. It cuts
// once, to the end of what both have, takes nothing else from that answer, and
// goes on from there.
func TestS007DivergingFetch(t *testing.T) {
	p := newPair(t, 5, 3, 1, []int32{0, 0, 2}, []int32{0, 0, 2, 4, 4, 4})
	// The leader took up epoch 5 at offset 3 and wrote two records.
	p.leader.append(AcksLeader, 1)
	p.leader.append(AcksLeader, 1)
	p.leader.stored()

	f := sentFetch(t, &p.follower.eff, 1)
	require.Equal(t, [2]int64{6, 4}, [2]int64{f.Offset, int64(f.LastEpoch)})
	a := fetchAnswer(t, p.leader.from(2, &protocol.Payload{Fetches: []protocol.Fetch{*f}}), 2)
	require.Equal(t, protocol.Diverging, a.Code)
	require.Equal(t, protocol.EpochEnd{Epoch: 2, End: 3}, a.Agreed)
	require.Empty(t, a.Batches)

	eff := p.follower.from(1, &protocol.Payload{FetchAnswers: []protocol.FetchAnswer{*a}})
	require.Len(t, truncations(eff), 1)
	require.EqualValues(t, 3, p.follower.r.end)
	require.EqualValues(t, 1, p.follower.r.hw, "the answer's high watermark is not for this log (S-10)")
	p.leader.eff, p.cuts = effects{}, nil
	p.talk(t)
	require.Empty(t, p.cuts)
	require.EqualValues(t, 5, p.follower.r.end)
	require.Equal(t, p.leader.r.hw, p.follower.r.hw)
	require.Equal(t, p.leader.r.epochs, p.follower.r.epochs)
}

// S-8: what a leader of epoch 10 answers to a fetch at an offset whose previous
// record has an epoch.
func TestS008LeaderComparesFetches(t *testing.T) {
	log := joined(repeated(0, 2), repeated(3, 6), repeated(4, 5), repeated(7, 1), repeated(9, 3))
	for _, c := range []struct {
		start  int64
		epoch  int32
		offset int64
		want   string
	}{
		{0, 2, 5, "diverging 0 2"}, {0, 0, 4, "diverging 0 2"}, {0, 6, 6, "diverging 4 13"},
		{0, 5, 9, "diverging 4 13"}, {0, 10, 18, "diverging 10 17"},
		{0, 0, 2, "ok"}, {0, 7, 14, "ok"}, {0, 9, 17, "ok"}, {0, 10, 17, "ok"},
		{0, 11, 5, "offset out of range"}, // cannot happen: a log of epoch 11 does not follow epoch 10 (D11)
		{5, 0, 0, "below log start"}, {5, 2, 8, "diverging 2 5"}, {5, 0, 5, "ok"}, {5, 3, 5, "ok"},
		{10, 5, 6, "below log start"}, {10, 3, 6, "below log start"},
	} {
		t.Run(fmt.Sprintf("start %d epoch %d offset %d", c.start, c.epoch, c.offset), func(t *testing.T) {
			g := newRig(t, 0, 17, log...)
			g.lead(10, 1, 2)
			g.r.start = c.start
			g.r.epochs.truncateFromStart(c.start)
			eff := g.fetchOf(3, protocol.Fetch{Offset: c.offset, LastEpoch: c.epoch, Stored: c.offset, StoredEpoch: c.epoch})
			got := "ok"
			if a := fetchAnswer(t, eff, 3); a == nil {
				require.NotEmpty(t, g.cold, "neither answered nor read")
			} else if a.Code == protocol.Diverging {
				got = fmt.Sprintf("diverging %d %d", a.Agreed.Epoch, a.Agreed.End)
			} else {
				got = a.Code.String()
			}
			require.Equal(t, c.want, got)
			require.Equal(t, c.want == "ok", g.r.remote(3).stored == c.offset, "only a fetch that fits is a report")
		})
	}
}

// S-12: a leader writes its epoch down when it takes it up, so that it can tell
// where the epochs before ended although nothing was appended yet (EC-8).
func TestS012EmptyEpochAtElection(t *testing.T) {
	g := newRig(t, 0, 0, repeated(0, 5)...)
	g.lead(3, 1, 2)
	for epoch, want := range map[int32]protocol.EpochEnd{
		3: {Epoch: 3, End: 5}, 2: {Epoch: 0, End: 5}, 1: {Epoch: 0, End: 5}, 0: {Epoch: 0, End: 5},
	} {
		got, ok := g.r.epochs.endOffsetFor(epoch, g.r.end)
		require.True(t, ok)
		require.Equal(t, want, got, "epoch %d", epoch)
	}
	logs, err := g.store.Logs()
	require.NoError(t, err)
	require.Equal(t, entries(0, 0, 3, 5), logs[g.id].Epochs, "it is on disk before anything of the epoch is")

	a := fetchAnswer(t, g.fetchOf(2, protocol.Fetch{Offset: 5, LastEpoch: 2, Stored: 5, StoredEpoch: 2}), 2)
	require.Equal(t, protocol.Diverging, a.Code)
	require.Equal(t, protocol.EpochEnd{Epoch: 0, End: 5}, a.Agreed)
	require.EqualValues(t, -1, g.r.remote(2).stored)
}

// S-13: an epoch in which a leader stored nothing means nothing once it follows:
// the history must not name what no record has.
func TestS013EmptyEpochIsDropped(t *testing.T) {
	t.Run("when the next leader agrees", func(t *testing.T) {
		g := newRig(t, 27, 27, 19, 19)
		g.lead(20, 1, 2)
		require.Equal(t, entries(19, 27, 20, 29), g.r.epochs.entries)
		eff := g.leader(2, 21)
		f := sentFetch(t, eff, 2)
		require.EqualValues(t, 19, f.LastEpoch, "the epoch of its last record")
		g.answer(protocol.FetchAnswer{HW: 29, Batches: [][]byte{stamped(t, 29, 21, 1)}})
		require.Equal(t, entries(19, 27, 21, 29), g.r.epochs.entries)
		g.stored()
		logs, err := g.store.Logs()
		require.NoError(t, err)
		require.Equal(t, entries(19, 27, 21, 29), logs[g.id].Epochs)
	})
	t.Run("also without a record of the new epoch", func(t *testing.T) {
		g := newRig(t, 27, 27, 19, 19)
		g.lead(20, 1, 2)
		g.leader(2, 21)
		g.answer(protocol.FetchAnswer{HW: 29})
		require.Equal(t, entries(19, 27), g.r.epochs.entries)
	})
	t.Run("at a cut", func(t *testing.T) {
		h := epochHistory{entries: entries(19, 27, 24, 30)}
		require.True(t, h.truncateFromEnd(30))
		require.Equal(t, entries(19, 27), h.entries)
		require.False(t, h.truncateFromEnd(30))
	})
}

// S-15: an epoch history cut at either end.
func TestS015EpochHistoryCuts(t *testing.T) {
	full := entries(2, 6, 3, 8, 4, 11)
	for _, c := range []struct {
		cut     func(h *epochHistory) bool
		want    []storage.EpochEntry
		changed bool
	}{
		{func(h *epochHistory) bool { return h.truncateFromStart(9) }, entries(3, 9, 4, 11), true},
		{func(h *epochHistory) bool { return h.truncateFromStart(15) }, entries(4, 15), true},
		{func(h *epochHistory) bool { return h.truncateFromStart(6) }, full, false},
		{func(h *epochHistory) bool { return h.truncateFromStart(2) }, full, false},
		{func(h *epochHistory) bool { return h.truncateFromEnd(8) }, entries(2, 6), true},
		{func(h *epochHistory) bool { return h.truncateFromEnd(9) }, entries(2, 6, 3, 8), true},
		{func(h *epochHistory) bool { return h.truncateFromEnd(12) }, full, false},
	} {
		shared := slices.Clone(full)
		h := epochHistory{entries: shared}
		require.Equal(t, c.changed, c.cut(&h))
		require.Equal(t, c.want, h.entries)
		require.Equal(t, full, shared, "the store and messages still refer to the old one")
	}
}

// S-18, S-19: a follower takes nothing from a leader of another epoch than its
// own, and a leader gives nothing to a follower of another epoch.
func TestS018ZombieLeaderCutsNothing(t *testing.T) {
	g := newRig(t, 0, 2, 0, 0, 1)
	g.leader(2, 3)
	for _, a := range []protocol.FetchAnswer{
		{Code: protocol.Diverging, Agreed: protocol.EpochEnd{Epoch: 0, End: 1}},
		{Code: protocol.BelowStart, LogStart: 9},
		{Code: protocol.OK, Batches: [][]byte{stamped(t, 3, 1, 1)}, HW: 4},
	} {
		a.ID, a.Offset = g.id, 3
		for name, from := range map[string]struct {
			broker, epoch int32
			life          int64
		}{
			"an earlier leader, in its epoch":       {3, 2, life(3)},
			"an earlier leader, in this epoch":      {3, 3, life(3)},
			"the leader, of an earlier epoch":       {2, 2, life(2)},
			"the leader's broker, in another life":  {2, 3, life(2) + 100},
			"the leader's broker, long ago":         {2, 1, life(2) - 5},
			"the follower itself, whatever it says": {1, 3, life(1)},
		} {
			a.LeaderEpoch = from.epoch
			g.turn(func() {
				g.s.onPayload(g.now, from.broker, from.life, &protocol.Payload{FetchAnswers: []protocol.FetchAnswer{a}})
			})
			require.EqualValues(t, []int64{0, 3, 2}, []int64{g.r.start, g.r.end, g.r.hw}, "%s: %v", name, a.Code)
			require.Empty(t, g.eff.ops)
		}
	}
	require.Equal(t, roleFollower, g.r.role)
}

func TestS019StaleFetches(t *testing.T) {
	t.Run("a leader is asked by a follower of a newer epoch", func(t *testing.T) {
		g := newRig(t, 0, 0, 0, 0)
		g.lead(1, 1, 2)
		waiting := g.append(AcksAll, 1)
		eff := g.fetchOf(2, protocol.Fetch{LeaderEpoch: 2, Offset: 2, LastEpoch: 0, Stored: 2, StoredEpoch: 0})
		require.Nil(t, fetchAnswer(t, eff, 2), "held, not answered (D6)")
		require.Equal(t, roleNone, g.r.role, "it steps down")
		require.Equal(t, []protocol.PartitionID{g.id}, eff.lookups, "and reads the partition's key")
		require.Equal(t, protocol.NotLeader, endedIn(eff)[waiting].Code)
		require.Equal(t, protocol.Unknown, endedIn(eff)[waiting].Outcome)
		require.EqualValues(t, 3, g.r.end, "nothing is cut")
	})
	t.Run("a follower of an older epoch asks", func(t *testing.T) {
		g := newRig(t, 0, 0, 0, 0)
		g.lead(2, 1, 2)
		a := fetchAnswer(t, g.fetchOf(2, protocol.Fetch{LeaderEpoch: 1, Offset: 2, LastEpoch: 0, Stored: 2, StoredEpoch: 0}), 2)
		require.Equal(t, protocol.FencedEpoch, a.Code)
		require.NotNil(t, a.State, "so that the sender learns")
		require.EqualValues(t, 2, a.State.LeaderEpoch)
		require.EqualValues(t, -1, g.r.remote(2).stored, "not a report in this epoch")
	})
	t.Run("and waits until it knows more", func(t *testing.T) {
		g := newRig(t, 0, 0, 0, 0)
		require.NotNil(t, sentFetch(t, g.leader(2, 1), 2))
		eff := g.answer(protocol.FetchAnswer{Code: protocol.FencedEpoch})
		require.Nil(t, sentFetch(t, eff, 2), "asking again in the same epoch is useless (FT-6)")
		eff = g.tick(time.Minute)
		require.Nil(t, sentFetch(t, eff, 2))
		require.NotNil(t, sentFetch(t, g.leader(2, 2), 2))
	})
	t.Run("or learns it from the answer", func(t *testing.T) {
		g := newRig(t, 0, 0, 0, 0)
		g.leader(2, 1)
		next := g.state.Clone()
		next.LeaderEpoch, next.PartitionEpoch = 2, next.PartitionEpoch+1
		eff := g.answer(protocol.FetchAnswer{Code: protocol.FencedEpoch, State: &next})
		f := sentFetch(t, eff, 2)
		require.NotNil(t, f)
		require.EqualValues(t, 2, f.LeaderEpoch)
		require.EqualValues(t, 2, g.r.end)
	})
}

// S-70: the same leader in a newer epoch is another leadership: what was agreed
// and asked before is void, and the logs are compared anew.
func TestS070MissedLeaderUpdate(t *testing.T) {
	g := newRig(t, 0, 1, 0, 0, 0)
	g.leader(2, 1)
	g.answer(protocol.FetchAnswer{HW: 2})
	require.True(t, g.r.agreed)
	require.EqualValues(t, 2, g.r.hw)

	eff := g.leader(2, 3)
	require.False(t, g.r.agreed, "in epoch 3 nothing is agreed yet")
	f := sentFetch(t, eff, 2)
	require.NotNil(t, f, "asked at once")
	require.Equal(t, protocol.Fetch{ID: g.id, LeaderEpoch: 3, Offset: 3, Stored: 3, MaxBytes: 1 << 20}, *f)

	late := protocol.FetchAnswer{ID: g.id, LeaderEpoch: 1, Offset: 3, HW: 4, Batches: [][]byte{stamped(t, 3, 1, 1)}}
	g.from(2, &protocol.Payload{FetchAnswers: []protocol.FetchAnswer{late}})
	require.EqualValues(t, 3, g.r.end, "an answer of the earlier epoch is not taken")
	g.answer(protocol.FetchAnswer{Code: protocol.Diverging, Agreed: protocol.EpochEnd{Epoch: 0, End: 2}})
	require.EqualValues(t, 2, g.r.end, "it may cut again, in the new epoch")
	require.NotEqual(t, roleFailed, g.r.role)
}

// D9: within an epoch a follower that agreed once never cuts, and below what it
// knows to be committed it never does.
func TestRuleFollowerCutsOnceAndAboveWatermark(t *testing.T) {
	diverging := func(end int64) protocol.FetchAnswer {
		return protocol.FetchAnswer{Code: protocol.Diverging, Agreed: protocol.EpochEnd{Epoch: 0, End: end}}
	}
	g := newRig(t, 0, 1, 0, 0, 0)
	g.leader(2, 1)
	g.answer(protocol.FetchAnswer{HW: 1})
	g.answer(diverging(2))
	require.Equal(t, roleFailed, g.r.role, "agreed, then not")
	require.EqualValues(t, 3, g.r.end)

	g = newRig(t, 0, 2, 0, 0, 0)
	g.leader(2, 1)
	g.answer(diverging(1))
	require.Equal(t, roleFailed, g.r.role, "below its high watermark")
	require.EqualValues(t, 3, g.r.end)

	g = newRig(t, 0, 2, 0, 0, 0)
	g.leader(2, 1)
	g.answer(diverging(2))
	require.Equal(t, roleFollower, g.r.role)
	require.EqualValues(t, []int64{2, 2}, []int64{g.r.end, g.r.hw})
	g.stored()
	require.Equal(t, []int64{0, 2}, []int64{g.r.start, g.r.stored})
}

// S-29: what cannot be from a leader of this epoch is not stored, and is asked for
// again after a while.
func TestS029UnusableAnswerIsAskedForAgain(t *testing.T) {
	for name, a := range map[string]protocol.FetchAnswer{
		"damaged on the way":       {Code: protocol.Corrupt},
		"not a batch":              {Batches: [][]byte{[]byte("none")}},
		"another offset":           {Batches: [][]byte{stamped(t, 7, 1, 1)}},
		"of a later epoch":         {Batches: [][]byte{stamped(t, 2, 2, 1)}},
		"of an epoch that is over": {Batches: [][]byte{stamped(t, 2, 0, 1)}},
	} {
		g := newRig(t, 0, 0, 1, 1)
		g.leader(2, 1)
		a.HW = 9
		require.Nil(t, sentFetch(t, g.answer(a), 2), name)
		require.EqualValues(t, []int64{2, 0}, []int64{g.r.end, g.r.hw}, name)
		require.Equal(t, roleFollower, g.r.role, name)
		f := sentFetch(t, g.tick(time.Second), 2)
		require.NotNil(t, f, "%s: asked again", name)
		require.EqualValues(t, 2, f.Offset)
		g.answer(protocol.FetchAnswer{HW: 3, Batches: [][]byte{stamped(t, 2, 1, 1)}})
		require.EqualValues(t, 3, g.r.end)
	}
}
