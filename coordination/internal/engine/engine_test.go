package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/coordination"
)

var ctx = context.Background()

func put(key, value string) coordination.Op {
	return coordination.Op{Key: key, Value: []byte(value)}
}

func del(key string) coordination.Op { return coordination.Op{Key: key, Delete: true} }

func do(t *testing.T, c *Client, ops ...coordination.Op) int64 {
	t.Helper()
	res, err := c.Do(ctx, coordination.Txn{Ops: ops})
	require.NoError(t, err)
	require.True(t, res.Applied)
	return res.Revision
}

// TestRepeatedKeys: of several ops on one key the last one counts, and there is one event.
func TestRepeatedKeys(t *testing.T) {
	for _, tt := range []struct {
		ops    []coordination.Op
		exists bool
		value  string
		events string
	}{
		{[]coordination.Op{put("k", "1"), put("k", "2")}, true, "2", "[k=2]"},
		{[]coordination.Op{del("k"), put("k", "2")}, true, "2", "[k=2]"},
		{[]coordination.Op{put("k", "1"), del("k")}, false, "", "[-k]"},
		{[]coordination.Op{put("new", "1"), del("new")}, true, "old", "[]"},
		{[]coordination.Op{put("k", "1"), put("j", ""), del("k"), put("k", "3")}, true, "3", "[j= k=3]"},
		{[]coordination.Op{del("k"), del("k")}, false, "", "[-k]"},
	} {
		e := New(Options{Manual: true})
		c := e.Connect()
		rev := do(t, c, put("k", "old"))
		ch, err := c.Watch(ctx, "", rev)
		require.NoError(t, err)
		after := do(t, c, tt.ops...)
		kv, ok, err := c.Get(ctx, "k")
		require.NoError(t, err)
		require.Equal(t, tt.exists, ok)
		require.Equal(t, tt.value, string(kv.Value))
		var got []string
		if after != rev {
			require.Equal(t, rev+1, after, "the counter rises by one")
			for _, ev := range (<-ch).Events {
				if ev.Deleted {
					got = append(got, "-"+ev.Key)
				} else {
					got = append(got, ev.Key+"="+string(ev.Value))
				}
			}
		}
		require.Empty(t, ch)
		require.Equal(t, tt.events, fmt.Sprint(got))
		e.Close()
	}
}

// TestHistoryBytes: large values shorten the history and the backlog of a watch.
func TestHistoryBytes(t *testing.T) {
	e := New(Options{Manual: true})
	c := e.Connect()
	ch, err := c.Watch(ctx, "", 0)
	require.NoError(t, err)
	big := strings.Repeat("x", maxBytes/4)
	for range 20 {
		do(t, c, put("k", big))
	}
	require.LessOrEqual(t, e.history.bytes, maxBytes)
	require.Equal(t, int64(16), e.history.compacted)
	require.Len(t, (<-ch).Events, 4)
	require.ErrorIs(t, (<-ch).Err, coordination.ErrCompacted)
	_, more := <-ch
	require.False(t, more)
	ch, err = c.Watch(ctx, "", 16)
	require.NoError(t, err)
	require.Len(t, (<-ch).Events, 4)
	require.Less(t, cap(e.history.events), 200)
}

// TestFailedPersist: a change that could not be made durable never shows.
func TestFailedPersist(t *testing.T) {
	cause := errors.New("no disk")
	calls := 0
	e := New(Options{Revision: 41, Keys: []coordination.KV{{Key: "k", Revision: 41}}, Persist: func(ch Change) error {
		require.Equal(t, int64(42), ch.Revision)
		calls++
		return cause
	}})
	c := e.Connect()
	ch, err := c.Watch(ctx, "", 41)
	require.NoError(t, err)
	for range 2 {
		_, err = c.Do(ctx, coordination.Txn{Ops: []coordination.Op{put("k", "new")}})
		require.ErrorIs(t, err, coordination.ErrUnavailable)
		require.ErrorIs(t, err, cause)
	}
	require.Equal(t, 1, calls)
	require.Equal(t, int64(41), e.state.revision)
	require.ErrorIs(t, (<-ch).Err, cause)
	e.Close()
	require.True(t, e.Idle(ctx))
}

// TestSlowPersist: while a change is on its way readers see the state before it, a
// session that ends loses its keys right after it, and renewals go on.
func TestSlowPersist(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var gate chan struct{}
		e := New(Options{Persist: func(Change) error {
			if gate != nil {
				<-gate
			}
			return nil
		}})
		c := e.Connect()
		dead, err := c.NewSession(ctx, 10*time.Second)
		require.NoError(t, err)
		alive, err := c.NewSession(ctx, 10*time.Second)
		require.NoError(t, err)
		do(t, c, coordination.Op{Key: "dead", Session: dead.ID()}, coordination.Op{Key: "alive", Session: alive.ID()})
		gate = make(chan struct{})
		answer := make(chan error, 1)
		go func() {
			_, err := c.Do(ctx, coordination.Txn{Ops: []coordination.Op{put("slow", "")}})
			answer <- err
		}()
		for range 6 {
			time.Sleep(3 * time.Second)
			require.NoError(t, alive.Renew(ctx))
			kvs, rev, err := c.List(ctx, "")
			require.NoError(t, err)
			require.Len(t, kvs, 2)
			require.Equal(t, int64(1), rev)
		}
		<-dead.Done()
		require.ErrorIs(t, dead.Renew(ctx), coordination.ErrSessionExpired)
		close(gate)
		require.NoError(t, <-answer)
		synctest.Wait()
		kvs, rev, err := c.List(ctx, "")
		require.NoError(t, err)
		require.Equal(t, int64(3), rev)
		require.Equal(t, []string{"alive", "slow"}, []string{kvs[0].Key, kvs[1].Key})
		e.Close()
	})
}

// TestLateNewSession: a session that begins before the late pass plans the next one
// anew, which must not hide the delay.
func TestLateNewSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ttl = 8 * time.Second
		e := New(Options{})
		c := e.Connect()
		old, err := c.NewSession(ctx, ttl)
		require.NoError(t, err)
		e.mu.Lock()
		e.expiry.stop() // as if the process stood still from here on
		e.mu.Unlock()
		time.Sleep(ttl * 9 / 8) // the deadline alone would not look late
		_, err = c.NewSession(ctx, ttl)
		require.NoError(t, err)
		time.Sleep(ttl - 1)
		require.NoError(t, old.Renew(ctx))
		e.Close()
	})
}
