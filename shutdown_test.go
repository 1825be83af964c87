package tidemark

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/coordination/memory"
	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/storage"
	"github.com/tidemark-log/tidemark/storage/memstore"
	"github.com/tidemark-log/tidemark/transport"
	"github.com/tidemark-log/tidemark/transport/inproc"
)

// solo is a cluster of one broker, in a bubble of virtual time.
type solo struct {
	t      *testing.T
	broker *Broker
	disk   *memstore.Disk
	store  *memstore.Store
	coord  *memory.Store
}

func newSolo(t *testing.T, o *Observer) *solo {
	s := &solo{t: t, disk: memstore.NewDisk(), coord: memory.New(memory.Options{})}
	var err error
	s.store, err = s.disk.Open()
	require.NoError(t, err)
	s.broker, err = Open(t.Context(), Config{ID: 1, Store: s.store, Coordination: s.coord.Connect(), Observer: o})
	require.NoError(t, err)
	return s
}

// topic makes a topic of one replica each.
func (s *solo) topic(name string, cfg TopicConfig) *Partition {
	cfg.ReplicationFactor, cfg.MinISR = 1, 1
	require.NoError(s.t, s.broker.Ready(s.t.Context()))
	require.NoError(s.t, s.broker.Controller().EnsureTopic(s.t.Context(), name, cfg))
	return s.broker.Partition(name, 0)
}

func (s *solo) end() {
	require.NoError(s.t, errors.Join(s.broker.Close(), s.store.Close(), s.coord.Close()))
}

func inSolo(t *testing.T, f func(t *testing.T, s *solo)) {
	synctest.Test(t, func(t *testing.T) {
		s := newSolo(t, nil)
		defer s.end()
		f(t, s)
	})
}

type appended struct {
	res Result
	err error
}

// begin appends through a broker, and returns once the append was sent.
func begin(t *testing.T, b *Broker, n int) chan appended {
	done := make(chan appended, 1)
	go func() {
		res, err := b.Partition("t", n).Append(context.Background(), Record{Value: []byte("x")})
		done <- appended{res, err}
	}()
	synctest.Wait()
	require.Equal(t, 1, b.appends.open())
	return done
}

// Shutdown takes nothing new, and finishes what is under way (R58).
func TestShutdownFinishesWhatIsUnderWay(t *testing.T) {
	attack(t, 3, nil, func(t *testing.T, r *attackRig) {
		n := r.create("t", 3)
		b := r.broker(1)
		rep, err := b.Replica(r.within(time.Second), "t", n)
		require.NoError(t, err)
		r.disks[1].Hang()
		done := begin(t, b, n)
		ended := make(chan error, 2)
		for range 2 {
			go func() { ended <- b.Shutdown(r.within(time.Minute)) }()
			pause(2 * time.Millisecond) // so that one of them closes while the other still waits
		}
		pause(20 * time.Millisecond)
		calls := map[string]func(ctx context.Context) error{
			"append": func(ctx context.Context) error {
				_, err := b.Partition("t", n).Append(ctx, Record{})
				require.Equal(t, NotAppended, OutcomeOf(err))
				return err
			},
			"fetch": func(ctx context.Context) error {
				_, err := b.Partition("t", n).Fetch(ctx, 0, FetchOptions{})
				return err
			},
			"create":   func(ctx context.Context) error { return b.Controller().CreateTopic(ctx, "u", TopicConfig{}) },
			"writable": func(ctx context.Context) error { return b.Partition("t", n).Writable(ctx) },
			"ready":    b.Ready,
		}
		for what, call := range calls {
			began := time.Now()
			require.ErrorIs(t, call(r.within(10*time.Second)), ErrClosed, what)
			require.Less(t, time.Since(began), time.Second, what)
		}
		// Clients over all brokers go by another one, which the leader still serves.
		off, err := r.client.Partition("t", n).Fetch(r.within(time.Second), 0, FetchOptions{})
		require.NoError(t, err)
		require.Equal(t, rep.LeaderEpoch, off.LeaderEpoch)
		_, err = r.client.Partition("t", n).AppendWith(r.within(time.Second), AppendOptions{Acks: AcksLeader}, Record{})
		require.NoError(t, err)
		select {
		case <-ended:
			t.Fatal("closed while an append was under way")
		default:
		}
		r.disks[1].Unhang()
		require.NoError(t, <-ended)
		require.NoError(t, <-ended)
		require.NoError(t, (<-done).err)
		require.NoError(t, b.Close())
		require.NoError(t, b.Shutdown(t.Context()))
	})
}

// What ctx or Close cut off is Unknown, and Shutdown says so.
func TestShutdownIsCutOff(t *testing.T) {
	for what, cut := range map[string]func(b *Broker, cancel func()) error{
		"by ctx":   func(_ *Broker, cancel func()) error { cancel(); return context.Canceled },
		"by Close": func(b *Broker, _ func()) error { _ = b.Close(); return ErrClosed },
	} {
		t.Run(what, func(t *testing.T) {
			attack(t, 3, nil, func(t *testing.T, r *attackRig) {
				n := r.create("t", 3)
				r.disks[1].Hang()
				done := begin(t, r.broker(1), n)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				ended := make(chan error, 1)
				go func() { ended <- r.broker(1).Shutdown(ctx) }()
				synctest.Wait()
				want := cut(r.broker(1), cancel)
				require.ErrorIs(t, <-ended, want)
				err := (<-done).err
				require.Equal(t, Unknown, OutcomeOf(err))
				require.ErrorIs(t, err, ErrClosed)
				r.disks[1].Unhang()
			})
		})
	}
}

// stuckCoordination never answers; kind says whether its calls heed their context.
type stuckCoordination struct {
	coordination.Store
	stuck  chan struct{} // closed: it hangs
	free   chan struct{} // closed: it answers again
	heeded bool
}

func (s *stuckCoordination) hang(ctx context.Context) error {
	select {
	case <-s.stuck:
	default:
		return nil
	}
	var done <-chan struct{}
	if s.heeded {
		done = ctx.Done()
	}
	select {
	case <-done:
		return ctx.Err()
	case <-s.free:
		return coordination.ErrUnavailable
	}
}

func (s *stuckCoordination) Get(ctx context.Context, key string) (coordination.KV, bool, error) {
	if err := s.hang(ctx); err != nil {
		return coordination.KV{}, false, err
	}
	return s.Store.Get(ctx, key)
}

func (s *stuckCoordination) NewSession(ctx context.Context, ttl time.Duration) (coordination.Session, error) {
	session, err := s.Store.NewSession(ctx, ttl)
	return &stuckSession{session, s}, err
}

type stuckSession struct {
	coordination.Session
	s *stuckCoordination
}

func (s *stuckSession) Renew(ctx context.Context) error {
	if err := s.s.hang(ctx); err != nil {
		return err
	}
	return s.Session.Renew(ctx)
}

func (s *stuckSession) Close(ctx context.Context) error {
	if err := s.s.hang(ctx); err != nil {
		return err
	}
	return s.Session.Close(ctx)
}

// stuckTransport blocks where it must not.
type stuckTransport struct {
	transport.Transport
	stuck       chan struct{} // closed: it hangs
	free        chan struct{}
	send, close bool
}

func (s *stuckTransport) hang(really bool) {
	select {
	case <-s.stuck:
		if really {
			<-s.free
		}
	default:
	}
}

func (s *stuckTransport) Send(to transport.Peer, m *protocol.Message) error {
	s.hang(s.send)
	return s.Transport.Send(to, m)
}

func (s *stuckTransport) Close() error {
	s.hang(s.close)
	return s.Transport.Close()
}

// Close returns in bounded time whatever hangs, and says when something has not let
// go. Nothing is left once it does.
func TestCloseIsBounded(t *testing.T) {
	type rig struct {
		*attackRig
		stuck, free chan struct{}
	}
	transportOf := func(g *rig, send, close bool) func(c *Config) {
		network := inproc.New(inproc.Options{})
		return func(c *Config) {
			c.Transport = network.Transport(c.ID)
			if c.ID == 1 {
				c.Transport = &stuckTransport{Transport: c.Transport, stuck: g.stuck, free: g.free, send: send, close: close}
			}
		}
	}
	coordinationOf := func(g *rig, heeded bool) func(c *Config) {
		return func(c *Config) {
			if c.ID == 1 {
				c.Coordination = &stuckCoordination{Store: c.Coordination, stuck: g.stuck, free: g.free, heeded: heeded}
			}
		}
	}
	hangDisk := func(g *rig) { g.disks[0].Hang() }
	for _, c := range []struct {
		what  string
		tweak func(g *rig) func(c *Config)
		hang  func(g *rig)
		most  time.Duration
		want  error
	}{
		{"the disk hangs", nil, hangDisk, 2 * time.Second, nil},
		{"a cold read hangs", nil, func(g *rig) {
			f := func(storage.LogID) error { <-g.free; return errors.New("late") }
			g.node(1).store.readErr.Store(&f)
			b := g.broker(1)
			for i := range b.loops {
				b.coldRead(b.loops[i], coldRead{})
			}
		}, closeLimit, ErrAbandoned},
		{"all peers are gone", nil, func(g *rig) { g.net.hosts.Lock(); clear(g.net.at); g.net.hosts.Unlock() }, 2 * time.Second, nil},
		{"Send blocks", func(g *rig) func(c *Config) { return transportOf(g, true, false) }, nil, closeLimit, ErrAbandoned},
		{"Transport.Close blocks", func(g *rig) func(c *Config) { return transportOf(g, false, true) }, nil, closeLimit, ErrAbandoned},
		{"coordination heeds contexts only", func(g *rig) func(c *Config) { return coordinationOf(g, true) }, nil, 2 * time.Second, nil},
		{"coordination never returns", func(g *rig) func(c *Config) { return coordinationOf(g, false) }, nil, closeLimit, ErrAbandoned},
	} {
		for _, how := range []string{"Close", "Shutdown"} {
			t.Run(c.what+", "+how, func(t *testing.T) {
				g := &rig{}
				var tweak func(c *Config)
				attack(t, 3, func(cfg *Config) {
					if g.stuck == nil { // in the bubble
						g.stuck, g.free = make(chan struct{}), make(chan struct{})
						if c.tweak != nil {
							tweak = c.tweak(g)
						}
					}
					if tweak != nil {
						tweak(cfg)
					}
				}, func(t *testing.T, r *attackRig) {
					g.attackRig = r
					r.create("t", 3)
					if c.hang != nil {
						c.hang(g)
					}
					close(g.stuck)
					pause(700 * time.Millisecond)
					b := r.broker(1)
					began := time.Now()
					ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
					defer cancel()
					err := error(nil)
					if how == "Close" {
						err = b.Close()
					} else {
						err = b.Shutdown(ctx)
					}
					require.LessOrEqual(t, time.Since(began), c.most+100*time.Millisecond)
					if c.want != nil {
						require.ErrorIs(t, err, c.want)
					} else {
						require.NoError(t, err)
					}
					require.Equal(t, c.want, b.Close(), "it says so every time")
					close(g.free)
					r.disks[0].Unhang()
					n := r.take(1) // its Close has failed already
					synctest.Wait()
					require.NoError(t, errors.Join(n.store.Store.Close(), n.coord.Close()))
				})
			})
		}
	}
}

// Close may be called from anywhere, by many at once.
func TestCloseFromAnywhere(t *testing.T) {
	inRig := func(t *testing.T, f func(t *testing.T, b *Broker, p *Partition)) {
		attack(t, 3, nil, func(t *testing.T, r *attackRig) {
			n := r.create("t", 3)
			_, err := r.client.Partition("t", n).Append(r.within(time.Second), Record{}, Record{})
			require.NoError(t, err)
			began := time.Now()
			f(t, r.broker(1), r.broker(1).Partition("t", n))
			require.Less(t, time.Since(began), 2*time.Second)
		})
	}
	t.Run("16 goroutines", func(t *testing.T) {
		inRig(t, func(t *testing.T, b *Broker, p *Partition) {
			var all sync.WaitGroup
			for i := range 16 {
				all.Go(func() {
					err := error(nil)
					if i%2 == 0 {
						err = b.Close()
					} else {
						err = b.Shutdown(t.Context())
					}
					if err != nil && !errors.Is(err, ErrClosed) {
						t.Error(err)
					}
				})
			}
			all.Wait()
		})
	})
	t.Run("an append's callback", func(t *testing.T) {
		inRig(t, func(t *testing.T, b *Broker, p *Partition) {
			producer := b.Topic("t").Producer(ProducerOptions{})
			closed := make(chan error, 1)
			require.NoError(t, producer.AppendAsync(t.Context(), Record{}, func(Result, error) { closed <- b.Close() }))
			require.NoError(t, <-closed)
			require.NoError(t, producer.Close(t.Context()))
		})
	})
	t.Run("while a read waits", func(t *testing.T) {
		inRig(t, func(t *testing.T, b *Broker, p *Partition) {
			ended := make(chan error, 1)
			go func() {
				for _, err := range p.Records(context.Background(), Latest()) {
					ended <- err
				}
			}()
			synctest.Wait()
			require.NoError(t, b.Close())
			require.ErrorIs(t, <-ended, ErrClosed)
		})
	})
	t.Run("within Records", func(t *testing.T) {
		inRig(t, func(t *testing.T, b *Broker, p *Partition) {
			var last error
			seen := 0
			for _, err := range p.Records(t.Context(), Earliest()) {
				if last = err; err != nil {
					break
				}
				seen++
				require.NoError(t, b.Close())
			}
			require.ErrorIs(t, last, ErrClosed)
			require.Equal(t, 2, seen, "what was read already is given out")
		})
	})
}

// The calls of a closed broker end at once.
func TestCallsOfAClosedBroker(t *testing.T) {
	inSolo(t, func(t *testing.T, s *solo) {
		p := s.topic("t", TopicConfig{})
		producer := s.broker.Topic("t").Producer(ProducerOptions{})
		require.NoError(t, s.broker.Close())
		began := time.Now()
		_, err := p.Append(t.Context(), Record{})
		require.ErrorIs(t, err, ErrClosed)
		require.EqualError(t, err, "tidemark: append to t/0: closed (records: not appended)")
		_, err = p.Fetch(t.Context(), 0, FetchOptions{})
		require.ErrorIs(t, err, ErrClosed)
		require.ErrorIs(t, p.Writable(t.Context()), ErrClosed)
		_, err = s.broker.Replica(t.Context(), "t", 0)
		require.ErrorIs(t, err, ErrClosed)
		_, err = producer.Append(t.Context(), Record{})
		require.ErrorIs(t, err, ErrClosed)
		require.NoError(t, s.broker.Drain(t.Context()))
		require.NoError(t, producer.Close(t.Context()))
		require.Less(t, time.Since(began), time.Second)
		require.EqualValues(t, 1, s.broker.Status().Broker, "Status still answers")
	})
}
