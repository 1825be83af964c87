package tidemark

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/protocol"
)

// noted are the notes of a turn, without those of followers.
func noted(eff *effects) (all []note) {
	for _, n := range eff.notes {
		if n.kind != noteFollower {
			n.id = protocol.PartitionID{}
			all = append(all, n)
		}
	}
	return all
}

// Every begin and end of a leadership is noted, with its own epoch, and why it ended.
func TestNotesOfLeaderships(t *testing.T) {
	g := newRig(t, 0, 0)
	g.state.ISR = []int32{1, 2}
	require.Equal(t, []note{{kind: noteLeader, epoch: 3, isr: []int32{1, 2}}}, noted(g.leader(1, 3)))
	require.Equal(t, []note{
		{kind: noteResigned, epoch: 3, code: protocol.NotLeader}, {kind: noteLeader, epoch: 4, isr: []int32{1, 2}},
	}, noted(g.leader(1, 4)))
	require.Equal(t, []note{{kind: noteResigned, epoch: 4, code: protocol.NotLeader}}, noted(g.leader(2, 5)))
	require.Empty(t, noted(g.leader(2, 6)), "a follower has no leadership to lose")

	for what, c := range map[string]struct {
		end  func(g *rig)
		code protocol.Code
	}{
		"another life": {func(g *rig) { g.s.onBrokerEpoch(g.now, 99) }, protocol.NotLeader},
		"unfit":        {func(g *rig) { g.s.onUnfit() }, protocol.Unfit},
		"its log":      {func(g *rig) { g.r.fail(errors.New("x")) }, protocol.StorageFailed},
	} {
		t.Run(what, func(t *testing.T) {
			g := newRig(t, 0, 0)
			g.lead(3, 1, 2)
			notes := noted(g.turn(func() { c.end(g) }))
			require.NotEmpty(t, notes)
			require.Equal(t, note{kind: noteResigned, epoch: 3, code: c.code}, notes[0])
		})
	}
}

// A change of the ISR is noted with what it was; a newer state with the same is not.
func TestNotesOfTheISR(t *testing.T) {
	g := newRig(t, 0, 0)
	g.lead(3, 1, 2, 3)
	set := func(isr ...int32) []note { return noted(g.become(func(s *protocol.PartitionState) { s.ISR = isr })) }
	require.Equal(t, []note{{kind: noteShrunk, epoch: 3, was: []int32{1, 2, 3}, isr: []int32{1, 3}}}, set(1, 3))
	require.Empty(t, set(1, 3))
	require.Equal(t, []note{{kind: noteExpanded, epoch: 3, was: []int32{1, 3}, isr: []int32{1, 3, 2}}}, set(1, 3, 2))
}

// An unclean election is noted by whoever hears of it, once.
func TestNotesOfUncleanElections(t *testing.T) {
	g := newRig(t, 0, 0)
	g.leader(2, 3)
	unclean := func(s *protocol.PartitionState) {
		s.Leader, s.LeaderBrokerEpoch, s.LeaderEpoch, s.UncleanEpoch = 3, life(3), 5, 5
	}
	require.Equal(t, []note{{kind: noteUnclean, epoch: 5, leader: 3}}, noted(g.become(unclean)))
	require.Empty(t, noted(g.become(func(*protocol.PartitionState) {})))
	fresh := newRig(t, 0, 0)
	require.Empty(t, noted(fresh.become(unclean)), "one of long ago, at the first state after an open")
}

// A snapshot of a leader shows what waits, and for how long it has.
func TestReplicaShowsWhatWaits(t *testing.T) {
	g := newRig(t, 0, 0)
	g.lead(1, 1, 2)
	g.fetch(2, 0)
	idle := g.r.snapshot(g.now)
	require.Equal(t, "leader", idle.Role)
	require.Equal(t, []int32{1, 2, 3}, idle.Replicas)
	require.Equal(t, []int32{1, 2}, idle.ISR)
	require.Equal(t, []int32{3}, idle.OSR)
	require.Equal(t, 2, idle.MinISR)
	require.Zero(t, idle.CommitLag)
	require.Zero(t, idle.UncommittedBytes)
	require.Zero(t, idle.WaitingAppends+idle.WaitingReads)

	g.append(AcksAll, 1)
	g.append(AcksLeader, 1)
	g.from(2, &protocol.Payload{Reads: []protocol.Read{{Request: 1, ID: g.id, MaxBytes: 1, MaxWaitMs: 60_000}}})
	g.now += 3 * time.Second
	busy := g.r.snapshot(g.now)
	require.Equal(t, 3*time.Second, busy.CommitLag)
	require.EqualValues(t, 2*len(batchOf(t, 1, "v")), busy.UncommittedBytes)
	require.Equal(t, 2, busy.WaitingAppends)
	require.Equal(t, 1, busy.WaitingReads)
	require.Equal(t, 3*time.Second, busy.Lags[2])
	require.NotContains(t, busy.Lags, int32(3))

	// A candidate is proposed, and not decided for a while, sent again or not.
	g.stored()
	g.fetch(2, 2)
	g.fetch(3, 2)
	require.NotNil(t, g.r.isr.pending)
	proposed := g.now
	g.now += 5 * time.Second
	g.turn(func() { g.s.onController(g.now, controllerView{epoch: 2, reachable: true, storeOK: true}) })
	pending := g.r.snapshot(g.now)
	require.Equal(t, []int32{1, 2, 3}, pending.PendingISR)
	require.Equal(t, g.now-proposed, pending.PendingFor)
	require.Zero(t, pending.CommitLag)
	g.granted()
	require.Zero(t, g.r.snapshot(g.now).PendingFor)

	g.leader(2, 2)
	require.Equal(t, &Replica{
		Broker: 1, Role: "follower", Leader: 2, LeaderEpoch: 2, PartitionEpoch: g.state.PartitionEpoch, Led: 1,
		LogEnd: 2, StoredEnd: 2, HighWatermark: 2, Replicas: []int32{1, 2, 3}, ISR: []int32{1, 2, 3}, MinISR: 2,
	}, g.r.snapshot(g.now))
}

// Status is the whole truth about a broker, without waiting.
func TestStatus(t *testing.T) {
	attack(t, 3, nil, func(t *testing.T, r *attackRig) {
		r.create("t", 6)
		leading := 0
		for _, b := range r.open() {
			require.NoError(t, b.Ready(r.within(5*time.Second)))
			s := b.Status()
			require.NoError(t, errors.Join(s.NotReady, s.Unfit, s.Registration, s.Renewal, s.StoreErr))
			require.True(t, s.Registered)
			require.Equal(t, StoreOK, s.Store)
			leading += s.Leading
			require.Len(t, s.Links, 2)
			for _, l := range s.Links {
				require.True(t, l.Up)
				require.EqualValues(t, protocol.Version, l.Version)
				require.Equal(t, r.broker(l.Broker).epoch.Load(), l.BrokerEpoch)
				require.EqualValues(t, 1, l.Sessions)
				require.NotZero(t, l.SentBytes)
				require.NotZero(t, l.ReceivedMessages)
			}
		}
		require.Equal(t, 6, leading, "each partition has one leader")
		r.kill(3, 0)
		pause(attackSession)
		for _, l := range r.broker(1).Status().Links {
			require.Equal(t, l.Broker == 2, l.Up)
			require.Equal(t, l.Broker == 2, l.Version != 0)
		}
		r.node(1).coord.SetUnavailable(true)
		pause(3 * attackSession)
		s := r.broker(1).Status()
		require.False(t, s.Registered)
		require.Error(t, s.Registration)
		require.ErrorIs(t, s.NotReady, s.Registration)
		r.node(1).coord.SetUnavailable(false)
		pause(3 * attackSession)
		total := 0
		for _, b := range r.open() {
			require.NoError(t, b.Status().NotReady)
			total += b.Status().Leading
		}
		require.Equal(t, 6, total)
		require.NoError(t, r.broker(1).Close())
		require.ErrorIs(t, r.broker(1).Status().NotReady, ErrClosed)
	})
}

// What goes on for long is a warning at first and once a minute.
func TestWarnRarely(t *testing.T) {
	rec := &recorder{}
	b := newBroker(Config{Loops: 1, Logger: slog.New(rec)}.withDefaults())
	now := time.Duration(0)
	b.clock = func() time.Duration { return now }
	for range 250 {
		b.warn("it goes on", "error", ErrClosed)
		b.warn("so does this")
		now += time.Second
	}
	warned := make(map[string]int)
	for _, line := range rec.all() {
		if line.Level == slog.LevelWarn {
			warned[line.Message]++
		} else {
			require.Equal(t, slog.LevelDebug, line.Level)
		}
	}
	require.Equal(t, map[string]int{"it goes on": 5, "so does this": 5}, warned)
}
