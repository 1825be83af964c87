package zookeeper_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/coordination/zookeeper"
)

// TestOnlyTheHolderRenews: the server's time runs from the last call of Renew, whatever
// else the process does. A broker that is unfit must lose its session in time (D16).
func TestOnlyTheHolderRenews(t *testing.T) {
	const ttl = time.Second
	s, c := fresh(t)
	other := open(t, c)
	x := session(t, s, ttl)
	rev := do(t, s, putFor(x, "/e", ""))
	ch := watch(t, other, "/e", rev)
	for range 3 {
		<-time.After(ttl / 2)
		require.NoError(t, x.Renew(t.Context()))
	}
	renewed := time.Now()
	busy, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	for _, s := range []*zookeeper.Store{s, open(t, c), open(t, c)} {
		work.Go(func() { // all are in use all the time; none of them looks at /e
			for busy.Err() == nil {
				_, _, _ = s.Get(busy, "/x")
				_, _ = s.Do(busy, coordination.Txn{Ops: []coordination.Op{put("/x", "")}})
			}
		})
	}
	require.Equal(t, []string{"-/e"}, told(t, ch, 1))
	gone := time.Since(renewed)
	cancel()
	work.Wait()
	require.GreaterOrEqual(t, gone, ttl)
	require.Less(t, gone, 2*ttl, "one tick of 100 ms is all that it may be late")
	select {
	case <-x.Done():
	case <-time.After(patience):
		require.Fail(t, "the holder is not told")
	}
}

// TestLostConnection: a session outlives its connections. The next call makes another one.
func TestLostConnection(t *testing.T) {
	const ttl = 2 * time.Second
	_, c := fresh(t)
	n := &network{}
	c.Dial = n.dial
	s := open(t, c)
	x := session(t, s, ttl)
	do(t, s, putFor(x, "/e", "1"))
	begun := time.Now()
	for i := 0; time.Since(begun) < 3*ttl/2; i++ {
		n.setCut(true)
		require.ErrorIs(t, x.Renew(t.Context()), coordination.ErrUnavailable)
		n.setCut(false)
		<-time.After(ttl / 8)
		require.NoError(t, x.Renew(t.Context()))
	}
	n.setCut(true)
	n.setCut(false)
	do(t, s, putFor(x, "/f", "2")) // on a new connection of the session
	require.Equal(t, []string{"/e", "/f"}, keys(t, s, ""))
	n.setCut(true)
	n.setCut(false)
	require.NoError(t, x.Close(t.Context()))
	require.Empty(t, keys(t, s, ""))
}

// TestEndedUnseen: a session that ended while its holder could not see it is not begun anew
// under the same name, and takes no put.
func TestEndedUnseen(t *testing.T) {
	const ttl = time.Second
	_, c := fresh(t)
	other := open(t, c)
	n := &network{}
	c.Dial = n.dial
	s := open(t, c)
	x := session(t, s, ttl)
	rev := do(t, s, putFor(x, "/e", "1"))
	ch := watch(t, other, "", rev)
	n.setCut(true)
	require.Equal(t, []string{"-/e"}, told(t, ch, 1))
	n.setCut(false)
	_, err := s.Do(t.Context(), coordination.Txn{Ops: []coordination.Op{putFor(x, "/e", "2"), put("/p", "")}})
	require.ErrorIs(t, err, coordination.ErrSessionExpired)
	require.ErrorIs(t, x.Renew(t.Context()), coordination.ErrSessionExpired)
	<-x.Done()
	require.Empty(t, keys(t, other, ""))
	require.NoError(t, x.Close(t.Context()))
}

// TestAbsentAndBack: a key that vanished and came back while a watch was not looking is two
// events, and they fit to a list.
func TestAbsentAndBack(t *testing.T) {
	_, c := fresh(t)
	n := &network{}
	slow := c
	slow.Dial = n.dial
	watcher, s := open(t, slow), open(t, c)
	x := session(t, s, 10*time.Second)
	do(t, s, putFor(x, "/ids/1", "first"))
	kvs, rev, err := watcher.List(t.Context(), "/ids/")
	require.NoError(t, err)
	require.Len(t, kvs, 1)
	ch := watch(t, watcher, "/ids/", rev)
	release := n.hold()
	defer release()
	require.NoError(t, s.Expire(t.Context(), x.ID()))
	y := session(t, s, 10*time.Second)
	// It is absent, or the put would be refused.
	res, err := s.Do(t.Context(), coordination.Txn{
		Guards: []coordination.Guard{{Key: "/ids/1"}}, Ops: []coordination.Op{putFor(y, "/ids/1", "second")},
	})
	require.NoError(t, err)
	require.True(t, res.Applied)
	release()
	require.Equal(t, []string{"-/ids/1", "/ids/1=second"}, told(t, ch, 2))
	require.Equal(t, []string{"-/ids/1", "/ids/1=second"}, told(t, watch(t, s, "/ids/", rev), 2), "also for one that begins now")
}

// TestEndToldInSpiteOfOthers: whoever wants to tell that a session has ended, and finds that
// somebody else has written just before, tries again.
func TestEndToldInSpiteOfOthers(t *testing.T) {
	s, c := fresh(t)
	n := &network{}
	c.Dial = n.dial
	watcher := open(t, c)
	x := session(t, s, 10*time.Second)
	ch := watch(t, watcher, "/e", do(t, s, putFor(x, "/e", "")))
	var others atomic.Int32
	n.before(func() {
		if others.Add(1) <= 5 {
			_, err := s.Do(context.Background(), coordination.Txn{Ops: []coordination.Op{put("/x", "")}})
			assert.NoError(t, err)
		}
	})
	require.NoError(t, s.Expire(t.Context(), x.ID()))
	require.Equal(t, []string{"-/e"}, told(t, ch, 1))
	require.Equal(t, int32(6), others.Load())
}

// TestSessionsKeyInGuards: whether a transaction that guards an ephemeral key is applied
// agrees with whether the session was alive then, also when nobody has told of its end.
func TestSessionsKeyInGuards(t *testing.T) {
	s, c := fresh(t)
	other := open(t, c)
	for _, foreign := range []bool{false, true} {
		x := session(t, s, 10*time.Second)
		by := s
		if foreign { // then the key is bound to the session by its data alone
			by = other
		}
		rev := do(t, by, putFor(x, "/e", ""), put("/p", ""))
		try := func(revision int64, value string) bool {
			res, err := other.Do(t.Context(), coordination.Txn{
				Guards: []coordination.Guard{{Key: "/e", Revision: revision}}, Ops: []coordination.Op{put("/p", value)},
			})
			require.NoError(t, err)
			return res.Applied
		}
		require.True(t, try(rev, "1"))
		require.False(t, try(0, "2"))
		require.NoError(t, s.Expire(t.Context(), x.ID()))
		require.False(t, try(rev, "3"), "foreign %v", foreign)
		require.True(t, try(0, "4"), "foreign %v", foreign)
		_, ok, err := s.Get(t.Context(), "/e")
		require.NoError(t, err)
		require.False(t, ok)
	}
}

// TestForeignKeyUnseen: the same for the other calls that could see the key of a session
// that has ended.
func TestForeignKeyUnseen(t *testing.T) {
	for name, absent := range map[string]func(s *zookeeper.Store) bool{
		"Get": func(s *zookeeper.Store) bool { _, ok, err := s.Get(t.Context(), "/e"); return err == nil && !ok },
		"List": func(s *zookeeper.Store) bool {
			kvs, _, err := s.List(t.Context(), "/e")
			return err == nil && len(kvs) == 0
		},
		"Do": func(s *zookeeper.Store) bool {
			res, err := s.Do(t.Context(), coordination.Txn{Guards: []coordination.Guard{{Key: "/e"}}})
			return err == nil && res.Applied
		},
	} {
		s, c := fresh(t)
		x := session(t, s, 10*time.Second)
		rev := do(t, open(t, c), putFor(x, "/e", "bound"))
		kv, ok, err := s.Get(t.Context(), "/e")
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, coordination.KV{Key: "/e", Value: []byte("bound"), Revision: rev, Session: x.ID()}, kv)
		require.NoError(t, s.Expire(t.Context(), x.ID()))
		require.True(t, absent(s), name)
		require.Equal(t, []string{"-/e"}, told(t, watch(t, s, "", rev), 1), name)
		require.Empty(t, newOperator(t, c).tree(), name)
	}
}

// TestTTL: what the servers would not keep to is refused.
func TestTTL(t *testing.T) {
	s, _ := fresh(t)
	for _, ttl := range []time.Duration{time.Millisecond, 199 * time.Millisecond, 2_000_001 * time.Second} {
		_, err := s.NewSession(t.Context(), ttl)
		require.ErrorContains(t, err, "do not allow", ttl)
		require.False(t, errors.Is(err, coordination.ErrUnavailable))
	}
	x := session(t, s, 200*time.Millisecond+time.Nanosecond) // rounded up
	require.NoError(t, x.Close(t.Context()))
}

// TestEphemeralParent: ZooKeeper's ephemeral nodes have no children. A key that has some is
// bound to its session all the same.
func TestEphemeralParent(t *testing.T) {
	s, _ := fresh(t)
	x := session(t, s, 10*time.Second)
	do(t, s, put("/a/b", ""))
	do(t, s, putFor(x, "/a", "1"), putFor(x, "/c", ""))
	kv, _, err := s.Get(t.Context(), "/a")
	require.NoError(t, err)
	require.Equal(t, x.ID(), kv.Session)
	rev := do(t, s, put("/x", ""))
	_, err = s.Do(t.Context(), coordination.Txn{Ops: []coordination.Op{put("/c/d", "")}})
	require.ErrorContains(t, err, "below an ephemeral key")
	_, now, err := s.List(t.Context(), "")
	require.NoError(t, err)
	require.Equal(t, rev, now)
	require.NoError(t, x.Close(t.Context()))
	require.Equal(t, []string{"/a/b", "/x"}, keys(t, s, ""))
}
