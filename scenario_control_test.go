package tidemark

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/coordination/memory"
	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/storage/memstore"
)

// rest is settle for worlds in which the Controller has to act upon the registry
// alone: every control loop gets a turn in every round, as it does when its watch fires.
func (w *simWorld) rest(d time.Duration) {
	for end := w.now + d; w.now < end; {
		for _, b := range w.up() {
			b.broker.control.post(func(time.Duration) {})
		}
		w.round()
		w.advance(5 * time.Millisecond)
	}
}

// controllers are the brokers that act as Controller.
func (w *simWorld) controllers() (ids []int32) {
	for _, b := range w.up() {
		if b.broker.control.meta != nil {
			ids = append(ids, b.id)
		}
	}
	return ids
}

// controller is the one broker that acts as Controller.
func (w *simWorld) controller() *simBroker {
	ids := w.controllers()
	require.Len(w.t, ids, 1)
	return w.brokers[ids[0]]
}

// term is the controller epoch in the coordination store.
func (w *simWorld) term() int32 {
	kv, _, err := w.reader.Get(w.t.Context(), controllerEpochKey)
	require.NoError(w.t, err)
	var term controllerTerm
	mustUnmarshal(w.t, kv.Value, &term)
	return term.Epoch
}

// topics are all keys of topics and partitions, with what they hold.
func (w *simWorld) topics() map[string]string {
	kvs, _, err := w.reader.List(w.t.Context(), topicsPrefix)
	require.NoError(w.t, err)
	keys := make(map[string]string)
	for _, kv := range kvs {
		keys[kv.Key] = string(kv.Value)
	}
	return keys
}

// A proposal that names a member's earlier life comes late: the member's empty
// log does not get into the ISR, whether the Controller knows of its new life or not.
func TestS064DelayedProposalNamesAnEarlierLife(t *testing.T) {
	start := func(t *testing.T) (b *metaBench, late func()) {
		b = newMetaBench(t, 1, 2)
		b.command(topicNamed("t", 1, 1, 2, 1))
		b.settle()
		id := protocol.PartitionID{Topic: protocol.UUID{1}}
		b.propose(id, 1)
		b.settle()
		clear(b.out)
		s := b.m.parts[id].state
		prop := b.proposal(protocol.Proposal{ID: id, LeaderEpoch: s.LeaderEpoch, PartitionEpoch: s.PartitionEpoch, ISR: []protocol.Member{
			{ID: 1, Epoch: b.epochs[1]}, {ID: 2, Epoch: b.epochs[2]},
		}})
		return b, func() { b.m.onProposal(1, b.epochs[1], prop) }
	}
	t.Run("the Controller knows", func(t *testing.T) {
		b, late := start(t)
		b.register(2)
		b.observe()
		late()
		b.settle()
		require.Equal(t, []protocol.Code{protocol.Ineligible}, b.verdicts(1))
		require.Equal(t, []int32{1}, b.stored("t", 0).ISR)
	})
	t.Run("only the store knows", func(t *testing.T) {
		b, late := start(t)
		late()
		b.turn()
		w := b.write()
		b.register(2)
		b.answer(w)
		require.Equal(t, []int32{1}, b.stored("t", 0).ISR)
		b.reread() // and it is judged again, in a while
		require.Empty(t, b.writes)
		require.Empty(t, b.verdicts(1))
		b.observe()
		b.pause()
		b.settle()
		require.Equal(t, []protocol.Code{protocol.Ineligible}, b.verdicts(1))
		require.Equal(t, []int32{1}, b.stored("t", 0).ISR)
	})
	t.Run("it is gone", func(t *testing.T) {
		b, late := start(t)
		late()
		b.turn()
		w := b.write()
		b.unregister(2)
		b.answer(w)
		b.reread()
		b.observe()
		b.pause()
		b.settle()
		require.Equal(t, []protocol.Code{protocol.Ineligible}, b.verdicts(1))
		require.Equal(t, []int32{1}, b.stored("t", 0).ISR)
	})
}

// Two of five brokers go at once: every partition loses them in one write, and
// nobody that went is elected.
func TestS090SeveralBrokersGoAtOnce(t *testing.T) {
	b := newMetaBench(t, 5, 1, 2, 3, 4)
	b.command(topicNamed("foo", 1, 3, 3, 2))
	b.settle()
	lists := [][]int32{{1, 2, 3}, {2, 3, 4}, {5, 2, 1}}
	for n, list := range lists {
		s := b.stored("foo", int32(n))
		s.Replicas, s.ISR, s.Leader, s.LeaderBrokerEpoch = list, list, list[0], b.epochs[list[0]]
		b.storeState("foo", int32(n), s)
	}
	b.load(1)
	b.settle()
	b.unregister(2, 3)
	b.observe()
	b.settle()
	for n, want := range []struct {
		isr    []int32
		leader int32
		epoch  int32
	}{{[]int32{1}, 1, 0}, {[]int32{4}, 4, 1}, {[]int32{5, 1}, 5, 0}} {
		s := b.stored("foo", int32(n))
		require.Equal(t, want.isr, s.ISR)
		require.Equal(t, want.leader, s.Leader)
		require.Equal(t, want.epoch, s.LeaderEpoch)
		require.Equal(t, int32(1), s.PartitionEpoch, "one write for each")
		require.Equal(t, int32(1), s.ControllerEpoch)
	}
}

func TestS104ControllerEpochGrowsAndSurvivesAFullStop(t *testing.T) {
	w := newSimWorld(t, 104, 3)
	w.rest(simSession)
	require.Equal(t, int32(1), w.term())
	first := w.controller()
	first.crash(0)
	w.rest(3 * simSession)
	require.Equal(t, int32(2), w.term())
	second := w.controller()
	require.NotEqual(t, first.id, second.id)
	require.Equal(t, int32(2), second.broker.control.meta.epoch)

	for _, b := range w.up() {
		b.crash(0)
	}
	w.rest(3 * simSession)
	require.Equal(t, int32(2), w.term())
	for _, b := range w.all() {
		b.start()
	}
	w.rest(simSession)
	require.Equal(t, int32(3), w.term())
	for _, b := range w.up() {
		require.Equal(t, int32(3), b.broker.control.member.controllerEpoch)
		require.Equal(t, w.controller().id, b.broker.controllerID())
	}
}

func TestS105ZombieControllerWrites(t *testing.T) {
	w := newSimWorld(t, 105, 3)
	w.createTopic("t", TopicConfig{Partitions: 1, ReplicationFactor: 3, MinISR: 2})
	zombie := w.controller()
	before := w.topics()
	_, err := w.reader.Do(t.Context(), coordination.Txn{Ops: []coordination.Op{
		{Key: controllerKey, Value: marshal(controllerClaim{Broker: 99})}, {Key: controllerEpochKey, Value: marshal(controllerTerm{Epoch: 50})},
	}})
	require.NoError(t, err)

	control := zombie.broker.control
	control.post(func(time.Duration) {
		control.meta.onCommand(zombie.id, zombie.broker.epoch.Load(), protocol.Command{
			Request: 1, Kind: protocol.CreateTopic, Topic: topicNamed("u", 9, 1, 3, 2),
		})
	})
	zombie.run()
	require.NotNil(t, control.meta, "it does not know yet")
	zombie.callCoordination() // the write is refused
	zombie.callCoordination() // and the re-read tells why
	require.Nil(t, control.meta)
	require.Equal(t, before, w.topics())
	require.Equal(t, int32(50), w.term())
	w.rest(simSession)
	require.Empty(t, w.controllers(), "another broker holds the key")
	require.Equal(t, before, w.topics())
}

// A broker that has heard of a newer Controller refuses what an older one says,
// and tells it so.
func TestS106ZombieControllerOrders(t *testing.T) {
	w := newSimWorld(t, 106, 3)
	topic := w.createTopic("t", TopicConfig{Partitions: 1, ReplicationFactor: 3, MinISR: 2})
	id := protocol.PartitionID{Topic: topic.ID}
	zombie := w.controller()
	b := w.brokers[zombie.id%3+1]
	b.broker.control.post(func(time.Duration) { b.broker.control.member.onController(-1, 8) })
	b.run()
	before := *b.broker.loops[0].shard.replicas[id].snapshot(w.now)

	forged := w.stored("t", 0)
	forged.Leader, forged.LeaderEpoch, forged.PartitionEpoch, forged.ISR = b.id, 40, 40, []int32{b.id}
	b.broker.deliver(zombie.id, zombie.broker.epoch.Load(), &protocol.Payload{Updates: []protocol.Update{
		{ControllerEpoch: 1, Seq: 1, Full: true, States: []protocol.PartitionUpdate{{ID: id, State: forged}}},
	}})
	b.run()
	require.Equal(t, before.LeaderEpoch, b.broker.loops[0].shard.replicas[id].snapshot(w.now).LeaderEpoch)
	s, ok, _ := b.broker.view.state(id)
	require.True(t, ok)
	require.NotEqual(t, int32(40), s.LeaderEpoch)
	require.Equal(t, int32(8), b.broker.controllerTerm.Load())
	for len(w.flights) > 0 {
		w.deliver(0)
	}
	require.Nil(t, zombie.broker.control.meta, "it was told, and resigned")
}

// hookedStore lets a test act just before a transaction is run.
type hookedStore struct {
	coordination.Store
	before func(coordination.Txn)
}

func (s hookedStore) Do(ctx context.Context, t coordination.Txn) (coordination.TxnResult, error) {
	if s.before != nil {
		s.before(t)
	}
	return s.Store.Do(ctx, t)
}

// Two brokers have read the same epoch, and both go for the key: one wins, and
// the epoch rises by one.
func TestS108TwoCandidatesRace(t *testing.T) {
	w := newSimWorld(t, 108, 2)
	type outcome struct {
		meta *metadata
		err  error
	}
	campaign := func(b *simBroker) (o outcome) {
		o.meta, o.err = b.broker.control.campaign(b.session, b.broker.control.epoch, coordination.KV{})
		return o
	}
	slow, fast := w.brokers[1], w.brokers[2]
	var won, lost outcome
	raced := false
	slow.broker.cfg.Coordination = hookedStore{slow.client, func(coordination.Txn) {
		require.False(t, raced, "the loser tries once")
		raced = true
		won = campaign(fast)
	}}
	lost = campaign(slow)
	require.True(t, raced)
	require.NoError(t, won.err)
	require.NotNil(t, won.meta)
	require.Equal(t, int32(1), won.meta.epoch)
	require.Equal(t, outcome{}, lost)
	require.Equal(t, int32(1), w.term())

	// CE-2: an answer that was lost does not cost the win, nor a second epoch.
	_, err := w.reader.Do(t.Context(), coordination.Txn{Ops: []coordination.Op{{Key: controllerKey, Delete: true}}})
	require.NoError(t, err)
	w.coord.LoseReplies(1)
	again := campaign(fast)
	require.NoError(t, again.err)
	require.NotNil(t, again.meta)
	require.Equal(t, int32(2), w.term())

	// A request that was lost is an error, and wins nothing.
	_, err = w.reader.Do(t.Context(), coordination.Txn{Ops: []coordination.Op{{Key: controllerKey, Delete: true}}})
	require.NoError(t, err)
	w.coord.DropRequests(1)
	failed := campaign(fast)
	require.ErrorIs(t, failed.err, coordination.ErrUnavailable)
	require.Nil(t, failed.meta)
	require.Equal(t, int32(2), w.term())
}

// The Controller's session ends: it stops at once, what it had begun is refused or
// ignored, and it acts again only after it was elected anew.
func TestS109ControllerLosesItsSession(t *testing.T) {
	w := newSimWorld(t, 109, 3)
	topic := w.createTopic("t", TopicConfig{Partitions: 1, ReplicationFactor: 3, MinISR: 2})
	old := w.controller()
	control, meta := old.broker.control, old.broker.control.meta
	before := w.topics()

	control.post(func(time.Duration) {
		meta.onCommand(old.id, old.broker.epoch.Load(), protocol.Command{
			Request: 1, Kind: protocol.CreateTopic, Topic: topicNamed("u", 9, 1, 3, 2),
		})
	})
	old.run() // its write is on its way to the store
	old.loseSession()
	require.Nil(t, control.meta)
	require.Nil(t, control.session)
	control.post(func(now time.Duration) { // a proposal that was queued before
		control.onPayload(old.id, old.broker.epoch.Load(), &protocol.Payload{Proposals: []protocol.Proposal{{ID: protocol.PartitionID{Topic: topic.ID}}}})
	})
	control.stand() // without a session it does not
	require.False(t, control.claiming)
	var next *simBroker
	for _, b := range w.up() {
		if b != old {
			b.notice()
			b.callCoordination()
			if b.broker.control.meta != nil {
				next = b
			}
		}
	}
	require.NotNil(t, next)
	require.Equal(t, meta.epoch+1, next.broker.control.meta.epoch)
	old.callCoordination()
	require.Nil(t, control.meta, "the answer to its write is nothing to it any more")
	require.Equal(t, before, w.topics(), "its write came after the new Controller's")

	w.rest(2 * simSession)
	require.Equal(t, []int32{next.id}, w.controllers())
	require.Equal(t, int32(2), w.term())
	require.NotNil(t, control.session, "it registered again")
	w.append(w.up()[0], protocol.PartitionID{Topic: topic.ID}, AcksAll)
	w.rest(simSession)
	require.Equal(t, 1, w.check.stats.acks)
	require.NoError(t, w.check.err())
}

// flakyStore fails one call around the claim of the Controller's key.
type flakyStore struct {
	coordination.Store
	dropDo, failGet, failList bool
	claimed                   bool
}

func claims(t coordination.Txn) bool {
	return slices.ContainsFunc(t.Ops, func(op coordination.Op) bool { return op.Key == controllerKey && !op.Delete })
}

func (s *flakyStore) Do(ctx context.Context, t coordination.Txn) (coordination.TxnResult, error) {
	if claims(t) {
		if s.dropDo {
			s.dropDo = false
			return coordination.TxnResult{}, coordination.ErrUnavailable
		}
		s.claimed = true
	}
	return s.Store.Do(ctx, t)
}

func (s *flakyStore) Get(ctx context.Context, key string) (coordination.KV, bool, error) {
	if s.claimed && s.failGet {
		s.failGet = false
		return coordination.KV{}, false, coordination.ErrUnavailable
	}
	return s.Store.Get(ctx, key)
}

func (s *flakyStore) List(ctx context.Context, prefix string) ([]coordination.KV, int64, error) {
	if s.claimed && s.failList && prefix == topicsPrefix {
		s.failList = false
		return nil, 0, coordination.ErrUnavailable
	}
	return s.Store.List(ctx, prefix)
}

// CE-9: one failed call while a broker goes for the Controller's key does not leave
// the cluster without a Controller, even when nothing else happens.
func TestCampaignIsRepeated(t *testing.T) {
	for name, flaky := range map[string]*flakyStore{
		"the transaction fails":    {dropDo: true},
		"the re-read fails":        {failGet: true},
		"loading the topics fails": {failList: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				coord := memory.New(memory.Options{})
				defer coord.Close()
				flaky.Store = coord.Connect()
				store, err := memstore.NewDisk().Open()
				require.NoError(t, err)
				defer store.Close()
				b, err := Open(t.Context(), Config{ID: 1, Store: store, Coordination: flaky, SessionTimeout: time.Second})
				require.NoError(t, err)
				defer b.Close()
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
				defer cancel()
				require.NoError(t, b.Ready(ctx))
			})
		})
	}
}

// A leader's answer that it cannot go on gets lost because the Controller dies. The
// next Controller sends the same order again, and must hear it then.
func TestRefusalIsRepeatedToTheNextController(t *testing.T) {
	w := newSimWorld(t, 7, 3)
	topic := w.createTopic("t", TopicConfig{Partitions: 3, ReplicationFactor: 3, MinISR: 2})
	controller := w.controller()
	var id protocol.PartitionID
	for n := range int32(3) {
		if w.stored("t", n).Leader != controller.id {
			id = protocol.PartitionID{Topic: topic.ID, Partition: n}
		}
	}
	leader := w.brokers[w.stored("t", id.Partition).Leader]
	controller.crash(0) // before it hears
	loop := leader.broker.loops[0]
	loop.inbox.put(loopEvent{step: func(_ time.Duration, s *shard) { s.replicas[id].fail(errBehindHW) }})
	loop.turn(loop.inbox.take(nil))
	w.flights = nil
	w.rest(10 * simSession)
	require.Len(t, w.controllers(), 1)
	s := w.stored("t", id.Partition)
	require.NotEqual(t, leader.id, s.Leader, "led by a replica that has failed: %+v", s)
}
