package zookeeper_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/coordination/coordinationtest"
	"github.com/tidemark-log/tidemark/coordination/zookeeper"
	"github.com/tidemark-log/tidemark/coordination/zookeeper/zkserver"
)

// TestConformance runs the contract's tests against a real server. Pause is not among
// the hooks: ZooKeeper does not forgive sessions the time in which it stood still
// itself (TestServerStandsStill).
func TestConformance(t *testing.T) {
	addr, _ := sharedServer(t)
	coordinationtest.Run(t, coordinationtest.Config{RealTime: true, New: func(t testing.TB) *coordinationtest.Server {
		if strings.HasSuffix(t.Name(), "/Unavailable") {
			return newServer(t, "", zkserver.StartTest(t, zkserver.Options{NoSync: true}))
		}
		return newServer(t, addr, nil)
	}})
}

// newServer makes a coordinationtest.Server of a chroot on the shared server, or of a
// server of its own.
func newServer(t testing.TB, addr string, own *zkserver.Server) *coordinationtest.Server {
	_, chroot := sharedServer(t)
	const history = 500
	f := &faults{}
	ctx := context.Background()
	var mu sync.Mutex
	var handles []*handle
	server := &coordinationtest.Server{
		History:      history,
		Fence:        func(s coordination.Store) { s.(*handle).network.setCut(true) },
		DropRequests: func(n int) { f.drop.Store(int32(n)) },
		LoseReplies:  func(n int) { f.lose.Store(int32(n)) },
		Close:        func() error { return nil },
	}
	if own != nil {
		addr = own.Addr()
		server.Close = own.Kill
		server.SetUnavailable = func(down bool) {
			if down {
				require.NoError(t, own.Kill())
				return
			}
			// The server gives every session its time from when it is up, which is before it
			// can be asked whether it is.
			up := make(chan struct{})
			for _, h := range handles {
				h.network.waitFor(up)
			}
			go func() {
				defer close(up)
				assert.NoError(t, own.Restart())
			}()
		}
	}
	server.Connect = func() coordination.Store {
		h := &handle{network: &network{}, server: f}
		var err error
		openCtx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		h.Store, err = zookeeper.Open(openCtx, zookeeper.Config{
			Servers: []string{addr}, Chroot: chroot, Dial: h.network.dial, DialTimeout: 10 * time.Second, History: history,
		})
		require.NoError(t, err)
		mu.Lock()
		defer mu.Unlock()
		handles = append(handles, h)
		return h
	}
	server.Expire = func(id string) {
		for _, h := range handles {
			require.NoError(t, h.Expire(ctx, id))
		}
	}
	return server
}
