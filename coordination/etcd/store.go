package etcd

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/tidemark-log/tidemark/coordination"
)

// Store is one process's handle on etcd. All methods may be called from any goroutine.
type Store struct {
	c      Config
	log    *slog.Logger
	space  keyspace
	client *clientv3.Client
	conns  *conns

	kv          etcdserverpb.KVClient
	lease       etcdserverpb.LeaseClient
	watcher     etcdserverpb.WatchClient
	maintenance etcdserverpb.MaintenanceClient

	ctx     context.Context // ends with the Store; its cause is the reason
	stop    context.CancelCauseFunc
	wg      sync.WaitGroup
	close   func() error
	highest atomic.Int64  // revision that was seen
	cluster atomic.Uint64 // etcd's id; 0: no answer yet

	mu       sync.Mutex // never held during I/O
	sessions map[sessionID]*session
	starting bool // guarded by mu: no new goroutines once it is over
}

var _ coordination.Store = (*Store)(nil)

// Open makes a Store. It does not wait for etcd: while that is out of reach all calls
// fail with coordination.ErrUnavailable, and the Store connects by itself, until it is
// closed. ctx is only looked at. An error means that the Config is at fault.
func Open(ctx context.Context, c Config) (*Store, error) {
	c, err := c.normalized()
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	s := &Store{
		c: c, log: c.Logger, space: newKeyspace(c.Prefix), conns: newConns(c.DialTimeout),
		sessions: make(map[sessionID]*session), starting: true,
	}
	s.ctx, s.stop = context.WithCancelCause(context.Background())
	s.close = sync.OnceValue(s.shutdown)
	if s.client, err = s.dial(); err != nil {
		s.stop(nil)
		return nil, fmt.Errorf("etcd: %w", err)
	}
	conn := s.client.ActiveConnection()
	s.kv, s.watcher = clientv3.RetryKVClient(s.client), etcdserverpb.NewWatchClient(conn)
	s.lease, s.maintenance = clientv3.RetryLeaseClient(s.client), etcdserverpb.NewMaintenanceClient(conn)
	if !c.blind {
		s.start(newObserver(s).run)
	}
	return s, nil
}

// dial makes the client, which connects in the background and never gives up.
func (s *Store) dial() (*clientv3.Client, error) {
	auth := &auth{s: s}
	return clientv3.New(clientv3.Config{
		Endpoints:            s.c.Endpoints,
		TLS:                  s.c.TLS,
		Logger:               zap.NewNop(), // a line for every call that fails
		DialTimeout:          s.c.DialTimeout,
		DialKeepAliveTime:    10 * time.Second, // the least that gRPC allows
		DialKeepAliveTimeout: s.c.StallLimit,
		// Reads are tried again for longer than gRPC waits until it connects again.
		MaxUnaryRetries:    30,
		BackoffWaitBetween: 25 * time.Millisecond,
		DialOptions: append([]grpc.DialOption{
			grpc.WithContextDialer(s.conns.dial),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32), grpc.MaxCallSendMsgSize(math.MaxInt32)),
			// A session must not end because somebody waits to try again.
			grpc.WithConnectParams(grpc.ConnectParams{
				Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.5, Jitter: 0.2, MaxDelay: 250 * time.Millisecond},
				MinConnectTimeout: s.c.DialTimeout,
			}),
			grpc.WithChainUnaryInterceptor(auth.unary), grpc.WithChainStreamInterceptor(auth.stream),
		}, s.c.dialOptions...),
	})
}

// start runs f in a goroutine that Close waits for. It returns false, and does
// nothing, once the Store has ended.
func (s *Store) start(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.starting {
		return false
	}
	s.wg.Go(f)
	return true
}

// Close implements coordination.Store. The sessions are not ended: they expire. It
// waits for everything that the Store has started.
func (s *Store) Close() error { return s.close() }

func (s *Store) shutdown() error {
	s.end(coordination.ErrClosed)
	s.mu.Lock()
	s.starting = false
	s.mu.Unlock()
	_ = s.client.Close() // says that its own context has ended
	s.wg.Wait()
	s.conns.close()
	return nil
}

// end makes every call fail from now on. Only the first reason counts.
func (s *Store) end(why error) { s.stop(why) }

// cause says why the Store has ended; nil: it has not.
func (s *Store) cause() error { return context.Cause(s.ctx) }

// begin prepares a call: it bounds ctx, and ties it to the Store's end.
func (s *Store) begin(ctx context.Context) (context.Context, context.CancelFunc, error) {
	if cause := s.cause(); cause != nil {
		return nil, nil, cause
	}
	if ctx.Err() != nil {
		return nil, nil, fmt.Errorf("%w: %w", coordination.ErrUnavailable, ctx.Err())
	}
	ctx, cancel := context.WithTimeout(ctx, s.c.RequestTimeout)
	stop := context.AfterFunc(s.ctx, cancel)
	return ctx, func() { stop(); cancel() }, nil
}

// checked takes note of what an answer shows of etcd's state. The call must have been
// one that shows everything written before it, and floor what was seen before it.
func (s *Store) checked(floor int64, h *etcdserverpb.ResponseHeader) error {
	if cause := s.cause(); cause != nil {
		return cause
	}
	if !s.cluster.CompareAndSwap(0, h.ClusterId) && s.cluster.Load() != h.ClusterId {
		return s.rewound(fmt.Sprintf("cluster %x answers instead of %x", h.ClusterId, s.cluster.Load()))
	}
	if h.Revision < floor {
		return s.rewound(fmt.Sprintf("revision %d after %d", h.Revision, floor))
	}
	for {
		seen := s.highest.Load()
		if seen >= h.Revision || s.highest.CompareAndSwap(seen, h.Revision) {
			return nil
		}
	}
}

// rewound ends the Store: what its user knows is newer than what etcd has now, and
// nothing good comes of mixing the two. Its revisions will be used a second time.
func (s *Store) rewound(how string) error {
	err := fmt.Errorf("%w: %s", ErrRewound, how)
	if s.ctx.Err() == nil {
		s.log.Error("etcd was restored from an older backup or set up anew; this process must be restarted once that is sorted out", "error", err)
	}
	s.end(err)
	return s.cause()
}

// Get implements coordination.Store. It shows everything written before the call.
func (s *Store) Get(ctx context.Context, key string) (coordination.KV, bool, error) {
	ctx, cancel, err := s.begin(ctx)
	if err != nil {
		return coordination.KV{}, false, err
	}
	defer cancel()
	resp, err := s.rangeOf(ctx, &etcdserverpb.RangeRequest{Key: s.space.key(key)})
	if err != nil || len(resp.Kvs) == 0 {
		return coordination.KV{}, false, err
	}
	return s.space.kv(resp.Kvs[0]), true, nil
}

// rangeOf reads what is there now, or at the revision that r names.
func (s *Store) rangeOf(ctx context.Context, r *etcdserverpb.RangeRequest) (*etcdserverpb.RangeResponse, error) {
	floor := s.highest.Load()
	resp, err := s.kv.Range(ctx, r)
	if err != nil {
		return nil, s.refusal(ctx, err)
	}
	return resp, s.checked(floor, resp.Header)
}

// listPage is how many keys are read at once.
const listPage = 2000

// List implements coordination.Store. It shows everything written before the call; a
// long list is read in pages, all of one revision.
func (s *Store) List(ctx context.Context, prefix string) ([]coordination.KV, int64, error) {
	ctx, cancel, err := s.begin(ctx)
	if err != nil {
		return nil, 0, err
	}
	defer cancel()
	for {
		kvs, revision, err := s.list(ctx, s.space.key(prefix))
		// Somebody compacts more often than a list takes: then it begins anew.
		if !is(err, rpctypes.ErrCompacted) {
			return kvs, revision, err
		}
	}
}

func (s *Store) list(ctx context.Context, prefix []byte) (kvs []coordination.KV, revision int64, err error) {
	r := &etcdserverpb.RangeRequest{Key: prefix, RangeEnd: rangeEnd(prefix), Limit: listPage}
	for {
		resp, err := s.rangeOf(ctx, r)
		if err != nil {
			return nil, 0, err
		}
		if revision == 0 {
			revision = resp.Header.Revision
			r.Revision = revision
		}
		for _, kv := range resp.Kvs {
			kvs = append(kvs, s.space.kv(kv))
		}
		if !resp.More || len(resp.Kvs) == 0 {
			return kvs, revision, nil
		}
		r.Key = append(resp.Kvs[len(resp.Kvs)-1].Key, 0)
	}
}
