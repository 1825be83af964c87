package tidemark

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/storage"
	"github.com/tidemark-log/tidemark/transport"
)

var errHostile = errors.New("hostile")

// countdown says which of many calls goes wrong: the k-th, or all from there on.
type countdown struct {
	calls, at atomic.Int64
	forever   bool
}

func (c *countdown) strikes() bool {
	n, at := c.calls.Add(1), c.at.Load()
	return n == at || c.forever && n > at
}

// hostileStore is a host's store that fails at some call, whichever that is.
type hostileStore struct {
	storage.Store
	*countdown
	refuse bool // a failing write refuses its logs, instead of failing as a whole
}

func (s *hostileStore) Write(ops []storage.Op, synced bool, done func(storage.Result)) {
	switch {
	case !s.strikes():
		s.Store.Write(ops, synced, done)
	case s.refuse:
		refused := make(map[storage.LogID]error)
		for _, op := range ops {
			refused[op.Log] = errHostile
		}
		go done(storage.Result{Refused: refused})
	default:
		go done(storage.Result{Err: errHostile})
	}
}

func (s *hostileStore) SetNode(n storage.Node) error {
	if s.strikes() {
		return errHostile
	}
	return s.Store.SetNode(n)
}

func (s *hostileStore) Logs() (map[storage.LogID]storage.State, error) {
	if s.strikes() {
		return nil, errHostile
	}
	return s.Store.Logs()
}

func (s *hostileStore) Read(l storage.LogID, from int64, limit int) (storage.Read, error) {
	if s.strikes() {
		return storage.Read{}, errHostile
	}
	return s.Store.Read(l, from, limit)
}

func (s *hostileStore) Health() storage.Health {
	if s.strikes() {
		return storage.Health{Err: errHostile}
	}
	return s.Store.Health()
}

// hostileCoordination is a coordination store that fails at some call. What it
// was asked for may have been done all the same.
type hostileCoordination struct {
	coordination.Store
	*countdown
	after bool // the call is carried out, and its answer lost
}

func (s *hostileCoordination) Get(ctx context.Context, key string) (coordination.KV, bool, error) {
	if s.strikes() {
		return coordination.KV{}, false, coordination.ErrUnavailable
	}
	return s.Store.Get(ctx, key)
}

func (s *hostileCoordination) List(ctx context.Context, prefix string) ([]coordination.KV, int64, error) {
	if s.strikes() {
		return nil, 0, coordination.ErrUnavailable
	}
	return s.Store.List(ctx, prefix)
}

func (s *hostileCoordination) Do(ctx context.Context, t coordination.Txn) (coordination.TxnResult, error) {
	if s.strikes() {
		if s.after {
			_, _ = s.Store.Do(ctx, t)
		}
		return coordination.TxnResult{}, coordination.ErrUnavailable
	}
	return s.Store.Do(ctx, t)
}

func (s *hostileCoordination) Watch(ctx context.Context, prefix string, after int64) (<-chan coordination.Changes, error) {
	if s.strikes() {
		return nil, coordination.ErrUnavailable
	}
	return s.Store.Watch(ctx, prefix, after)
}

func (s *hostileCoordination) NewSession(ctx context.Context, ttl time.Duration) (coordination.Session, error) {
	if s.strikes() {
		if s.after {
			_, _ = s.Store.NewSession(ctx, ttl)
		}
		return nil, coordination.ErrUnavailable
	}
	return s.Store.NewSession(ctx, ttl)
}

// hostileLife is what a host does with a cluster whose broker 1 stands on
// something that fails: appends, reads, a failover, administration, shutdown. All
// of it has to return, and what was acknowledged has to be there in the end.
func hostileLife(t *testing.T, tweak func(*Config)) {
	attack(t, 3, func(c *Config) {
		if c.ID == 1 {
			tweak(c)
		}
	}, func(t *testing.T, r *attackRig) {
		ctx := r.within(2 * time.Minute)
		require.NoError(t, r.client.Controller().EnsureTopic(ctx, "t", TopicConfig{Partitions: 2}))
		acked := make([]map[int64]string, 2)
		count := 0
		appendSome := func() {
			for n := range acked {
				if acked[n] == nil {
					acked[n] = make(map[int64]string)
				}
				for range 3 {
					count++
					value := fmt.Sprint(count)
					appendCtx, cancel := context.WithTimeout(ctx, 10*time.Second)
					res, err := r.client.Partition("t", n).Append(appendCtx, Record{Value: []byte(value)})
					cancel()
					if err == nil {
						acked[n][res.Base] = value
					}
				}
			}
		}
		appendSome()
		for n := range acked {
			_, _ = r.client.Partition("t", n).Fetch(ctx, 0, FetchOptions{})
		}
		admin := r.client.Controller()
		require.NoError(t, admin.EnsureTopic(ctx, "gone", TopicConfig{Partitions: 2}))
		_, err := admin.AlterTopic(ctx, "gone", func(c *TopicConfig) { c.MinISR = 1 })
		require.NoError(t, err)
		require.NoError(t, admin.AddPartitions(ctx, "gone", 3))
		require.NoError(t, admin.DeleteTopic(ctx, "gone"))
		r.kill(2, 1)
		appendSome()
		r.start(2)
		appendSome()
		r.kill(1, 1)
		r.start1(t)
		appendSome()
		r.holds("t", acked)
		_, err = r.client.Partition("gone", 0).Append(ctx, Record{})
		require.ErrorIs(t, err, ErrUnknownTopic)
	})
}

// start1 opens broker 1 without whatever failed.
func (r *attackRig) start1(t *testing.T) {
	tweak := r.tweak
	r.tweak = nil
	defer func() { r.tweak = tweak }()
	r.start(1)
}

// hostileCalls has a life lived again and again, with the k-th call failing, until
// k is beyond what any of them came to.
func hostileCalls(live func(k int64) (calls int64)) {
	for k, most := int64(1), int64(1); k <= most; k++ {
		most = max(most, live(k))
	}
}

// A store that fails at its k-th call, for every k that a whole life reaches.
func TestHostileStoreFailsAtEveryCall(t *testing.T) {
	for _, mode := range []struct {
		name            string
		forever, refuse bool
	}{{"once", false, false}, {"from then on", true, false}, {"refused", false, true}} {
		t.Run(mode.name, func(t *testing.T) {
			hostileCalls(func(k int64) int64 {
				c := &countdown{forever: mode.forever}
				c.at.Store(k + 1) // the first call is Open's, which fails with it
				hostileLife(t, func(cfg *Config) { cfg.Store = &hostileStore{cfg.Store, c, mode.refuse} })
				return c.calls.Load() - 1
			})
		})
	}
}

// A coordination store that fails at its k-th call.
func TestHostileCoordinationFailsAtEveryCall(t *testing.T) {
	for _, after := range []bool{false, true} {
		t.Run(fmt.Sprintf("carried out %v", after), func(t *testing.T) {
			hostileCalls(func(k int64) int64 {
				c := &countdown{}
				c.at.Store(k)
				hostileLife(t, func(cfg *Config) { cfg.Coordination = &hostileCoordination{cfg.Coordination, c, after} })
				return c.calls.Load()
			})
		})
	}
}

// hostileTransport is a host's transport that does something else than it should.
type hostileTransport struct {
	transport.Transport
	calls atomic.Int64
	send  func(e *hostileTransport, n int64, to transport.Peer, m *protocol.Message) error
	start func(h transport.Handler) transport.Handler
	gate  chan struct{} // Close waits until it is closed; nil: it does not

	mu   sync.Mutex
	kept []func()
}

func (e *hostileTransport) Start(h transport.Handler) error {
	if e.start != nil {
		h = e.start(h)
	}
	return e.Transport.Start(h)
}

func (e *hostileTransport) Send(to transport.Peer, m *protocol.Message) error {
	return e.send(e, e.calls.Add(1), to, m)
}

func (e *hostileTransport) Close() error {
	if e.gate != nil {
		<-e.gate
	}
	return e.Transport.Close()
}

// hostileSends are ways in which a Transport lies. None of them is outside of what
// the contract allows a network to do.
var hostileSends = map[string]func(e *hostileTransport, n int64, to transport.Peer, m *protocol.Message) error{
	"drops": func(e *hostileTransport, n int64, to transport.Peer, m *protocol.Message) error {
		if n%5 == 0 {
			return nil
		}
		return e.Transport.Send(to, m)
	},
	"refuses": func(e *hostileTransport, n int64, to transport.Peer, m *protocol.Message) error {
		if n%5 == 0 {
			return transport.ErrBusy
		}
		return e.Transport.Send(to, m)
	},
	"doubles": func(e *hostileTransport, n int64, to transport.Peer, m *protocol.Message) error {
		return errors.Join(e.Transport.Send(to, m), e.Transport.Send(to, m))
	},
	"reorders": func(e *hostileTransport, n int64, to transport.Peer, m *protocol.Message) error {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.kept = append(e.kept, func() { _ = e.Transport.Send(to, m) })
		if len(e.kept) == 3 {
			for i := range e.kept {
				e.kept[len(e.kept)-1-i]()
			}
			e.kept = nil
		}
		return nil
	},
	"misdelivers": func(e *hostileTransport, n int64, to transport.Peer, m *protocol.Message) error {
		for id := int32(1); id <= 3; id++ {
			_ = e.Transport.Send(transport.Peer{ID: id}, m)
		}
		return nil
	},
	"repeats what is old": func(e *hostileTransport, n int64, to transport.Peer, m *protocol.Message) error {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.kept = append(e.kept, func() { _ = e.Transport.Send(to, m) }); n%7 == 0 {
			e.kept[int(n/2)%len(e.kept)]()
		}
		return e.Transport.Send(to, m)
	},
}

// A transport that lies costs time, never a record.
func TestHostileTransportLies(t *testing.T) {
	for name, send := range hostileSends {
		t.Run(name, func(t *testing.T) {
			hostileLife(t, func(c *Config) { c.Transport = &hostileTransport{Transport: c.Transport, send: send} })
		})
	}
}

// Messages that no broker sent are dropped, whatever is in them.
func TestHostileTransportInventsMessages(t *testing.T) {
	plain := func(e *hostileTransport, n int64, to transport.Peer, m *protocol.Message) error {
		return e.Transport.Send(to, m)
	}
	hostileLife(t, func(c *Config) {
		c.Transport = &hostileTransport{Transport: c.Transport, send: plain, start: func(h transport.Handler) transport.Handler {
			return func(m *protocol.Message) {
				h(nil)
				h(&protocol.Message{})
				twisted := *m
				twisted.Seq, twisted.Ack = 1<<63, 1<<63
				twisted.From, twisted.ToEpoch = -5, m.ToEpoch+1
				h(&twisted)
				h(m)
			}
		}}
	})
}

// A transport whose Send and Close never return stops its broker's work. Calls end with
// their context all the same, the other brokers go on, and Close returns.
func TestHostileTransportBlocks(t *testing.T) {
	for _, k := range []int64{1, 20, 60} {
		t.Run(fmt.Sprintf("from send %d", k), func(t *testing.T) {
			var gate chan struct{}
			attack(t, 3, func(c *Config) {
				if c.ID != 1 {
					return
				}
				gate = make(chan struct{}) // of the bubble
				c.Transport = &hostileTransport{Transport: c.Transport, gate: gate, send: func(e *hostileTransport, n int64, to transport.Peer, m *protocol.Message) error {
					if n < k {
						return e.Transport.Send(to, m)
					}
					<-gate
					return transport.ErrClosed
				}}
			}, func(t *testing.T, r *attackRig) {
				b := r.broker(1)
				for n := range 3 {
					began := time.Now()
					ctx := r.within(2 * time.Second)
					topic := fmt.Sprint("t", n)
					_ = r.client.Controller().EnsureTopic(ctx, topic, TopicConfig{})
					_, _ = b.Partition(topic, 0).Append(ctx, Record{Value: []byte("v")})
					_, _ = b.Partition(topic, 0).Fetch(ctx, 0, FetchOptions{})
					_ = b.Status()
					require.Less(t, time.Since(began), 3*time.Second)
				}
				began := time.Now()
				n := r.take(1)
				_ = n.broker.Close()
				require.Less(t, time.Since(began), 10*time.Second)
				close(gate)
				require.NoError(t, errors.Join(n.store.Store.Close(), n.coord.Close()))
				ctx := r.within(20 * time.Second)
				require.NoError(t, r.client.Controller().EnsureTopic(ctx, "others", TopicConfig{}))
				_, err := r.client.Partition("others", 0).Append(ctx, Record{Value: []byte("v")})
				require.NoError(t, err)
			})
		})
	}
}

// scribble overwrites what a host may overwrite.
func scribble(b []byte) {
	for i := range b {
		b[i] = '#'
	}
}

// What a host does with the bytes that it gave, or got, changes nothing but these.
func TestHostileBuffers(t *testing.T) {
	attack(t, 3, func(c *Config) { c.MemoryBudget = 1 << 20 }, func(t *testing.T, r *attackRig) {
		ctx := r.within(time.Minute)
		require.NoError(t, r.client.Controller().EnsureTopic(ctx, "t", TopicConfig{}))
		p := r.client.Partition("t", 0)
		pr := r.client.Topic("t").Producer(ProducerOptions{Compression: Zstd})
		const rounds = 60
		value := func(i int) string { return fmt.Sprintf("%d %s", i, strings.Repeat("v", 10_000)) }
		key, val, head := make([]byte, 3), make([]byte, 0, 20_000), make([]byte, 5)
		for i := range rounds {
			copy(key, "key")
			copy(head, "value")
			val = append(val[:0], value(i)...)
			rec := Record{Key: key, Value: val, Headers: []Header{{Key: "h", Value: head}}}
			var err error
			if i%2 == 0 {
				_, err = p.Append(ctx, rec)
			} else {
				require.NoError(t, pr.AppendAsync(ctx, rec, func(Result, error) {}))
				scribble(val) // it is still under way
				err = pr.Flush(ctx)
			}
			require.NoError(t, err)
			scribble(key)
			scribble(val)
			scribble(head)
		}
		require.NoError(t, pr.Close(ctx))

		check := func(rec *Record) {
			require.Equal(t, "key", string(rec.Key))
			require.Equal(t, value(int(rec.Offset)), string(rec.Value))
			require.Equal(t, "value", string(rec.Headers[0].Value))
		}
		var first *Record // kept over everything that follows
		for range 3 {
			for rec, err := range p.Records(ctx, Earliest()) {
				require.NoError(t, err)
				check(&rec)
				if first == nil {
					first = &rec
				} else {
					scribble(rec.Key)
					scribble(rec.Value)
					scribble(rec.Headers[0].Value)
				}
				if rec.Offset == rounds-1 {
					break
				}
			}
			for next := int64(0); next < rounds; {
				got, err := p.Fetch(ctx, next, FetchOptions{})
				require.NoError(t, err)
				for i := range got.Records {
					check(&got.Records[i])
					scribble(got.Records[i].Value)
				}
				next = got.Records[len(got.Records)-1].Offset + 1
			}
			for _, b := range r.open() {
				rep, err := b.Replica(ctx, "t", 0)
				require.NoError(t, err)
				for batch, err := range rep.Batches(ctx, 0) {
					require.NoError(t, err)
					scribble(batch)
				}
			}
		}
		check(first)
		r.healthy("t", 1)
	})
}

// A host that gives nil where something is expected gets an error or what nil means,
// never a panic. A nil context is one that does not end.
func TestHostileNils(t *testing.T) {
	attack(t, 3, nil, func(t *testing.T, r *attackRig) {
		r.create("t", 1)
		b, p, c := r.broker(1), r.client.Partition("t", 0), r.client.Controller()
		var never context.Context
		_, err := p.Append(never, Record{})
		require.NoError(t, err)
		_, err = p.AppendWith(never, AppendOptions{}, []Record(nil)...)
		require.ErrorIs(t, err, ErrInvalidRecord)
		_, err = p.Fetch(never, 0, FetchOptions{})
		require.NoError(t, err)
		_, err = p.Offsets(never)
		require.NoError(t, err)
		_, err = p.Find(never, Position{})
		require.NoError(t, err)
		_, err = p.Status(never)
		require.NoError(t, err)
		require.NoError(t, p.Writable(never))
		for _, err := range p.Records(never, Position{}) {
			require.NoError(t, err)
			break
		}
		_, err = r.client.Topic("t").Partitions(never)
		require.NoError(t, err)
		pr := r.client.Topic("t").Producer(ProducerOptions{})
		require.NoError(t, pr.AppendAsync(never, Record{}, nil))
		_, err = pr.Append(never, Record{Headers: []Header{{}}})
		require.NoError(t, err)
		require.NoError(t, pr.Flush(never))
		require.NoError(t, pr.Close(never))

		_, err = c.AlterTopic(never, "t", nil)
		require.NoError(t, err)
		require.NoError(t, c.EnsureTopic(never, "u", TopicConfig{}))
		require.ErrorIs(t, c.CreateTopic(never, "", TopicConfig{}), ErrInvalidTopic)
		require.NoError(t, c.AddPartitions(never, "u", 2))
		require.ErrorIs(t, c.ElectUnclean(never, "t", 0, -1), ErrElectionNotNeeded)
		_ = c.ElectPreferred(never, "t", 0)
		require.NoError(t, c.DeleteTopic(never, "u"))
		_, err = c.Topics(never)
		require.NoError(t, err)
		_, err = c.Features(never)
		require.NoError(t, err)
		require.ErrorIs(t, c.RaiseLevel(never, -1), ErrUnsupportedLevel)

		require.NoError(t, b.Ready(never))
		rep, err := b.Replica(never, "t", 0)
		require.NoError(t, err)
		for _, err := range rep.Batches(never, 0) {
			require.NoError(t, err)
		}
		_, err = Open(never, Config{})
		require.ErrorIs(t, err, ErrInvalidConfig)
		none := NewClient(nil, ClientOptions{})
		_, err = none.Partition("t", 0).Append(r.within(time.Second), Record{})
		require.ErrorIs(t, err, ErrNoBroker)
		require.Zero(t, OutcomeOf(nil)-Appended)
		require.NoError(t, b.Shutdown(never))
	})
}
