package coordinationtest

import (
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/coordination"
)

var sessionTests = []test{
	{"SessionExpires", testSessionExpires},
	{"RenewKeepsAlive", testRenewKeepsAlive},
	{"SessionClose", testSessionClose},
	{"DeadSession", testDeadSession},
	{"Rebinding", testRebinding},
	{"SessionIDs", testSessionIDs},
	{"SessionsAreIndependent", testSessionsAreIndependent},
	{"ClosedClientsSession", testClosedClientsSession},
	{"FencedClient", testFencedClient},
	{"ExpireNow", testExpireNow},
}

func testSessionExpires(e *env) {
	s, other := e.connect(), e.connect()
	ch := e.watch(other, "", e.revision(other))
	sess := e.session(s)
	begun := time.Now()
	rev := e.do(s, putFor(sess, "e/1", "v"), putFor(sess, "e/2", "v"), put("p", "v"))
	require.Equal(e.t, sess.ID(), e.view(other, "")["e/1"].Session)
	require.Len(e.t, e.events(ch, 3), 3)
	if e.bubble {
		e.pass(e.ttl - 1)
		require.Len(e.t, e.view(other, "e/"), 2, "until the last moment")
	}
	e.wait(sess.Done())
	gone := e.events(ch, 2)
	require.GreaterOrEqual(e.t, time.Since(begun), e.ttl)
	require.Len(e.t, gone, 2)
	for _, ev := range gone {
		require.True(e.t, ev.Deleted)
		require.Greater(e.t, ev.Revision, rev)
		require.Equal(e.t, gone[0].Revision, ev.Revision, "one transaction")
	}
	require.Empty(e.t, e.view(other, "e/"))
	require.Contains(e.t, e.view(other, ""), "p")
	require.ErrorIs(e.t, sess.Renew(e.ctx), coordination.ErrSessionExpired)
	require.NoError(e.t, sess.Close(e.ctx))
}

func testRenewKeepsAlive(e *env) {
	s := e.connect()
	sess := e.session(s)
	e.do(s, putFor(sess, "e", ""))
	for range 9 {
		e.pass(e.ttl / 3)
		require.NoError(e.t, sess.Renew(e.ctx))
		require.Contains(e.t, e.view(s, ""), "e")
	}
	renewed := time.Now()
	ch := e.watch(s, "", e.revision(s))
	e.wait(sess.Done())
	e.until(ch, "e")
	if e.bubble {
		require.Equal(e.t, e.ttl, time.Since(renewed), "a ttl after the last renewal")
	}
}

func testSessionClose(e *env) {
	s := e.connect()
	sess, stays := e.session(s), e.session(s)
	e.do(s, putFor(sess, "e/1", ""), putFor(sess, "e/2", ""), putFor(stays, "f", ""), put("p", ""))
	before := e.revision(s)
	require.NoError(e.t, sess.Close(e.ctx))
	e.wait(sess.Done())
	view := e.view(s, "")
	require.Len(e.t, view, 2)
	require.Greater(e.t, e.revision(s), before)
	require.NoError(e.t, sess.Close(e.ctx), "once more")
	require.ErrorIs(e.t, sess.Renew(e.ctx), coordination.ErrSessionExpired)
	require.NoError(e.t, stays.Renew(e.ctx))
	// A session without keys ends without a trace.
	before = e.revision(s)
	require.NoError(e.t, e.session(s).Close(e.ctx))
	require.Equal(e.t, before, e.revision(s))
}

func testDeadSession(e *env) {
	s := e.connect()
	sess := e.session(s)
	require.NoError(e.t, sess.Close(e.ctx))
	rev := e.do(s, put("a", "1"))
	for _, id := range []string{sess.ID(), "no-such-session"} {
		_, err := s.Do(e.ctx, coordination.Txn{Ops: []coordination.Op{
			put("a", "2"), {Key: "b", Session: id}, put("c", ""),
		}})
		require.ErrorIs(e.t, err, coordination.ErrSessionExpired)
	}
	require.Equal(e.t, rev, e.revision(s))
	require.Len(e.t, e.view(s, ""), 1)
	for _, ttl := range []time.Duration{0, -1} {
		_, err := s.NewSession(e.ctx, ttl)
		require.Error(e.t, err)
	}
}

// testRebinding: a key belongs to the session of its last put.
func testRebinding(e *env) {
	s := e.connect()
	first, second := e.session(s), e.session(s)
	e.do(s, putFor(first, "to-second", ""), putFor(first, "to-nobody", ""), put("to-first", ""), putFor(first, "again", ""))
	e.do(s, putFor(second, "to-second", ""), put("to-nobody", ""), putFor(first, "to-first", ""), del("again"))
	e.do(s, put("again", ""))
	require.NoError(e.t, first.Close(e.ctx))
	view := e.view(s, "")
	require.Len(e.t, view, 3)
	require.Equal(e.t, second.ID(), view["to-second"].Session)
	require.Empty(e.t, view["to-nobody"].Session)
	require.NoError(e.t, second.Close(e.ctx))
	require.Len(e.t, e.view(s, ""), 2)
}

func testSessionIDs(e *env) {
	seen := make(map[string]bool)
	for range 3 {
		s := e.connect()
		for range 5 {
			sess := e.session(s)
			require.NotEmpty(e.t, sess.ID())
			require.False(e.t, seen[sess.ID()])
			seen[sess.ID()] = true
			require.NoError(e.t, sess.Close(e.ctx))
		}
	}
}

func testSessionsAreIndependent(e *env) {
	s := e.connect()
	short := e.session(s)
	long, err := s.NewSession(e.ctx, 3*e.ttl)
	require.NoError(e.t, err)
	// Any client may bind a key to any session.
	e.do(e.connect(), putFor(short, "short", ""), putFor(long, "long", ""))
	ch := e.watch(s, "", e.revision(s))
	e.until(ch, "short")
	e.wait(short.Done())
	require.Contains(e.t, e.view(s, ""), "long")
	require.NoError(e.t, long.Renew(e.ctx))
	e.until(ch, "long")
	e.wait(long.Done())
}

func testClosedClientsSession(e *env) {
	s, other := e.connect(), e.connect()
	sess, others := e.session(s), e.session(other)
	e.do(s, putFor(sess, "mine", ""))
	e.do(s, putFor(others, "other", ""))
	ch := e.watch(other, "", e.revision(other))
	require.NoError(e.t, s.Close())
	require.ErrorIs(e.t, sess.Renew(e.ctx), coordination.ErrClosed)
	require.ErrorIs(e.t, sess.Close(e.ctx), coordination.ErrClosed)
	require.Contains(e.t, e.view(other, ""), "mine", "it expires in its time")
	e.pass(e.ttl / 2)
	require.NoError(e.t, others.Renew(e.ctx))
	e.until(ch, "mine")
	require.Contains(e.t, e.view(other, ""), "other")
	require.NoError(e.t, others.Renew(e.ctx))
}

func testFencedClient(e *env) {
	if e.server.Fence == nil {
		return
	}
	s, other := e.connect(), e.connect()
	sess := e.session(s)
	e.do(s, putFor(sess, "e", ""))
	own, watch := e.watch(s, "", e.revision(s)), e.watch(other, "", e.revision(other))
	e.server.Fence(s)
	require.Empty(e.t, e.ends(own, coordination.ErrUnavailable))
	_, _, err := s.Get(e.ctx, "e")
	require.ErrorIs(e.t, err, coordination.ErrUnavailable)
	_, err = s.Do(e.ctx, coordination.Txn{Ops: []coordination.Op{put("late", "")}})
	require.ErrorIs(e.t, err, coordination.ErrUnavailable)
	_, err = s.Watch(e.ctx, "", 0)
	require.ErrorIs(e.t, err, coordination.ErrUnavailable)
	_, err = s.NewSession(e.ctx, e.ttl)
	require.ErrorIs(e.t, err, coordination.ErrUnavailable)
	require.ErrorIs(e.t, sess.Renew(e.ctx), coordination.ErrUnavailable)
	require.ErrorIs(e.t, sess.Close(e.ctx), coordination.ErrUnavailable)
	require.Contains(e.t, e.view(other, ""), "e")
	e.until(watch, "e")
	require.NotContains(e.t, e.view(other, ""), "late")
}

func testExpireNow(e *env) {
	if e.server.Expire == nil {
		return
	}
	s := e.connect()
	sess := e.session(s)
	e.do(s, putFor(sess, "e", ""))
	e.server.Expire(sess.ID())
	e.wait(sess.Done())
	require.Empty(e.t, e.view(s, ""))
	require.ErrorIs(e.t, sess.Renew(e.ctx), coordination.ErrSessionExpired)
	e.server.Expire(sess.ID())
}
