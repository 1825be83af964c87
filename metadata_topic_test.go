package tidemark

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/protocol"
)

// ask sends a command by broker 1, and returns the number of the request.
func (b *metaBench) ask(kind protocol.CommandKind, topic protocol.Topic) uint64 {
	b.request++
	b.m.onCommand(1, b.epochs[1], protocol.Command{Request: b.request, Kind: kind, Topic: topic})
	return b.request
}

// codes are the answers that broker 1 got since the last time, by request.
func (b *metaBench) codes() map[uint64]protocol.Code {
	out := make(map[uint64]protocol.Code)
	for _, a := range b.took(1).CommandAnswers {
		out[a.Request] = a.Code
	}
	return out
}

// answered returns the one answer that broker 1 got since the last time.
func (b *metaBench) answered() protocol.CommandAnswer {
	answers := b.took(1).CommandAnswers
	require.Len(b.t, answers, 1)
	return answers[0]
}

// made creates a topic and has its leaders accept.
func (b *metaBench) made(topic protocol.Topic) protocol.Topic {
	b.command(topic)
	b.settle()
	b.accept()
	require.Equal(b.t, protocol.OK, b.answered().Code)
	clear(b.out)
	return topic
}

// record is a topic's key as the store has it.
func (b *metaBench) record(name string) (rec topicRecord, ok bool) {
	kv, ok, err := b.store.Get(b.t.Context(), topicKey(name))
	require.NoError(b.t, err)
	if ok {
		mustUnmarshal(b.t, kv.Value, &rec)
	}
	return rec, ok
}

// keys are the names of the keys below a prefix.
func (b *metaBench) keys(prefix string) (names []string) {
	kvs, _, err := b.store.List(b.t.Context(), prefix)
	require.NoError(b.t, err)
	for _, kv := range kvs {
		names = append(names, kv.Key)
	}
	return names
}

// successor begins the next controller epoch: what the one before has under way
// fails from now on.
func (b *metaBench) successor() {
	epoch := b.m.epoch + 1
	b.put(controllerEpochKey, controllerTerm{Epoch: epoch})
	b.load(epoch)
}

func withMinISR(t protocol.Topic, minISR, version int32) protocol.Topic {
	t.Config.MinISR, t.Version = minISR, version
	return t
}

func TestAlterTopic(t *testing.T) {
	start := func(t *testing.T) (*metaBench, protocol.Topic) {
		b := newMetaBench(t, 1, 2, 3)
		return b, b.made(topicNamed("t", 1, 3, 3, 2))
	}
	t.Run("MinISR comes into force in every state (D19)", func(t *testing.T) {
		b, topic := start(t)
		before := b.stored("t", 1)
		b.ask(protocol.AlterTopic, withMinISR(topic, 3, 0))
		b.turn()
		require.Empty(t, b.codes(), "before it is written")
		w := b.write()
		require.Len(t, w.txn.Ops, 1, "the topic alone comes first")
		b.answer(w)
		require.Empty(t, b.codes(), "before the states are written")
		b.answer(b.write())
		a := b.took(1)
		require.Len(t, a.CommandAnswers, 1)
		require.Equal(t, protocol.OK, a.CommandAnswers[0].Code)
		require.Equal(t, withMinISR(topic, 3, 1), *a.CommandAnswers[0].Topic)
		want := before
		want.MinISR, want.PartitionEpoch = 3, before.PartitionEpoch+1
		require.Equal(t, want, b.stored("t", 1))
		rec, _ := b.record("t")
		require.Equal(t, withMinISR(topic, 3, 1), rec.Topic)
		require.Len(t, rec.Assignment, 3)

		// Brokers are told of both, the topic first.
		updates := b.took(2).Updates
		require.Len(t, updates, 2)
		require.Equal(t, []protocol.Topic{withMinISR(topic, 3, 1)}, updates[0].Topics)
		require.Empty(t, updates[0].States)
		require.Len(t, updates[1].States, 3)
	})
	t.Run("it is capped by the number of replicas (S-36)", func(t *testing.T) {
		b, topic := start(t)
		b.ask(protocol.AlterTopic, withMinISR(topic, 9, 0))
		b.settle()
		require.Equal(t, protocol.OK, b.answered().Code)
		require.Equal(t, int32(3), b.stored("t", 0).MinISR)
	})
	t.Run("other fields touch no state", func(t *testing.T) {
		b, topic := start(t)
		before := b.stored("t", 0)
		topic.Config.MaxRecordBytes, topic.Config.MaxUncommittedBytes, topic.Config.UncleanElection = 1000, 2000, true
		b.ask(protocol.AlterTopic, topic)
		b.settle()
		require.Equal(t, topic.Config, b.answered().Topic.Config)
		require.Equal(t, before, b.stored("t", 0))
	})
	t.Run("guarded by its version", func(t *testing.T) {
		b, topic := start(t)
		b.ask(protocol.AlterTopic, withMinISR(topic, 3, 0))
		b.settle()
		b.took(1)
		b.ask(protocol.AlterTopic, withMinISR(topic, 1, 0))
		b.turn()
		a := b.answered()
		require.Equal(t, protocol.Conflict, a.Code)
		require.Equal(t, withMinISR(topic, 3, 1), *a.Topic)
		b.ask(protocol.AlterTopic, withMinISR(topic, 1, 2))
		b.turn()
		require.Equal(t, protocol.Conflict, b.answered().Code)
		require.Empty(t, b.writes)
		b.ask(protocol.AlterTopic, withMinISR(topic, 1, 1))
		b.settle()
		require.Equal(t, int32(2), b.answered().Topic.Version)
	})
	t.Run("a copy succeeds and does nothing more", func(t *testing.T) {
		b, topic := start(t)
		r1 := b.ask(protocol.AlterTopic, withMinISR(topic, 3, 0))
		r2 := b.ask(protocol.AlterTopic, withMinISR(topic, 3, 0))
		b.settle()
		require.Equal(t, map[uint64]protocol.Code{r1: protocol.OK, r2: protocol.OK}, b.codes())
		r3 := b.ask(protocol.AlterTopic, withMinISR(topic, 3, 0))
		b.settle()
		require.Equal(t, map[uint64]protocol.Code{r3: protocol.OK}, b.codes())
		rec, _ := b.record("t")
		require.Equal(t, int32(1), rec.Version)
		b.ask(protocol.AlterTopic, withMinISR(topic, 3, 1)) // as it is
		b.settle()
		require.Equal(t, int32(1), b.answered().Topic.Version)
	})
	t.Run("one at a time", func(t *testing.T) {
		b, topic := start(t)
		r1 := b.ask(protocol.AlterTopic, withMinISR(topic, 3, 0))
		r2 := b.ask(protocol.AlterTopic, withMinISR(topic, 1, 0))
		b.turn()
		require.Len(t, b.writes, 1)
		b.settle()
		require.Equal(t, map[uint64]protocol.Code{r1: protocol.OK, r2: protocol.Conflict}, b.codes())
	})
	t.Run("unknown", func(t *testing.T) {
		b, topic := start(t)
		topic.ID[0] = 9
		b.ask(protocol.AlterTopic, withMinISR(topic, 3, 0))
		b.turn()
		require.Equal(t, protocol.UnknownTopic, b.answered().Code)
	})
	t.Run("refused", func(t *testing.T) {
		for name, change := range map[string]func(*TopicConfig){
			"partitions":             func(c *TopicConfig) { c.Partitions++ },
			"replication factor":     func(c *TopicConfig) { c.ReplicationFactor-- },
			"background":             func(c *TopicConfig) { c.Background = true },
			"min isr":                func(c *TopicConfig) { c.MinISR = 0 },
			"record bytes":           func(c *TopicConfig) { c.MaxRecordBytes = -1 },
			"uncommitted bytes":      func(c *TopicConfig) { c.MaxUncommittedBytes = -1 },
			"record never committed": func(c *TopicConfig) { c.MaxRecordBytes, c.MaxUncommittedBytes = 2, 1 },
		} {
			t.Run(name, func(t *testing.T) {
				b, topic := start(t)
				change(&topic.Config)
				b.ask(protocol.AlterTopic, topic)
				b.turn()
				a := b.answered()
				require.Equal(t, protocol.InvalidRequest, a.Code)
				require.NotEmpty(t, a.Detail)
				require.Empty(t, b.writes)
			})
		}
	})
}

// The Controller dies between the write of the topic and those of its states: the
// next one sees what differs, and goes on.
func TestAlterTopicContinued(t *testing.T) {
	const partitions = 2*partitionsPerWrite + 50
	b := newMetaBench(t, 1, 2, 3)
	topic := b.made(topicNamed("t", 1, partitions, 3, 2))
	b.ask(protocol.AlterTopic, withMinISR(topic, 3, 0))
	b.turn()
	b.answer(b.write())
	require.Len(t, b.writes, 3, "in batches")
	for _, w := range b.writes {
		require.LessOrEqual(t, len(w.txn.Ops), partitionsPerWrite)
	}
	b.answer(b.writes[0])
	b.writes = b.writes[1:]
	require.Empty(t, b.codes())

	b.successor()
	b.ask(protocol.AlterTopic, withMinISR(topic, 3, 0)) // sent again
	b.settle()
	require.Empty(t, b.codes(), "the leaders have not accepted under this Controller")
	b.accept()
	require.Equal(t, protocol.OK, b.answered().Code)
	for n := range int32(partitions) {
		s := b.stored("t", n)
		require.Equal(t, int32(3), s.MinISR)
		require.Equal(t, int32(1), s.PartitionEpoch, "written more than once")
	}
}

// A change of MinISR rides with an election, and overtakes a proposal.
func TestAlterTopicAmongOthers(t *testing.T) {
	b := newMetaBench(t, 1, 2, 3)
	id := b.topic()
	topic := topicNamed("t", 1, 1, 3, 2)
	b.ask(protocol.AlterTopic, withMinISR(topic, 1, 0))
	b.turn()
	b.answer(b.writes[0])
	b.writes = b.writes[1:]
	b.unregister(1)
	b.observe()
	b.settle()
	s := b.stored("t", 0)
	require.Equal(t, int32(1), s.MinISR)
	require.Equal(t, []int32{2, 3}, s.ISR)
	require.Equal(t, int32(2), s.Leader)

	b.m.onCommand(2, b.epochs[2], protocol.Command{Request: 50, Kind: protocol.AlterTopic, Topic: withMinISR(topic, 2, 1)})
	b.turn()
	b.do(b.writes[0].txn) // its answer comes with the proposal
	b.m.onWritten(b.now, b.writes[0].token, coordination.TxnResult{Applied: true, Revision: 1 << 30}, nil)
	b.writes = nil
	b.m.onProposal(2, b.epochs[2], b.proposal(protocol.Proposal{
		ID: id, LeaderEpoch: s.LeaderEpoch, PartitionEpoch: s.PartitionEpoch, ISR: []protocol.Member{{ID: 2, Epoch: b.epochs[2]}},
	}))
	b.settle()
	require.Equal(t, []protocol.Code{protocol.InvalidVersion}, b.verdicts(2))
	require.Equal(t, []int32{2, 3}, b.stored("t", 0).ISR)
	require.Equal(t, int32(2), b.stored("t", 0).MinISR)
}

func TestAlterTopicConflicts(t *testing.T) {
	t.Run("the answer was lost", func(t *testing.T) {
		b := newMetaBench(t, 1, 2, 3)
		topic := b.made(topicNamed("t", 1, 1, 3, 2))
		b.ask(protocol.AlterTopic, withMinISR(topic, 3, 0))
		b.turn()
		w := b.write()
		b.do(w.txn)
		b.noAnswer(w)
		b.pause()
		b.settle()
		require.Equal(t, protocol.OK, b.answered().Code)
		require.Equal(t, int32(3), b.stored("t", 0).MinISR)
	})
	t.Run("somebody else wrote the topic's key", func(t *testing.T) {
		b := newMetaBench(t, 1, 2, 3)
		topic := b.made(topicNamed("t", 1, 1, 3, 2))
		theirs := withMinISR(topic, 1, 7)
		b.put(topicKey("t"), topicRecord{Topic: theirs})
		b.ask(protocol.AlterTopic, withMinISR(topic, 3, 0))
		b.settle()
		a := b.answered()
		require.Equal(t, protocol.Conflict, a.Code)
		require.Equal(t, theirs, *a.Topic)
		b.ask(protocol.AlterTopic, withMinISR(theirs, 3, 7))
		b.settle()
		require.Equal(t, protocol.OK, b.answered().Code)
	})
	t.Run("and what they wrote cannot be read", func(t *testing.T) {
		b := newMetaBench(t, 1, 2, 3)
		topic := b.made(topicNamed("t", 1, 1, 3, 2))
		b.do(coordination.Txn{Ops: []coordination.Op{{Key: topicKey("t"), Value: []byte("{")}}})
		b.ask(protocol.AlterTopic, withMinISR(topic, 3, 0))
		b.settle()
		require.Equal(t, protocol.Failed, b.answered().Code)
	})
}

// S-88: to allow unclean elections has partitions without a leader looked at.
func TestAllowUncleanElection(t *testing.T) {
	b := newMetaBench(t, 1, 2, 3)
	topic := b.made(topicNamed("t", 1, 2, 2, 1))
	s := b.stored("t", 0)
	id := protocol.PartitionID{Topic: topic.ID}
	b.propose(id, s.Leader)
	b.settle()
	b.unregister(s.Leader)
	b.observe()
	b.settle()
	require.Equal(t, protocol.NoLeader, b.stored("t", 0).Leader)
	by := 1 + s.Leader%3
	topic.Config.UncleanElection = true
	b.m.onCommand(by, b.epochs[by], protocol.Command{Request: 1, Kind: protocol.AlterTopic, Topic: topic})
	b.turn()
	w := b.write()
	b.m.onWritten(b.now, w.token, b.do(w.txn), nil)
	require.True(t, b.m.parts[id].dirty)
	for n := range int32(2) {
		p := b.m.parts[protocol.PartitionID{Topic: topic.ID, Partition: n}]
		require.Equal(t, p.state.Leader == protocol.NoLeader, p.dirty, "partition %d", n)
	}
}

func total(t protocol.Topic, partitions int32) protocol.Topic {
	t.Config.Partitions = partitions
	return t
}

func TestAddPartitions(t *testing.T) {
	b := newMetaBench(t, 1, 2, 3)
	topic := b.made(topicNamed("t", 1, 2, 2, 5))
	old := b.stored("t", 1)
	r := b.ask(protocol.AddPartitions, total(topic, 6))
	b.turn()
	copied := b.ask(protocol.AddPartitions, total(topic, 6))
	b.turn()
	w := b.write()
	require.Len(t, w.txn.Ops, 5, "all at once")
	require.Empty(t, b.took(2).Updates, "told before it is written")
	b.answer(w)
	require.Empty(t, b.codes(), "before the leaders have accepted")
	updates := b.took(2).Updates
	require.Len(t, updates, 1)
	require.Equal(t, int32(6), updates[0].Topics[0].Config.Partitions)
	require.Len(t, updates[0].States, 4)
	b.accept()
	require.Equal(t, map[uint64]protocol.Code{r: protocol.OK, copied: protocol.OK}, b.codes())
	require.Equal(t, old, b.stored("t", 1))
	leaders := make(map[int32]int)
	for n := range int32(6) {
		s := b.stored("t", n)
		leaders[s.Leader]++
		require.Len(t, s.Replicas, 2)
		require.Equal(t, s.Replicas, s.ISR)
		require.Equal(t, int32(2), s.MinISR, "capped (S-36)")
	}
	require.Equal(t, map[int32]int{1: 2, 2: 2, 3: 2}, leaders, "spread over all partitions")
	rec, _ := b.record("t")
	require.Equal(t, int32(1), rec.Version)
	require.Len(t, rec.Assignment, 6)

	b.successor()
	require.Len(t, b.m.parts, 6)
	b.settle()
	b.accept()
	for name, c := range map[string]struct {
		total int32
		code  protocol.Code
	}{
		"fewer":    {5, protocol.InvalidRequest},
		"none":     {0, protocol.InvalidRequest},
		"as it is": {6, protocol.OK},
		"too many": {maxPartitions + 1, protocol.InvalidRequest},
	} {
		b.ask(protocol.AddPartitions, total(topic, c.total))
		b.turn()
		a := b.answered()
		require.Equal(t, c.code, a.Code, name)
		require.Equal(t, c.code != protocol.OK, a.Detail != "", name)
		require.Empty(t, b.writes)
	}
	b.ask(protocol.AddPartitions, total(topicNamed("t", 2, 1, 1, 1), 9))
	b.turn()
	require.Equal(t, protocol.UnknownTopic, b.answered().Code)

	b.unregister(2, 3)
	b.observe()
	b.settle()
	b.ask(protocol.AddPartitions, total(topic, 7)) // those that are down carry replicas too
	b.settle()
	require.Len(t, b.stored("t", 6).ISR, 1)
	b.accept()
	require.Equal(t, protocol.OK, b.answered().Code)
}

// A key of a new partition that is there already is nothing to write over.
func TestAddPartitionsConflict(t *testing.T) {
	b := newMetaBench(t, 1, 2, 3)
	topic := b.made(topicNamed("t", 1, 1, 3, 2))
	b.put(partitionKey("t", 2), protocol.PartitionState{Version: 1})
	b.ask(protocol.AddPartitions, total(topic, 3))
	b.settle()
	require.Equal(t, protocol.Failed, b.answered().Code)
	require.Len(t, b.m.parts, 1)
	require.Len(t, b.m.topics["t"].parts, 1)
	require.Empty(t, b.m.dirty)
	rec, _ := b.record("t")
	require.Equal(t, topic, rec.Topic)
	require.Empty(t, b.took(2).Updates)
	require.Equal(t, []string{partitionKey("t", 0), partitionKey("t", 2)},
		slices.DeleteFunc(b.keys(topicsPrefix), func(k string) bool { return !strings.HasSuffix(k, "/state") }))
}

// A Controller that goes ends every command that it has not answered.
func TestAbdication(t *testing.T) {
	b := newMetaBench(t, 1, 2, 3)
	topic := b.made(topicNamed("t", 1, 1, 3, 2))
	gone := b.made(topicNamed("u", 2, 1, 3, 2))
	b.ask(protocol.DeleteTopic, gone)
	b.turn()
	b.answer(b.write())
	b.took(1)
	all := []uint64{
		b.command(topicNamed("u", 3, 1, 1, 1)),                       // waits for the state keys
		b.ask(protocol.AlterTopic, withMinISR(topic, 3, 0)),          // under way
		b.ask(protocol.AddPartitions, total(topic, 3)),               // queued
		b.command(topicNamed("v", 4, 1, 1, 1)),                       // under way
		b.command(topicNamed("v", 5, 1, 1, 1)),                       // queued
		b.ask(protocol.RaiseLevel, protocol.Topic{}),                 // counts the brokers
		b.ask(protocol.CommandKind(77), topicNamed("x", 1, 1, 1, 1)), // answered
	}
	b.turn()
	require.Equal(t, map[uint64]protocol.Code{all[6]: protocol.InvalidRequest}, b.codes())
	out := b.m.abdicate()
	got := make(map[uint64]protocol.Code)
	for _, a := range out[1].CommandAnswers {
		got[a.Request] = a.Code
	}
	want := make(map[uint64]protocol.Code)
	for _, r := range all[:6] {
		want[r] = protocol.NotController
	}
	require.Equal(t, want, got)
}

// A thousand answers and writes of a large topic must not each look at all of it.
func TestSettledOncePerTurn(t *testing.T) {
	b := newMetaBench(t, 1)
	topic := topicNamed("t", 1, 3, 1, 1)
	b.command(topic)
	b.settle()
	for n := range int32(3) {
		id := protocol.PartitionID{Topic: topic.ID, Partition: n}
		b.m.onReply(1, b.epochs[1], protocol.OrderReply{ID: id, Accepted: true})
		require.Len(t, b.m.settling, 1, fmt.Sprint(n))
	}
	b.turn()
	require.Equal(t, protocol.OK, b.answered().Code)
	require.Empty(t, b.m.settling)
}

// What a state has in memory is not the last word while a write to it is open.
func TestAlterTopicOverAWriteUnderWay(t *testing.T) {
	b := newMetaBench(t, 1, 2, 3)
	topic := b.made(topicNamed("t", 1, 1, 3, 2))
	lower := b.ask(protocol.AlterTopic, withMinISR(topic, 1, 0))
	b.turn()
	b.answer(b.write())
	state := b.write()
	b.do(state.txn)
	b.noAnswer(state)
	higher := b.ask(protocol.AlterTopic, withMinISR(topic, 2, 1))
	b.turn()
	b.answer(b.write())
	require.Equal(t, int32(1), b.stored("t", 0).MinISR)
	require.Empty(t, b.codes(), "it has 2 in memory, and 1 in the store")
	b.pause()
	b.settle()
	require.Equal(t, int32(2), b.stored("t", 0).MinISR)
	require.Equal(t, map[uint64]protocol.Code{lower: protocol.OK, higher: protocol.OK}, b.codes())
}

// The write that a command waits for may come to nothing.
func TestAlterTopicWhileAProposalConflicts(t *testing.T) {
	b := newMetaBench(t, 1, 2, 3)
	id := b.topic()
	b.propose(id, 1, 2)
	b.settle()
	b.propose(id, 1, 2, 3)
	w := b.write()
	topic := topicNamed("t", 1, 1, 3, 2)
	topic.Config.MaxRecordBytes = 5
	b.took(1)
	b.ask(protocol.AlterTopic, topic)
	b.turn()
	b.answer(b.write())
	require.Empty(t, b.codes())
	b.register(3) // the write rests on its life before
	b.answer(w)
	b.reread()
	require.Equal(t, protocol.OK, b.answered().Code)
}
