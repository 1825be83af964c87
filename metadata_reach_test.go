package tidemark

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/coordination/memory"
	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/storage/memstore"
	"github.com/tidemark-log/tidemark/transport/inproc"
)

const reachSession = 8 * time.Second

// reachBench is a metaBench whose Controller minds whom it reaches. The brokers
// answer what they are sent, except those that are mute.
type reachBench struct {
	*metaBench
	mute map[int32]bool
}

func newReachBench(t *testing.T, brokers ...int32) *reachBench {
	b := &reachBench{metaBench: newMetaBench(t, brokers...), mute: make(map[int32]bool)}
	b.m.session = reachSession
	b.settle()
	b.answerAll()
	return b
}

// answerAll has the brokers answer the updates that they were sent.
func (b *reachBench) answerAll() {
	for id, e := range b.m.brokers {
		if e.feed.linked && !b.mute[id] {
			b.m.onUpdateAck(id, protocol.UpdateAck{ControllerEpoch: b.m.epoch, Seq: e.feed.seq})
		}
	}
	b.turn()
}

// pass lets time go on, in the turns that the Controller asks for and no others.
func (b *reachBench) pass(d time.Duration) {
	for end := b.now + d; ; {
		at := b.m.nextWake()
		if at == 0 || at > end || b.resign != nil {
			b.now = end
			b.settle()
			b.answerAll()
			return
		}
		require.Greater(b.t, at, b.now, "a turn at once, again and again")
		b.now = at
		b.settle()
		b.answerAll()
	}
}

func (b *reachBench) link(up bool, ids ...int32) {
	for _, id := range ids {
		b.m.onLink(id, up)
	}
	b.settle()
	b.answerAll()
}

func (b *reachBench) leader() int32 { return b.stored("t", 0).Leader }

// D18: a leadership moves when its broker's link has been away, with the silence
// that ended it, for a session; the broker stays in the ISR, and nothing moves back.
func TestUnreachedLeaderMoves(t *testing.T) {
	start := func(t *testing.T) *reachBench {
		b := newReachBench(t, 1, 2, 3)
		b.topicOf(3, nil)
		b.gone(1)
		b.back(1)
		b.propose(protocol.PartitionID{Topic: protocol.UUID{1}}, 2, 3, 1)
		b.settle()
		b.accept()
		b.answerAll()
		require.Equal(t, int32(2), b.leader())
		require.Equal(t, []int32{2, 3, 1}, b.stored("t", 0).ISR)
		b.pass(2 * reachSession)
		require.Equal(t, int32(2), b.leader())
		require.Zero(t, b.m.nextWake(), "nothing is waited for")
		return b
	}
	t.Run("without a link", func(t *testing.T) {
		b := start(t)
		b.link(false, 2)
		b.pass(reachSession/2 - 1)
		require.Equal(t, int32(2), b.leader())
		b.pass(1)
		s := b.stored("t", 0)
		require.Equal(t, int32(1), s.Leader)
		require.Equal(t, []int32{2, 3, 1}, s.ISR)
		b.link(true, 2)
		b.pass(reachSession)
		require.Equal(t, s, b.stored("t", 0))
	})
	t.Run("a link that is back soon", func(t *testing.T) {
		b := start(t)
		before := b.stored("t", 0)
		for range 5 {
			b.link(false, 2)
			b.pass(reachSession / 4)
			b.link(true, 2)
			b.pass(time.Second)
		}
		require.Equal(t, before, b.stored("t", 0))
	})
	t.Run("an order is not answered", func(t *testing.T) {
		b := start(t)
		b.mute[2] = true
		b.pass(2 * reachSession)
		require.Equal(t, int32(2), b.leader(), "nothing was asked of it")
		b.command(topicNamed("u", 2, 1, 1, 1))
		b.settle()
		b.answerAll()
		b.pass(reachSession - 1)
		require.Equal(t, int32(2), b.leader())
		b.pass(1)
		require.Equal(t, int32(1), b.leader())
		b.mute[2] = false
		b.link(true, 2) // the whole image again, and this time it answers
		require.True(t, b.m.reached(2))
	})
	t.Run("one way: new sessions, and never an answer", func(t *testing.T) {
		b := start(t)
		b.mute[2] = true
		b.link(false, 2)
		for range 6 {
			b.link(true, 2)
			b.pass(reachSession / 8)
			b.link(false, 2)
			b.pass(reachSession / 16)
		}
		require.Equal(t, int32(1), b.leader())
	})
	t.Run("slow, but it answers", func(t *testing.T) {
		b := start(t)
		b.mute[2] = true
		last := b.m.brokers[2].feed.seq
		for n := range byte(8) { // each answer after nine tenths of a session
			b.command(topicNamed(string(rune('a'+n)), 10+n, 1, 1, 1))
			b.settle()
			sent := b.m.brokers[2].feed.seq
			require.Greater(t, sent, last)
			b.pass(reachSession * 45 / 100)
			b.m.onUpdateAck(2, protocol.UpdateAck{ControllerEpoch: 1, Seq: last})
			b.turn()
			last = sent
		}
		require.Equal(t, int32(2), b.leader())
	})
	t.Run("it registers anew", func(t *testing.T) {
		b := start(t)
		b.m.onLink(2, false)
		b.back(2)
		require.Equal(t, int32(1), b.leader(), "another life: the leader has failed (D11)")
		require.True(t, b.m.reached(2), "a whole session to be heard of")
		b.pass(reachSession - 1)
		require.True(t, b.m.reached(2))
		b.pass(1)
		require.False(t, b.m.reached(2))
	})
}

// D18: who is not reached is not elected, and the last one that could lead keeps what it leads.
func TestUnreachedIsNotElected(t *testing.T) {
	b := newReachBench(t, 1, 2, 3)
	id := b.topicOf(3, unclean)
	b.pass(2 * reachSession)
	b.propose(id, 1, 2)
	b.settle()
	b.answerAll()
	b.link(false, 2)
	b.pass(reachSession)
	require.Equal(t, int32(1), b.leader())
	b.gone(1)
	s := b.stored("t", 0)
	require.Equal(t, protocol.NoLeader, s.Leader, "broker 2 is in sync and lives: nobody else is taken, not even by the topic's setting")
	require.Equal(t, []int32{1, 2}, s.ISR)
	r := b.elect(protocol.ElectUnclean, id, 3)
	b.settle()
	require.Equal(t, map[uint64]protocol.Code{r: protocol.NoCandidate}, b.answers())
	b.link(true, 2)
	require.Equal(t, int32(2), b.leader())
	require.Equal(t, []int32{2}, b.stored("t", 0).ISR)
	require.Empty(t, b.unclean)
}

// D18: new partitions are led by who is reached.
func TestUnreachedInPlacement(t *testing.T) {
	b := newReachBench(t, 1, 2, 3)
	b.pass(2 * reachSession)
	b.link(false, 2)
	b.pass(reachSession)
	b.command(topicNamed("u", 2, 4, 3, 1))
	b.settle()
	for n := range int32(4) {
		s := b.stored("u", n)
		require.NotEqual(t, int32(2), s.Replicas[0])
		require.NotContains(t, s.ISR, int32(2))
	}
}

// D18: a Controller that reaches fewer than half of the brokers writes nothing, and
// resigns after two sessions.
func TestCutOffController(t *testing.T) {
	start := func(t *testing.T, brokers ...int32) (*reachBench, protocol.PartitionID) {
		b := newReachBench(t, brokers...)
		id := b.topicOf(3, nil)
		b.pass(2 * reachSession)
		require.Equal(t, int32(1), b.leader())
		return b, id
	}
	t.Run("moves nothing", func(t *testing.T) {
		b, id := start(t, 1, 2, 3)
		before := b.stored("t", 0)
		b.link(false, 2, 3)
		b.pass(reachSession / 2)
		b.propose(id, 1) // its own leader wants to go on alone
		b.settle()
		r := b.command(topicNamed("u", 2, 1, 1, 1))
		b.settle()
		require.Equal(t, map[uint64]protocol.Code{r: protocol.NotController}, b.answers())
		b.unregister(3)
		b.observe() // now it reaches half
		b.settle()
		require.Equal(t, []int32{1, 2}, b.stored("t", 0).ISR, "the dead one leaves")
		require.Equal(t, before.PartitionEpoch+1, b.stored("t", 0).PartitionEpoch, "the wish rests on what was before")
		b.pass(4 * reachSession)
		require.NoError(t, b.resign)
	})
	t.Run("resigns", func(t *testing.T) {
		b, id := start(t, 1, 2, 3)
		before := b.stored("t", 0)
		b.link(false, 2, 3)
		b.pass(reachSession / 2)
		b.propose(id, 1)
		b.pass(2*reachSession - 1)
		require.NoError(t, b.resign)
		require.Equal(t, before, b.stored("t", 0))
		require.Equal(t, b.now+1, b.m.nextWake())
		b.pass(1)
		require.ErrorIs(t, b.resign, errCutOff)
		require.Equal(t, before, b.stored("t", 0))
	})
	t.Run("a link comes back in time", func(t *testing.T) {
		b, _ := start(t, 1, 2, 3)
		b.link(false, 2, 3)
		b.pass(2 * reachSession)
		b.link(true, 3)
		b.pass(4 * reachSession)
		require.NoError(t, b.resign)
		b.link(false, 3)
		b.pass(2 * reachSession)
		require.NoError(t, b.resign, "the two sessions begin anew")
		b.pass(reachSession / 2)
		require.ErrorIs(t, b.resign, errCutOff)
	})
	t.Run("half is enough", func(t *testing.T) {
		b, _ := start(t, 1, 2, 3, 4)
		b.link(false, 2, 3)
		b.pass(5 * reachSession)
		require.NoError(t, b.resign)
		b.link(false, 4)
		b.pass(5 * reachSession)
		require.ErrorIs(t, b.resign, errCutOff)
	})
	t.Run("one of two", func(t *testing.T) {
		b := newReachBench(t, 1, 2)
		b.topicOf(2, nil)
		b.link(false, 2)
		b.pass(9 * reachSession)
		require.NoError(t, b.resign)
	})
	t.Run("brokers that are gone do not count", func(t *testing.T) {
		b, _ := start(t, 1, 2, 3)
		b.link(false, 2, 3)
		b.gone(2, 3)
		b.pass(9 * reachSession)
		require.NoError(t, b.resign)
		require.Equal(t, []int32{1}, b.stored("t", 0).ISR)
	})
	t.Run("a new Controller has a session to find the others", func(t *testing.T) {
		b := newMetaBench(t, 1, 2, 3)
		b.m.meet(b.now, reachSession, nil)
		b.observe()
		for id := int32(1); id <= 3; id++ {
			b.m.onLink(id, id == 1)
		}
		r := &reachBench{metaBench: b}
		r.topicOf(3, nil)
		r.answerAll()
		require.Equal(t, []int32{1, 2, 3}, b.stored("t", 0).ISR)
		r.pass(reachSession - 1)
		require.Zero(t, b.m.cutOff)
		r.pass(1)
		require.NotZero(t, b.m.cutOff)
		r.pass(2 * reachSession)
		require.ErrorIs(t, b.resign, errCutOff)
	})
}

func TestStandAside(t *testing.T) {
	const s = reachSession
	var aside time.Duration
	for _, want := range []time.Duration{2, 4, 8, 16, 16} {
		aside = standAside(aside, 3*s, s)
		require.Equal(t, want*s, aside)
	}
	require.Equal(t, 2*s, standAside(aside, 60*s, s), "it was all right in between")
}

// D18: the Controller's broker is cut off from both others and not from the
// coordination store. Another one becomes the Controller, what the first one led
// moves, and nothing that it wants recorded meanwhile is.
func TestControllerCutOffByTheNetwork(t *testing.T) {
	for name, cut := range map[string]func(n *inproc.Network, from int32, to []int32){
		"both ways": func(n *inproc.Network, from int32, to []int32) {
			for _, id := range to {
				n.CutOneWay(from, id)
				n.CutOneWay(id, from)
			}
		},
		"it is not heard": func(n *inproc.Network, from int32, to []int32) {
			for _, id := range to {
				n.CutOneWay(from, id)
			}
		},
		"it does not hear": func(n *inproc.Network, from int32, to []int32) {
			for _, id := range to {
				n.CutOneWay(id, from)
			}
		},
	} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { cutOffController(t, cut) }) })
	}
}

func cutOffController(t *testing.T, cut func(n *inproc.Network, from int32, to []int32)) {
	const session = time.Second
	ctx := t.Context()
	coord, network := memory.New(memory.Options{}), inproc.New(inproc.Options{})
	defer func() { require.NoError(t, coord.Close()) }()
	brokers := make(map[int32]*Broker)
	for id := int32(1); id <= 3; id++ {
		store, err := memstore.NewDisk().Open()
		require.NoError(t, err)
		defer store.Close()
		b, err := Open(ctx, Config{
			ID: id, Store: store, Coordination: coord.Connect(), Transport: network.Transport(id), Loops: 1,
			SessionTimeout: session, MaxLag: 2 * session, MemoryBudget: 8 << 20,
		})
		require.NoError(t, err)
		defer b.Close()
		brokers[id] = b
	}
	for _, b := range brokers {
		require.NoError(t, b.Ready(ctx))
	}
	until := func(limit time.Duration, what string, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(limit); !ok(); {
			require.True(t, time.Now().Before(end), what)
			<-time.After(5 * time.Millisecond)
		}
	}
	require.NoError(t, brokers[1].Controller().CreateTopic(ctx, "t", TopicConfig{Partitions: 3, ReplicationFactor: 3, MinISR: 2}))
	reader := coord.Connect()
	state := func(n int32) (s protocol.PartitionState) {
		kv, ok, err := reader.Get(ctx, partitionKey("t", n))
		require.NoError(t, err)
		require.True(t, ok)
		mustUnmarshal(t, kv.Value, &s)
		return s
	}
	old := brokers[1].controllerID()
	led := int32(-1)
	for n := range int32(3) {
		if state(n).Leader == old {
			led = n
		}
	}
	require.GreaterOrEqual(t, led, int32(0), "placement is even")
	<-time.After(3 * session)

	var others []int32
	for id := range brokers {
		if id != old {
			others = append(others, id)
		}
	}
	before := state(led)
	cut(network, old, others)
	go func() { // what only the old Controller's broker stores: it wants the others out
		_, _ = brokers[old].Partition("t", int(led)).AppendWith(ctx, AppendOptions{Acks: AcksLeader}, Record{Value: []byte("x")})
	}()
	elected := func() bool { id := brokers[others[0]].controllerID(); return id >= 0 && id != old }
	until(4*session, "another Controller", func() bool {
		require.Equal(t, before, state(led), "nothing moves while the Controller is cut off")
		return elected()
	})
	until(2*session, "the leadership moves", func() bool { s := state(led); return s.Leader != old })
	require.ElementsMatch(t, []int32{1, 2, 3}, state(led).ISR)
	for n := range int32(3) {
		_, err := brokers[others[0]].Partition("t", int(n)).Append(ctx, Record{Value: []byte("y")})
		require.NoError(t, err)
	}
	require.False(t, brokers[old].unfitReason() != nil)
	for _, id := range others {
		network.Heal(old, id)
	}
	until(10*session, "all in sync", func() bool {
		for n := range int32(3) {
			if len(state(n).ISR) < 3 {
				return false
			}
		}
		return true
	})
	kv, ok, err := reader.Get(ctx, controllerKey)
	require.NoError(t, err)
	require.True(t, ok)
	var claim controllerClaim
	mustUnmarshal(t, kv.Value, &claim)
	require.NotEqual(t, old, claim.Broker)
}

// D18: the key is given up even if the coordination store does not answer at once.
func TestStandingAsideReleasesTheKey(t *testing.T) {
	w := newSimWorld(t, 18, 3)
	w.createTopic("t", TopicConfig{Partitions: 1, ReplicationFactor: 3, MinISR: 2})
	old := w.controller()
	for _, b := range w.all() {
		if b != old {
			w.cut[[2]int32{old.id, b.id}], w.cut[[2]int32{b.id, old.id}] = true, true
		}
	}
	for old.broker.control.meta != nil {
		w.settle(10 * time.Millisecond)
	}
	require.InDelta(t, 2*simSession, old.broker.control.asideTo-w.now, float64(simSession/10))
	w.settle(simSession / 4)
	require.NotSame(t, old, w.controller(), "the key is gone, and another one has it")
	w.settle(10 * simSession)
	require.Nil(t, old.broker.control.meta)
	require.NoError(t, w.check.err())
}
