package tidemark

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/transport"
	"github.com/tidemark-log/tidemark/transport/inproc"
)

// The tests named after an R-n play what was reported of other systems of this kind,
// as far as it is about whole brokers in a host's process.

// meter counts what a cluster sends, through any transport.
type meter struct {
	transport.Transport
	kinds     *[8]atomic.Int64
	addresses *sync.Map // broker id to the newest address that something was sent to
	closed    atomic.Int64
}

func (m *meter) Send(to transport.Peer, msg *protocol.Message) error {
	m.kinds[msg.Kind].Add(1)
	m.addresses.Store(to.ID, to.Address)
	return m.Transport.Send(to, msg)
}

func (m *meter) Close() error {
	m.closed.Add(1)
	return m.Transport.Close()
}

// metered has all brokers of a rig count into the same meters.
func metered(kinds *[8]atomic.Int64) func(*Config) {
	var addresses sync.Map
	return func(c *Config) {
		c.Transport = &meter{Transport: c.Transport, kinds: kinds, addresses: &addresses}
	}
}

// slowNet carries messages in order, at a rate per direction and with a delay.
type slowNet struct {
	rate  int64 // bytes per second
	delay time.Duration
	mu    sync.Mutex
	free  map[[2]int32]time.Time // when the way is free again
	at    map[int32]*slowEnd
	work  *sync.WaitGroup // the rig waits for it
}

func newSlowNet(rate int64, delay time.Duration) *slowNet {
	return &slowNet{rate: rate, delay: delay, free: make(map[[2]int32]time.Time), at: make(map[int32]*slowEnd)}
}

// join gives a broker its end.
func (n *slowNet) join(c *Config) {
	n.work = &c.Transport.(*attackEnd).net.flying
	c.Transport = &slowEnd{attackEnd{id: c.ID}, n}
}

type slowEnd struct {
	attackEnd
	net *slowNet
}

func (e *slowEnd) Start(h transport.Handler) error {
	e.net.mu.Lock()
	defer e.net.mu.Unlock()
	e.handle = h
	e.net.at[e.id] = e
	return nil
}

func (e *slowEnd) Send(to transport.Peer, m *protocol.Message) error {
	n := e.net
	n.mu.Lock()
	defer n.mu.Unlock()
	there, way, now := n.at[to.ID], [2]int32{e.id, to.ID}, time.Now()
	if there == nil {
		return nil
	}
	at := n.free[way]
	if at.Before(now) {
		at = now
	}
	at = at.Add(time.Duration(int64(m.Size()) * int64(time.Second) / n.rate))
	n.free[way] = at
	n.work.Go(func() {
		pause(at.Sub(now) + n.delay)
		there.take(m)
	})
	return nil
}

// goroutines counts those of this bubble, once all that are about to end have ended.
func goroutines() int {
	synctest.Wait()
	stacks := make([]byte, 16<<20)
	return strings.Count(string(stacks[:runtime.Stack(stacks, true)]), ", synctest bubble ")
}

// R45, R51: a cluster in which nothing happens exchanges heartbeats, one pair of brokers
// like another, however many partitions it has; and a partition costs no goroutine.
func TestR45IdleClusterIsSilent(t *testing.T) {
	const idle = 10 * time.Minute
	measure := func(partitions int) (heartbeats int64, running int) {
		var kinds [8]atomic.Int64
		attack(t, 3, metered(&kinds), func(t *testing.T, r *attackRig) {
			r.create("t", partitions)
			for n := range partitions {
				_, err := r.client.Partition("t", n).Append(r.within(time.Minute), Record{Value: []byte("x")})
				require.NoError(t, err)
			}
			r.healthy("t", partitions)
			pause(5 * time.Second)
			running = goroutines()
			for i := range kinds {
				kinds[i].Store(0)
			}
			pause(idle)
			heartbeats = kinds[protocol.Heartbeat].Load()
			for k := range kinds {
				if protocol.Kind(k) != protocol.Heartbeat {
					require.Zero(t, kinds[k].Load(), "messages of kind %d with %d partitions", k, partitions)
				}
			}
			require.Equal(t, running, goroutines())
		})
		return heartbeats, running
	}
	few, runningFew := measure(1)
	many, runningMany := measure(300)
	require.LessOrEqual(t, many, int64(6*idle/(attackSession/6)), "six directions between three brokers")
	require.InEpsilon(t, few, many, 0.02)
	require.Equal(t, runningFew, runningMany)
}

// R46: a lone record waits for the disks, which work at the same time, and for no
// interval; under load many records share one message.
func TestR46LoneRecord(t *testing.T) {
	var kinds [8]atomic.Int64
	const way = time.Millisecond
	network, count := newSlowNet(1<<40, way), metered(&kinds)
	attack(t, 3, func(c *Config) { network.join(c); count(c) }, func(t *testing.T, r *attackRig) {
		r.create("t", 1)
		p := r.broker(r.leader(r.client, "t", 0)).Partition("t", 0)
		const disk = 5 * time.Millisecond // as the rig's disks are
		lone := func(n int) int64 {
			before := kinds[protocol.Data].Load()
			for range n {
				pause(777 * time.Millisecond)
				began := time.Now()
				_, err := p.Append(r.within(time.Minute), Record{Value: []byte("x")})
				require.NoError(t, err)
				require.LessOrEqual(t, time.Since(began), 2*way+disk+time.Microsecond, "there, on disk, and back")
			}
			return (kinds[protocol.Data].Load() - before) / int64(n)
		}
		perRecord := lone(100)
		const together = 2000
		before := kinds[protocol.Data].Load()
		var work sync.WaitGroup
		for range together {
			work.Go(func() {
				_, err := p.Append(r.within(time.Minute), Record{Value: []byte("x")})
				if err != nil {
					t.Error(err)
				}
			})
		}
		work.Wait()
		require.Less(t, kinds[protocol.Data].Load()-before, together*perRecord/20)
	})
}

// R53: connections that come and go, and leaders with them, leave nothing behind.
func TestR53ConnectionsComeAndGo(t *testing.T) {
	network := inproc.New(inproc.Options{})
	attack(t, 3, func(c *Config) { c.Transport = network.Transport(c.ID) }, func(t *testing.T, r *attackRig) {
		r.create("t", 3)
		running := 0
		for i := range 60 {
			id := int32(1 + i%3)
			network.Isolate(id)
			if i%2 == 0 {
				r.node(id).coord.SetUnavailable(true) // and its session ends, so that others lead
			}
			pause(1700 * time.Millisecond)
			require.False(t, r.broker(id).links.isUp(1+id%3))
			network.Rejoin(id)
			r.node(id).coord.SetUnavailable(false)
			r.healthy("t", 3)
			pause(time.Second)
			if i == 8 {
				running = goroutines()
			}
		}
		require.Equal(t, running, goroutines())
		for _, b := range r.open() {
			require.Len(t, b.links.all(), 2)
			require.Zero(t, b.appends.open()+b.reads.open()+b.commands.open())
		}
	})
}

// R57: what a broker keeps of what passed through it does not grow with how much that was.
func TestR57NothingGrows(t *testing.T) {
	attack(t, 3, func(c *Config) { c.MemoryBudget = 1 << 20 }, func(t *testing.T, r *attackRig) {
		r.create("t", 3)
		round := func() {
			l := r.load("t", 3, 6)
			pause(800 * time.Millisecond)
			r.kill(int32(1+r.dice.roll(3)), 1)
			pause(1300 * time.Millisecond)
			for id := range int32(3) {
				if r.node(id+1) == nil {
					r.start(id + 1)
				}
			}
			l.end()
			r.healthy("t", 3)
			pause(readWaitMs*time.Millisecond + time.Second) // the longest wait of a read that was given up
		}
		round()
		running := goroutines()
		for range 6 {
			round()
			require.Equal(t, running, goroutines())
			for _, b := range r.open() {
				b.holdsNothing(t)
			}
		}
	})
}

// holdsNothing checks what an idle broker may keep.
func (b *Broker) holdsNothing(t *testing.T) {
	require.Zero(t, b.appends.open()+b.reads.open()+b.commands.open())
	_, queued := b.writer.load()
	require.Zero(t, queued)
	for _, l := range b.loops {
		l.do(func(now time.Duration, s *shard) {
			if len(s.touched)+len(s.throttled)+len(s.lagging) > 0 || s.cache.bytes > s.env.cfg.CacheBytes {
				t.Errorf("broker %d: %d touched, %d throttled, %d lagging, %d bytes in memory",
					b.cfg.ID, len(s.touched), len(s.throttled), len(s.lagging), s.cache.bytes)
			}
			if len(s.wakes) > 2*len(s.replicas) {
				t.Errorf("broker %d: %d wake-ups for %d replicas", b.cfg.ID, len(s.wakes), len(s.replicas))
			}
			for id, x := range s.replicas {
				if len(x.readers)+len(x.onCommit)+len(x.onStored)+len(x.held)+len(x.inflight)+len(x.uncommitted) > 0 || len(x.marks.marks) > 300 {
					t.Errorf("broker %d keeps something of %v: %+v", b.cfg.ID, id, x)
				}
			}
		})
	}
}

// R58: a thousand appends under way when it becomes impossible to carry them out. Each
// call returns within its time with what is known of its records, and nothing of it is left.
func TestR58EveryCallEnds(t *testing.T) {
	errGivenUp := errors.New("given up")
	for name, c := range map[string]struct {
		deadline time.Duration // of each call
		impede   func(r *attackRig, network *inproc.Network, leader int32, cancel context.CancelCauseFunc)
		within   time.Duration
		want     error
	}{
		"the followers are gone": {deadline: time.Second, within: time.Second, want: context.DeadlineExceeded,
			impede: func(*attackRig, *inproc.Network, int32, context.CancelCauseFunc) {}},
		"another one leads": {deadline: time.Minute, within: 6 * time.Second, want: ErrNotLeader,
			impede: func(r *attackRig, network *inproc.Network, leader int32, _ context.CancelCauseFunc) {
				r.node(leader).coord.SetUnavailable(true)
				pause(3 * attackSession)
				network.HealAll()
				r.node(leader).coord.SetUnavailable(false)
			}},
		"the broker is closed": {deadline: time.Minute, within: time.Second, want: ErrClosed,
			impede: func(r *attackRig, _ *inproc.Network, leader int32, _ context.CancelCauseFunc) {
				require.NoError(r.t, r.broker(leader).Close())
			}},
		"the caller gives up": {deadline: time.Minute, within: time.Second, want: errGivenUp,
			impede: func(_ *attackRig, _ *inproc.Network, _ int32, cancel context.CancelCauseFunc) { cancel(errGivenUp) }},
		"the topic is deleted": {deadline: time.Minute, within: 3 * time.Second, want: ErrUnknownPartition,
			impede: func(r *attackRig, network *inproc.Network, leader int32, _ context.CancelCauseFunc) {
				for id, disk := range r.disks { // so that the Controller reaches the leader, and the followers acknowledge nothing
					if int32(id+1) != leader {
						disk.Hang()
						defer disk.Unhang()
					}
				}
				network.HealAll()
				_ = r.client.Controller().DeleteTopic(r.within(attackSession), "t")
			}},
		"the disk hangs": {deadline: time.Minute, within: 6 * time.Second, want: ErrUnfit,
			impede: func(r *attackRig, _ *inproc.Network, leader int32, _ context.CancelCauseFunc) {
				r.node(leader).store.hangAt.Store(1)
				_, _ = r.broker(leader).Partition("t", 0).Append(r.within(5*time.Second), Record{})
			}},
	} {
		t.Run(name, func(t *testing.T) {
			network := inproc.New(inproc.Options{})
			attack(t, 3, func(cfg *Config) { cfg.Transport = network.Transport(cfg.ID) }, func(t *testing.T, r *attackRig) {
				r.create("t", 1)
				leader := r.leader(r.client, "t", 0)
				p := r.broker(leader).Partition("t", 0)
				network.Isolate(leader)
				all, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				before := goroutines()
				began, ends := time.Now(), make(chan error, 1000)
				for range 1000 {
					go func() {
						ctx, stop := context.WithTimeout(all, c.deadline)
						defer stop()
						_, err := p.Append(ctx, Record{Value: []byte("x")})
						ends <- err
					}()
				}
				synctest.Wait()
				require.Empty(t, ends)
				c.impede(r, network, leader, cancel)
				for range 1000 {
					err := <-ends
					require.ErrorIs(t, err, c.want)
					require.Equal(t, Unknown, OutcomeOf(err), "%v", err)
				}
				require.LessOrEqual(t, time.Since(began), c.within)
				require.LessOrEqual(t, goroutines(), before)
				network.HealAll()
				pause(3 * attackSession)
				require.Zero(t, r.broker(leader).appends.open(), "what was given up has ended as well")
			})
		})
	}
}

// R60: a broker comes back at another address. The others send there from then on; no
// start flag says what it was or is.
func TestR60AnotherAddress(t *testing.T) {
	var kinds [8]atomic.Int64
	var addresses sync.Map
	life := 0
	attack(t, 3, func(c *Config) {
		life++
		c.Address = fmt.Sprintf("host-%d:%d", c.ID, life)
		c.Transport = &meter{Transport: c.Transport, kinds: &kinds, addresses: &addresses}
	}, func(t *testing.T, r *attackRig) {
		r.create("t", 3)
		for id := range int32(3) {
			r.kill(id+1, 0)
			r.start(id + 1)
			r.healthy("t", 3)
			pause(time.Second)
			to, _ := addresses.Load(id + 1)
			require.Equal(t, r.broker(id+1).cfg.Address, to)
			require.Equal(t, fmt.Sprintf("host-%d:%d", id+1, life), to)
			_, err := r.client.Partition("t", 0).Append(r.within(10*time.Second), Record{Value: []byte("x")})
			require.NoError(t, err)
		}
	})
}

// R68: bulk on a slow way delays heartbeats. A way that carries something is not silent:
// no session ends and nobody is elected, though it takes longer than a session.
func TestR68BulkIsNoSilence(t *testing.T) {
	network := newSlowNet(1<<20, 0)
	attack(t, 3, func(c *Config) {
		network.join(c)
		c.SessionTimeout, c.MaxLag = 9*time.Second, time.Minute
	}, func(t *testing.T, r *attackRig) {
		r.create("t", 1)
		b := r.broker(r.leader(r.client, "t", 0))
		elections := b.Status().Elections
		began := time.Now()
		var work sync.WaitGroup
		for range 24 {
			work.Go(func() {
				if _, err := b.Partition("t", 0).Append(r.within(2*time.Minute), Record{Value: make([]byte, 1<<20)}); err != nil {
					t.Error(err)
				}
			})
		}
		work.Wait()
		require.Greater(t, time.Since(began), 2*9*time.Second, "24 MiB at 1 MiB/s")
		s, err := r.client.Partition("t", 0).Status(r.within(time.Minute))
		require.NoError(t, err)
		require.Equal(t, b.ID(), s.Leader)
		require.EqualValues(t, 0, s.LeaderEpoch)
		require.Len(t, s.ISR, 3)
		require.Equal(t, elections, b.Status().Elections)
		for _, l := range b.links.all() {
			require.EqualValues(t, 1, l.link.count.sessions, "sessions with %d", l.peer.ID)
		}
	})
}

// R70: Close at any moment of a broker's life, with a disk or a coordination store that
// hangs, or peers that do not answer: it returns in time and leaves no goroutine.
func TestR70CloseAtAnyMoment(t *testing.T) {
	for name, impede := range map[string]func(r *attackRig, network *inproc.Network, release chan struct{}){
		"all is well":           func(*attackRig, *inproc.Network, chan struct{}) {},
		"peers are silent":      func(_ *attackRig, network *inproc.Network, _ chan struct{}) { network.Isolate(1) },
		"its disk hangs":        func(r *attackRig, _ *inproc.Network, _ chan struct{}) { r.node(1).store.hangAt.Store(1) },
		"the others are killed": func(r *attackRig, _ *inproc.Network, _ chan struct{}) { r.kill(2, 0); r.kill(3, 0) },
		"the registration hangs": func(r *attackRig, _ *inproc.Network, release chan struct{}) {
			r.node(1).store.setNode.Store(&release)
			r.node(1).coord.SetUnavailable(true)
			pause(2 * attackSession)
			r.node(1).coord.SetUnavailable(false)
		},
	} {
		t.Run(name, func(t *testing.T) {
			for moment := range 12 {
				network := inproc.New(inproc.Options{})
				attack(t, 3, func(c *Config) { c.Transport = network.Transport(c.ID) }, func(t *testing.T, r *attackRig) {
					release := make(chan struct{}) // of the bubble: whoever waits for it lets time pass
					pause(time.Duration(moment*moment) * 3 * time.Millisecond)
					b := r.broker(1)
					var work sync.WaitGroup
					ctx, cancel := context.WithCancel(t.Context())
					work.Go(func() { _ = b.Controller().EnsureTopic(ctx, "t", TopicConfig{}) })
					work.Go(func() { _, _ = b.Partition("t", 0).Append(ctx, Record{}) })
					work.Go(func() { _ = b.Ready(ctx) })
					pause(time.Duration(moment) * 5 * time.Millisecond)
					impede(r, network, release)
					began := time.Now()
					err := b.Close()
					require.LessOrEqual(t, time.Since(began), closeLimit)
					if name != "the registration hangs" {
						require.NoError(t, err)
					}
					require.ErrorIs(t, b.Ready(ctx), ErrClosed)
					close(release)
					cancel()
					work.Wait()
					network.HealAll()
					n := r.take(1)
					require.NoError(t, errors.Join(n.store.Store.Close(), n.coord.Close()))
				})
			}
		})
	}
}

// R70: a broker closes what it opened, and the transport that it was given. The store and
// the coordination store are the host's: they work on.
func TestR70ClosesOnlyItsOwn(t *testing.T) {
	var kinds [8]atomic.Int64
	var ends []*meter
	attack(t, 1, func(c *Config) {
		m := &meter{Transport: c.Transport, kinds: &kinds, addresses: &sync.Map{}}
		c.Transport, ends = m, append(ends, m)
	}, func(t *testing.T, r *attackRig) {
		r.create("t", 1)
		_, err := r.client.Partition("t", 0).Append(r.within(time.Minute), Record{Value: []byte("x")})
		require.NoError(t, err)
		n := r.node(1)
		rep, err := n.broker.Replica(t.Context(), "t", 0)
		require.NoError(t, err)
		for range 2 {
			require.NoError(t, n.broker.Close())
			require.EqualValues(t, 1, ends[0].closed.Load(), "once")
		}
		read, err := n.store.Read(rep.id, 0, 1<<20)
		require.NoError(t, err)
		require.NotEmpty(t, read.Batches)
		res, err := n.coord.Do(t.Context(), coordination.Txn{Ops: []coordination.Op{{Key: "/host", Value: []byte("mine")}}})
		require.NoError(t, err)
		require.True(t, res.Applied)
		_, ok, err := n.coord.Get(t.Context(), brokerIDKey(1))
		require.NoError(t, err)
		require.False(t, ok, "it has deregistered")
	})
}

// R70: a peer is down, or cut off, for an hour. The log says so when that begins, and does
// not go on about it.
func TestR70LogStaysShort(t *testing.T) {
	for name, lose := range map[string]func(r *attackRig, network *inproc.Network){
		"it is down":                     func(r *attackRig, _ *inproc.Network) { r.kill(3, 0) },
		"it is cut off, and registered":  func(_ *attackRig, network *inproc.Network) { network.Isolate(3) },
		"it is cut off from one of them": func(_ *attackRig, network *inproc.Network) { network.Cut(2, 3) },
	} {
		t.Run(name, func(t *testing.T) {
			var log lockedBuffer
			network := inproc.New(inproc.Options{})
			attack(t, 3, func(c *Config) {
				c.Transport, c.Logger = network.Transport(c.ID), slog.New(slog.NewTextHandler(&log, nil))
			}, func(t *testing.T, r *attackRig) {
				r.create("t", 20)
				use := func() {
					for n := range 20 {
						_, err := r.client.Partition("t", n).Append(r.within(time.Minute), Record{Value: []byte("x")})
						require.NoError(t, err)
					}
				}
				use()
				log.take()
				lose(r, network)
				pause(time.Minute)
				use()
				pause(time.Minute)
				require.NotEmpty(t, log.take(), "it is told")
				pause(time.Hour)
				said := log.take()
				require.LessOrEqual(t, strings.Count(said, "\n"), 3*60, "a line a minute and broker: %.2000s", said)
			})
		})
	}
}

type lockedBuffer struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all.Write(p)
}

func (b *lockedBuffer) take() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.all.Reset()
	return b.all.String()
}

// R70: brokers start, stop, lose sessions and leaderships while every call of the API is
// made. Nothing panics, and each call returns.
func TestR70Storm(t *testing.T) {
	attack(t, 3, nil, func(t *testing.T, r *attackRig) {
		r.create("t", 3)
		ctx, cancel := context.WithCancel(t.Context())
		var work sync.WaitGroup
		for i := range 6 {
			work.Go(func() {
				for n := 0; ctx.Err() == nil; n++ {
					short, stop := context.WithTimeout(ctx, 300*time.Millisecond)
					c := r.client
					if b := r.broker(int32(1 + n%3)); b != nil && i%2 == 0 {
						c = b.Client
						_ = b.Status()
						_, _ = b.Replica(short, "t", n%3)
						_ = b.Ready(short)
					}
					p := c.Partition("t", n%3)
					_, _ = p.AppendWith(short, AppendOptions{Acks: Acks(n % 3)}, Record{Value: []byte("x")})
					_, _ = p.Status(short)
					_ = p.Writable(short)
					_, _ = p.Fetch(short, 0, FetchOptions{MaxBytes: 1})
					_, _ = c.Controller().Topics(short)
					_, _ = c.Controller().Status()
					stop()
					pause(time.Millisecond)
				}
			})
		}
		for i := range 15 {
			id := int32(1 + r.dice.roll(3))
			switch {
			case r.node(id) == nil:
				r.start(id)
			case i%3 == 0:
				r.node(id).coord.SetUnavailable(true)
				pause(1200 * time.Millisecond)
				r.node(id).coord.SetUnavailable(false)
			default:
				r.kill(id, r.dice.roll(3))
			}
			pause(time.Duration(r.dice.roll(400)) * time.Millisecond)
		}
		cancel()
		work.Wait()
		for id := range int32(3) {
			if r.node(id+1) == nil {
				r.start(id + 1)
			}
		}
		r.healthy("t", 3)
	})
}

// R55: an idle partition is a few kilobytes in each broker that has a copy.
func TestR55MemoryOfIdlePartitions(t *testing.T) {
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	const partitions = 2000
	attack(t, 1, nil, func(t *testing.T, r *attackRig) {
		for r.client.Controller().EnsureTopic(r.within(time.Minute), "first", TopicConfig{ReplicationFactor: 1}) != nil {
			pause(10 * time.Millisecond)
		}
		before := heap()
		require.NoError(t, r.client.Controller().CreateTopic(r.within(time.Minute), "t", TopicConfig{Partitions: partitions, ReplicationFactor: 1}))
		r.healthy("t", 1)
		pause(time.Minute)
		each := (int64(heap()) - int64(before)) / partitions
		t.Logf("%d bytes a partition", each)
		require.Less(t, each, int64(24<<10))
	})
}
