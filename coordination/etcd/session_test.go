package etcd_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/coordination/etcd"
)

var ctx = context.Background()

func one(t *testing.T) etcd.Config {
	return etcd.Config{Endpoints: []string{startProcess(t, oneMember(t)).endpoint()}}
}

// TestEndIsConditional: an observer that is wrong ends nothing.
func TestEndIsConditional(t *testing.T) {
	s := open(t, one(t))
	sess := session(t, s, time.Hour)
	over, err := s.EndOf(ctx, sess, 7)
	require.NoError(t, err)
	require.False(t, over, "there is no beacon yet")
	do(t, s, coordination.Op{Key: "e", Session: sess.ID()})
	first, err := s.Beacon(ctx, sess)
	require.NoError(t, err)
	require.Positive(t, first)
	over, err = s.EndOf(ctx, sess, 0)
	require.NoError(t, err)
	require.False(t, over, "there is one now")
	do(t, s, coordination.Op{Key: "e", Session: sess.ID()})
	same, err := s.Beacon(ctx, sess)
	require.NoError(t, err)
	require.Equal(t, first, same, "a put is no renewal")
	require.NoError(t, sess.Renew(ctx))
	over, err = s.EndOf(ctx, sess, first)
	require.NoError(t, err)
	require.False(t, over, "it has been renewed")
	second, err := s.Beacon(ctx, sess)
	require.NoError(t, err)
	require.Greater(t, second, first)
}

// TestHalfEnded: who wrote the end of a session died before it revoked the lease. No
// renewal succeeds any more, and somebody else does the rest.
func TestHalfEnded(t *testing.T) {
	c := one(t)
	s, err := etcd.OpenBlind(c)
	require.NoError(t, err)
	defer s.Close()
	sess := session(t, s, time.Hour)
	do(t, s, coordination.Op{Key: "e", Session: sess.ID()})
	beacon, err := s.Beacon(ctx, sess)
	require.NoError(t, err)
	over, err := s.EndOf(ctx, sess, beacon)
	require.NoError(t, err)
	require.True(t, over)
	require.ErrorIs(t, sess.Renew(ctx), coordination.ErrSessionExpired)
	<-sess.Done()
	_, there, err := s.Get(ctx, "e")
	require.NoError(t, err)
	require.True(t, there, "nobody looks")

	other := open(t, c)
	require.Eventually(t, func() bool {
		_, there, err := other.Get(ctx, "e")
		return err == nil && !there
	}, 10*time.Second, 10*time.Millisecond)
	_, err = s.Do(ctx, coordination.Txn{Ops: []coordination.Op{{Key: "e", Session: sess.ID()}}})
	require.ErrorIs(t, err, coordination.ErrSessionExpired)
}

// TestTTL: a fraction of a second is as good as any, and what cannot be is refused.
func TestTTL(t *testing.T) {
	s := open(t, one(t))
	const ttl = 250 * time.Millisecond
	sess := session(t, s, ttl)
	rev := do(t, s, coordination.Op{Key: "e", Session: sess.ID()})
	ch, err := s.Watch(ctx, "", rev)
	require.NoError(t, err)
	r := renew(sess, ttl)
	<-time.After(8 * ttl)
	r.stop()
	gone := untilGone(t, ch, "e")
	require.NoError(t, r.err)
	require.GreaterOrEqual(t, gone.Sub(r.last), ttl)
	require.Less(t, gone.Sub(r.last), 2*ttl)
	<-sess.Done()

	for _, ttl := range []time.Duration{0, -time.Second, 10 * time.Hour} {
		_, err := s.NewSession(ctx, ttl)
		require.Error(t, err)
		require.NotErrorIs(t, err, coordination.ErrUnavailable)
	}
	tiny, err := s.NewSession(ctx, time.Nanosecond) // lives a millisecond
	require.NoError(t, err)
	<-tiny.Done()
}

// TestExactness measures how much longer than its ttl a session lives.
func TestExactness(t *testing.T) {
	s := open(t, one(t))
	for _, ttl := range []time.Duration{time.Second, 1500 * time.Millisecond, 2 * time.Second} {
		sess := session(t, s, ttl)
		rev := do(t, s, coordination.Op{Key: "e", Session: sess.ID()})
		ch, err := s.Watch(ctx, "", rev)
		require.NoError(t, err)
		require.NoError(t, sess.Renew(ctx))
		renewed := time.Now()
		late := untilGone(t, ch, "e").Sub(renewed) - ttl
		t.Logf("ttl %v: ended %v after it", ttl, late)
		require.Greater(t, late, -50*time.Millisecond, "the answer to Renew comes after its commit")
		require.Less(t, late, 700*time.Millisecond)
	}
}

// TestNobodyLooks: while no Store is open sessions do not end, but by their lease, which
// lasts a minute at least; the next Store gives them one more ttl.
func TestNobodyLooks(t *testing.T) {
	c := one(t)
	s, err := etcd.Open(ctx, c)
	require.NoError(t, err)
	sess := session(t, s, time.Second)
	do(t, s, coordination.Op{Key: "e", Session: sess.ID()})
	require.NoError(t, s.Close())
	<-time.After(3 * time.Second)
	other := open(t, c)
	opened := time.Now()
	kv, there, err := other.Get(ctx, "e")
	require.NoError(t, err)
	require.True(t, there)
	ch, err := other.Watch(ctx, "", kv.Revision)
	require.NoError(t, err)
	gone := untilGone(t, ch, "e")
	require.GreaterOrEqual(t, gone.Sub(opened), time.Second)
	require.Less(t, gone.Sub(opened), 2*time.Second)
}

// TestFullDatabase: etcd refuses what would make its database grow, renewals too. Then
// no session ends: nobody can be told from anybody else.
func TestFullDatabase(t *testing.T) {
	config := oneMember(t)
	config.QuotaBytes = 16 << 20
	s := open(t, etcd.Config{Endpoints: []string{startProcess(t, config).endpoint()}})
	const ttl = time.Second
	sess := session(t, s, ttl)
	do(t, s, coordination.Op{Key: "e", Session: sess.ID()})
	r := renew(sess, ttl)
	var err error
	for err == nil {
		_, err = s.Do(ctx, coordination.Txn{Ops: []coordination.Op{{Key: "k", Value: make([]byte, 1<<20)}}})
	}
	require.ErrorIs(t, err, coordination.ErrUnavailable)
	require.ErrorContains(t, err, "space")
	<-time.After(3 * ttl)
	r.stop()
	require.NoError(t, r.err)
	require.ErrorIs(t, renewOnce(sess), coordination.ErrUnavailable)
	_, there, err := s.Get(ctx, "e")
	require.NoError(t, err)
	require.True(t, there)
	require.NoError(t, sess.Close(ctx), "what makes it smaller is taken")
}
