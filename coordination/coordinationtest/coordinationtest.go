// Package coordinationtest has the tests that every implementation of
// coordination.Store must pass.
package coordinationtest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tidemark-log/tidemark/coordination"
)

// Server is one running store, empty at first.
type Server struct {
	// Connect makes a client handle; several of them share the server's state.
	Connect func() coordination.Store
	// Close stops the server. It is called once, after the handles were closed.
	Close func() error

	// The rest is optional: what needs a field that is nil is not tested.

	// History is how many events the server keeps for watches, at least 500.
	History int
	// Fence cuts a handle off as if its process had died.
	Fence func(coordination.Store)
	// Expire ends a session as if its time were over.
	Expire func(id string)
	// SetUnavailable takes the server down, and up again.
	SetUnavailable func(bool)
	// DropRequests has the next n calls of Do fail without effect.
	DropRequests func(n int)
	// LoseReplies has the next n calls of Do fail, though they have taken effect.
	LoseReplies func(n int)
	// Pause makes the server stand still until Resume.
	Pause, Resume func()
}

// Config says what to test.
type Config struct {
	// New starts a Server.
	New func(t testing.TB) *Server
	// RealTime runs the tests outside testing/synctest's bubbles, for stores that do
	// real I/O. Sessions then get TTL and tests wait for real.
	RealTime bool
	// TTL is that of the sessions in the tests; 0 means 10 s in a bubble and 1 s else.
	TTL time.Duration
}

// env is what one test works with.
type env struct {
	t      *testing.T
	ctx    context.Context
	server *Server
	ttl    time.Duration
	bubble bool

	mu   sync.Mutex
	open []coordination.Store
}

// Run runs all tests as subtests of t.
func Run(t *testing.T, c Config) {
	if c.TTL == 0 {
		c.TTL = 10 * time.Second
		if c.RealTime {
			c.TTL = time.Second
		}
	}
	for _, group := range [][]test{keyTests, sessionTests, watchTests, faultTests, closeTests} {
		for _, tt := range group {
			t.Run(tt.name, func(t *testing.T) { c.run(t, tt.run) })
		}
	}
	t.Run("Model", func(t *testing.T) { c.model(t) })
}

type test struct {
	name string
	run  func(*env)
}

// run runs f with a fresh server, and checks that nothing of it is left behind.
func (c Config) run(t *testing.T, f func(*env)) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	body := func(t *testing.T) {
		e := &env{t: t, ctx: context.Background(), server: c.New(t), ttl: c.TTL, bubble: !c.RealTime}
		defer e.close()
		f(e)
	}
	if c.RealTime {
		body(t)
	} else {
		synctest.Test(t, body)
	}
}

func (e *env) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range e.open {
		require.NoError(e.t, s.Close())
	}
	require.NoError(e.t, e.server.Close())
}

// connect makes a handle that is closed at the end of the test.
func (e *env) connect() coordination.Store {
	s := e.server.Connect()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.open = append(e.open, s)
	return s
}

// limit is how long a test waits for what has to happen soon. In a bubble this costs nothing.
func (e *env) limit() <-chan time.Time { return time.After(10 * e.ttl) }

// pass lets d go by.
func (e *env) pass(d time.Duration) {
	<-time.After(d)
	if e.bubble {
		synctest.Wait()
	}
}

// session begins a session with the usual ttl.
func (e *env) session(s coordination.Store) coordination.Session {
	sess, err := s.NewSession(e.ctx, e.ttl)
	require.NoError(e.t, err)
	return sess
}

// wait waits for a channel to be closed.
func (e *env) wait(done <-chan struct{}) {
	e.t.Helper()
	select {
	case <-done:
	case <-e.limit():
		require.FailNow(e.t, "it does not end")
	}
}

// do runs a transaction that must be applied and returns its revision.
func (e *env) do(s coordination.Store, ops ...coordination.Op) int64 {
	e.t.Helper()
	res, err := s.Do(e.ctx, coordination.Txn{Ops: ops})
	require.NoError(e.t, err)
	require.True(e.t, res.Applied)
	return res.Revision
}

// view returns what List shows, as a map.
func (e *env) view(s coordination.Store, prefix string) map[string]coordination.KV {
	e.t.Helper()
	kvs, _, err := s.List(e.ctx, prefix)
	require.NoError(e.t, err)
	m := make(map[string]coordination.KV, len(kvs))
	for _, kv := range kvs {
		m[kv.Key] = kv
	}
	return m
}

// revision returns the store's revision.
func (e *env) revision(s coordination.Store) int64 {
	e.t.Helper()
	_, rev, err := s.List(e.ctx, "")
	require.NoError(e.t, err)
	return rev
}

// watch begins a watch that ends with the test, if not before.
func (e *env) watch(s coordination.Store, prefix string, after int64) <-chan coordination.Changes {
	e.t.Helper()
	ch, err := s.Watch(e.ctx, prefix, after)
	require.NoError(e.t, err)
	return ch
}

// next receives from a watch.
func (e *env) next(ch <-chan coordination.Changes) (coordination.Changes, bool) {
	e.t.Helper()
	select {
	case c, ok := <-ch:
		return c, ok
	case <-e.limit():
		require.FailNow(e.t, "watch is silent")
		return coordination.Changes{}, false
	}
}

// events receives n events, or more if they come together.
func (e *env) events(ch <-chan coordination.Changes, n int) []coordination.Event {
	e.t.Helper()
	var events []coordination.Event
	for len(events) < n {
		c, ok := e.next(ch)
		require.True(e.t, ok, "watch ended after %d events", len(events))
		require.NoError(e.t, c.Err)
		require.NotEmpty(e.t, c.Events)
		require.Equal(e.t, c.Events[len(c.Events)-1].Revision, c.Revision)
		events = append(events, c.Events...)
	}
	return events
}

// ends requires that a watch ends, with err as its last word (nil: without one), and
// returns the events before that.
func (e *env) ends(ch <-chan coordination.Changes, err error) []coordination.Event {
	e.t.Helper()
	var events []coordination.Event
	var last error
	for {
		c, ok := e.next(ch)
		if !ok {
			break
		}
		require.NoError(e.t, last, "watch goes on after its error")
		last = c.Err
		events = append(events, c.Events...)
	}
	if err == nil {
		require.NoError(e.t, last)
	} else {
		require.ErrorIs(e.t, last, err)
	}
	return events
}

// until requires that a watch reports the deletion of key.
func (e *env) until(ch <-chan coordination.Changes, key string) coordination.Event {
	e.t.Helper()
	for {
		for _, ev := range e.events(ch, 1) {
			if ev.Key == key && ev.Deleted {
				return ev
			}
		}
	}
}

func put(key, value string) coordination.Op {
	return coordination.Op{Key: key, Value: []byte(value)}
}

func putFor(s coordination.Session, key, value string) coordination.Op {
	return coordination.Op{Key: key, Value: []byte(value), Session: s.ID()}
}

func del(key string) coordination.Op { return coordination.Op{Key: key, Delete: true} }

// parallel runs f n times at once.
func parallel(n int, f func(i int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { f(i) })
	}
	wg.Wait()
}

// fold applies events to a view, and complains when they do not fit together.
func fold(view map[string]coordination.KV, last int64, events []coordination.Event) (int64, error) {
	for _, ev := range events {
		if ev.Revision < last {
			return last, fmt.Errorf("event of %q has revision %d after %d", ev.Key, ev.Revision, last)
		}
		if old, ok := view[ev.Key]; ok && old.Revision >= ev.Revision {
			return last, fmt.Errorf("event of %q has revision %d, which is at %d already", ev.Key, ev.Revision, old.Revision)
		}
		last = ev.Revision
		if ev.Deleted {
			if _, ok := view[ev.Key]; !ok {
				return last, fmt.Errorf("%q was deleted at %d without being there", ev.Key, ev.Revision)
			}
			delete(view, ev.Key)
		} else {
			view[ev.Key] = ev.KV
		}
	}
	return last, nil
}
