package zookeeper_test

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/coordination/zookeeper"
	"github.com/tidemark-log/tidemark/coordination/zookeeper/zkserver"
)

// TestEnsembleReads: what was answered to one Store is seen by another one that is connected
// to another server, at once where that is a follower. A refusal is never from the past.
func TestEnsembleReads(t *testing.T) {
	servers := zkserver.StartTestEnsemble(t, 3, zkserver.Options{NoSync: true})
	var stores, followers []*zookeeper.Store
	for _, server := range servers {
		s := open(t, zookeeper.Config{Servers: []string{server.Addr()}, DialTimeout: 10 * time.Second})
		stores = append(stores, s)
		if !server.Leads() {
			followers = append(followers, s)
		}
	}
	require.Len(t, followers, 2)
	x := session(t, stores[0], 20*time.Second)
	for i := range 300 {
		rev := do(t, stores[i%3], put("/k", fmt.Sprint(i)))
		want := coordination.KV{Key: "/k", Value: fmt.Append(nil, i), Revision: rev}
		switch i / 6 % 3 {
		case 0:
			kv, _, err := followers[i%2].Get(t.Context(), "/k")
			require.NoError(t, err)
			require.Equal(t, want, kv)
		case 1:
			kvs, now, err := followers[i%2].List(t.Context(), "/k")
			require.NoError(t, err)
			require.Equal(t, []coordination.KV{want}, kvs)
			require.Equal(t, rev, now)
		case 2:
			res, err := stores[(i+1)%3].Do(t.Context(), coordination.Txn{
				Guards: []coordination.Guard{{Key: "/k", Revision: rev}}, Ops: []coordination.Op{putFor(x, "/e", "")},
			})
			require.NoError(t, err)
			require.True(t, res.Applied)
		}
	}
}

// TestEnsembleOwnWrites: a Store sees what it has written itself, also where its session's
// connection leads to one server and the other to another one, such as the leader.
func TestEnsembleOwnWrites(t *testing.T) {
	servers := zkserver.StartTestEnsemble(t, 3, zkserver.Options{NoSync: true})
	var c zookeeper.Config
	for _, server := range servers {
		c.Servers = append(c.Servers, server.Addr())
	}
	for range 12 { // of which some connect in that way
		s := open(t, c)
		x := session(t, s, 20*time.Second)
		for i := range 10 {
			rev := do(t, s, putFor(x, "/own", fmt.Sprint(i)))
			kv, _, err := s.Get(t.Context(), "/own")
			require.NoError(t, err)
			require.Equal(t, coordination.KV{Key: "/own", Value: fmt.Append(nil, i), Revision: rev, Session: x.ID()}, kv)
		}
		require.NoError(t, x.Close(t.Context()))
		require.Empty(t, keys(t, s, "/own"))
		require.NoError(t, s.Close())
	}
}

// TestWaitsForOwnWrites: what the server has not yet applied is waited for.
func TestWaitsForOwnWrites(t *testing.T) {
	_, c := fresh(t)
	other := open(t, c)
	n := &network{}
	c.Dial = n.dial
	s := open(t, c)
	const opSync, ahead = 9, 3
	for name, call := range map[string]func() string{
		"Get":  func() string { kv, _, _ := s.Get(context.Background(), "/k"); return string(kv.Value) },
		"List": func() string { kvs, _, _ := s.List(context.Background(), "/k"); return string(kvs[0].Value) },
		"Do": func() string {
			res, _ := s.Do(context.Background(), coordination.Txn{Guards: []coordination.Guard{{Key: "/never", Revision: 1}}})
			kv, _, _ := other.Get(context.Background(), "/k")
			if kv.Revision != res.Revision {
				return fmt.Sprint(kv, res)
			}
			return string(kv.Value)
		},
	} {
		do(t, other, put("/k", "old"))
		require.NotNil(t, keys(t, s, "/k"))
		s.Ahead(ahead)
		before := n.count(opSync)
		answer := make(chan string, 1)
		go func() { answer <- call() }()
		eventually(t, func() bool { return n.count(opSync) >= before+2 })
		require.Empty(t, answer, name)
		for i := range ahead {
			do(t, other, put("/k", fmt.Sprint(name, i)))
		}
		require.Equal(t, fmt.Sprint(name, ahead-1), <-answer)
	}
}

// TestEveryCallSyncs: with a single server it could not be seen.
func TestEveryCallSyncs(t *testing.T) {
	_, c := fresh(t)
	n := &network{}
	c.Dial = n.dial
	s := open(t, c)
	const opSync = 9
	for name, call := range map[string]func(){
		"Get":   func() { _, _, _ = s.Get(t.Context(), "/k") },
		"List":  func() { _, _, _ = s.List(t.Context(), "/k") },
		"Do":    func() { _, _ = s.Do(t.Context(), coordination.Txn{Ops: []coordination.Op{put("/k", "")}}) },
		"Watch": func() { _, _ = s.Watch(t.Context(), "/k", 0) },
	} {
		before := n.count(opSync)
		call()
		require.Equal(t, before+1, n.count(opSync), name)
	}
}

// TestEnsembleFailover: servers are killed one after the other, the leader too. No
// acknowledged write is lost, no watch misses one, and a session that is renewed lives on.
func TestEnsembleFailover(t *testing.T) {
	const ttl = 8 * time.Second
	servers := zkserver.StartTestEnsemble(t, 3, zkserver.Options{NoSync: true})
	var c zookeeper.Config
	for _, server := range servers {
		c.Servers = append(c.Servers, server.Addr())
	}
	c.RequestTimeout = time.Second
	s := open(t, c)
	x := session(t, s, ttl)
	do(t, s, putFor(x, "/e", ""), put("/n", "0"))

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var work sync.WaitGroup
	work.Go(func() { // the holder of the session
		for ctx.Err() == nil {
			renewCtx, cancel := context.WithTimeout(ctx, ttl/8)
			_ = x.Renew(renewCtx)
			cancel()
			<-time.After(ttl / 16)
		}
	})
	var acked [2]int
	for i := range acked { // two count, each for itself, with the same key
		store := open(t, c)
		work.Go(func() {
			for ctx.Err() == nil {
				if increment(ctx, store, "/n") {
					acked[i]++
				}
			}
		})
	}
	var last, seen int
	counter := open(t, c)
	work.Go(func() { last, seen = count(ctx, counter, "/n") })

	for i := range 3 {
		victim := servers[i]
		if i == 0 { // at least once
			for _, server := range servers {
				if server.Leads() {
					victim = server
				}
			}
		}
		require.NoError(t, victim.Kill())
		<-time.After(time.Second)
		require.NoError(t, victim.Restart())
		<-time.After(time.Second)
	}
	eventually(t, func() bool { return increment(ctx, s, "/n") })
	cancel()
	work.Wait()
	kv, _, err := s.Get(t.Context(), "/n")
	require.NoError(t, err)
	n, err := strconv.Atoi(string(kv.Value))
	require.NoError(t, err)
	require.GreaterOrEqual(t, n, acked[0]+acked[1]+1, "an acknowledged write is gone")
	require.Greater(t, min(acked[0], acked[1]), 10)
	require.Equal(t, last, seen, "the watch has seen each value once")
	require.Greater(t, seen, 10)
	require.Equal(t, []string{"/e"}, keys(t, s, "/e"), "the session lives")
	require.NoError(t, x.Renew(t.Context()))
	t.Logf("%d writes, %d and %d of them acknowledged", n, acked[0], acked[1])
}

// increment adds one to a number, and says whether it surely did.
func increment(ctx context.Context, s *zookeeper.Store, key string) bool {
	kv, _, err := s.Get(ctx, key)
	if err != nil {
		<-time.After(10 * time.Millisecond)
		return false
	}
	n, _ := strconv.Atoi(string(kv.Value))
	res, err := s.Do(ctx, coordination.Txn{
		Guards: []coordination.Guard{{Key: key, Revision: kv.Revision}}, Ops: []coordination.Op{put(key, strconv.Itoa(n+1))},
	})
	return err == nil && res.Applied
}

// count follows a number by list and watch, and returns its last value, and how many
// values it has had without a gap.
func count(ctx context.Context, s *zookeeper.Store, key string) (last, seen int) {
	after := int64(0)
	for ctx.Err() == nil {
		ch, err := s.Watch(ctx, key, after)
		if err != nil {
			<-time.After(10 * time.Millisecond)
			continue
		}
		for c := range ch {
			for _, ev := range c.Events {
				n, _ := strconv.Atoi(string(ev.Value))
				if last = n; n > 0 {
					seen++
				}
				after = ev.Revision
			}
		}
	}
	return last, seen
}
