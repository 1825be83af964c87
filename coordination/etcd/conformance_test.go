package etcd_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/coordination/coordinationtest"
	"github.com/tidemark-log/tidemark/coordination/etcd"
)

func TestConformance(t *testing.T) {
	p := startProcess(t, oneMember(t))
	endpoint := p.endpoint()
	n := 0
	coordinationtest.Run(t, coordinationtest.Config{RealTime: true, TTL: time.Second, New: func(t testing.TB) *coordinationtest.Server {
		n++
		s := &server{t: t, process: p, endpoint: endpoint, prefix: fmt.Sprintf("/test/%d/", n)}
		return &coordinationtest.Server{
			Connect: s.connect, Close: s.close, Fence: s.fence, Expire: s.expire, SetUnavailable: s.setUnavailable,
			DropRequests: func(n int) { s.drop.Store(int32(n)) }, LoseReplies: func(n int) { s.lose.Store(int32(n)) },
			Pause: func() { p.signal(syscall.SIGSTOP) }, Resume: func() { p.signal(syscall.SIGCONT) },
		}
	}})
}

// server is what looks like an etcd of its own, and is a prefix of one.
type server struct {
	t                testing.TB
	process          *process
	endpoint, prefix string
	drop, lose       atomic.Int32

	mu      sync.Mutex
	proxies map[coordination.Store]*proxy
}

func (s *server) connect() coordination.Store {
	p := newProxy(s.t, s.endpoint)
	store, err := etcd.OpenWith(etcd.Config{
		Endpoints: []string{p.address()}, Prefix: s.prefix, RequestTimeout: 3 * time.Second, StallLimit: 10 * time.Second,
	}, grpc.WithChainUnaryInterceptor(s.intercept))
	require.NoError(s.t, err)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proxies == nil {
		s.proxies = make(map[coordination.Store]*proxy)
	}
	s.proxies[store] = p
	return store
}

// intercept is the network's part in the faults of single transactions.
func (s *server) intercept(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	txn, ok := req.(*etcdserverpb.TxnRequest)
	if !ok || len(txn.Success) == 0 || !s.writesKeys(txn) {
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	if s.drop.Add(-1) >= 0 {
		return status.Error(codes.Unavailable, "dropped")
	}
	s.drop.Store(0)
	err := invoke(ctx, method, req, reply, cc, opts...)
	if s.lose.Add(-1) >= 0 {
		return status.Error(codes.Unavailable, "lost")
	}
	s.lose.Store(0)
	return err
}

// writesKeys tells transactions of Do from those of sessions.
func (s *server) writesKeys(t *etcdserverpb.TxnRequest) bool {
	put := t.Success[0].GetRequestPut()
	return put == nil || !strings.HasPrefix(string(put.Key), s.prefix+"sessions/")
}

func (s *server) fence(store coordination.Store) {
	store.(*etcd.Store).Fence()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.proxies[store].setCut(true)
}

func (s *server) setUnavailable(down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.proxies {
		p.setCut(down)
	}
}

func (s *server) admin(f func(ctx context.Context, c *clientv3.Client) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{s.endpoint}, Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	defer c.Close()
	return f(ctx, c)
}

func (s *server) expire(id string) {
	err := s.admin(func(ctx context.Context, c *clientv3.Client) error { return revoke(ctx, c, id) })
	require.NoError(s.t, err)
}

func revoke(ctx context.Context, c *clientv3.Client, id string) error {
	var lease int64
	if _, err := fmt.Sscanf(id, "%x", &lease); err != nil {
		return err
	}
	_, err := c.Revoke(ctx, clientv3.LeaseID(lease))
	if err != nil && err.Error() == "etcdserver: requested lease not found" {
		return nil
	}
	return err
}

// close removes what is left, so that it does not end during the next test.
func (s *server) close() error {
	for _, p := range s.proxies {
		p.close()
	}
	return s.admin(func(ctx context.Context, c *clientv3.Client) error {
		leases, err := c.Leases(ctx)
		if err != nil {
			return err
		}
		for _, l := range leases.Leases {
			if err := revoke(ctx, c, fmt.Sprintf("%x", int64(l.ID))); err != nil {
				return err
			}
		}
		_, err = c.Delete(ctx, s.prefix, clientv3.WithPrefix())
		return err
	})
}
