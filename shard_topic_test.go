package tidemark

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/storage"
)

func (g *rig) delete() *effects {
	return g.turn(func() { g.s.onDeleted(g.id.Topic) })
}

// D21: a deleted topic's clients hear, its log is deleted, and only then is the
// topic told as cleared. Late messages do not bring it back.
func TestDeletedTopicIsClearedOnceItsLogsAreGone(t *testing.T) {
	g := newRig(t, 0, 2, 1, 1)
	g.lead(3, 1, 2)
	request := g.append(AcksAll, 1)
	eff := g.delete()
	require.Equal(t, protocol.Unknown, endedIn(eff)[request].Outcome)
	require.Equal(t, storage.Delete, eff.ops[len(eff.ops)-1].Kind)
	require.True(t, eff.synced)
	require.Empty(t, eff.cleared)
	require.Empty(t, g.delete().ops, "said again")

	late := g.append(AcksAll, 1)
	require.Equal(t, protocol.NotAppended, endedIn(&g.eff)[late].Outcome)
	g.leader(1, 4)
	require.Empty(t, g.eff.ops, "an order that was on its way")

	require.Equal(t, []protocol.UUID{g.id.Topic}, g.stored().cleared)
	require.Empty(t, g.s.replicas)
	logs, err := g.store.Logs()
	require.NoError(t, err)
	require.Empty(t, logs)

	late = g.append(AcksAll, 1)
	require.Equal(t, protocol.UnknownPartition, endedIn(&g.eff)[late].Code)
	g.leader(1, 5)
	g.fetch(2, 0)
	require.Empty(t, g.s.replicas)
	require.Equal(t, []protocol.UUID{g.id.Topic}, g.delete().cleared, "a new Controller asks again")
	g.tick(rigConfig().MaxLag)
}

// All partitions of a topic have to be gone, and those of other topics stay.
func TestDeletionCountsPartitions(t *testing.T) {
	g := newRig(t, 0, 2, 1, 1)
	second := protocol.PartitionID{Topic: g.id.Topic, Partition: 1}
	other := protocol.PartitionID{Topic: protocol.UUID{2}}
	for _, id := range []protocol.PartitionID{second, other} {
		g.turn(func() { s := g.state.Clone(); g.s.onState(g.now, id, &s) })
	}
	g.delete()
	g.turn(func() { g.s.onStored(second, 1, nil) })
	require.Empty(t, g.eff.cleared)
	require.Len(t, g.s.ordered(), 2)
	require.Equal(t, []protocol.UUID{g.id.Topic}, g.turn(func() { g.s.onStored(g.id, 1, nil) }).cleared)
	require.Equal(t, other, g.s.ordered()[0].id)
}

// A store that refuses the deletion is asked again when the Controller asks again;
// until it did as it was told the topic is not cleared.
func TestRefusedDeletionIsTriedAgain(t *testing.T) {
	g := newRig(t, 0, 2, 1, 1)
	g.delete()
	require.Empty(t, g.turn(func() { g.s.onStored(g.id, 1, errRigDisk) }).cleared)
	require.Equal(t, roleFailed, g.r.role)
	require.Equal(t, []storage.Kind{storage.Delete}, kinds(g.delete().ops))
	require.Len(t, g.turn(func() { g.s.onStored(g.id, 1, nil) }).cleared, 1)
}

// A replica known from messages only frees its place when its topic is deleted.
func TestDeletedStrangerIsForgotten(t *testing.T) {
	g := newRig(t, 0, 0)
	require.Equal(t, 1, g.s.strangers)
	g.delete()
	require.Zero(t, g.s.strangers)
	require.Len(t, g.stored().cleared, 1)
}

// Only so many deletions are remembered.
func TestTombsAreBounded(t *testing.T) {
	var tb tombs
	id := func(n int) protocol.UUID { return protocol.UUID{1, byte(n >> 8), byte(n)} }
	for n := range maxTombs + 10 {
		tb.add(id(n))
		tb.add(id(n))
	}
	require.Len(t, tb.set, maxTombs)
	require.False(t, tb.hold(id(9)))
	require.True(t, tb.hold(id(10)))
}

// D25: of a topic in background mode only what an epoch rests on waits for the disk.
func TestBackgroundAppendsDoNotWaitForTheDisk(t *testing.T) {
	for _, background := range []bool{false, true} {
		g := newRig(t, 0, 0)
		g.s.onTopic(protocol.Topic{ID: g.id.Topic, Config: TopicConfig{Background: background}})
		g.state.ISR = []int32{1, 2}
		require.True(t, g.leader(1, 3).synced, "the epoch entry and `led` (D11)")
		g.stored()
		g.append(AcksLeader, 1)
		require.Equal(t, !background, g.eff.synced)
	}
}

// An alteration is taken unless it is an older one; the topic's limit applies
// beside the broker's.
func TestTopicLimits(t *testing.T) {
	g := newRig(t, 0, 0)
	g.lead(3, 1, 2, 3)
	size := int64(len(batchOf(t, 1, "v")))
	alter := func(version int32, limit int64) {
		g.s.onTopic(protocol.Topic{ID: g.id.Topic, Version: version, Config: TopicConfig{MaxUncommittedBytes: limit}})
	}
	alter(2, size)
	alter(1, 0)
	g.append(AcksLeader, 1)
	refused := g.append(AcksLeader, 1)
	require.Equal(t, protocol.Overloaded, endedIn(&g.eff)[refused].Code)
	alter(3, 1<<40)
	taken := g.append(AcksLeader, 1)
	require.NotContains(t, endedIn(&g.eff), taken)
	require.Equal(t, rigConfig().MaxUncommittedBytes, g.r.maxUncommitted())
}

// What a deleted topic had in memory leaves nothing behind.
func TestCacheForgetsDeletedTopics(t *testing.T) {
	g := newRig(t, 0, 0)
	g.lead(1, 1)
	g.append(AcksLeader, 1) // stays in memory, at the head of the queue
	g.stored()
	for n := range 20_000 {
		id := protocol.PartitionID{Topic: protocol.UUID{9, byte(n), byte(n >> 8), byte(n >> 16)}}
		g.turn(func() {
			s := g.state.Clone()
			s.Leader, s.LeaderBrokerEpoch, s.LeaderEpoch, s.ISR = rigSelf, life(rigSelf), 1, []int32{rigSelf}
			g.s.onState(g.now, id, &s)
		})
		g.turn(func() {
			g.s.onPayload(g.now, rigSelf, life(rigSelf), &protocol.Payload{Appends: []protocol.Append{
				{ID: id, Request: 1, Acks: AcksLeader, LeaderEpoch: -1, Batch: batchOf(t, 1, "v")}}})
		})
		g.turn(func() { g.s.onDeleted(id.Topic) })
		g.stored()
	}
	require.Len(t, g.s.replicas, 1)
	require.Len(t, g.s.ofTopic, 1)
	require.Less(t, len(g.s.cache.order), 10_000)
}

// A follower that waits for the store is remembered once.
func TestThrottledOnce(t *testing.T) {
	g := newRig(t, 0, 0)
	g.turn(func() { g.s.onStoreLoad(0, true) })
	g.leader(2, 3)
	for range 3 {
		g.turn(func() { g.r.touch() })
	}
	require.Len(t, g.s.throttled, 1)
	require.NotNil(t, sentFetch(t, g.turn(func() { g.s.onStoreLoad(0, false) }), 2))
	g.turn(func() { g.s.onStoreLoad(0, true) })
	require.Empty(t, g.s.throttled)
}
