package coordrpc_test

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/chaos/internal/coordrpc"
	"github.com/tidemark-log/tidemark/chaos/internal/proxy"
	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/coordination/coordinationtest"
	"github.com/tidemark-log/tidemark/coordination/memory"
)

// rig is a store, its server, and a way to it that can be cut.
type rig struct {
	store  *memory.Store
	served *memory.Client
	server *coordrpc.Server
	mu     sync.Mutex
	ways   map[coordination.Store]*proxy.Proxy
}

func newRig(t testing.TB, history int) *rig {
	r := &rig{store: memory.New(memory.Options{History: history}), ways: make(map[coordination.Store]*proxy.Proxy)}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	r.served = r.store.Connect()
	r.server = coordrpc.Serve(l, r.served)
	return r
}

func (r *rig) connect(t testing.TB) *coordrpc.Client {
	p, err := proxy.Listen()
	require.NoError(t, err)
	p.SetTarget(r.server.Addr())
	c := coordrpc.Open(p.Addr())
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ways[c] = p
	return c
}

func (r *rig) close(t testing.TB) error {
	for _, p := range r.ways {
		require.NoError(t, p.Close())
	}
	require.NoError(t, r.server.Close())
	return r.store.Close()
}

func TestConformance(t *testing.T) {
	coordinationtest.Run(t, coordinationtest.Config{RealTime: true, New: func(t testing.TB) *coordinationtest.Server {
		const history = 500
		r := newRig(t, history)
		return &coordinationtest.Server{
			Connect:        func() coordination.Store { return r.connect(t) },
			Close:          func() error { return r.close(t) },
			History:        history,
			Fence:          func(c coordination.Store) { c.(*coordrpc.Client).Fence() },
			Expire:         func(id string) { r.store.ExpireSession(id) },
			SetUnavailable: r.store.SetUnavailable,
			DropRequests:   r.store.DropRequests,
			LoseReplies:    r.store.LoseReplies,
			Pause:          r.store.Pause,
			Resume:         r.store.Resume,
		}
	}})
}

// A black hole is noticed: calls and watches end, and once it is over the client is
// as good as new, its session too if that was renewed in time.
func TestBlackHole(t *testing.T) {
	for _, f := range []proxy.Fault{{HoldForward: true}, {HoldBackward: true}, {HoldForward: true, HoldBackward: true}} {
		r := newRig(t, 500)
		c := r.connect(t)
		ctx := t.Context()
		session, err := c.NewSession(ctx, time.Minute)
		require.NoError(t, err)
		_, rev, err := c.List(ctx, "")
		require.NoError(t, err)
		changes, err := c.Watch(ctx, "", rev)
		require.NoError(t, err)
		lift := r.ways[c].Impose(f)
		_, err = c.Do(ctx, coordination.Txn{Ops: []coordination.Op{{Key: "k"}}})
		require.ErrorIs(t, err, coordination.ErrUnavailable, "whether it was applied is open")
		require.ErrorIs(t, last(t, changes), coordination.ErrUnavailable)
		short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		require.ErrorIs(t, session.Renew(short), coordination.ErrUnavailable)
		cancel()
		lift()
		require.Eventually(t, func() bool { return session.Renew(ctx) == nil }, 10*time.Second, 10*time.Millisecond)
		r.store.ExpireSession(session.ID())
		select {
		case <-session.Done():
		case <-time.After(10 * time.Second):
			require.Fail(t, "the client is not told of the end of its session")
		}
		require.ErrorIs(t, session.Renew(ctx), coordination.ErrSessionExpired)
		require.NoError(t, c.Close())
		require.NoError(t, r.close(t))
	}
}

// last is what a watch ended with.
func last(t testing.TB, changes <-chan coordination.Changes) (err error) {
	for {
		select {
		case x, open := <-changes:
			if !open {
				return err
			}
			err = x.Err
		case <-time.After(10 * time.Second):
			require.Fail(t, "the watch goes on")
		}
	}
}
