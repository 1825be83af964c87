package inproc

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/transport"
)

// bubble runs f with brokers 1 to 3, whose inboxes have the indexes 1 to 3.
func bubble(t *testing.T, opts Options, f func(t *testing.T, n *Network, ends []transport.Transport, boxes []*inbox)) {
	synctest.Test(t, func(t *testing.T) {
		n := New(opts)
		ends, boxes := make([]transport.Transport, 4), make([]*inbox, 4)
		for id := int32(1); id <= 3; id++ {
			ends[id], boxes[id] = open(t, n, id)
		}
		f(t, n, ends, boxes)
	})
}

// sendRun sends numbered messages.
func sendRun(t testing.TB, ends []transport.Transport, from, dest int32, first, last uint64) {
	for seq := first; seq <= last; seq++ {
		require.NoError(t, ends[from].Send(to(dest), data(from, dest, seq)))
	}
}

// pass lets time go by in a bubble.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// numbers takes what is in an inbox by now.
func numbers(b *inbox) (seqs []uint64) {
	synctest.Wait()
	for _, m := range b.take() {
		seqs = append(seqs, m.Seq)
	}
	return seqs
}

func TestDropIsAShare(t *testing.T) {
	survivors := func(seed uint64, others bool) (left []uint64) {
		bubble(t, Options{Seed: seed}, func(t *testing.T, n *Network, ends []transport.Transport, boxes []*inbox) {
			n.SetFaults(1, 2, Faults{Drop: 0.25})
			n.SetFaults(1, 3, Faults{Drop: 0.5})
			for seq := uint64(1); seq <= 1000; seq++ {
				sendRun(t, ends, 1, 2, seq, seq)
				sendRun(t, ends, 2, 1, seq, seq)
				if others {
					sendRun(t, ends, 1, 3, seq, seq)
				}
			}
			left = numbers(boxes[2])
			require.Len(t, numbers(boxes[1]), 1000, "the way back")
			s := n.Stats()
			require.Equal(t, s.Dropped, s.Lost)
			require.Equal(t, s.Sent, s.Delivered+s.Dropped)
		})
		return left
	}
	one := survivors(1, false)
	require.InDelta(t, 750, len(one), 60)
	require.Equal(t, one, survivors(1, false), "the same seed")
	require.Equal(t, one, survivors(1, true), "whatever is sent elsewhere")
	require.NotEqual(t, one, survivors(2, false), "another seed")
}

func TestDelayKeepsTheOrder(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, n *Network, ends []transport.Transport, boxes []*inbox) {
		n.SetFaults(1, 2, Faults{Delay: time.Second})
		sendRun(t, ends, 1, 2, 1, 50)
		pass(500 * time.Millisecond)
		sendRun(t, ends, 1, 2, 51, 100)
		sendRun(t, ends, 2, 1, 7, 7)
		require.Equal(t, []uint64{7}, numbers(boxes[1]), "the way back")
		pass(500*time.Millisecond - 1)
		require.Empty(t, numbers(boxes[2]))
		pass(1)
		first := numbers(boxes[2])
		require.Len(t, first, 50)
		pass(500 * time.Millisecond)
		all := append(first, numbers(boxes[2])...)
		require.Len(t, all, 100)
		require.IsIncreasing(t, all)
		require.Equal(t, Stats{Sent: 101, Delivered: 101, Delayed: 100}, n.Stats())
	})
}

func TestJitterIsWithinItsRange(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, n *Network, ends []transport.Transport, boxes []*inbox) {
		n.SetFaults(1, 2, Faults{Delay: time.Second, Jitter: time.Second})
		sendRun(t, ends, 1, 2, 1, 1000)
		pass(time.Second - 1)
		require.Empty(t, numbers(boxes[2]))
		pass(time.Second / 2)
		half := numbers(boxes[2])
		require.InDelta(t, 500, len(half), 80)
		require.NotSubset(t, []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, half[:10])
		pass(time.Second / 2)
		require.Len(t, numbers(boxes[2]), 1000-len(half))
	})
}

// Faults of the direction and those for Any add up, and Only chooses.
func TestFaultsAddUp(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, n *Network, ends []transport.Transport, boxes []*inbox) {
		odd := func(m *protocol.Message) bool { return m.Seq%2 == 1 }
		n.SetFaults(Any, Any, Faults{Delay: 1 * time.Second})
		n.SetFaults(1, Any, Faults{Delay: 10 * time.Second})
		n.SetFaults(Any, 2, Faults{Delay: 100 * time.Second})
		n.SetFaults(1, 2, Faults{Delay: 1000 * time.Second, Only: odd}, Faults{Delay: 5000 * time.Second, Only: odd})
		for _, c := range []struct {
			from, to int32
			seq      uint64
			late     time.Duration
		}{{1, 2, 1, 6111 * time.Second}, {1, 2, 2, 111 * time.Second}, {3, 2, 1, 101 * time.Second}, {1, 3, 1, 11 * time.Second}, {2, 1, 1, time.Second}} {
			sendRun(t, ends, c.from, c.to, c.seq, c.seq)
			pass(c.late - 1)
			require.Empty(t, numbers(boxes[c.to]), "%+v", c)
			pass(1)
			require.Equal(t, []uint64{c.seq}, numbers(boxes[c.to]), "%+v", c)
		}
		n.SetFaults(Any, 2) // ends these only
		sendRun(t, ends, 1, 2, 2, 2)
		pass(11 * time.Second)
		require.Equal(t, []uint64{2}, numbers(boxes[2]))
	})
}

func TestDouble(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, n *Network, ends []transport.Transport, boxes []*inbox) {
		n.SetFaults(1, 2, Faults{Double: 1})
		sendRun(t, ends, 1, 2, 1, 3)
		require.Equal(t, []uint64{1, 1, 2, 2, 3, 3}, numbers(boxes[2]))
		require.Equal(t, Stats{Sent: 3, Delivered: 6, Doubled: 3}, n.Stats())
		n.SetFaults(1, 2, Faults{Double: 0.5})
		sendRun(t, ends, 1, 2, 1, 1000)
		require.InDelta(t, 1500, len(numbers(boxes[2])), 80)
	})
}

func TestReorder(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, n *Network, ends []transport.Transport, boxes []*inbox) {
		n.SetFaults(1, 2, Faults{Reorder: 1})
		sendRun(t, ends, 1, 2, 1, 5)
		sendRun(t, ends, 3, 2, 77, 77) // another direction overtakes nothing
		require.Equal(t, []uint64{2, 1, 4, 3, 77}, numbers(boxes[2]))
		pass(reorderWait)
		require.Equal(t, []uint64{5}, numbers(boxes[2]), "what nothing overtakes goes on")
		pass(reorderWait)
		require.Equal(t, Stats{Sent: 6, Delivered: 6, Reordered: 2}, n.Stats())

		n.SetFaults(1, 2, Faults{Reorder: 1, Delay: time.Second})
		sendRun(t, ends, 1, 2, 1, 2)
		pass(time.Second)
		require.Equal(t, []uint64{2, 1}, numbers(boxes[2]))

		n.SetFaults(1, 2, Faults{Reorder: 1})
		sendRun(t, ends, 1, 2, 1, 1)
		n.SetFaults(1, 2)
		sendRun(t, ends, 1, 2, 2, 2)
		pass(reorderWait)
		require.ElementsMatch(t, []uint64{1, 2}, numbers(boxes[2]), "faults that end leave nothing behind")
	})
}

func TestHoldAndRelease(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, n *Network, ends []transport.Transport, boxes []*inbox) {
		n.Hold(1, 2)
		sendRun(t, ends, 1, 2, 1, 4)
		sendRun(t, ends, 2, 1, 1, 1)
		sendRun(t, ends, 3, 2, 9, 9)
		pass(time.Hour)
		require.Equal(t, []uint64{9}, numbers(boxes[2]))
		require.Equal(t, []uint64{1}, numbers(boxes[1]))
		require.Equal(t, Stats{Sent: 6, Delivered: 2, Held: 4}, n.Stats())
		n.Cut(1, 2) // what is held is on its way already
		n.Release(1, 2)
		require.Equal(t, []uint64{1, 2, 3, 4}, numbers(boxes[2]))
		n.Heal(1, 2)

		n.Hold(1, 2)
		sendRun(t, ends, 1, 2, 1, 4)
		n.ReleaseReversed(1, 2)
		sendRun(t, ends, 1, 2, 5, 5)
		n.Release(1, 2) // nothing is held
		n.Release(7, 8)
		require.Equal(t, []uint64{4, 3, 2, 1, 5}, numbers(boxes[2]))
		require.Equal(t, Stats{Sent: 11, Delivered: 11, Held: 8}, n.Stats())
	})
}

// Other faults come before Hold, except for those that are about time.
func TestHoldWithFaults(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, n *Network, ends []transport.Transport, boxes []*inbox) {
		n.Hold(1, 2)
		n.SetFaults(1, 2, Faults{Drop: 1, Only: func(m *protocol.Message) bool { return m.Seq == 2 }},
			Faults{Double: 1, Delay: time.Hour, Only: func(m *protocol.Message) bool { return m.Seq == 3 }})
		n.SetDrop(1, 2, func(m *protocol.Message) bool { return m.Seq == 4 })
		sendRun(t, ends, 1, 2, 1, 5)
		n.Release(1, 2)
		require.Equal(t, []uint64{1, 3, 3, 5}, numbers(boxes[2]))
		require.Equal(t, Stats{Sent: 5, Delivered: 4, Dropped: 2, Lost: 2, Doubled: 1, Held: 4}, n.Stats())
	})
}

func TestMisdeliver(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, n *Network, ends []transport.Transport, boxes []*inbox) {
		n.SetFaults(1, 2, Faults{Misdeliver: 1})
		sendRun(t, ends, 1, 2, 1, 100)
		back, other := len(numbers(boxes[1])), len(numbers(boxes[3]))
		require.InDelta(t, 50, back, 25)
		require.Equal(t, 100, back+other)
		require.Empty(t, numbers(boxes[2]))
		require.Equal(t, Stats{Sent: 100, Delivered: 100, Misdelivered: 100}, n.Stats())
		require.NoError(t, ends[1].Close())
		require.NoError(t, ends[3].Close())
		n.SetFaults(2, 2, Faults{Misdeliver: 1})
		sendRun(t, ends, 2, 2, 1, 1)
		require.Equal(t, []uint64{1}, numbers(boxes[2]), "there is nobody else")
		require.EqualValues(t, 100, n.Stats().Misdelivered)
	})
}

// What is on its way counts as waiting for its receiver, whoever sends next and
// whether there is a fault on his way.
func TestBoundsCountWhatIsOnItsWay(t *testing.T) {
	for name, set := range map[string]func(*Network){
		"held":      func(n *Network) { n.Hold(1, 2) },
		"delayed":   func(n *Network) { n.SetFaults(1, 2, Faults{Delay: time.Second}) },
		"overtaken": func(n *Network) { n.SetFaults(1, 2, Faults{Delay: time.Second, Reorder: 1}) },
	} {
		for _, opts := range []Options{{QueueMessages: 3}, {QueueBytes: 900}} {
			t.Run(name, func(t *testing.T) {
				bubble(t, opts, func(t *testing.T, n *Network, ends []transport.Transport, boxes []*inbox) {
					for range 3 { // room comes back, every time
						set(n)
						for range 3 {
							require.NoError(t, ends[1].Send(to(2), sized(t, 300)))
						}
						require.ErrorIs(t, ends[1].Send(to(2), sized(t, 300)), transport.ErrBusy)
						require.ErrorIs(t, ends[3].Send(to(2), sized(t, 300)), transport.ErrBusy)
						require.NoError(t, ends[2].Send(to(3), sized(t, 300)))
						n.Release(1, 2)
						pass(2 * time.Second)
						require.Len(t, numbers(boxes[2]), 3)
						require.NoError(t, ends[3].Send(to(2), sized(t, 300)))
						require.Len(t, numbers(boxes[2]), 1)
						n.EndFaults()
						require.NoError(t, ends[1].Send(to(2), sized(t, 300)))
						require.Len(t, numbers(boxes[2]), 1)
					}
					require.EqualValues(t, 6, n.Stats().Refused)
				})
			})
		}
	}
	t.Run("absent", func(t *testing.T) {
		bubble(t, Options{QueueMessages: 3}, func(t *testing.T, n *Network, ends []transport.Transport, _ []*inbox) {
			n.Hold(1, 9)
			sendRun(t, ends, 1, 9, 1, 3)
			require.ErrorIs(t, ends[1].Send(to(9), data(1, 9, 4)), transport.ErrBusy)
			_, late := open(t, n, 9)
			n.Release(1, 9)
			require.Equal(t, []uint64{1, 2, 3}, numbers(late))
		})
	})
	t.Run("a copy has no room", func(t *testing.T) {
		bubble(t, Options{QueueMessages: 1}, func(t *testing.T, n *Network, ends []transport.Transport, boxes []*inbox) {
			n.SetFaults(1, 2, Faults{Double: 1, Delay: 1})
			sendRun(t, ends, 1, 2, 1, 1)
			pass(1)
			require.Equal(t, []uint64{1}, numbers(boxes[2]))
			require.Equal(t, Stats{Sent: 1, Delivered: 1, Delayed: 1}, n.Stats())
		})
	})
}

// What is on its way reaches the broker's next life, or nobody.
func TestOnTheWayWhileBrokersRestart(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, n *Network, ends []transport.Transport, boxes []*inbox) {
		n.Hold(1, 2)
		n.SetFaults(3, 2, Faults{Delay: time.Second})
		sendRun(t, ends, 1, 2, 1, 2)
		sendRun(t, ends, 3, 2, 3, 4)
		require.NoError(t, ends[2].Close())
		require.NoError(t, ends[1].Close())
		_, next := open(t, n, 2)
		n.Release(1, 2)
		pass(time.Second)
		require.Equal(t, []uint64{1, 2, 3, 4}, numbers(next))
		require.Empty(t, numbers(boxes[2]))

		sendRun(t, ends, 3, 9, 1, 2) // nobody
		n.SetFaults(3, 9, Faults{Delay: time.Second})
		sendRun(t, ends, 3, 9, 3, 4)
		pass(time.Second)
		require.Equal(t, Stats{Sent: 8, Delivered: 4, Dropped: 4, Held: 2, Delayed: 4}, n.Stats())
	})
}

// When the last endpoint is closed, nothing is on its way and no timer runs.
func TestNothingIsOnItsWayAfterTheLastClose(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, n *Network, ends []transport.Transport, _ []*inbox) {
		n.Hold(1, 3)
		n.SetFaults(1, 2, Faults{Delay: time.Hour})
		n.SetFaults(2, 1, Faults{Reorder: 1})
		sendRun(t, ends, 1, 3, 1, 5)
		sendRun(t, ends, 1, 2, 1, 5)
		sendRun(t, ends, 2, 1, 1, 1)
		timer := n.wire.timer
		for _, e := range ends[1:] {
			require.Less(t, n.Stats().Dropped, int64(11))
			require.NoError(t, e.Close())
		}
		require.Equal(t, Stats{Sent: 11, Dropped: 11, Delayed: 5, Held: 5}, n.Stats())
		require.Nil(t, n.wire.timer)
		require.False(t, timer.Stop(), "it ran on")
		_, box := open(t, n, 3)
		n.Release(1, 3)
		require.Empty(t, numbers(box))
		again, _ := open(t, n, 2)
		_, box = open(t, n, 1)
		require.NoError(t, again.Send(to(1), data(2, 1, 7)))
		pass(reorderWait)
		require.Equal(t, []uint64{7}, numbers(box))
		for id, l := range n.wire.waiting {
			require.Zero(t, l.messages.Load(), id)
			require.Zero(t, l.bytes.Load(), id)
		}
	})
}

func TestEndFaults(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, n *Network, ends []transport.Transport, boxes []*inbox) {
		n.SetFaults(Any, Any, Faults{Delay: time.Minute})
		sendRun(t, ends, 3, 2, 1, 1)
		n.Cut(1, 2)
		n.Isolate(1)
		n.SetDrop(2, 3, func(*protocol.Message) bool { return true })
		n.Hold(3, 2)
		sendRun(t, ends, 3, 2, 2, 3)
		n.EndFaults()
		require.False(t, n.state.Load().faulty)
		sendRun(t, ends, 1, 2, 4, 4)
		sendRun(t, ends, 2, 3, 5, 5)
		require.Equal(t, []uint64{2, 3, 4}, numbers(boxes[2]))
		require.Equal(t, []uint64{5}, numbers(boxes[3]))
		pass(time.Minute)
		require.Equal(t, []uint64{1}, numbers(boxes[2]), "delayed is delayed")
		n.Hold(1, 2) // faults can begin again
		sendRun(t, ends, 1, 2, 6, 6)
		require.Empty(t, numbers(boxes[2]))
	})
}

func TestOnlyMayChangeFaults(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, n *Network, ends []transport.Transport, boxes []*inbox) {
		n.SetFaults(1, 2, Faults{Drop: 1, Only: func(*protocol.Message) bool {
			n.SetFaults(1, 2)
			return true
		}})
		sendRun(t, ends, 1, 2, 1, 2)
		require.Equal(t, []uint64{2}, numbers(boxes[2]))
	})
}

// Any mix of faults, sends and restarts leaves every message and every copy of
// one delivered or counted, and nothing on its way.
func TestFaultyAccounting(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := New(Options{QueueMessages: rapid.IntRange(1, 20).Draw(rt, "queue"), Seed: rapid.Uint64().Draw(rt, "seed")})
		const brokers = 3
		var ends [brokers]transport.Transport
		start := func(id int32) {
			ends[id] = n.Transport(id)
			require.NoError(rt, ends[id].Start(func(*protocol.Message) {}))
		}
		for id := range int32(brokers) {
			start(id)
		}
		some := rapid.Int32Range(-1, brokers)
		chance := rapid.SampledFrom([]float64{0, 0, 0.3, 1})
		late := rapid.SampledFrom([]time.Duration{0, 0, 1, time.Microsecond, time.Hour})
		sent := int64(0)
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			from, dest := rapid.Int32Range(0, brokers-1).Draw(rt, "from"), some.Draw(rt, "to")
			switch rapid.IntRange(0, 7).Draw(rt, "what") {
			case 0:
				require.NoError(rt, ends[from].Close())
				start(from)
			case 1:
				n.Hold(from, dest)
			case 2:
				n.Release(from, dest)
			case 3:
				n.SetFaults(some.Draw(rt, "from any"), dest, Faults{Drop: chance.Draw(rt, "drop"), Double: chance.Draw(rt, "double"),
					Reorder: chance.Draw(rt, "reorder"), Misdeliver: chance.Draw(rt, "misdeliver"),
					Delay: late.Draw(rt, "delay"), Jitter: late.Draw(rt, "jitter")})
			case 4:
				n.EndFaults()
			default:
				for range rapid.IntRange(1, 30).Draw(rt, "burst") {
					switch err := ends[from].Send(to(dest), data(from, dest, 1)); err {
					case nil:
						sent++
					case transport.ErrBusy:
					default:
						rt.Fatal(err)
					}
				}
			}
		}
		for _, e := range ends {
			require.NoError(rt, e.Close())
		}
		s := n.Stats()
		require.Equal(rt, sent, s.Sent)
		require.Equal(rt, s.Sent+s.Doubled, s.Delivered+s.Dropped)
		require.Empty(rt, n.wire.flying)
		require.Nil(rt, n.wire.timer)
		for _, l := range n.wire.waiting {
			require.Zero(rt, l.messages.Load())
			require.Zero(rt, l.bytes.Load())
		}
	})
}

// Faults change while all brokers send: in the end everything has arrived.
func TestFaultsChangeUnderLoad(t *testing.T) {
	const each = 3000
	n := New(Options{QueueMessages: 1 << 20})
	var got atomic.Int64
	all := make(chan struct{})
	var ends []transport.Transport
	for id := range int32(3) {
		e := n.Transport(id)
		require.NoError(t, e.Start(func(*protocol.Message) {
			if got.Add(1) == 3*each {
				close(all)
			}
		}))
		ends = append(ends, e)
	}
	var senders, changer sync.WaitGroup
	stop := make(chan struct{})
	changer.Go(func() {
		for i := int32(0); ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			n.Hold(i%3, (i+1)%3)
			n.SetFaults(Any, i%3, Faults{Jitter: time.Microsecond, Reorder: 0.5, Misdeliver: 0.2})
			n.Release(i%3, (i+1)%3)
			n.SetFaults(Any, i%3)
			if i%7 == 0 {
				n.EndFaults()
			}
		}
	})
	for id := range int32(3) {
		senders.Go(func() {
			for seq := range uint64(each) {
				dest := (id + 1 + int32(seq%2)) % 3
				if err := ends[id].Send(to(dest), data(id, dest, seq)); err != nil {
					panic(err)
				}
			}
		})
	}
	senders.Wait()
	close(stop)
	changer.Wait()
	n.EndFaults()
	<-all
	for _, e := range ends {
		require.NoError(t, e.Close())
	}
	s := n.Stats()
	require.EqualValues(t, 3*each, s.Delivered)
	require.Zero(t, s.Dropped)
}

// What is sent while Release runs is not left behind.
func TestReleaseWhileSending(t *testing.T) {
	const each = 50
	n := New(Options{})
	a, _ := open(t, n, 1)
	b := n.Transport(2)
	arrived := make(chan struct{}, each)
	require.NoError(t, b.Start(func(*protocol.Message) { arrived <- struct{}{} }))
	m := data(1, 2, 1)
	for range 500 {
		n.Hold(1, 2)
		var sender sync.WaitGroup
		sender.Go(func() {
			for range each {
				if err := a.Send(to(2), m); err != nil {
					panic(err)
				}
			}
		})
		n.Release(1, 2)
		sender.Wait()
		for range each {
			select {
			case <-arrived:
			case <-time.After(time.Minute):
				t.Fatal("a message is still held")
			}
		}
	}
	require.NoError(t, b.Close())
}
