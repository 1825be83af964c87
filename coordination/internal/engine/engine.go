// Package engine is the logic of the embedded coordination stores: keys with
// revisions, guarded transactions, sessions and watches, in memory, with an
// optional hook that makes each change durable before anybody can see it.
package engine

import (
	"context"
	"fmt"
	"sync"

	"github.com/tidemark-log/tidemark/coordination"
)

// DefaultHistory is how many events an Engine keeps for watches that begin in the past.
const DefaultHistory = 10_000

// Options say how an Engine works and what it begins with.
type Options struct {
	// Manual makes an Engine without timers and goroutines: sessions end only by
	// Expire and Session.Close, and the end of a watch's ctx is noticed at the
	// next change. It cannot be combined with Persist.
	Manual bool
	// History is the number of events to keep; 0 means DefaultHistory.
	History int
	// Persist makes a change durable; it is called for one change at a time, in
	// order, without any lock. After its first error it is not called again, and
	// the Engine answers ErrUnavailable. nil: nothing is durable.
	Persist func(Change) error
	// Revision and Keys are the state to begin with.
	Revision int64
	Keys     []coordination.KV
	// Generation is part of every session id; a store that is opened again must
	// give another one.
	Generation uint64
}

// Engine is the server: the state that its clients share.
type Engine struct {
	manual     bool
	persist    func(Change) error
	generation uint64

	// turn is held by the one writer that is at work, from the plan of its change
	// until this is visible. Only used with persist; else mu is enough.
	turn    chan struct{}
	closing chan struct{}

	mu       sync.RWMutex // never held during I/O or any other wait
	state    *state
	history  history
	watchers map[*watcher]struct{}
	clients  map[*Client]struct{}
	sessions map[string]*session
	made     uint64 // sessions made so far
	expiry   expiry
	faults   faults
	failed   error // why the store takes no more calls
	closed   bool
}

// New starts an Engine.
func New(o Options) *Engine {
	if o.History <= 0 {
		o.History = DefaultHistory
	}
	return &Engine{
		manual:     o.Manual,
		persist:    o.Persist,
		generation: o.Generation,
		turn:       make(chan struct{}, 1),
		closing:    make(chan struct{}),
		state:      newState(o.Revision, o.Keys),
		history:    history{limit: o.History, compacted: o.Revision},
		watchers:   make(map[*watcher]struct{}),
		clients:    make(map[*Client]struct{}),
		sessions:   make(map[string]*session),
	}
}

// Connect makes a client handle. One of a closed Engine is closed from the start.
func (e *Engine) Connect() *Client {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := &Client{e: e, ended: make(chan struct{})}
	if e.closed {
		c.err = coordination.ErrClosed
		close(c.ended)
		return c
	}
	e.clients[c] = struct{}{}
	return c
}

// Close ends all clients, watches and sessions. It returns at once; Idle tells
// whether a change is still on its way to the disk.
func (e *Engine) Close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return
	}
	e.closed = true
	close(e.closing)
	e.expiry.stop()
	for c := range e.clients {
		e.endClient(c, coordination.ErrClosed)
	}
	for _, s := range e.sessions {
		s.end()
	}
	clear(e.sessions)
	e.resume()
}

// Idle waits until no change is on its way to the disk, and keeps it so: it is
// for use after Close. It returns false when ctx ends first.
func (e *Engine) Idle(ctx context.Context) bool {
	select {
	case e.turn <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// Fail makes every later call end with ErrUnavailable. Only the first cause counts.
func (e *Engine) Fail(cause error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.fail(cause)
}

func (e *Engine) fail(cause error) {
	if e.failed != nil || e.closed {
		return
	}
	e.failed = fmt.Errorf("%w: %w", coordination.ErrUnavailable, cause)
	e.expiry.stop()
	e.endWatches(nil, e.failed)
}

// refusal says why c may not use the store now; e.mu is held.
func (e *Engine) refusal(c *Client) error {
	switch {
	case c.err != nil:
		return c.err
	case e.failed != nil:
		return e.failed
	case e.faults.down || c.cut:
		return coordination.ErrUnavailable
	}
	return nil
}

// plan is the first half of a transaction. It runs with e.mu held and returns the
// change, and what is to be done under the same lock as the change becomes visible.
type plan func() (Change, error)

// commit runs p and makes its change durable, then visible. c may be nil for the
// engine's own work. An error that is not p's own leaves open whether the change
// will happen.
func (e *Engine) commit(ctx context.Context, c *Client, p plan) error {
	if e.persist == nil {
		e.mu.Lock()
		defer e.mu.Unlock()
		ch, err := e.begin(c, p)
		if err == nil {
			e.install(ch)
		}
		return err
	}
	ended := e.closing
	if c != nil {
		ended = c.ended // closed by the engine's end, too
	}
	select {
	case e.turn <- struct{}{}:
	case <-ctx.Done():
		return interrupted(ctx)
	case <-ended:
		return e.why(c)
	}
	e.mu.Lock()
	ch, err := e.begin(c, p)
	e.mu.Unlock()
	if err != nil || len(ch.Events) == 0 {
		<-e.turn
		return err
	}
	// The disk may hang; the caller need not. The turn goes with the goroutine.
	done := make(chan error, 1)
	go func() { done <- e.write(ch) }()
	select {
	case err = <-done:
		return err
	case <-ctx.Done():
		return interrupted(ctx)
	case <-ended:
		return e.why(c)
	}
}

// begin checks and plans; e.mu is held.
func (e *Engine) begin(c *Client, p plan) (Change, error) {
	if c != nil {
		if err := e.refusal(c); err != nil {
			return Change{}, err
		}
	} else if e.closed {
		return Change{}, coordination.ErrClosed
	} else if e.failed != nil {
		return Change{}, e.failed
	}
	return p()
}

// write makes ch durable and then visible, and gives the turn back.
func (e *Engine) write(ch Change) error {
	err := e.persist(ch)
	e.mu.Lock()
	defer func() {
		e.mu.Unlock()
		<-e.turn
	}()
	if err != nil {
		e.fail(err)
		return fmt.Errorf("%w: %w", coordination.ErrUnavailable, err)
	}
	e.install(ch)
	return nil
}

// install makes ch visible; e.mu is held.
func (e *Engine) install(ch Change) {
	if len(ch.Events) == 0 {
		return
	}
	e.state.apply(ch)
	e.publish(ch)
}

// why returns the error of a call that was cut short by the end of c.
func (e *Engine) why(c *Client) error {
	if c == nil {
		return coordination.ErrClosed
	}
	e.mu.RLock()
	defer e.mu.RUnlock()
	return c.err
}

// interrupted is the error of a call whose context ended.
func interrupted(ctx context.Context) error {
	return fmt.Errorf("%w: %w", coordination.ErrUnavailable, ctx.Err())
}
