package tidemark

import (
	"bytes"
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/coordination/memory"
	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/record"
	"github.com/tidemark-log/tidemark/storage/memstore"
)

// S-37: an append that its client gave up on may still be in the log, and is
// there in the end; sent again, it is there twice. The error says so.
func TestS037GivingUpLeavesTheRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk, store := memstore.NewDisk(), (*memstore.Store)(nil)
		store, err := disk.Open()
		require.NoError(t, err)
		defer store.Close()
		coord := memory.New(memory.Options{})
		defer coord.Close()
		b, err := Open(t.Context(), Config{ID: 1, Store: store, Coordination: coord.Connect(), Loops: 1})
		require.NoError(t, err)
		defer b.Close()
		require.NoError(t, b.Ready(t.Context()))
		require.NoError(t, b.Controller().CreateTopic(t.Context(), "t", TopicConfig{Partitions: 1, ReplicationFactor: 1, MinISR: 1}))
		p := b.Partition("t", 0)

		disk.Hang()
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		_, err = p.Append(ctx, Record{Value: []byte("x")})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, Unknown, OutcomeOf(err))
		got, err := p.Fetch(t.Context(), 0, FetchOptions{})
		require.NoError(t, err)
		require.Empty(t, got.Records)

		disk.Unhang()
		res, err := p.Append(t.Context(), Record{Value: []byte("x")})
		require.NoError(t, err)
		require.EqualValues(t, 1, res.Base, "the first one took offset 0")
		got, err = p.Fetch(t.Context(), 0, FetchOptions{})
		require.NoError(t, err)
		require.Len(t, got.Records, 2)
		require.Equal(t, got.Records[0].Value, got.Records[1].Value)
	})
}

// S-38: what waits at a leader whose role ends is answered in that very turn, as
// unknown: the records may be in the next leader's log.
func TestS038DemotedLeaderAnswersAtOnce(t *testing.T) {
	for name, end := range map[string]func(g *rig) *effects{
		"another leader":         func(g *rig) *effects { return g.leader(2, 2) },
		"no leader":              func(g *rig) *effects { return g.leader(-1, 2) },
		"no longer assigned":     func(g *rig) *effects { return g.unassign() },
		"the broker is unfit":    func(g *rig) *effects { return g.turn(func() { g.s.onUnfit() }) },
		"another registration":   func(g *rig) *effects { return g.turn(func() { g.s.onBrokerEpoch(g.now, 99) }) },
		"its log's write failed": func(g *rig) *effects { g.fails = errNoEpochs; return g.stored() },
	} {
		t.Run(name, func(t *testing.T) {
			g := newRig(t, 0, 0)
			g.lead(1, 1, 2)
			all, one := g.append(AcksAll, 1), g.append(AcksLeader, 1)
			read := protocol.Read{Request: 77, ID: g.id, From: 0, MaxBytes: 1 << 20, MaxWaitMs: 60_000}
			require.Empty(t, g.from(1, &protocol.Payload{Reads: []protocol.Read{read}}).out[1])
			eff := end(g)
			answers := endedIn(eff)
			for _, request := range []uint64{all, one} {
				require.Contains(t, answers, request)
				require.NotEqual(t, protocol.OK, answers[request].Code)
				require.Equal(t, protocol.Unknown, answers[request].Outcome)
				require.EqualValues(t, -1, answers[request].Base)
			}
			require.Len(t, eff.out[1].ReadAnswers, 1, "so is a reader that waits (S-80)")
			late := endedIn(g.stored())
			require.Empty(t, late, "once")
			require.NotEqual(t, roleLeader, g.r.role)
		})
	}
}

func (g *rig) unassign() *effects {
	return g.become(func(s *protocol.PartitionState) {
		s.Leader, s.LeaderBrokerEpoch, s.LeaderEpoch = 2, life(2), 2
		s.Replicas, s.ISR = []int32{2, 3}, []int32{2, 3}
	})
}

// values reads like a client that does not wait, and returns the offsets it got.
func (g *rig) offsets(from int64) (offsets []int64, code protocol.Code) {
	q := protocol.Read{Request: 1 << 40, ID: g.id, From: from, MaxBytes: 1 << 20}
	eff := g.from(1, &protocol.Payload{Reads: []protocol.Read{q}})
	if len(g.cold) > 0 {
		eff = g.read()
	}
	if eff.out[1] == nil {
		eff = g.tick(time.Millisecond)
	}
	require.Len(g.t, eff.out[1].ReadAnswers, 1)
	a := eff.out[1].ReadAnswers[0]
	for _, run := range a.Batches {
		for rec, err := range record.All(run) {
			require.NoError(g.t, err)
			if rec.Offset >= from {
				offsets = append(offsets, rec.Offset)
			}
		}
	}
	return offsets, a.Code
}

// S-73: a reader gets nothing at or above the high watermark; inside the log it
// waits there, outside it is told.
func TestS073ReadsEndAtWatermark(t *testing.T) {
	check := func(t *testing.T, g *rig) {
		require.EqualValues(t, []int64{10, 20}, []int64{g.r.hw, g.r.end})
		for from, want := range map[int64][]int64{0: {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, 5: {5, 6, 7, 8, 9}, 9: {9}, 10: nil, 15: nil, 20: nil} {
			got, code := g.offsets(from)
			require.Equal(t, protocol.OK, code, "from %d", from)
			require.Equal(t, want, got, "from %d", from)
		}
		_, code := g.offsets(21)
		require.Equal(t, protocol.OutOfRange, code)
	}
	t.Run("from memory", func(t *testing.T) {
		g := newRig(t, 0, 0)
		g.lead(1, 1, 2)
		for range 20 {
			g.append(AcksLeader, 1)
		}
		g.stored()
		g.fetch(2, 10)
		require.Empty(t, g.cold)
		check(t, g)
	})
	t.Run("from the store", func(t *testing.T) {
		g := newRig(t, 0, 0, repeated(0, 20)...)
		g.lead(1, 1, 2)
		g.fetch(2, 10)
		g.cold = nil // the follower's own read
		check(t, g)
	})
	t.Run("within a batch", func(t *testing.T) {
		g := newRig(t, 0, 0)
		g.lead(1, 1, 2)
		g.append(AcksLeader, 4)
		g.append(AcksLeader, 4)
		g.stored()
		g.fetch(2, 4)
		got, _ := g.offsets(2)
		require.Equal(t, []int64{2, 3}, got)
	})
	t.Run("of a deposed leader", func(t *testing.T) {
		g := newRig(t, 0, 0, repeated(0, 4)...)
		g.lead(1, 1, 2)
		g.leader(2, 2)
		_, code := g.offsets(0)
		require.Equal(t, protocol.NotLeader, code)
	})
	t.Run("below the log start", func(t *testing.T) {
		g := newRig(t, 3, 5, 0, 0)
		g.lead(1, 1, 2)
		_, code := g.offsets(2)
		require.Equal(t, protocol.OutOfRange, code)
	})
}

// RD-8: until what the epoch began with is committed, a leader does not tell the
// ends of the log: its high watermark may be lower than one that was told before.
func TestRuleEndsWaitForEpochStart(t *testing.T) {
	g := newRig(t, 0, 2, repeated(0, 5)...)
	g.lead(1, 1, 2)
	q := protocol.Read{Request: 1, ID: g.id, Kind: protocol.ReadEnds, MaxWaitMs: 1000}
	require.Nil(t, g.from(1, &protocol.Payload{Reads: []protocol.Read{q}}).out[1])
	require.Nil(t, g.fetch(2, 4).out[1])
	eff := g.fetch(2, 5)
	require.Len(t, eff.out[1].ReadAnswers, 1)
	require.EqualValues(t, 5, eff.out[1].ReadAnswers[0].HW)

	g.append(AcksLeader, 1)
	g.leader(1, 2)
	g.stored()
	q.Request = 2
	g.from(1, &protocol.Payload{Reads: []protocol.Read{q}})
	require.Len(t, g.tick(time.Second).out[1].ReadAnswers, 1, "and when that takes too long, it says so")
	require.Equal(t, protocol.Canceled, g.eff.out[1].ReadAnswers[0].Code)
}

// M7, D1: what each level of acks waits for.
func TestM07Acks(t *testing.T) {
	g := newRig(t, 0, 0)
	g.lead(1, 1, 2)
	none := g.append(AcksNone, 1)
	require.Equal(t, protocol.OK, endedIn(&g.eff)[none].Code, "at once")
	require.EqualValues(t, -1, endedIn(&g.eff)[none].Base, "without an offset")
	one := g.append(AcksLeader, 1)
	require.Empty(t, endedIn(&g.eff))
	all := g.append(AcksAll, 2)
	require.Empty(t, endedIn(&g.eff))
	g.fetchOf(2, protocol.Fetch{Offset: 4, LastEpoch: 1, Stored: 0, StoredEpoch: -1})
	require.Empty(t, endedIn(&g.eff), "the follower has it in memory, the leader nowhere")

	answers := endedIn(g.stored())
	require.Len(t, answers, 1)
	require.Equal(t, [2]int64{1, 1}, [2]int64{answers[one].Base, answers[one].Last}, "on the leader's disk")
	report := func(stored int64) *effects {
		return g.from(2, &protocol.Payload{Reports: []protocol.Report{{ID: g.id, LeaderEpoch: 1, Stored: stored, StoredEpoch: 1}}})
	}
	require.Empty(t, endedIn(report(3)))
	answers = endedIn(report(4))
	require.Equal(t, [2]int64{2, 3}, [2]int64{answers[all].Base, answers[all].Last}, "on every disk in the ISR")
	require.Equal(t, protocol.Appended, answers[all].Outcome)
}

// S-33 for one leader, and what else is refused before anything is stored.
func TestS033RefusedBeforeStoring(t *testing.T) {
	batch := batchOf(t, 1, "v")
	for name, c := range map[string]struct {
		isr  []int32
		a    protocol.Append
		want protocol.Code
	}{
		"acks=all under MinISR":       {[]int32{1}, protocol.Append{LeaderEpoch: -1, Batch: batch}, protocol.NotEnoughReplicas},
		"acks=leader under MinISR":    {[]int32{1}, protocol.Append{LeaderEpoch: -1, Batch: batch, Acks: AcksLeader}, protocol.OK},
		"acks=none under MinISR":      {[]int32{1}, protocol.Append{LeaderEpoch: -1, Batch: batch, Acks: AcksNone}, protocol.OK},
		"unknown acks (S-39)":         {[]int32{1, 2}, protocol.Append{LeaderEpoch: -1, Batch: batch, Acks: 3}, protocol.InvalidRequest},
		"an older leader epoch":       {[]int32{1, 2}, protocol.Append{LeaderEpoch: 4, Batch: batch}, protocol.FencedEpoch},
		"this leader epoch":           {[]int32{1, 2}, protocol.Append{LeaderEpoch: 5, Batch: batch}, protocol.OK},
		"not a batch":                 {[]int32{1, 2}, protocol.Append{LeaderEpoch: -1, Batch: []byte("no")}, protocol.Corrupt},
		"two batches":                 {[]int32{1, 2}, protocol.Append{LeaderEpoch: -1, Batch: append(bytes.Clone(batch), batch...)}, protocol.Corrupt},
		"larger than MaxBatchBytes":   {[]int32{1, 2}, protocol.Append{LeaderEpoch: -1, Batch: make([]byte, 1<<20+1)}, protocol.TooLarge},
		"a newer epoch than known":    {[]int32{1, 2}, protocol.Append{LeaderEpoch: 6, Batch: batch}, protocol.NotLeader},
		"acks=all with MinISR in ISR": {[]int32{1, 2}, protocol.Append{LeaderEpoch: -1, Batch: batch}, protocol.OK},
	} {
		t.Run(name, func(t *testing.T) {
			g := newRig(t, 0, 0)
			g.lead(5, c.isr...)
			c.a.Batch = bytes.Clone(c.a.Batch)
			request := g.appendOf(c.a)
			if c.want == protocol.OK {
				require.EqualValues(t, 1, g.r.end)
				return
			}
			a := endedIn(&g.eff)[request]
			require.Equal(t, c.want, a.Code)
			require.Equal(t, protocol.NotAppended, a.Outcome)
			require.EqualValues(t, 0, g.r.end)
			require.Empty(t, g.eff.ops)
		})
	}
}

// The result of an append looks at the ISR again: what was committed while the ISR
// shrank below MinISR is in the log, with a warning (PR-7).
func TestRuleCommittedUnderMinISR(t *testing.T) {
	g := newRig(t, 0, 0)
	g.lead(1, 1, 2, 3)
	request := g.append(AcksAll, 1)
	g.stored()
	g.fetch(2, 1)
	// Broker 3 leaves and MinISR rises, in one state.
	eff := g.become(func(s *protocol.PartitionState) { s.ISR, s.MinISR = []int32{1, 2}, 3 })
	require.Empty(t, endedIn(eff))
	require.EqualValues(t, 0, g.r.hw, "HW-1: not even what all members have")
	eff = g.become(func(s *protocol.PartitionState) { s.MinISR = 2 })
	require.Equal(t, protocol.OK, endedIn(eff)[request].Code)
}

// D19: what lies above the high watermark is bounded, and the bound is given back.
func TestRuleUncommittedBytes(t *testing.T) {
	cfg := rigConfig()
	size := int64(len(batchOf(t, 1, "v")))
	cfg.MaxUncommittedBytes = 3*size + size/2
	g := newRigOf(t, 1, cfg, 0, 0)
	g.lead(1, 1, 2)
	for range 3 {
		g.append(AcksLeader, 1)
	}
	require.EqualValues(t, 3, g.r.end)
	request := g.append(AcksLeader, 1)
	require.Equal(t, protocol.Overloaded, endedIn(&g.eff)[request].Code)
	require.Equal(t, protocol.NotAppended, endedIn(&g.eff)[request].Outcome)
	g.stored()
	request = g.append(AcksLeader, 1)
	require.Equal(t, protocol.Overloaded, endedIn(&g.eff)[request].Code, "stored is not committed")
	g.fetch(2, 1)
	g.append(AcksLeader, 1)
	require.EqualValues(t, 4, g.r.end)
	request = g.append(AcksLeader, 1)
	require.Equal(t, protocol.Overloaded, endedIn(&g.eff)[request].Code)
	g.stored()
	g.fetch(2, 4)
	require.Zero(t, g.r.uncommittedBytes)
	require.Empty(t, g.r.uncommitted)
}

// D22: a leader that refused an append of a stream's generation refuses what
// follows in it, so that nothing overtakes the retry.
func TestRuleStreamGenerations(t *testing.T) {
	send := func(g *rig, generation uint32, acks Acks) protocol.Code {
		request := g.appendOf(protocol.Append{
			LeaderEpoch: -1, Acks: acks, Batch: batchOf(t, 1, "v"), Stream: protocol.Stream{ID: 7, Generation: generation},
		})
		if a, ok := endedIn(&g.eff)[request]; ok {
			return a.Code
		}
		return protocol.OK
	}
	t.Run("at a leader", func(t *testing.T) {
		g := newRig(t, 0, 0)
		g.lead(1, 1)
		require.Equal(t, protocol.NotEnoughReplicas, send(g, 1, AcksAll))
		g.become(func(s *protocol.PartitionState) { s.ISR = []int32{1, 2} })
		require.Equal(t, protocol.StreamRefused, send(g, 1, AcksAll), "the first would be behind this one")
		require.Equal(t, protocol.StreamRefused, send(g, 1, AcksLeader))
		require.Equal(t, protocol.OK, send(g, 2, AcksAll))
		require.Equal(t, protocol.OK, send(g, 2, AcksAll))
		require.EqualValues(t, 2, g.r.end)
		other := g.appendOf(protocol.Append{LeaderEpoch: -1, Batch: batchOf(t, 1, "v"), Stream: protocol.Stream{ID: 8, Generation: 1}})
		require.NotContains(t, endedIn(&g.eff), other, "another stream is another order")
	})
	t.Run("before it leads", func(t *testing.T) {
		g := newRig(t, 0, 0)
		require.Equal(t, protocol.NotLeader, send(g, 1, AcksAll))
		g.lead(1, 1, 2)
		require.Equal(t, protocol.StreamRefused, send(g, 1, AcksAll))
		require.Equal(t, protocol.OK, send(g, 2, AcksAll))
	})
	t.Run("an older generation stays refused", func(t *testing.T) {
		var s refusedStreams
		s.refuse(time.Second, protocol.Stream{ID: 1, Generation: 5})
		s.refuse(time.Second, protocol.Stream{ID: 1, Generation: 3})
		require.True(t, s.refuses(time.Second, protocol.Stream{ID: 1, Generation: 5}))
		require.True(t, s.refuses(time.Second, protocol.Stream{ID: 1, Generation: 4}))
		require.False(t, s.refuses(time.Second, protocol.Stream{ID: 0, Generation: 0}), "no stream")
		require.False(t, s.refuses(time.Second, protocol.Stream{ID: 1, Generation: 6}))
	})
	t.Run("no number of producers makes it forget, or refuse for ever", func(t *testing.T) {
		var s refusedStreams
		const producers = 20 * streamSlots
		for id := range uint64(producers) {
			s.refuse(time.Second, protocol.Stream{ID: id + 1, Generation: uint32(id % 7)})
		}
		for id := range uint64(producers) {
			st := protocol.Stream{ID: id + 1, Generation: uint32(id % 7)}
			require.True(t, s.refuses(2*time.Second, st))
			// One more refusal tells what it takes.
			st.Generation = s.refuse(2*time.Second, st) + 1
			require.False(t, s.refuses(2*time.Second, st))
		}
		require.Len(t, s.slots, streamSlots)
	})
}

// What a transport delivered is not the leader's to stamp.
func TestRuleForeignBatchIsCopied(t *testing.T) {
	g := newRig(t, 0, 0)
	g.lead(1, 1, 2)
	g.append(AcksLeader, 3)
	batch := batchOf(t, 1, "v")
	before := bytes.Clone(batch)
	g.from(2, &protocol.Payload{Appends: []protocol.Append{{Request: 1, ID: g.id, LeaderEpoch: -1, Batch: batch}}})
	require.EqualValues(t, 4, g.r.end)
	require.Equal(t, before, batch)
}
