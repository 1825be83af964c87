package coordinationtest

import (
	"context"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/coordination"
)

var faultTests = []test{
	{"LostReply", testLostReply},
	{"DroppedRequest", testDroppedRequest},
	{"Unavailable", testUnavailable},
	{"PausedCalls", testPausedCalls},
	{"LateExpiryPass", testLateExpiryPass},
	{"LateExpiryPassSeenFirstByACall", testLateSeenByCall},
	{"ShortPause", testShortPause},
	{"EndedContext", testEndedContext},
}

func testLostReply(e *env) {
	if e.server.LoseReplies == nil {
		return
	}
	s := e.connect()
	e.server.LoseReplies(2)
	for _, key := range []string{"a", "b"} {
		_, err := s.Do(e.ctx, coordination.Txn{Ops: []coordination.Op{put(key, "1")}})
		require.ErrorIs(e.t, err, coordination.ErrUnavailable)
		require.Contains(e.t, e.view(s, ""), key, "applied nevertheless")
	}
	e.do(s, put("c", ""))
}

func testDroppedRequest(e *env) {
	if e.server.DropRequests == nil {
		return
	}
	s := e.connect()
	e.server.DropRequests(2)
	for _, key := range []string{"a", "b"} {
		_, err := s.Do(e.ctx, coordination.Txn{Ops: []coordination.Op{put(key, "1")}})
		require.ErrorIs(e.t, err, coordination.ErrUnavailable)
	}
	require.Empty(e.t, e.view(s, ""))
	e.do(s, put("c", ""))
}

func testUnavailable(e *env) {
	if e.server.SetUnavailable == nil {
		return
	}
	s := e.connect()
	sess := e.session(s)
	rev := e.do(s, putFor(sess, "e", ""))
	ch := e.watch(s, "", rev)
	e.server.SetUnavailable(true)
	e.ends(ch, coordination.ErrUnavailable)
	_, _, err := s.Get(e.ctx, "e")
	require.ErrorIs(e.t, err, coordination.ErrUnavailable)
	_, _, err = s.List(e.ctx, "")
	require.ErrorIs(e.t, err, coordination.ErrUnavailable)
	_, err = s.Do(e.ctx, coordination.Txn{Ops: []coordination.Op{put("a", "")}})
	require.ErrorIs(e.t, err, coordination.ErrUnavailable)
	_, err = s.Watch(e.ctx, "", 0)
	require.ErrorIs(e.t, err, coordination.ErrUnavailable)
	_, err = s.NewSession(e.ctx, e.ttl)
	require.ErrorIs(e.t, err, coordination.ErrUnavailable)
	require.ErrorIs(e.t, sess.Renew(e.ctx), coordination.ErrUnavailable)
	require.ErrorIs(e.t, sess.Close(e.ctx), coordination.ErrUnavailable)
	e.pass(e.ttl * 9 / 8) // shortly after the deadline
	e.server.SetUnavailable(false)
	up := time.Now()
	require.Equal(e.t, rev, e.revision(s), "nothing has happened")
	watch := e.watch(s, "", rev)
	e.until(watch, "e")
	require.GreaterOrEqual(e.t, time.Since(up), e.ttl, "a full ttl once it is up")
}

func testPausedCalls(e *env) {
	if e.server.Pause == nil {
		return
	}
	s, closed := e.connect(), e.connect()
	e.server.Pause()
	ctx, cancel := context.WithTimeout(e.ctx, e.ttl/10)
	defer cancel()
	_, err := s.Do(ctx, coordination.Txn{Ops: []coordination.Op{put("a", "")}})
	require.ErrorIs(e.t, err, context.DeadlineExceeded)
	result := make(chan error, 2)
	go func() {
		_, _, err := closed.Get(e.ctx, "a")
		result <- err
	}()
	e.pass(e.ttl / 10)
	require.NoError(e.t, closed.Close())
	require.ErrorIs(e.t, <-result, coordination.ErrClosed)
	go func() {
		_, err := s.Do(e.ctx, coordination.Txn{Ops: []coordination.Op{put("b", "")}})
		result <- err
	}()
	e.pass(e.ttl / 10)
	e.server.Resume()
	require.NoError(e.t, <-result)
	require.Contains(e.t, e.view(s, ""), "b")
}

// testLateExpiryPass: a server that stood still must not blame its clients (D16).
func testLateExpiryPass(e *env) {
	if e.server.Pause == nil {
		return
	}
	// The first one ends just after the deadline.
	for _, stall := range []time.Duration{e.ttl * 3 / 4, e.ttl, e.ttl * 3 / 2, 5 * e.ttl} {
		s := e.connect()
		sess := e.session(s)
		e.do(s, putFor(sess, "e", ""))
		ch := e.watch(s, "", e.revision(s))
		e.pass(e.ttl / 3)
		e.server.Pause()
		e.pass(stall)
		e.server.Resume()
		resumed := time.Now()
		e.pass(e.ttl / 2)
		require.Contains(e.t, e.view(s, ""), "e", "after %v", stall)
		e.until(ch, "e") // nobody renewed it after all
		require.GreaterOrEqual(e.t, time.Since(resumed), e.ttl)
	}
}

// testLateSeenByCall: the first thing after the pause is a call that plans the next pass anew.
func testLateSeenByCall(e *env) {
	if e.server.Pause == nil {
		return
	}
	s := e.connect()
	sess := e.session(s)
	e.do(s, putFor(sess, "e", ""))
	e.server.Pause()
	begun := make(chan error, 1)
	go func() {
		_, err := s.NewSession(e.ctx, e.ttl)
		begun <- err
	}()
	e.pass(2 * e.ttl)
	e.server.Resume()
	require.NoError(e.t, <-begun)
	e.pass(e.ttl / 2)
	require.NoError(e.t, sess.Renew(e.ctx))
	require.Contains(e.t, e.view(s, ""), "e")
}

// testShortPause: a pause that renewals outlive anyway does not spare the dead.
func testShortPause(e *env) {
	if e.server.Pause == nil || !e.bubble {
		return
	}
	s := e.connect()
	dead, alive := e.session(s), e.session(s)
	begun := time.Now()
	e.do(s, putFor(dead, "dead", ""), putFor(alive, "alive", ""))
	e.pass(e.ttl / 3)
	require.NoError(e.t, alive.Renew(e.ctx))
	e.server.Pause()
	e.pass(e.ttl / 4)
	e.server.Resume()
	e.wait(dead.Done())
	require.Equal(e.t, e.ttl, time.Since(begun))
	require.NoError(e.t, alive.Renew(e.ctx))
}

func testEndedContext(e *env) {
	s := e.connect()
	sess := e.session(s)
	ctx, cancel := context.WithCancel(e.ctx)
	cancel()
	_, _, err := s.Get(ctx, "a")
	require.Error(e.t, err)
	_, _, err = s.List(ctx, "")
	require.Error(e.t, err)
	_, err = s.Do(ctx, coordination.Txn{Ops: []coordination.Op{put("a", "")}})
	require.Error(e.t, err)
	require.NotErrorIs(e.t, err, coordination.ErrSessionExpired)
	_, err = s.NewSession(ctx, e.ttl)
	require.Error(e.t, err)
	require.Error(e.t, sess.Renew(ctx))
	require.Error(e.t, sess.Close(ctx))
	require.NoError(e.t, sess.Renew(e.ctx), "the session is as it was")
}
