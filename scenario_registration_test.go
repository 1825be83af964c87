package tidemark

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/coordination/memory"
	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/storage/memstore"
)

// alone is a broker in a bubble, on a disk and a coordination store that outlive it.
type alone struct {
	broker *Broker
	store  *memstore.Store
	client *memory.Client
}

func openAlone(t *testing.T, coord *memory.Store, disk *memstore.Disk) *alone {
	a := &alone{client: coord.Connect()}
	var err error
	a.store, err = disk.Open()
	require.NoError(t, err)
	a.broker, err = Open(t.Context(), Config{
		ID: 1, Address: "here", Store: a.store, Coordination: a.client, SessionTimeout: simSession, MemoryBudget: 1 << 20, Loops: 1,
	})
	require.NoError(t, err)
	return a
}

// crash ends the broker as a power cut does: its session is left behind.
func (a *alone) crash(t *testing.T, disk *memstore.Disk) {
	a.client.Fence()
	disk.Crash(0)
	require.NoError(t, a.broker.Close())
}

func (a *alone) close(t *testing.T) {
	require.NoError(t, a.broker.Close())
	require.NoError(t, a.store.Close())
}

// S-95, S-113: who may register. The session of a broker that crashed is still there.
// Its own directory need not wait for it; another one has to, and is then marked as not
// being the disk that the cluster knows.
func TestS095Registration(t *testing.T) {
	last := func(coord *memory.Store) (l lastLife) {
		kv, ok, err := coord.Connect().Get(t.Context(), brokerLastKey(1))
		require.NoError(t, err)
		require.True(t, ok)
		mustUnmarshal(t, kv.Value, &l)
		return l
	}
	t.Run("its own directory, at once", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			coord, disk := memory.New(memory.Options{}), memstore.NewDisk()
			defer coord.Close()
			epoch := int64(0)
			for range 3 {
				a := openAlone(t, coord, disk)
				began := time.Now()
				require.NoError(t, a.broker.Ready(t.Context()))
				require.Less(t, time.Since(began), simSession/2, "it does not wait for its own dead session")
				require.Greater(t, a.broker.Status().BrokerEpoch, epoch, "another life (BR-1)")
				epoch = a.broker.Status().BrokerEpoch
				require.Equal(t, epoch, a.store.Node().BrokerEpoch, "it is on the disk")
				require.False(t, last(coord).Replaced)
				a.crash(t, disk)
			}
		})
	})
	t.Run("another directory, after the session", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			coord, disk := memory.New(memory.Options{}), memstore.NewDisk()
			defer coord.Close()
			first := openAlone(t, coord, disk)
			defer first.close(t)
			require.NoError(t, first.broker.Ready(t.Context()))
			epoch := first.broker.Status().BrokerEpoch

			other := memstore.NewDisk()
			second := openAlone(t, coord, other)
			defer second.close(t)
			pause(5 * simSession)
			require.ErrorIs(t, second.broker.Status().Registration, ErrDuplicateBroker)
			require.ErrorContains(t, second.broker.Status().Registration, "here", "it says where the other one is")
			require.Zero(t, second.broker.Status().BrokerEpoch)
			require.NoError(t, first.broker.Ready(t.Context()), "the first one is not disturbed")
			require.Equal(t, epoch, first.broker.Status().BrokerEpoch)

			first.client.Fence()
			pause(5 * simSession)
			require.Greater(t, second.broker.Status().BrokerEpoch, epoch)
			require.NoError(t, second.broker.Status().Registration)
			require.Equal(t, second.store.Node().Directory, last(coord).Directory)
		})
	})
	t.Run("an answer that was lost is no other life", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			coord, disk := memory.New(memory.Options{}), memstore.NewDisk()
			defer coord.Close()
			first := openAlone(t, coord, disk)
			require.NoError(t, first.broker.Ready(t.Context()))
			first.crash(t, disk)
			pause(2 * simSession)
			coord.LoseReplies(1)
			a := openAlone(t, coord, disk)
			defer a.close(t)
			require.NoError(t, a.broker.Ready(t.Context()))
			kv, _, err := coord.Connect().Get(t.Context(), brokerIDKey(1))
			require.NoError(t, err)
			require.Equal(t, kv.Revision, a.broker.Status().BrokerEpoch, "found by the session that holds the key (CE-10)")
		})
	})
}

// R11: the coordination store is empty, belongs to another cluster, or is an old copy.
// A broker does not take that for an order to forget its logs: it says what is wrong,
// takes no role, and touches nothing.
func TestR11MetadataThatIsNotItsOwn(t *testing.T) {
	for name, c := range map[string]struct {
		now  func(t *testing.T, was []coordination.KV) *memory.Store
		want error
	}{
		"empty": {func(*testing.T, []coordination.KV) *memory.Store { return memory.New(memory.Options{}) }, ErrWrongCluster},
		"of another cluster": {func(t *testing.T, _ []coordination.KV) *memory.Store {
			coord := memory.New(memory.Options{})
			put(t, coord, clusterKey, []byte(protocol.UUID{9}.String()))
			return coord
		}, ErrWrongCluster},
		"an old copy": {func(t *testing.T, was []coordination.KV) *memory.Store {
			coord := memory.New(memory.Options{})
			for _, kv := range was { // as it was before the broker came
				if !strings.HasPrefix(kv.Key, "/brokers") && !strings.HasPrefix(kv.Key, controllerKey) {
					put(t, coord, kv.Key, kv.Value)
				}
			}
			return coord
		}, ErrCoordinationBehind},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				coord, disk := memory.New(memory.Options{}), memstore.NewDisk()
				defer coord.Close()
				a := openAlone(t, coord, disk)
				require.NoError(t, a.broker.Ready(t.Context()))
				require.NoError(t, a.broker.Controller().CreateTopic(t.Context(), "t", TopicConfig{ReplicationFactor: 1}))
				_, err := a.broker.Partition("t", 0).Append(t.Context(), Record{Value: []byte("x")})
				require.NoError(t, err)
				was, _, err := a.client.List(t.Context(), "/")
				require.NoError(t, err)
				before, err := a.store.Logs()
				require.NoError(t, err)
				require.NotEmpty(t, before)
				a.close(t)

				other := c.now(t, was)
				defer other.Close()
				keys := func() []coordination.KV {
					kvs, _, err := other.Connect().List(t.Context(), "/")
					require.NoError(t, err)
					return kvs
				}
				found := keys()
				a = openAlone(t, other, disk)
				defer a.close(t)
				pause(10 * simSession)
				require.ErrorIs(t, a.broker.Ready(t.Context()), ErrUnfit)
				require.ErrorIs(t, a.broker.Status().Unfit, c.want)
				after, err := a.store.Logs()
				require.NoError(t, err)
				require.Equal(t, before, after)
				require.Equal(t, found, keys(), "nor does it write anything there")
			})
		})
	}
}

func put(t *testing.T, coord *memory.Store, key string, value []byte) {
	_, err := coord.Connect().Do(t.Context(), coordination.Txn{Ops: []coordination.Op{{Key: key, Value: value}}})
	require.NoError(t, err)
}

// wiped gives a broker that is down an empty disk.
func (b *simBroker) wiped() {
	b.directory = b.w.uuid()
	b.disk = memstore.NewDisk(memstore.Manual(), memstore.Directory(b.directory))
	b.w.check.down(b)
}

// R09, S-103: a broker of a stopped cluster comes back with an empty disk, before the
// others. It knows that it is not what it was: it leads nothing, its emptiness is copied
// by nobody, and once a member with the data is there it is filled like a new one.
func TestR09WipedBroker(t *testing.T) {
	start := func(t *testing.T) (w *simWorld, id protocol.PartitionID, a, b, c *simBroker) {
		w = newSimWorld(t, 9, 3)
		id = protocol.PartitionID{Topic: w.createTopic("t", TopicConfig{Partitions: 1, ReplicationFactor: 3, MinISR: 2}).ID}
		a, b, c = w.brokers[1], w.brokers[2], w.brokers[3]
		for range 5 {
			w.append(w.up()[0], id, AcksAll)
			w.rest(100 * time.Millisecond)
		}
		require.Equal(t, 5, w.check.stats.acks)
		return w, id, a, b, c
	}
	whole := func(t *testing.T, w *simWorld, id protocol.PartitionID, records int) {
		w.rest(5 * simSession)
		require.NoError(t, w.check.err())
		require.Len(t, w.stored("t", 0).ISR, 3)
		for _, x := range w.all() {
			require.Len(t, w.check.logs[x.id][id].entries, records, "broker %d", x.id)
			require.False(t, w.records.doubtful(x, false))
		}
	}
	t.Run("it is there before the others", func(t *testing.T) {
		w, id, a, b, c := start(t)
		for _, x := range w.all() {
			x.crash(0)
		}
		w.rest(3 * simSession)
		b.wiped()
		b.start()
		w.rest(5 * simSession)
		s := w.stored("t", 0)
		require.Equal(t, protocol.NoLeader, s.Leader, "an empty log leads nothing")
		require.NotContains(t, s.ISR, b.id)
		c.start()
		w.rest(5 * simSession)
		s = w.stored("t", 0)
		require.Equal(t, c.id, s.Leader)
		require.Len(t, w.check.logs[b.id][id].entries, 5, "filled")
		a.start()
		whole(t, w, id, 5)
	})
	t.Run("the only other one is behind", func(t *testing.T) {
		w, id, a, b, c := start(t)
		c.crash(0)
		w.rest(3 * simSession)
		w.append(a, id, AcksAll)
		w.rest(simSession)
		require.Equal(t, 6, w.check.stats.acks)
		a.crash(0)
		b.crash(0)
		w.rest(3 * simSession)
		b.wiped()
		b.start()
		c.start()
		w.rest(10 * simSession)
		s := w.stored("t", 0)
		require.Equal(t, protocol.NoLeader, s.Leader, "one is empty, the other was outside")
		require.True(t, slices.Contains(s.ISR, a.id))
		require.False(t, slices.Contains(s.ISR, c.id))
		a.start()
		whole(t, w, id, 6)
	})
}

// S-116: while a leader does not hear the Controller, both change the same partition: the
// leader proposes to admit one replica, the Controller takes a dead one out. The leader's
// proposal fails on its version. It learns the state in force with the refusal, goes on
// from there, and the ISR is full again soon.
func TestS116VersionConflictEnds(t *testing.T) {
	w := newSimWorld(t, 116, 4)
	topic := w.createTopic("t", TopicConfig{Partitions: 2, ReplicationFactor: 4, MinISR: 2})
	control := w.controller()
	n := int32(0)
	if w.stored("t", n).Leader == control.id {
		n = 1
	}
	id := protocol.PartitionID{Topic: topic.ID, Partition: n}
	leader := w.brokers[w.stored("t", n).Leader]
	require.NotEqual(t, control.id, leader.id)
	var others []*simBroker
	for _, b := range w.all() {
		if b != leader && b != control {
			others = append(others, b)
		}
	}
	late, gone := others[0], others[1]
	late.crash(0)
	w.rest(2 * simSession)
	w.append(leader, id, AcksAll)
	w.rest(100 * time.Millisecond)
	require.Len(t, w.stored("t", n).ISR, 3)

	late.start()
	pending := func() *pendingISR { return leader.broker.loops[0].shard.replicas[id].isr.pending }
	for pending() == nil {
		w.round()
		w.advance(time.Millisecond)
	}
	w.flights = nil // the proposal is lost
	w.cut[[2]int32{leader.id, control.id}], w.cut[[2]int32{control.id, leader.id}] = true, true
	gone.loseSession()
	control.notice()
	control.callCoordination()
	w.round()
	require.NotContains(t, w.stored("t", n).ISR, gone.id)
	require.Less(t, pending().proposal.PartitionEpoch, w.stored("t", n).PartitionEpoch, "the leader has not heard of it")
	clear(w.cut)

	began := w.now
	for len(w.stored("t", n).ISR) < 4 && w.now-began < 10*simSession {
		w.rest(50 * time.Millisecond)
	}
	require.Len(t, w.stored("t", n).ISR, 4)
	require.Less(t, w.now-began, 3*simSession)
	require.NoError(t, w.check.err())
	w.append(leader, id, AcksAll)
	w.rest(simSession)
	require.Equal(t, 2, w.check.stats.acks)
	require.Nil(t, pending())
}
