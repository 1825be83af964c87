package tidemark

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/coordination/memory"
	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/storage/memstore"
)

// topicOf makes a topic with one partition, whose leaders have accepted.
func (b *metaBench) topicOf(rf int32, change func(c *TopicConfig)) protocol.PartitionID {
	topic := topicNamed("t", 1, 1, rf, 1)
	if change != nil {
		change(&topic.Config)
	}
	b.command(topic)
	b.settle()
	b.accept()
	clear(b.out)
	return protocol.PartitionID{Topic: topic.ID}
}

func unclean(c *TopicConfig)    { c.UncleanElection = true }
func background(c *TopicConfig) { c.Background = true }

// elect gives an order, from broker 1, and returns the request's number.
func (b *metaBench) elect(kind protocol.CommandKind, id protocol.PartitionID, broker int32) uint64 {
	b.request++
	b.m.onCommand(1, b.epochs[1], protocol.Command{
		Request: b.request, Kind: kind, Topic: protocol.Topic{ID: id.Topic}, Partition: id.Partition, Broker: broker,
	})
	return b.request
}

// answers are the answers that broker 1 got since the last time.
func (b *metaBench) answers() map[uint64]protocol.Code {
	out := make(map[uint64]protocol.Code)
	for _, a := range b.took(1).CommandAnswers {
		out[a.Request] = a.Code
	}
	return out
}

// gone has brokers disappear.
func (b *metaBench) gone(ids ...int32) {
	b.unregister(ids...)
	b.observe()
	b.settle()
}

// back registers brokers, anew where they are there.
func (b *metaBench) back(ids ...int32) {
	for _, id := range ids {
		b.register(id)
	}
	b.observe()
	b.settle()
}

// shrink has the leader's proposal recorded.
func (b *metaBench) shrink(id protocol.PartitionID, isr ...int32) {
	b.propose(id, isr...)
	b.settle()
	require.Equal(b.t, isr, b.stored("t", 0).ISR)
	clear(b.out)
}

func (b *metaBench) fails(id protocol.PartitionID, from int32, code protocol.Code) {
	b.m.onReply(from, b.epochs[from], protocol.OrderReply{ID: id, LeaderEpoch: b.m.parts[id].state.LeaderEpoch, Code: code})
	b.settle()
}

// S-86: a topic that allows it gets a leader that lacks what only the dead one has.
func TestS086UncleanBySetting(t *testing.T) {
	b := newMetaBench(t, 1, 2, 3)
	id := b.topicOf(2, unclean)
	require.Equal(t, []int32{1, 2}, b.stored("t", 0).Replicas)
	b.shrink(id, 1)
	require.Empty(t, b.unclean)
	b.gone(1)
	s := b.stored("t", 0)
	require.Equal(t, int32(2), s.Leader)
	require.Equal(t, []int32{2}, s.ISR)
	require.Equal(t, int32(1), s.LeaderEpoch)
	require.Equal(t, int32(1), s.UncleanEpoch)
	require.Equal(t, b.epochs[2], s.LeaderBrokerEpoch)
	require.Equal(t, []uncleanElection{{topic: "t", partition: 0, leader: 2, leaderEpoch: 1, was: []int32{1}}}, b.unclean)

	b.back(1)
	require.Equal(t, s, b.stored("t", 0), "the one with the data is an ordinary follower now")
	b.gone(2)
	require.Equal(t, protocol.PartitionState{
		Version: 1, Leader: 1, LeaderEpoch: 2, ControllerEpoch: 1, ISR: []int32{1}, PartitionEpoch: s.PartitionEpoch + 1,
		LeaderBrokerEpoch: b.epochs[1], Replicas: []int32{1, 2}, MinISR: 1, UncleanEpoch: 2,
	}, b.stored("t", 0), "again, the other way round")

	t.Run("one replica", func(t *testing.T) {
		b := newMetaBench(t, 1, 2, 3)
		b.topicOf(1, unclean)
		b.gone(1)
		s := b.stored("t", 0)
		require.Equal(t, protocol.NoLeader, s.Leader)
		require.Equal(t, []int32{1}, s.ISR)
		require.Empty(t, b.unclean)
	})
	t.Run("off", func(t *testing.T) {
		b := newMetaBench(t, 1, 2, 3)
		id := b.topicOf(2, nil)
		b.shrink(id, 1)
		b.gone(1)
		s := b.stored("t", 0)
		require.Equal(t, protocol.NoLeader, s.Leader)
		require.Equal(t, []int32{1}, s.ISR)
		b.back(1)
		require.Equal(t, int32(1), b.stored("t", 0).Leader)
		require.Zero(t, b.stored("t", 0).UncleanEpoch)
	})
}

// S-87: each topic has its own setting; there is none above it.
func TestS087UncleanIsPerTopic(t *testing.T) {
	b := newMetaBench(t, 1, 2, 3)
	id := b.topicOf(2, unclean)
	b.shrink(id, 1)
	b.command(topicNamed("u", 2, 1, 2, 1))
	b.settle()
	u := b.stored("u", 0)
	u.ISR, u.PartitionEpoch, u.Leader, u.LeaderBrokerEpoch = []int32{1}, 5, 1, b.epochs[1]
	u.Replicas = []int32{1, 2}
	b.storeState("u", 0, u)
	b.load(1)
	b.settle()
	b.gone(1)
	require.Equal(t, int32(2), b.stored("t", 0).Leader)
	require.Equal(t, protocol.NoLeader, b.stored("u", 0).Leader)
	require.Equal(t, []int32{1}, b.stored("u", 0).ISR)
}

// S-88: the setting is switched on. Whoever has a leader keeps it, whoever has none gets one.
func TestS088UncleanSwitchedOn(t *testing.T) {
	start := func(t *testing.T) (*metaBench, func()) {
		b := newMetaBench(t, 1, 2, 3)
		id := b.topicOf(2, nil)
		b.shrink(id, 1)
		return b, func() {
			b.m.onCommand(3, b.epochs[3], protocol.Command{Request: 9, Kind: protocol.AlterTopic, Topic: protocol.Topic{
				ID: id.Topic, Name: "t", Config: TopicConfig{Partitions: 1, ReplicationFactor: 2, MinISR: 1, UncleanElection: true},
			}})
			b.settle()
		}
	}
	t.Run("a leader lives", func(t *testing.T) {
		b, on := start(t)
		before := b.stored("t", 0)
		on()
		require.Equal(t, before, b.stored("t", 0))
		require.Empty(t, b.unclean)
		b.gone(1)
		require.Equal(t, int32(2), b.stored("t", 0).Leader)
	})
	t.Run("nobody leads", func(t *testing.T) {
		b, on := start(t)
		b.gone(1)
		require.Equal(t, protocol.NoLeader, b.stored("t", 0).Leader)
		on()
		require.Equal(t, int32(2), b.stored("t", 0).Leader)
		require.Equal(t, []int32{2}, b.stored("t", 0).ISR)
		require.Len(t, b.unclean, 1)
	})
	t.Run("who left the ISR for a clean one stays outside", func(t *testing.T) {
		b, on := start(t)
		b.gone(1)
		b.back(1)
		on()
		require.Equal(t, int32(1), b.stored("t", 0).Leader)
		require.Empty(t, b.unclean)
	})
}

// EL-2: nothing is given up for another replica if a member has come back and the
// Controller does not know it yet.
func TestUncleanElectionOvertakenByAReturn(t *testing.T) {
	b := newMetaBench(t, 1, 2, 3)
	id := b.topicOf(2, unclean)
	b.shrink(id, 1)
	b.unregister(1)
	b.observe()
	b.turn()
	w := b.write()
	b.register(1) // not observed
	b.answer(w)
	b.reread()
	require.Equal(t, int32(1), b.stored("t", 0).Leader)
	require.Zero(t, b.stored("t", 0).UncleanEpoch)
	require.Empty(t, b.unclean)
	b.observe()
	b.settle()
	b.pause()
	b.settle()
	s := b.stored("t", 0)
	require.Equal(t, int32(1), s.Leader)
	require.Equal(t, b.epochs[1], s.LeaderBrokerEpoch)
	require.Zero(t, s.UncleanEpoch)

	// Nor is one elected whose life has ended meanwhile.
	b.unregister(1)
	b.observe()
	b.turn()
	w = b.write()
	b.register(2)
	b.answer(w)
	b.reread()
	require.Zero(t, b.stored("t", 0).UncleanEpoch)
}

// EL-2 by order: only without a leader, only who is there, answered once the winner
// has accepted; a copy of the order joins it.
func TestUncleanByOrder(t *testing.T) {
	// start has broker 2 lead, alone in sync.
	start := func(t *testing.T) (*metaBench, protocol.PartitionID) {
		b := newMetaBench(t, 1, 2, 3, 4)
		id := b.topicOf(3, nil)
		require.Equal(t, []int32{1, 2, 3}, b.stored("t", 0).Replicas)
		b.gone(1)
		b.shrink(id, 2)
		b.back(1)
		b.accept()
		clear(b.out)
		return b, id
	}
	leaderless := func(t *testing.T) (*metaBench, protocol.PartitionID) {
		b, id := start(t)
		b.gone(2)
		require.Equal(t, protocol.NoLeader, b.stored("t", 0).Leader)
		clear(b.out)
		return b, id
	}
	t.Run("there is a leader", func(t *testing.T) {
		b, id := start(t)
		before := b.stored("t", 0)
		for _, broker := range []int32{-1, 1, 2} {
			r := b.elect(protocol.ElectUnclean, id, broker)
			b.settle()
			require.Equal(t, map[uint64]protocol.Code{r: protocol.NotNeeded}, b.answers())
		}
		require.Equal(t, before, b.stored("t", 0))
	})
	t.Run("whoever is there", func(t *testing.T) {
		b, id := leaderless(t)
		r1 := b.elect(protocol.ElectUnclean, id, -1)
		b.turn()
		r2 := b.elect(protocol.ElectUnclean, id, -1) // before it is written
		b.settle()
		s := b.stored("t", 0)
		require.Equal(t, int32(1), s.Leader)
		require.Equal(t, []int32{1}, s.ISR)
		require.Equal(t, s.LeaderEpoch, s.UncleanEpoch)
		r3 := b.elect(protocol.ElectUnclean, id, -1) // before it is accepted
		b.settle()
		require.Empty(t, b.answers(), "broker 1 has not accepted")
		b.accept()
		require.Equal(t, map[uint64]protocol.Code{r1: protocol.OK, r2: protocol.OK, r3: protocol.OK}, b.answers())
		r4 := b.elect(protocol.ElectUnclean, id, -1)
		b.settle()
		require.Equal(t, map[uint64]protocol.Code{r4: protocol.NotNeeded}, b.answers())
		require.Equal(t, s, b.stored("t", 0), "once only")
		require.Len(t, b.unclean, 1)
		require.Empty(t, b.m.ordered)
	})
	t.Run("this one", func(t *testing.T) {
		b, id := leaderless(t)
		r := b.elect(protocol.ElectUnclean, id, 3)
		b.settle()
		require.Equal(t, int32(3), b.stored("t", 0).Leader)
		require.Equal(t, []int32{3}, b.stored("t", 0).ISR)
		b.accept()
		require.Equal(t, map[uint64]protocol.Code{r: protocol.OK}, b.answers())
	})
	t.Run("no candidate", func(t *testing.T) {
		b, id := leaderless(t)
		b.fails(id, 3, protocol.StorageFailed)
		before := b.stored("t", 0)
		for _, broker := range []int32{2, 3, 4, 77} { // dead, without a log, not assigned, unknown
			r := b.elect(protocol.ElectUnclean, id, broker)
			b.settle()
			require.Equal(t, map[uint64]protocol.Code{r: protocol.NoCandidate}, b.answers())
		}
		r := b.elect(protocol.ElectUnclean, id, -1)
		b.settle()
		b.accept()
		require.Equal(t, map[uint64]protocol.Code{r: protocol.OK}, b.answers())
		require.Equal(t, before.PartitionEpoch+1, b.stored("t", 0).PartitionEpoch)
	})
	t.Run("no such partition", func(t *testing.T) {
		b, id := leaderless(t)
		id.Partition = 1
		r := b.elect(protocol.ElectUnclean, id, -1)
		b.settle()
		require.Equal(t, map[uint64]protocol.Code{r: protocol.UnknownPartition}, b.answers())
	})
	t.Run("a member returns first", func(t *testing.T) {
		b, id := leaderless(t)
		b.register(2)
		b.observe()
		r := b.elect(protocol.ElectUnclean, id, 1)
		b.settle()
		require.Equal(t, int32(2), b.stored("t", 0).Leader)
		require.Equal(t, map[uint64]protocol.Code{r: protocol.NotNeeded}, b.answers())
		require.Empty(t, b.unclean)
	})
	t.Run("the answer of the store is lost", func(t *testing.T) {
		b, id := leaderless(t)
		r := b.elect(protocol.ElectUnclean, id, 1)
		b.turn()
		w := b.write()
		b.do(w.txn)
		b.noAnswer(w)
		b.pause()
		b.reread()
		b.settle()
		b.accept()
		require.Equal(t, map[uint64]protocol.Code{r: protocol.OK}, b.answers())
		require.Len(t, b.unclean, 1)
	})
	t.Run("its epoch is refused", func(t *testing.T) {
		b, id := leaderless(t)
		r := b.elect(protocol.ElectUnclean, id, 1)
		b.settle()
		b.m.onReply(1, b.epochs[1], protocol.OrderReply{ID: id, LeaderEpoch: b.stored("t", 0).LeaderEpoch, Above: 40, Code: protocol.LedBefore})
		b.settle()
		require.Equal(t, int32(41), b.stored("t", 0).LeaderEpoch)
		require.Empty(t, b.answers())
		b.accept()
		require.Equal(t, map[uint64]protocol.Code{r: protocol.OK}, b.answers())
	})
	t.Run("it fails before it accepts", func(t *testing.T) {
		b, id := leaderless(t)
		r := b.elect(protocol.ElectUnclean, id, 3)
		b.settle()
		b.gone(3)
		require.Equal(t, map[uint64]protocol.Code{r: protocol.NoCandidate}, b.answers())
	})
	t.Run("the Controller resigns", func(t *testing.T) {
		b, id := leaderless(t)
		r := b.elect(protocol.ElectUnclean, id, 3)
		b.turn()
		out := b.m.abdicate()
		require.Equal(t, []protocol.CommandAnswer{{Request: r, Code: protocol.NotController}}, out[1].CommandAnswers)
	})
}

// S-84, EL-3: the first replica leads again, or everything stays.
func TestS084PreferredElection(t *testing.T) {
	moved := func(t *testing.T) (*metaBench, protocol.PartitionID) {
		b := newMetaBench(t, 1, 2, 3)
		id := b.topicOf(3, unclean)
		b.gone(1)
		b.back(1)
		require.Equal(t, int32(2), b.stored("t", 0).Leader)
		clear(b.out)
		return b, id
	}
	t.Run("in sync", func(t *testing.T) {
		b, id := moved(t)
		b.propose(id, 2, 3, 1)
		b.settle()
		clear(b.out)
		before := b.stored("t", 0)
		r1 := b.elect(protocol.ElectPreferred, id, -1)
		r2 := b.elect(protocol.ElectPreferred, id, -1)
		b.settle()
		s := b.stored("t", 0)
		require.Equal(t, int32(1), s.Leader)
		require.Equal(t, b.epochs[1], s.LeaderBrokerEpoch)
		require.Equal(t, before.LeaderEpoch+1, s.LeaderEpoch)
		require.Equal(t, before.ISR, s.ISR)
		require.Zero(t, s.UncleanEpoch)
		require.Empty(t, b.answers())
		b.accept()
		require.Equal(t, map[uint64]protocol.Code{r1: protocol.OK, r2: protocol.OK}, b.answers())
		r3 := b.elect(protocol.ElectPreferred, id, -1)
		b.settle()
		require.Equal(t, map[uint64]protocol.Code{r3: protocol.NotNeeded}, b.answers())
		require.Equal(t, s, b.stored("t", 0))
	})
	t.Run("not in sync, though the topic allows unclean elections", func(t *testing.T) {
		b, id := moved(t)
		before := b.stored("t", 0)
		r := b.elect(protocol.ElectPreferred, id, -1)
		b.settle()
		require.Equal(t, map[uint64]protocol.Code{r: protocol.NoCandidate}, b.answers())
		require.Equal(t, before, b.stored("t", 0))
	})
	t.Run("overtaken", func(t *testing.T) {
		b, id := moved(t)
		b.propose(id, 2, 3, 1)
		b.settle()
		r := b.elect(protocol.ElectPreferred, id, -1)
		b.settle()
		b.fails(id, 1, protocol.StorageFailed)
		require.Equal(t, int32(2), b.stored("t", 0).Leader)
		require.Equal(t, map[uint64]protocol.Code{r: protocol.NoCandidate}, b.answers())
	})
	t.Run("a proposal waits", func(t *testing.T) {
		b, id := moved(t)
		b.propose(id, 2, 3, 1)
		b.settle()
		clear(b.out)
		b.elect(protocol.ElectPreferred, id, -1)
		b.propose(id, 2, 3)
		b.settle()
		require.Equal(t, []protocol.Code{protocol.FencedEpoch}, b.verdicts(2))
		require.ElementsMatch(t, []int32{1, 2, 3}, b.stored("t", 0).ISR)
	})
}

// marks is what the store says of a broker's losses.
func (b *metaBench) marks(id int32) (replaced, unclean bool) {
	kv, _, err := b.store.Get(b.t.Context(), brokerLastKey(id))
	require.NoError(b.t, err)
	var last lastLife
	mustUnmarshal(b.t, kv.Value, &last)
	return last.Replaced, last.Unclean
}

// D15: the sole member came back with an empty disk. Nobody leads until somebody
// says so; then it is a broker like any other.
func TestReplacedSoleMemberByOrder(t *testing.T) {
	b := newMetaBench(t, 1, 2, 3)
	id := b.topicOf(3, unclean)
	b.shrink(id, 1)
	b.gone(2, 3)
	b.wipe(1)
	b.back(1)
	require.Equal(t, protocol.NoLeader, b.stored("t", 0).Leader, "not by the topic's setting")
	r := b.elect(protocol.ElectUnclean, id, 1)
	b.turn()
	w := b.write()
	replaced, _ := b.marks(1)
	require.True(t, replaced)
	require.Equal(t, partitionKey("t", 0), w.txn.Ops[0].Key, "nothing is cleared before that is written")
	b.answer(w)
	s := b.stored("t", 0)
	require.Equal(t, int32(1), s.Leader)
	require.Equal(t, []int32{1}, s.ISR)
	require.Equal(t, s.LeaderEpoch, s.UncleanEpoch)
	b.settle()
	require.Equal(t, s, b.stored("t", 0), "it stays")
	replaced, _ = b.marks(1)
	require.False(t, replaced)
	b.accept()
	require.Equal(t, map[uint64]protocol.Code{r: protocol.OK}, b.answers())
	b.back(2)
	b.propose(id, 1, 2)
	b.settle()
	require.Equal(t, []protocol.Code{protocol.OK}, b.verdicts(1))
	b.back(1)
	require.Equal(t, int32(1), b.stored("t", 0).Leader, "another life, the same directory")
}

// D15: while another partition counts on what the broker lost, the mark stays, and
// the one where it was chosen goes on all the same.
func TestReplacedChosenInOnePartitionOnly(t *testing.T) {
	b := newMetaBench(t, 1, 2)
	first := b.topicOf(1, func(c *TopicConfig) { c.Partitions = 3 })
	ofOne := []int32{}
	for n := range int32(3) {
		if b.stored("t", n).Leader == 1 {
			ofOne = append(ofOne, n)
		}
	}
	require.Len(t, ofOne, 2)
	b.wipe(1)
	b.back(1)
	clear(b.out)
	order := func(n int32) {
		first.Partition = n
		b.elect(protocol.ElectUnclean, first, -1)
		b.settle()
		b.accept()
		require.Equal(t, int32(1), b.stored("t", n).Leader)
	}
	order(ofOne[0])
	replaced, _ := b.marks(1)
	require.True(t, replaced)
	require.Equal(t, protocol.NoLeader, b.stored("t", ofOne[1]).Leader)
	order(ofOne[1])
	b.settle()
	replaced, _ = b.marks(1)
	require.False(t, replaced)
	require.Equal(t, int32(1), b.stored("t", ofOne[0]).Leader)
}

// D25: a broker whose store was not closed cleanly may lack what topics in
// background mode acknowledged; the others do not care.
func TestUncleanEndOfABroker(t *testing.T) {
	start := func(t *testing.T, change func(c *TopicConfig)) (*metaBench, protocol.PartitionID) {
		b := newMetaBench(t, 1, 2, 3)
		return b, b.topicOf(3, change)
	}
	// crash gives brokers a registration after an unclean end.
	crash := func(b *metaBench, ids ...int32) {
		for _, id := range ids {
			b.register(id)
			kv, _, err := b.store.Get(b.t.Context(), brokerLastKey(id))
			require.NoError(b.t, err)
			var last lastLife
			mustUnmarshal(b.t, kv.Value, &last)
			last.Unclean = true
			b.epochs[id] = b.do(coordination.Txn{Ops: []coordination.Op{
				{Key: brokerIDKey(id), Value: marshal(registration{})}, {Key: brokerLastKey(id), Value: marshal(last)},
			}}).Revision
		}
		b.observe()
	}
	unmarked := func(b *metaBench, id int32) bool {
		_, unclean := b.marks(id)
		return !unclean
	}
	t.Run("leaves, then is cleared, then may join", func(t *testing.T) {
		b, id := start(t, background)
		crash(b, 1)
		b.turn()
		leave := b.write()
		require.Equal(t, partitionKey("t", 0), leave.txn.Ops[0].Key)
		b.answer(leave)
		require.Equal(t, []int32{2, 3}, b.stored("t", 0).ISR)
		require.Equal(t, int32(2), b.stored("t", 0).Leader)
		b.propose(id, 2, 3, 1)
		require.Equal(t, []protocol.Code{protocol.Ineligible}, b.verdicts(2))
		b.settle()
		require.True(t, unmarked(b, 1))
		b.propose(id, 2, 3, 1)
		b.settle()
		require.Equal(t, []protocol.Code{protocol.OK}, b.verdicts(2))
	})
	t.Run("a topic that waits for the disk", func(t *testing.T) {
		b, _ := start(t, nil)
		crash(b, 1, 2, 3)
		b.settle()
		s := b.stored("t", 0)
		require.Equal(t, []int32{1, 2, 3}, s.ISR)
		require.Equal(t, int32(1), s.Leader)
		for id := int32(1); id <= 3; id++ {
			require.True(t, unmarked(b, id))
		}
	})
	t.Run("both kinds of topics", func(t *testing.T) {
		b, _ := start(t, background)
		b.command(topicNamed("u", 2, 1, 3, 2))
		b.settle()
		crash(b, 1, 2, 3)
		b.settle()
		require.NotEqual(t, protocol.NoLeader, b.stored("u", 0).Leader)
		require.Len(t, b.stored("u", 0).ISR, 3)
		require.Equal(t, protocol.NoLeader, b.stored("t", 0).Leader)
	})
	t.Run("all at once", func(t *testing.T) {
		b, id := start(t, background)
		crash(b, 1, 2, 3)
		b.settle()
		s := b.stored("t", 0)
		require.Equal(t, []int32{1, 2, 3}, s.ISR, "nobody knows who has most")
		require.Equal(t, protocol.NoLeader, s.Leader)
		require.False(t, unmarked(b, 1) || unmarked(b, 2) || unmarked(b, 3))
		b.back(1, 2, 3) // a clean end since does not bring the records back
		require.Equal(t, s, b.stored("t", 0))
		clear(b.out)

		r := b.elect(protocol.ElectUnclean, id, 2)
		b.settle()
		s = b.stored("t", 0)
		require.Equal(t, []int32{2}, s.ISR)
		require.Equal(t, int32(2), s.Leader)
		require.True(t, unmarked(b, 1) && unmarked(b, 2) && unmarked(b, 3))
		b.accept()
		require.Equal(t, map[uint64]protocol.Code{r: protocol.OK}, b.answers())
		b.propose(id, 2, 1)
		b.settle()
		require.Equal(t, []protocol.Code{protocol.OK}, b.verdicts(2))
	})
	t.Run("all at once, and the topic allows it", func(t *testing.T) {
		b, _ := start(t, func(c *TopicConfig) { c.Background, c.UncleanElection = true, true })
		crash(b, 1, 2, 3)
		b.settle()
		s := b.stored("t", 0)
		require.Equal(t, []int32{1}, s.ISR)
		require.Equal(t, int32(1), s.Leader)
		require.True(t, unmarked(b, 1) && unmarked(b, 2) && unmarked(b, 3))
		require.Len(t, b.unclean, 1)
	})
	t.Run("new partitions", func(t *testing.T) {
		b, id := start(t, background)
		b.shrink(id, 1)
		crash(b, 1) // keeps its mark: nobody else counts
		b.settle()
		for _, c := range []struct {
			topic protocol.Topic
			all   bool
		}{{topicNamed("u", 2, 3, 3, 1), true}, {topicNamed("v", 3, 3, 3, 1), false}} {
			c.topic.Config.Background = !c.all
			b.command(c.topic)
			b.settle()
			for n := range int32(3) {
				s := b.stored(c.topic.Name, n)
				require.Equal(t, c.all, s.InISR(1), "%s/%d", c.topic.Name, n)
				require.Equal(t, s.Replicas[0], s.Leader)
			}
		}
	})
}

// D20: a damaged log may be cleared once the replica has left the ISR and a leader
// epoch began after it had failed; then it comes back like any other.
func TestDamagedLogIsRepaired(t *testing.T) {
	recovered := func(b *metaBench, id protocol.PartitionID, from int32, epoch int32) {
		b.m.onReply(from, b.epochs[from], protocol.OrderReply{ID: id, LeaderEpoch: epoch, Accepted: true})
		b.settle()
	}
	joins := func(b *metaBench, id protocol.PartitionID, isr ...int32) protocol.Code {
		clear(b.out)
		leader := b.stored("t", 0).Leader
		b.propose(id, isr...)
		b.settle()
		codes := b.verdicts(leader)
		require.Len(b.t, codes, 1)
		return codes[0]
	}
	t.Run("a follower's", func(t *testing.T) {
		b := newMetaBench(t, 1, 2, 3)
		id := b.topicOf(3, nil)
		before := b.stored("t", 0)
		b.fails(id, 3, protocol.StorageFailed)
		s := b.stored("t", 0)
		require.Equal(t, []int32{1, 2}, s.ISR)
		require.Equal(t, int32(1), s.Leader)
		require.Equal(t, before.LeaderEpoch+1, s.LeaderEpoch)
		require.Equal(t, before.PartitionEpoch+1, s.PartitionEpoch, "in one write")

		b.fails(id, 3, protocol.StorageFailed) // it says so again, under the new epoch
		require.Equal(t, s, b.stored("t", 0), "once")
		require.Equal(t, protocol.Ineligible, joins(b, id, 1, 2, 3))
		recovered(b, id, 3, before.LeaderEpoch) // of the epoch in which it failed
		require.Equal(t, protocol.Ineligible, joins(b, id, 1, 2, 3))
		recovered(b, id, 3, s.LeaderEpoch)
		require.Equal(t, protocol.OK, joins(b, id, 1, 2, 3))
		s = b.stored("t", 0)

		b.fails(id, 3, protocol.StorageFailed) // the second time in this life
		require.Equal(t, []int32{1, 2}, b.stored("t", 0).ISR)
		require.Equal(t, s.LeaderEpoch, b.stored("t", 0).LeaderEpoch)
		recovered(b, id, 3, s.LeaderEpoch)
		require.Equal(t, protocol.Ineligible, joins(b, id, 1, 2, 3))
		b.back(3)
		require.Equal(t, protocol.OK, joins(b, id, 1, 2, 3))
	})
	t.Run("the leader's", func(t *testing.T) {
		b := newMetaBench(t, 1, 2, 3)
		id := b.topicOf(3, nil)
		b.fails(id, 1, protocol.StorageFailed)
		s := b.stored("t", 0)
		require.Equal(t, []int32{2, 3}, s.ISR)
		require.Equal(t, int32(2), s.Leader)
		require.Equal(t, int32(1), s.LeaderEpoch, "the election's own epoch will do")
		recovered(b, id, 1, 1)
		require.Equal(t, protocol.OK, joins(b, id, 2, 3, 1))
	})
	t.Run("that of one outside the ISR", func(t *testing.T) {
		b := newMetaBench(t, 1, 2, 3)
		id := b.topicOf(3, nil)
		b.shrink(id, 1, 2)
		b.fails(id, 3, protocol.StorageFailed)
		s := b.stored("t", 0)
		require.Equal(t, []int32{1, 2}, s.ISR)
		require.Equal(t, int32(1), s.LeaderEpoch)
		b.settle()
		require.Equal(t, s, b.stored("t", 0))
		recovered(b, id, 3, 1)
		require.Equal(t, protocol.OK, joins(b, id, 1, 2, 3))
	})
	t.Run("the sole member's", func(t *testing.T) {
		b := newMetaBench(t, 1, 2, 3)
		id := b.topicOf(3, nil)
		b.shrink(id, 1)
		b.fails(id, 1, protocol.StorageFailed)
		s := b.stored("t", 0)
		require.Equal(t, []int32{1}, s.ISR)
		require.Equal(t, protocol.NoLeader, s.Leader)
		require.Equal(t, int32(1), s.LeaderEpoch)
		b.fails(id, 1, protocol.StorageFailed)
		recovered(b, id, 1, 1)
		require.Equal(t, s, b.stored("t", 0), "its log is the only one that counts")
		b.elect(protocol.ElectUnclean, id, 2)
		b.settle()
		require.Equal(t, []int32{2}, b.stored("t", 0).ISR)
		recovered(b, id, 1, 2)
		require.Equal(t, protocol.OK, joins(b, id, 2, 1))
	})
	t.Run("one after the other, and the emptied one is of use", func(t *testing.T) {
		for _, bySetting := range []bool{false, true} {
			b := newMetaBench(t, 1, 2, 3)
			id := b.topicOf(3, func(c *TopicConfig) { c.UncleanElection = bySetting })
			b.shrink(id, 1, 2)
			b.fails(id, 2, protocol.StorageFailed)
			b.fails(id, 1, protocol.StorageFailed) // nobody else was in sync
			if !bySetting {
				require.Equal(t, protocol.NoLeader, b.stored("t", 0).Leader)
				b.fails(id, 3, protocol.StorageFailed)
				recovered(b, id, 2, b.stored("t", 0).LeaderEpoch)
				require.Equal(t, protocol.NoLeader, b.stored("t", 0).Leader, "not unasked")
				b.elect(protocol.ElectUnclean, id, -1)
				b.settle()
				require.EqualValues(t, 2, b.stored("t", 0).Leader)
				continue
			}
			recovered(b, id, 2, b.stored("t", 0).LeaderEpoch)
			require.EqualValues(t, 3, b.stored("t", 0).Leader, "it has what the emptied one has not")
			require.Equal(t, protocol.OK, joins(b, id, 3, 2))
			b.shrink(id, 3)
			b.gone(3)
			require.EqualValues(t, 2, b.stored("t", 0).Leader, "it was in sync")
		}
	})
	t.Run("the last member but one's, while the other is dead", func(t *testing.T) {
		b := newMetaBench(t, 1, 2, 3)
		id := b.topicOf(2, nil)
		b.fails(id, 2, protocol.StorageFailed)
		require.Equal(t, []int32{1}, b.stored("t", 0).ISR)
		b.gone(1)
		s := b.stored("t", 0)
		require.Equal(t, protocol.NoLeader, s.Leader)
		require.Equal(t, []int32{1}, s.ISR)
	})
}

// D16: an order that an unfit broker refused counts for this partition and this
// life, and no epoch begins for it: nothing is going to be cleared.
func TestOrderRefusedByUnfitBroker(t *testing.T) {
	b := newMetaBench(t, 1, 2, 3)
	topic := topicNamed("t", 1, 2, 3, 2)
	b.command(topic)
	b.settle()
	id, other := protocol.PartitionID{Topic: topic.ID}, b.stored("t", 1)
	clear(b.out)
	b.fails(id, 1, protocol.Unfit)
	s := b.stored("t", 0)
	require.Equal(t, int32(2), s.Leader)
	require.Equal(t, []int32{2, 3}, s.ISR)
	require.Equal(t, other, b.stored("t", 1), "of the other partition it has said nothing")
	b.fails(id, 3, protocol.Unfit)
	require.Equal(t, s.LeaderEpoch, b.stored("t", 0).LeaderEpoch)
	require.Equal(t, []int32{2}, b.stored("t", 0).ISR)
	clear(b.out)
	b.m.onReply(3, b.epochs[3], protocol.OrderReply{ID: id, LeaderEpoch: s.LeaderEpoch, Accepted: true})
	b.propose(id, 2, 3)
	b.settle()
	require.Equal(t, []protocol.Code{protocol.Ineligible}, b.verdicts(2))
	b.back(3)
	b.propose(id, 2, 3)
	b.settle()
	require.Equal(t, []protocol.Code{protocol.OK}, b.verdicts(2))
}

// PL-5: racks come from the registrations, also of brokers that are down.
func TestPlacementKnowsRacks(t *testing.T) {
	b := newMetaBench(t, 1, 2, 3, 4)
	racks := map[int32]string{1: "a", 2: "a", 3: "b", 4: "b"}
	for id, rack := range racks {
		kv, _, err := b.store.Get(t.Context(), brokerLastKey(id))
		require.NoError(t, err)
		var last lastLife
		mustUnmarshal(t, kv.Value, &last)
		last.Rack = rack
		b.put(brokerLastKey(id), last)
	}
	b.unregister(4)
	b.observe()
	require.Equal(t, racks, b.m.ground(&protocol.Topic{}).racks)
	b.command(topicNamed("t", 1, 6, 2, 1))
	b.settle()
	for n := range int32(6) {
		s := b.stored("t", n)
		require.NotEqual(t, racks[s.Replicas[0]], racks[s.Replicas[1]], "%v", s.Replicas)
	}
}

// PL-5: a broker says which rack it is in, for as long as it is registered and after that.
func TestRegistrationTellsItsRack(t *testing.T) {
	coord := memory.New(memory.Options{Manual: true})
	store, err := memstore.NewDisk().Open()
	require.NoError(t, err)
	defer store.Close()
	b := newBroker(Config{ID: 1, Rack: "a", Coordination: coord.Connect(), Store: store}.withDefaults())
	defer b.cancel()
	_, _, err = newRegistrar(b).register()
	require.NoError(t, err)
	get := func(key string, v any) {
		kv, ok, err := coord.Connect().Get(t.Context(), key)
		require.NoError(t, err)
		require.True(t, ok)
		mustUnmarshal(t, kv.Value, v)
	}
	var now registration
	var last lastLife
	get(brokerIDKey(1), &now)
	get(brokerLastKey(1), &last)
	require.Equal(t, "a", now.Rack)
	require.Equal(t, "a", last.Rack)
}

// D20: an emptied log is the last choice under the next Controller, and in the next
// registration of its broker, too.
func TestEmptiedLogIsKnownToTheNextController(t *testing.T) {
	for name, happens := range map[string]func(b *metaBench){
		"the next controller": func(b *metaBench) { b.successor(); b.settle() },
		"a new registration":  func(b *metaBench) { b.gone(2); b.back(2) },
	} {
		t.Run(name, func(t *testing.T) {
			b := newMetaBench(t, 1, 2, 3)
			id := b.topicOf(3, func(c *TopicConfig) { c.UncleanElection = true })
			b.shrink(id, 1, 2) // 3 lags
			b.fails(id, 2, protocol.StorageFailed)
			says := func() {
				life := b.m.brokers[2].epoch
				b.m.onReply(2, life, protocol.OrderReply{ID: id, LeaderEpoch: b.stored("t", 0).LeaderEpoch, Accepted: true})
				b.settle()
			}
			says()
			happens(b)
			says() // as with every state that comes
			require.EqualValues(t, 1, b.stored("t", 0).Leader)
			b.gone(1)
			require.EqualValues(t, 3, b.stored("t", 0).Leader, "it has what the emptied one has not")
		})
	}
}
