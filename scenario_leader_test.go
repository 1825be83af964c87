package tidemark

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/storage"
)

// S-57: the Controller could not carry out a proposal, or did not understand it. The
// same one is sent again in time, until there is an answer that settles it.
func TestS057UndecidedProposalIsSentAgain(t *testing.T) {
	for _, code := range []protocol.Code{protocol.NotController, protocol.Canceled, protocol.Overloaded} {
		g := newRig(t, 0, 0, 0, 0)
		g.lead(1, 1, 2)
		g.fetch(2, 2)
		first := g.fetch(3, 2).proposals
		require.Len(t, first, 1)
		for range 3 {
			eff := g.verdict(code, nil)
			require.Empty(t, eff.proposals, "%v: not at once", code)
			require.Empty(t, eff.lookups)
			require.True(t, g.r.isr.maximal(3), "it may have been recorded")
			require.Empty(t, g.tick(g.s.env.cfg.ProposalTimeout-time.Millisecond).proposals)
			require.Equal(t, first, g.tick(time.Millisecond).proposals, "%v: the same, with its number", code)
		}
		g.granted()
		require.Equal(t, []int32{1, 2, 3}, g.r.isr.committed)
		require.Empty(t, g.tick(time.Minute).proposals)
	}
}

// S-60: an answer or a state that is older than what the leader knows changes nothing.
func TestS060OlderAnswersAreIgnored(t *testing.T) {
	g := newRig(t, 0, 0, 0, 0)
	g.lead(1, 1, 2)
	g.become(func(s *protocol.PartitionState) {})
	require.Len(t, g.fetch(3, 2).proposals, 1)
	pending := g.r.isr.pending
	old := g.state.Clone()
	old.PartitionEpoch--
	old.ISR = []int32{1}
	g.turn(func() { g.s.onState(g.now, g.id, &old) })
	require.Equal(t, []int32{1, 2}, g.r.isr.committed)
	require.Same(t, pending, g.r.isr.pending, "nor does it end the proposal")
	require.Equal(t, g.state.PartitionEpoch, g.r.state.PartitionEpoch)

	g.verdict(protocol.OK, &old) // the answer to a copy that came late
	require.Equal(t, []int32{1, 2}, g.r.isr.committed)
	require.True(t, g.r.isr.maximal(3), "until newer state comes it may be recorded")
	older := g.state.Clone()
	older.LeaderEpoch, older.Leader, older.LeaderBrokerEpoch = 0, 2, life(2)
	g.turn(func() { g.s.onState(g.now, g.id, &older) })
	require.Equal(t, roleLeader, g.r.role, "nor does an older epoch end the role")
}

// S-61: a replica has everything, but its broker is not registered: gone, shut down, or
// not yet back. It is not proposed before it is.
func TestS061UnregisteredCandidate(t *testing.T) {
	g := newRig(t, 0, 0, 0, 0)
	g.lead(1, 1, 2)
	g.fetch(2, 2)
	g.turn(func() { g.s.onBrokers(g.now, map[int32]int64{1: life(1), 2: life(2)}) })
	require.Empty(t, g.turn(func() {
		g.s.onPayload(g.now, 3, life(3), &protocol.Payload{Fetches: []protocol.Fetch{{ID: g.id, LeaderEpoch: 1, Offset: 2, Stored: 2, MaxBytes: 1}}})
	}).proposals)
	require.EqualValues(t, 2, g.r.remote(3).stored, "it is known to have everything")
	require.Empty(t, g.tick(time.Minute).proposals)
	eff := g.turn(func() { g.s.onBrokers(g.now, map[int32]int64{1: life(1), 2: life(2), 3: life(3)}) })
	require.Equal(t, [][]int32{{1, 2, 3}}, proposed(eff))
}

// S-68: the same leader in a new epoch. Members have a whole MaxLag to report in it; who
// was outside is not waited for, whatever it reported before.
func TestS068SameLeaderNewEpoch(t *testing.T) {
	g := newRig(t, 0, 0, repeated(0, 4)...)
	g.lead(1, 1, 2)
	g.turn(func() { g.s.onController(g.now, controllerView{epoch: 1, storeOK: true}) }) // broker 3 stays outside
	g.fetch(2, 4)
	g.fetch(3, 4)
	g.append(AcksLeader, 1)
	g.stored()
	g.tick(g.s.env.cfg.MaxLag - time.Millisecond) // a little longer, and broker 2 would have to leave
	require.EqualValues(t, 4, g.r.hw)

	g.leader(1, 2)
	g.stored()
	require.LessOrEqual(t, g.r.lag(g.now, g.r.remote(2)), time.Millisecond, "counted from the new leadership")
	require.Equal(t, lagForever, g.r.lag(g.now, g.r.remote(3)))
	require.Empty(t, g.tick(g.s.env.cfg.MaxLag-time.Millisecond).proposals)
	g.fetch(2, 5)
	require.EqualValues(t, 5, g.r.hw, "broker 3 is not waited for")
}

// S-79: a read waits at the high watermark. A record that is stored does not end the
// wait, one that is committed does, in the same turn; else it ends empty, in time.
func TestS079ReadsWaitForTheWatermark(t *testing.T) {
	g := newRig(t, 0, 0)
	g.lead(1, 1, 2)
	ask := func(request uint64, waitMs int32) {
		q := protocol.Read{Request: request, ID: g.id, From: 0, MaxBytes: 1 << 20, MaxWaitMs: waitMs}
		require.Nil(t, g.from(1, &protocol.Payload{Reads: []protocol.Read{q}}).out[1])
	}
	ask(1, 500)
	eff := g.tick(500*time.Millisecond - 1)
	require.Nil(t, eff.out[1])
	eff = g.tick(1)
	require.Len(t, eff.out[1].ReadAnswers, 1, "its time is over")
	require.Equal(t, protocol.OK, eff.out[1].ReadAnswers[0].Code)
	require.Empty(t, eff.out[1].ReadAnswers[0].Batches)

	ask(2, 60_000)
	g.append(AcksAll, 2)
	require.Nil(t, g.eff.out[1])
	require.Nil(t, g.stored().out[1], "stored here is not committed")
	require.Nil(t, g.fetch(2, 0).out[1])
	eff = g.fetch(2, 2)
	require.Len(t, eff.out[1].ReadAnswers, 1)
	require.EqualValues(t, 2, eff.out[1].ReadAnswers[0].Request)
	require.Len(t, eff.out[1].ReadAnswers[0].Batches, 1)
	require.Empty(t, g.r.readers)
}

// S-126: a replica that is assigned no longer is not waited for, and what it fetches is
// not served.
func TestS126RemovedReplicaIsNotHeard(t *testing.T) {
	g := newRig(t, 0, 0, 0, 0)
	g.lead(1, 1, 2, 3)
	g.fetch(2, 2)
	g.fetch(3, 1)
	require.EqualValues(t, 1, g.r.hw, "broker 3 holds it")
	g.append(AcksLeader, 1)
	g.become(func(s *protocol.PartitionState) { s.Replicas, s.ISR = []int32{1, 2}, []int32{1, 2} })
	require.EqualValues(t, 2, g.r.hw)
	require.Nil(t, g.r.remote(3))
	g.cold = nil
	eff := g.fetch(3, 1)
	require.Nil(t, fetchAnswer(t, eff, 3))
	require.Empty(t, g.cold, "nothing is read for it")
	g.from(3, &protocol.Payload{Reports: []protocol.Report{{ID: g.id, LeaderEpoch: 1, Stored: 2, StoredEpoch: 0}}})
	require.Empty(t, g.eff.proposals)
	require.EqualValues(t, 2, g.r.hw)
}

// R07: nothing is acknowledged before the leader's own disk has it, however many are in
// sync: one alone is no exception.
func TestR07AcksWaitForTheLeadersDisk(t *testing.T) {
	for _, isr := range [][]int32{{1}, {1, 2}, {1, 2, 3}} {
		for _, acks := range []Acks{AcksAll, AcksLeader} {
			g := newRig(t, 0, 0)
			g.state.Replicas, g.state.MinISR = isr, 1
			g.lead(1, isr...)
			request := g.append(acks, 1)
			for _, follower := range isr[1:] {
				g.fetchOf(follower, protocol.Fetch{Offset: 1, LastEpoch: 1, Stored: 1, StoredEpoch: 1})
			}
			require.Empty(t, endedIn(&g.eff), "ISR %v: every other disk has it", isr)
			require.EqualValues(t, 0, g.r.hw)
			require.Equal(t, protocol.OK, endedIn(g.stored())[request].Code, "ISR %v", isr)
		}
	}
}

// R19: a write that the disk completes late is about a log that was cut meanwhile. It
// says nothing about what is at those offsets now.
func TestR19LateCompletionOfAnotherContent(t *testing.T) {
	g := newRigOf(t, 2, rigConfig(), 0, 1, 0)
	g.leader(1, 1)
	g.answer(protocol.FetchAnswer{Batches: [][]byte{stamped(t, 1, 1, 1), stamped(t, 2, 1, 1)}, HW: 1})
	require.Equal(t, 1, g.store.Pending(), "the disk has not completed it")
	g.leader(3, 2)
	g.answer(protocol.FetchAnswer{Code: protocol.Diverging, Agreed: protocol.EpochEnd{Epoch: 0, End: 1}})
	g.answer(protocol.FetchAnswer{Batches: [][]byte{stamped(t, 1, 2, 1), stamped(t, 2, 2, 1)}, HW: 3})
	require.EqualValues(t, []int64{3, 1}, []int64{g.r.end, g.r.stored})

	eff := g.turn(func() { g.store.Sync(1) }) // the records that are no more
	require.EqualValues(t, []int64{3, 1, 1}, []int64{g.r.end, g.r.stored, g.r.hw})
	require.Nil(t, eff.out[3], "nothing is reported")
	g.turn(func() { g.store.Sync(1) }) // the cut
	require.EqualValues(t, 1, g.r.stored)
	eff = g.stored()
	require.EqualValues(t, []int64{3, 3}, []int64{g.r.stored, g.r.hw})
	require.Equal(t, []protocol.Report{{ID: g.id, LeaderEpoch: 2, Stored: 3, StoredEpoch: 2}}, eff.out[3].Reports)
}

// R33, IS-3: under load a follower never has all that its leader has. It joins once it
// has what is committed and what the epoch began with, and then stays; the high
// watermark waits for one that is so close (HW-2), for else it would never have that.
func TestR33JoinsUnderLoad(t *testing.T) {
	g := newRig(t, 0, 0, repeated(0, 50)...)
	g.lead(1, 1, 2)
	joined, changes := 0, 0
	for step := range 300 {
		g.append(AcksLeader, 1) // every 100 ms
		g.stored()
		g.fetch(2, g.r.end)
		at := min(int64(10*step), g.r.end-1) // it catches up, and is then a record behind for good
		g.fetchOf(3, g.fetchAt(at))
		if p := g.r.isr.pending; p != nil {
			require.GreaterOrEqual(t, at, max(g.r.hw, g.r.epochStart))
			require.Less(t, at, g.r.end)
			g.granted()
			changes++
			joined = step
		}
		g.now += 100 * time.Millisecond
		g.turn(func() {})
		g.cold = nil
	}
	require.Equal(t, 1, changes, "it does not leave and join again and again")
	require.Less(t, joined, 10)
	require.Equal(t, []int32{1, 2, 3}, g.r.isr.committed)
	require.Equal(t, g.r.end-1, g.r.hw, "and from then on it counts")
}

// fetchAt is a fetch from an offset by a replica that has stored all below it.
func (g *rig) fetchAt(offset int64) protocol.Fetch {
	epoch := g.r.epochs.epochBefore(offset, g.r.start)
	return protocol.Fetch{ID: g.id, LeaderEpoch: g.state.LeaderEpoch, Offset: offset, LastEpoch: epoch, Stored: offset, StoredEpoch: epoch, MaxBytes: 1 << 20}
}

// R34: whatever ends a role, what was counted for it is given back: the next leadership
// has the whole of its bounds, and nobody waits.
func TestR34CountersAreGivenBack(t *testing.T) {
	cfg := rigConfig()
	size := int64(len(batchOf(t, 1, "v")))
	cfg.MaxUncommittedBytes = 4 * size
	for name, end := range map[string]func(g *rig) *effects{
		"another leader":       func(g *rig) *effects { return g.leader(2, 2) },
		"no leader":            func(g *rig) *effects { return g.leader(-1, 2) },
		"no longer assigned":   func(g *rig) *effects { return g.unassign() },
		"another registration": func(g *rig) *effects { return g.turn(func() { g.s.onBrokerEpoch(g.now, life(1)+100) }) },
		"a newer epoch is shown": func(g *rig) *effects {
			return g.fetchOf(2, protocol.Fetch{LeaderEpoch: 2, Offset: 0, LastEpoch: -1, Stored: 0, StoredEpoch: -1})
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := newRigOf(t, 1, cfg, 0, 0)
			g.lead(1, 1, 2)
			for range 4 {
				g.append(AcksAll, 1)
			}
			refused := g.append(AcksAll, 1)
			require.Equal(t, protocol.Overloaded, endedIn(&g.eff)[refused].Code)
			q := protocol.Read{Request: 77, ID: g.id, From: 0, MaxBytes: 1 << 20, MaxWaitMs: 60_000}
			g.from(1, &protocol.Payload{Reads: []protocol.Read{q}})
			require.NotEmpty(t, g.r.readers)
			end(g)
			g.stored()
			require.Zero(t, g.r.uncommittedBytes)
			require.Empty(t, g.r.onCommit)
			require.Empty(t, g.r.readers)
			require.Empty(t, g.r.inflight)

			g.become(func(s *protocol.PartitionState) {
				s.Replicas, s.ISR, s.MinISR = []int32{1, 2, 3}, []int32{1, 2}, 2
				s.Leader, s.LeaderBrokerEpoch, s.LeaderEpoch = 1, g.s.env.brokerEpoch, 7
			})
			g.stored()
			require.Equal(t, roleLeader, g.r.role)
			for range 4 {
				g.append(AcksLeader, 1)
				require.Empty(t, endedIn(&g.eff), "room for as many as before")
			}
			require.Equal(t, storage.Append, g.eff.ops[len(g.eff.ops)-1].Kind)
		})
	}
}
