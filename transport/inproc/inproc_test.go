package inproc

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/transport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func data(from, to int32, seq uint64) *protocol.Message {
	return &protocol.Message{Kind: protocol.Data, From: from, To: to, Seq: seq}
}

// sized returns a message whose Size is exactly n.
func sized(t testing.TB, n int) *protocol.Message {
	m := &protocol.Message{Kind: protocol.Data}
	m.Appends = []protocol.Append{{}}
	m.Appends[0].Batch = make([]byte, n-m.Size())
	require.Equal(t, n, m.Size())
	return m
}

func to(id int32) transport.Peer { return transport.Peer{ID: id} }

// inbox records what a handler was given.
type inbox struct {
	mu  sync.Mutex
	got []*protocol.Message
}

func (b *inbox) handle(m *protocol.Message) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.got = append(b.got, m)
}

// take returns the messages since the last take.
func (b *inbox) take() []*protocol.Message {
	b.mu.Lock()
	defer b.mu.Unlock()
	got := b.got
	b.got = nil
	return got
}

// open starts an endpoint that is closed with the test.
func open(t testing.TB, n *Network, id int32) (transport.Transport, *inbox) {
	b := new(inbox)
	tr := n.Transport(id)
	require.NoError(t, tr.Start(b.handle))
	t.Cleanup(func() { require.NoError(t, tr.Close()) })
	return tr, b
}

func TestOrderAndIdentityPerPair(t *testing.T) {
	const brokers, each = 4, 2000
	n := New(Options{QueueMessages: brokers * each})
	var all sync.WaitGroup
	all.Add(brokers * (brokers - 1) * each)
	sent := make([]map[[2]uint64]*protocol.Message, brokers)
	failures := make(chan string, brokers)
	trs := make([]transport.Transport, brokers)
	for id := range int32(brokers) {
		sent[id] = make(map[[2]uint64]*protocol.Message)
		for to := range int32(brokers) {
			for seq := range uint64(each) {
				sent[id][[2]uint64{uint64(to), seq}] = data(id, to, seq)
			}
		}
		next := make([]uint64, brokers)
		trs[id] = n.Transport(id)
		require.NoError(t, trs[id].Start(func(m *protocol.Message) {
			if m.Seq != next[m.From] || m != sent[m.From][[2]uint64{uint64(id), m.Seq}] {
				select {
				case failures <- fmt.Sprintf("broker %d: got %d from %d, want %d", id, m.Seq, m.From, next[m.From]):
				default:
				}
			}
			next[m.From] = m.Seq + 1
			all.Done()
		}))
	}
	var senders sync.WaitGroup
	for id := range int32(brokers) {
		senders.Go(func() {
			for seq := range uint64(each) {
				for peer := range int32(brokers) {
					if peer != id {
						if err := trs[id].Send(to(peer), sent[id][[2]uint64{uint64(peer), seq}]); err != nil {
							failures <- err.Error()
						}
					}
				}
			}
		})
	}
	senders.Wait()
	all.Wait()
	for _, tr := range trs {
		require.NoError(t, tr.Close())
	}
	select {
	case f := <-failures:
		t.Fatal(f)
	default:
	}
	total := int64(brokers * (brokers - 1) * each)
	require.Equal(t, Stats{Sent: total, Delivered: total}, n.Stats())
}

func TestSendNeverRunsTheHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New(Options{})
		a, _ := open(t, n, 1)
		release := make(chan struct{})
		b := n.Transport(2)
		require.NoError(t, b.Start(func(*protocol.Message) { <-release }))
		for range 10 { // would hang if Send waited for the handler
			require.NoError(t, a.Send(to(2), data(1, 2, 0)))
		}
		close(release)
		synctest.Wait()
		require.Equal(t, Stats{Sent: 10, Delivered: 10}, n.Stats())
		require.NoError(t, b.Close())
	})
}

func TestHandlerMaySend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New(Options{})
		const rounds = 1000
		a, b := n.Transport(1), n.Transport(2)
		bounce := func(tr transport.Transport, peer int32) transport.Handler {
			return func(m *protocol.Message) {
				if m.Seq < rounds {
					if err := tr.Send(to(peer), data(0, peer, m.Seq+1)); err != nil {
						panic(err)
					}
				}
			}
		}
		require.NoError(t, a.Start(bounce(a, 2)))
		require.NoError(t, b.Start(bounce(b, 1)))
		require.NoError(t, a.Send(to(2), data(1, 2, 1)))
		require.NoError(t, a.Send(to(1), data(1, 1, rounds))) // to oneself
		synctest.Wait()
		require.Equal(t, Stats{Sent: rounds + 1, Delivered: rounds + 1}, n.Stats())
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
	})
}

func TestQueueBounds(t *testing.T) {
	tests := []struct {
		name  string
		opts  Options
		sizes []int  // sent while the handler holds one message
		busy  []bool // which of them are refused
	}{
		{"messages", Options{QueueMessages: 3}, []int{200, 200, 200, 200, 200}, []bool{false, false, false, true, true}},
		{"bytes", Options{QueueBytes: 1000}, []int{400, 400, 201, 200, 200}, []bool{false, false, true, false, true}},
		{"one message above QueueBytes", Options{QueueBytes: 1000}, []int{5000, 200}, []bool{false, true}},
		{"a small one blocks a large one", Options{QueueBytes: 1000}, []int{200, 5000, 200}, []bool{false, true, false}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := New(tc.opts)
				a, _ := open(t, n, 1)
				other, others := open(t, n, 3)
				release := make(chan struct{})
				var got []int
				b := n.Transport(2)
				require.NoError(t, b.Start(func(m *protocol.Message) {
					got = append(got, m.Size())
					<-release
				}))
				for round := range 3 { // room comes back in full, every time
					got = nil
					require.NoError(t, a.Send(to(2), sized(t, 300)))
					synctest.Wait()
					want := []int{300}
					for i, size := range tc.sizes {
						err := a.Send(to(2), sized(t, size))
						if tc.busy[i] {
							require.ErrorIs(t, err, transport.ErrBusy, "round %d, message %d", round, i)
							continue
						}
						require.NoError(t, err, "round %d, message %d", round, i)
						want = append(want, size)
					}
					require.NoError(t, a.Send(to(3), data(1, 3, 0)), "one receiver's queue is not another's")
					require.NoError(t, other.Send(to(1), data(3, 1, 0)))
					for range want {
						release <- struct{}{}
					}
					synctest.Wait()
					require.Equal(t, want, got)
					require.Len(t, others.take(), 1)
				}
				s := n.Stats()
				require.Equal(t, s.Sent, s.Delivered)
				require.Zero(t, s.Dropped)
				require.NotZero(t, s.Refused)
				require.NoError(t, b.Close())
			})
		})
	}
}

// A batch that the handler works through still counts, so that the bound holds
// for all that waits and not only for what arrived since.
func TestQueueBoundCountsTheBatchInHand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New(Options{QueueMessages: 4})
		a, _ := open(t, n, 1)
		release := make(chan struct{})
		b := n.Transport(2)
		require.NoError(t, b.Start(func(*protocol.Message) { <-release }))
		require.NoError(t, a.Send(to(2), data(1, 2, 0)))
		synctest.Wait()
		for range 4 {
			require.NoError(t, a.Send(to(2), data(1, 2, 0)))
		}
		release <- struct{}{} // the goroutine now takes four and holds the first of them
		synctest.Wait()
		require.NoError(t, a.Send(to(2), data(1, 2, 0)))
		require.ErrorIs(t, a.Send(to(2), data(1, 2, 0)), transport.ErrBusy)
		close(release)
		require.NoError(t, b.Close())
	})
}

func TestMaxMessageBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, limit := range []int{0, 1000} {
			n := New(Options{MaxMessageBytes: limit})
			want := limit
			if limit == 0 {
				want = 16 << 20
			}
			a, _ := open(t, n, 1)
			_, b := open(t, n, 2)
			require.Equal(t, want, a.MaxMessageBytes())
			require.ErrorIs(t, a.Send(to(2), sized(t, want+1)), transport.ErrTooLarge)
			require.ErrorIs(t, a.Send(to(9), sized(t, want+1)), transport.ErrTooLarge, "whoever the receiver is")
			require.NoError(t, a.Send(to(2), sized(t, want)))
			synctest.Wait()
			require.Len(t, b.take(), 1)
			require.Equal(t, Stats{Sent: 1, Delivered: 1}, n.Stats())
		}
	})
}

func TestUnknownReceiverDrops(t *testing.T) {
	n := New(Options{})
	a, _ := open(t, n, 1)
	require.NoError(t, n.Transport(2).Close()) // never started
	require.NoError(t, a.Send(to(2), data(1, 2, 0)))
	require.Equal(t, Stats{Sent: 1, Dropped: 1}, n.Stats())
}

func TestLifecycle(t *testing.T) {
	n := New(Options{})
	ignore := func(*protocol.Message) {}
	a := n.Transport(1)
	require.ErrorIs(t, a.Send(to(1), data(1, 1, 0)), ErrNotStarted)
	require.NoError(t, a.Start(ignore))
	require.ErrorIs(t, a.Start(ignore), ErrStarted)

	second := n.Transport(1)
	require.ErrorIs(t, second.Start(ignore), ErrInUse)
	require.NoError(t, second.Close())
	require.ErrorIs(t, second.Start(ignore), transport.ErrClosed)
	require.NoError(t, a.Send(to(1), data(1, 1, 0)), "a failed Start and a Close take nothing from the open endpoint")

	third := n.Transport(1)
	require.ErrorIs(t, third.Start(ignore), ErrInUse)
	require.NoError(t, a.Close())
	require.NoError(t, a.Close())
	require.ErrorIs(t, a.Start(ignore), transport.ErrClosed)
	require.ErrorIs(t, a.Send(to(1), data(1, 1, 0)), transport.ErrClosed)
	require.NoError(t, third.Start(ignore), "Start may be tried again once the id is free")
	require.NoError(t, third.Close())
}

func TestReplacedEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New(Options{})
		a, _ := open(t, n, 1)
		old, oldBox := open(t, n, 2)
		require.NoError(t, a.Send(to(2), data(1, 2, 1)))
		synctest.Wait()
		require.Len(t, oldBox.take(), 1)
		require.NoError(t, old.Close())
		require.NoError(t, a.Send(to(2), data(1, 2, 2))) // nobody is there

		_, newBox := open(t, n, 2)
		require.NoError(t, a.Send(to(2), data(1, 2, 3)))
		require.NoError(t, old.Close(), "a late Close of the old endpoint does not touch the new one")
		require.NoError(t, a.Send(to(2), data(1, 2, 4)))
		synctest.Wait()
		got := newBox.take()
		require.Len(t, got, 2)
		require.Equal(t, []uint64{3, 4}, []uint64{got[0].Seq, got[1].Seq})
		require.Empty(t, oldBox.take())
		require.Equal(t, Stats{Sent: 4, Delivered: 3, Dropped: 1}, n.Stats())
	})
}

func TestCloseWaitsForTheHandlerAndDropsTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New(Options{})
		a, _ := open(t, n, 1)
		release := make(chan struct{})
		calls := 0
		b := n.Transport(2)
		require.NoError(t, b.Start(func(*protocol.Message) { calls++; <-release }))
		require.NoError(t, a.Send(to(2), data(1, 2, 0)))
		synctest.Wait()
		for range 5 {
			require.NoError(t, a.Send(to(2), data(1, 2, 0)))
		}
		var closed atomic.Int32
		for range 3 { // concurrent calls wait alike
			go func() {
				if b.Close() == nil {
					closed.Add(1)
				}
			}()
		}
		synctest.Wait()
		require.Zero(t, closed.Load(), "Close returned while the handler ran")
		require.ErrorIs(t, n.Transport(2).Start(func(*protocol.Message) {}), ErrInUse)
		require.NoError(t, a.Send(to(2), data(1, 2, 0)))
		close(release)
		synctest.Wait()
		require.EqualValues(t, 3, closed.Load())
		require.Equal(t, 1, calls)
		require.Equal(t, Stats{Sent: 7, Delivered: 1, Dropped: 6}, n.Stats())
	})
}

// Messages flow from every side while a broker is closed and opened again.
func TestCloseWhileMessagesFlow(t *testing.T) {
	n := New(Options{QueueMessages: 64})
	stop := make(chan struct{})
	var senders sync.WaitGroup
	var bad atomic.Int64
	for id := int32(1); id <= 2; id++ {
		a, _ := open(t, n, id)
		senders.Go(func() {
			m := data(id, 9, 0)
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := a.Send(to(9), m); err != nil && err != transport.ErrBusy {
					bad.Add(1)
				}
			}
		})
	}
	for range 200 {
		var over atomic.Bool
		seen := make(chan struct{}, 1)
		b := n.Transport(9)
		require.NoError(t, b.Start(func(*protocol.Message) {
			if over.Load() {
				bad.Add(1)
			}
			select {
			case seen <- struct{}{}:
			default:
			}
		}))
		<-seen
		require.NoError(t, b.Close())
		over.Store(true)
	}
	close(stop)
	senders.Wait()
	require.Zero(t, bad.Load(), "a handler was called after Close, or a Send failed")
	s := n.Stats()
	require.Equal(t, s.Sent, s.Delivered+s.Dropped)
}

// Any interleaving of sends, bursts, closes and opens leaves each message
// delivered once, in order, or counted as dropped or refused.
func TestAccounting(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := New(Options{QueueMessages: rapid.IntRange(1, 20).Draw(rt, "queue")})
		const brokers = 3
		var last [brokers][brokers]uint64 // handler of the first index, sender of the second
		var ends [brokers]transport.Transport
		var misordered atomic.Int64
		start := func(id int32) {
			ends[id] = n.Transport(id)
			err := ends[id].Start(func(m *protocol.Message) {
				if m.Seq <= last[id][m.From] || m.To != id {
					misordered.Add(1)
				}
				last[id][m.From] = m.Seq
			})
			require.NoError(rt, err)
		}
		for id := range int32(brokers) {
			start(id)
		}
		var seq uint64
		var sent, refused int64
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			id := rapid.Int32Range(0, brokers-1).Draw(rt, "broker")
			if rapid.IntRange(0, 4).Draw(rt, "what") == 0 {
				require.NoError(rt, ends[id].Close())
				start(id)
				continue
			}
			peer := rapid.Int32Range(0, brokers).Draw(rt, "peer") // brokers: nobody
			for range rapid.IntRange(1, 30).Draw(rt, "burst") {
				seq++
				switch err := ends[id].Send(to(peer), data(id, peer, seq)); err {
				case nil:
					sent++
				case transport.ErrBusy:
					refused++
				default:
					rt.Fatal(err)
				}
			}
		}
		for _, e := range ends {
			require.NoError(rt, e.Close())
		}
		s := n.Stats()
		require.Zero(rt, misordered.Load())
		require.Equal(rt, sent, s.Sent)
		require.Equal(rt, refused, s.Refused)
		require.Equal(rt, s.Sent, s.Delivered+s.Dropped)
	})
}

func BenchmarkRoundTrip(b *testing.B) {
	n := New(Options{})
	a, z := n.Transport(1), n.Transport(2)
	back := make(chan struct{}, 1)
	m := data(1, 2, 0)
	require.NoError(b, a.Start(func(*protocol.Message) { back <- struct{}{} }))
	require.NoError(b, z.Start(func(*protocol.Message) { _ = z.Send(to(1), m) }))
	b.ReportAllocs()
	for b.Loop() {
		if err := a.Send(to(2), m); err != nil {
			b.Fatal(err)
		}
		<-back
	}
	require.NoError(b, a.Close())
	require.NoError(b, z.Close())
}
