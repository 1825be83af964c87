package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/coordination/etcd"
	"github.com/tidemark-log/tidemark/coordination/etcd/embedded"
)

// cluster is three members, each in a process of its own.
type cluster struct {
	t         testing.TB
	configs   []embedded.Config
	processes []*process
	endpoints []string
}

func startCluster(t testing.TB) *cluster {
	c := &cluster{t: t, processes: make([]*process, 3)}
	dir, peers := t.TempDir(), make(map[string]string)
	for i := range c.processes {
		name := fmt.Sprint("m", i)
		peers[name] = freeAddress(t)
		c.configs = append(c.configs, embedded.Config{
			Name: name, Dir: filepath.Join(dir, name), Client: freeAddress(t), Peer: peers[name], Cluster: peers,
		})
		c.endpoints = append(c.endpoints, c.configs[i].Client)
	}
	c.start()
	return c
}

func (c *cluster) start() {
	for i := range c.processes {
		c.processes[i] = startProcess(c.t, c.configs[i])
	}
	for _, p := range c.processes {
		p.endpoint()
	}
}

// client gives f a client of etcd's own.
func client(t testing.TB, endpoints []string, f func(ctx context.Context, c *clientv3.Client)) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	c, err := clientv3.New(clientv3.Config{Endpoints: endpoints, Logger: zap.NewNop()})
	require.NoError(t, err)
	defer c.Close()
	f(ctx, c)
}

// leader returns the number of the member that leads.
func (c *cluster) leader() (leader int) {
	client(c.t, c.endpoints, func(ctx context.Context, cl *clientv3.Client) {
		require.Eventually(c.t, func() bool {
			for i, e := range c.endpoints {
				callCtx, cancel := context.WithTimeout(ctx, time.Second)
				status, err := cl.Status(callCtx, e)
				cancel()
				if err == nil && status.Leader == status.Header.MemberId {
					leader = i
					return true
				}
			}
			return false
		}, 20*time.Second, 20*time.Millisecond)
	})
	return leader
}

func (c *cluster) open(t testing.TB) *etcd.Store { return open(t, etcd.Config{Endpoints: c.endpoints}) }

func open(t testing.TB, c etcd.Config) *etcd.Store {
	s, err := etcd.Open(context.Background(), c)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func session(t testing.TB, s *etcd.Store, ttl time.Duration) coordination.Session {
	t.Helper()
	sess, err := s.NewSession(context.Background(), ttl)
	require.NoError(t, err)
	return sess
}

func do(t testing.TB, s coordination.Store, ops ...coordination.Op) int64 {
	t.Helper()
	res, err := s.Do(context.Background(), coordination.Txn{Ops: ops})
	require.NoError(t, err)
	require.True(t, res.Applied)
	return res.Revision
}

// renewals renews a session as a broker does, four times per ttl, until it is stopped.
type renewals struct {
	stop func()

	mu   sync.Mutex
	last time.Time // when the last one that succeeded began
	gap  time.Duration
	err  error // ErrSessionExpired: it has ended
}

func renew(sess coordination.Session, ttl time.Duration) *renewals {
	ctx, cancel := context.WithCancel(context.Background())
	r := &renewals{last: time.Now()}
	var wg sync.WaitGroup
	wg.Go(func() {
		ticker := time.NewTicker(ttl / 4)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			begun := time.Now()
			callCtx, cancel := context.WithTimeout(ctx, ttl/4)
			err := sess.Renew(callCtx)
			cancel()
			r.mu.Lock()
			if err == nil {
				r.gap = max(r.gap, time.Since(r.last))
				r.last = begun
			} else if errors.Is(err, coordination.ErrSessionExpired) {
				r.err = err
			}
			r.mu.Unlock()
		}
	})
	r.stop = func() { cancel(); wg.Wait() }
	return r
}

// seen returns when the last one that succeeded began, the longest time between the
// begin of one and the end of the next, and how the session has ended, if it has.
func (r *renewals) seen() (last time.Time, gap time.Duration, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last, r.gap, r.err
}

// untilGone waits until a watch shows that a key is gone, and returns when that was.
func untilGone(t testing.TB, ch <-chan coordination.Changes, key string) time.Time {
	t.Helper()
	limit := time.After(time.Minute)
	for {
		select {
		case c, open := <-ch:
			require.True(t, open)
			require.NoError(t, c.Err)
			for _, ev := range c.Events {
				if ev.Key == key && ev.Deleted {
					return time.Now()
				}
			}
		case <-limit:
			require.FailNow(t, "it is never gone")
		}
	}
}

// TestDeadBrokerAndDeadLeader: a process ends that has both a broker's session and the
// member that leads etcd. The session ends about as soon as with a leader that lives,
// and nobody else's does.
func TestDeadBrokerAndDeadLeader(t *testing.T) {
	c := startCluster(t)
	const ttl = 2 * time.Second
	for round := range 3 {
		t.Run(fmt.Sprint("round ", round), func(t *testing.T) {
			leader := c.leader()
			dead, alive := c.open(t), c.open(t)
			deadSession, aliveSession := session(t, dead, ttl), session(t, alive, ttl)
			do(t, dead, coordination.Op{Key: "dead", Session: deadSession.ID()})
			do(t, alive, coordination.Op{Key: "alive", Session: aliveSession.ID()})
			deadRenewals, aliveRenewals := renew(deadSession, ttl), renew(aliveSession, ttl)
			defer aliveRenewals.stop()
			<-time.After(ttl * 9 / 8)

			deadRenewals.stop()
			c.processes[leader].kill()
			killed := time.Now()
			require.NoError(t, dead.Close())
			var gone time.Time
			require.Eventually(t, func() bool {
				_, there, err := alive.Get(context.Background(), "dead")
				gone = time.Now()
				return err == nil && !there
			}, time.Minute, 10*time.Millisecond)
			renewed, _, _ := deadRenewals.seen()
			_, gap, _ := aliveRenewals.seen()
			t.Logf("gone %v after the end of its process, %v after its last renewal; longest gap of the other one's renewals %v",
				gone.Sub(killed), gone.Sub(renewed), gap)
			require.GreaterOrEqual(t, gone.Sub(renewed), ttl)
			require.Less(t, gone.Sub(killed), ttl+time.Second)

			<-time.After(2 * ttl)
			_, there, err := alive.Get(context.Background(), "alive")
			require.NoError(t, err)
			require.True(t, there)
			_, _, err = aliveRenewals.seen()
			require.NoError(t, err)
			c.processes[leader] = startProcess(c.t, c.configs[leader])
			c.processes[leader].endpoint()
		})
	}
}

// TestLeaderChange: watches and sessions when another member is made the leader.
func TestLeaderChange(t *testing.T) {
	c := startCluster(t)
	const ttl = 2 * time.Second
	s := c.open(t)
	sess := session(t, s, ttl)
	rev := do(t, s, coordination.Op{Key: "e", Session: sess.ID()})
	ch, err := s.Watch(context.Background(), "", rev)
	require.NoError(t, err)
	r := renew(sess, ttl)
	for i := range 3 {
		leader := c.leader()
		client(t, c.endpoints[leader:leader+1], func(ctx context.Context, cl *clientv3.Client) {
			status, err := cl.Status(ctx, c.endpoints[(leader+1)%3])
			require.NoError(t, err)
			_, err = cl.MoveLeader(ctx, status.Header.MemberId)
			require.NoError(t, err)
		})
		require.Eventually(t, func() bool {
			_, err := s.Do(context.Background(), coordination.Txn{Ops: []coordination.Op{{Key: fmt.Sprint("k", i)}}})
			return err == nil
		}, 10*time.Second, 10*time.Millisecond)
	}
	r.stop()
	gone := untilGone(t, ch, "e") // and the watch has outlived all of it
	require.NoError(t, r.err)
	require.GreaterOrEqual(t, gone.Sub(r.last), ttl)
	require.Less(t, gone.Sub(r.last), ttl+time.Second)
}

// TestRestart: all of etcd stops and comes back. What was written is there, and the
// sessions have a whole ttl to report.
func TestRestart(t *testing.T) {
	c := startCluster(t)
	const ttl = time.Second
	s := c.open(t)
	sess := session(t, s, ttl)
	rev := do(t, s, coordination.Op{Key: "e", Session: sess.ID()}, coordination.Op{Key: "k", Value: []byte("v")})
	ch, err := s.Watch(context.Background(), "", rev)
	require.NoError(t, err)
	for _, p := range c.processes {
		p.kill()
	}
	changes := <-ch
	require.ErrorIs(t, changes.Err, coordination.ErrUnavailable)
	require.ErrorIs(t, renewOnce(sess), coordination.ErrUnavailable)
	<-time.After(2 * ttl)
	c.start()
	up := time.Now()
	require.NoError(t, renewOnce(sess))
	kv, ok, err := s.Get(context.Background(), "k")
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, coordination.KV{Key: "k", Value: []byte("v"), Revision: rev}, kv)
	ch, err = s.Watch(context.Background(), "", rev)
	require.NoError(t, err)
	require.GreaterOrEqual(t, untilGone(t, ch, "e").Sub(up), ttl)
}

func renewOnce(sess coordination.Session) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	return sess.Renew(ctx)
}
