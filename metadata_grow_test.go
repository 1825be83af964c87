package tidemark

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/protocol"
)

// A topic of more partitions than one transaction takes is made in parts, by whichever
// Controller is there, and is answered for when it has all of them. Commands about it
// wait until then.
func TestTopicIsMadeInParts(t *testing.T) {
	const partitions = 2*partitionsPerWrite + 50
	for name, grown := range map[string]bool{"created": false, "grown": true} {
		t.Run(name, func(t *testing.T) {
			b := newMetaBench(t, 1, 2, 3)
			topic, kind := topicNamed("t", 1, partitions, 3, 2), protocol.CreateTopic
			if grown {
				b.made(topicNamed("t", 1, 1, 3, 2))
				kind = protocol.AddPartitions
			}
			b.ask(kind, topic)
			b.turn()
			w := b.write()
			require.Len(t, w.txn.Ops, 1+partitionsPerWrite)
			b.answer(w)
			b.accept()
			rec, _ := b.record("t")
			require.Len(t, rec.Assignment, partitions)
			require.EqualValues(t, partitions, rec.Config.Partitions, "keys are hashed over all of them from the beginning")
			require.Positive(t, rec.Unmade)
			require.Empty(t, b.codes())

			b.successor()
			again := b.ask(kind, topic) // sent again
			alter := topic
			alter.Version, alter.Config.MinISR = 9, 3
			other := b.ask(protocol.AlterTopic, alter)
			gone := b.ask(protocol.DeleteTopic, topic)
			b.turn()
			b.answer(b.write())
			b.accept()
			require.Empty(t, b.codes(), "it has not all of them")
			b.settle()
			b.accept()
			b.settle()
			codes := b.codes()
			require.Equal(t, protocol.Conflict, codes[other], "its version is another one by now")
			require.Equal(t, protocol.OK, codes[gone])
			if !grown {
				require.Equal(t, protocol.UnknownTopic, codes[again], "deleted before the leaders accepted")
			}
			require.Empty(t, b.keys(partitionsPrefix("t")), "all of its keys go")
		})
	}
}

// The last part done, everything is there, each once, and whoever asked hears it.
func TestTopicInPartsIsComplete(t *testing.T) {
	const partitions = 3*partitionsPerWrite + 7
	b := newMetaBench(t, 1, 2, 3)
	request := b.ask(protocol.CreateTopic, topicNamed("t", 1, partitions, 3, 2))
	b.settle()
	b.accept()
	answer := b.answered()
	require.Equal(t, request, answer.Request)
	require.Equal(t, protocol.OK, answer.Code)
	require.EqualValues(t, partitions, answer.Topic.Config.Partitions)
	rec, _ := b.record("t")
	require.Equal(t, *answer.Topic, rec.Topic)
	require.Len(t, b.keys(partitionsPrefix("t")), partitions)
	leads := make(map[int32]int)
	for n := range int32(partitions) {
		s := b.stored("t", n)
		require.Equal(t, rec.Assignment[n], s.Replicas)
		leads[s.Leader]++
	}
	for id := range b.epochs {
		require.InDelta(t, partitions/3, leads[id], 2, "placed as one")
	}
}

// A key that nobody knows of stands where a partition is to be made: the topic stays
// as far as it is, whoever waits hears it, and commands go on.
func TestTopicInPartsMeetsAKey(t *testing.T) {
	const partitions = 2 * partitionsPerWrite
	b := newMetaBench(t, 1, 2, 3)
	topic := topicNamed("t", 1, partitions, 3, 2)
	b.put(partitionKey("t", partitionsPerWrite+3), "not a state")
	b.ask(protocol.CreateTopic, topic)
	b.settle()
	b.accept()
	require.Equal(t, protocol.Failed, b.answered().Code)
	require.Empty(t, b.m.writes, "and is not tried for ever")
	rec, _ := b.record("t")
	require.EqualValues(t, partitions-partitionsPerWrite, rec.Unmade)
	for _, kind := range []protocol.CommandKind{protocol.CreateTopic, protocol.AddPartitions} {
		b.ask(kind, topic) // the answer was lost
		b.settle()
		b.accept()
		require.Equal(t, protocol.Failed, b.answered().Code)
	}
	more := topic
	more.Config.Partitions++
	b.ask(protocol.AddPartitions, more)
	b.settle()
	require.Equal(t, protocol.Failed, b.answered().Code)

	alter := rec.Topic
	alter.Config.MinISR = 1
	b.ask(protocol.AlterTopic, alter)
	b.settle()
	require.Equal(t, protocol.OK, b.answered().Code, "the others go on")
	b.do(coordination.Txn{Ops: []coordination.Op{{Key: partitionKey("t", partitionsPerWrite+3), Delete: true}}})
	b.ask(protocol.AddPartitions, topic)
	b.settle()
	b.accept()
	require.Equal(t, protocol.OK, b.answered().Code)
	require.Len(t, b.keys(partitionsPrefix("t")), partitions)
	rec, _ = b.record("t")
	require.Zero(t, rec.Unmade)
}

// The replicas of all partitions are in one key.
func TestTopicOfTooManyReplicas(t *testing.T) {
	b := newMetaBench(t, 1, 2, 3)
	ids := []int32{1, 2, 3}
	for id := int32(1_000_000_001); id < 1_000_000_004; id++ {
		b.register(id)
		ids = append(ids, id)
	}
	b.observe()
	for _, id := range ids {
		b.m.onLink(id, true)
	}
	b.ask(protocol.CreateTopic, topicNamed("t", 1, maxPartitions, 6, 2))
	b.turn()
	require.Equal(t, protocol.InvalidRequest, b.answered().Code)
	b.ask(protocol.CreateTopic, topicNamed("t", 1, maxPartitions, 1, 1))
	b.turn()
	b.answer(b.write())
	require.Empty(t, b.codes())
}

// Elections rest on registrations: their guards count.
func TestWritesStayWithinWhatStoresTake(t *testing.T) {
	ids := make([]int32, 120)
	for i := range ids {
		ids[i] = int32(i + 1)
	}
	b := newMetaBench(t, ids...)
	topic := topicNamed("t", 1, partitionsPerWrite, 3, 1)
	topic.Config.UncleanElection = true
	b.made(topic)
	var leaders []int32
	for n := range int32(partitionsPerWrite) {
		s := b.stored("t", n)
		s.ISR = []int32{s.Leader} // the others have fallen out of it
		s.PartitionEpoch++
		b.storeState("t", n, s)
		leaders = append(leaders, s.Leader)
	}
	b.successor()
	b.settle()
	slices.Sort(leaders)
	b.gone(slices.Compact(leaders)[:90]...) // turn looks at each write
	require.Greater(t, len(b.unclean), partitionsPerWrite/4)
}
