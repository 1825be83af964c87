// Package memory is a coordination store in the memory of one process: for tests,
// simulations, and clusters that live within one process and need not survive it.
//
// A Store is the server. Each broker gets its own Client by Connect; only these
// implement coordination.Store. The Store has switches that make it misbehave, so
// that code which uses it can be tested against lost answers, outages and pauses.
package memory

import (
	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/coordination/internal/engine"
)

// Options configure a Store. The zero value is good.
type Options struct {
	// Manual makes a Store without timers and goroutines, for a simulation that
	// has to be repeatable: sessions end only by ExpireSession and Session.Close, never by
	// the passage of time. The channel of a watch holds what happened as soon as
	// the call that caused it returns. A watch whose ctx ended is closed at the next change.
	Manual bool
	// History is how many events are kept for watches that begin at an earlier
	// revision, and how many one watch may leave unread before it ends with
	// coordination.ErrCompacted. 0 means 10,000. Values of more than 16 MiB in sum
	// shorten it.
	History int
}

// Store is the server. All methods may be called from any goroutine.
type Store struct {
	engine *engine.Engine
}

// New starts an empty Store.
func New(o Options) *Store {
	return &Store{engine: engine.New(engine.Options{Manual: o.Manual, History: o.History})}
}

// Client is the handle of one broker. Its Close ends its own watches and lets its
// own sessions expire; the Store and the other clients go on.
type Client struct {
	coordination.Store
	client *engine.Client
}

// Connect makes a Client. Clients of a closed Store are closed from the start.
func (s *Store) Connect() *Client {
	c := s.engine.Connect()
	return &Client{Store: c, client: c}
}

// Fence cuts the client off for good, as if its process had died: every later call
// fails at once with coordination.ErrUnavailable, its watches end, and its sessions
// expire once their time is over, for nobody renews them.
func (c *Client) Fence() { c.client.Fence() }

// SetUnavailable cuts the client's connection to the Store, and mends it. While it is
// cut its calls fail with coordination.ErrUnavailable without effect and its
// sessions go on aging. Its watches end with that error and do not come back.
func (c *Client) SetUnavailable(cut bool) { c.client.SetUnavailable(cut) }

// ExpireSession ends a session as if its time were over; its keys are gone on return.
// It returns false when no such session is alive.
func (s *Store) ExpireSession(id string) bool { return s.engine.Expire(id) }

// SetUnavailable takes the whole Store down, and up again. While it is down all calls
// fail with coordination.ErrUnavailable without effect, and no session expires by time.
// Watches end with that error and do not come back. Once up, every session
// has a full ttl.
func (s *Store) SetUnavailable(down bool) { s.engine.SetUnavailable(down) }

// DropRequests makes the next n calls of Do fail with coordination.ErrUnavailable
// without effect. It replaces the number that is left of an earlier call.
func (s *Store) DropRequests(n int) { s.engine.DropRequests(n) }

// LoseReplies makes the next n calls of Do that are not dropped take effect and yet
// fail with coordination.ErrUnavailable. It replaces the number that is left of an earlier call.
func (s *Store) LoseReplies(n int) { s.engine.LoseReplies(n) }

// Pause makes the Store stand still until Resume, as a process does that gets no
// processor time: calls wait (with Options.Manual they fail with
// coordination.ErrUnavailable) and no session expires. Once the Store finds that it
// has been late by more than a quarter of the shortest ttl, it gives every session another full ttl.
func (s *Store) Pause() { s.engine.Pause() }

// Resume ends Pause.
func (s *Store) Resume() { s.engine.Resume() }

// Close ends all clients, watches and sessions. It is idempotent and returns nil.
func (s *Store) Close() error {
	s.engine.Close()
	return nil
}
