package engine

import (
	"context"
	"errors"
	"time"

	"github.com/tidemark-log/tidemark/coordination"
)

// errTTL is for a session that could not live.
var errTTL = errors.New("coordination: session ttl is not positive")

// Client is one user's handle on an Engine.
type Client struct {
	e     *Engine
	ended chan struct{} // closed once err is set
	err   error         // why the handle is of no use any more; guarded by e.mu
	cut   bool          // guarded by e.mu
}

var _ coordination.Store = (*Client)(nil)

// admit waits while the store is paused and says whether the call may go on.
func (c *Client) admit(ctx context.Context) error {
	for {
		c.e.mu.RLock()
		err, gate := c.e.refusal(c), c.e.faults.gate
		c.e.mu.RUnlock()
		switch {
		case err != nil:
			return err
		case ctx.Err() != nil:
			return interrupted(ctx)
		case gate == nil:
			return nil
		case c.e.manual:
			return coordination.ErrUnavailable
		}
		select {
		case <-gate:
		case <-ctx.Done():
		case <-c.ended:
		}
	}
}

// Get implements coordination.Store.
func (c *Client) Get(ctx context.Context, key string) (coordination.KV, bool, error) {
	if err := c.admit(ctx); err != nil {
		return coordination.KV{}, false, err
	}
	c.e.mu.RLock()
	defer c.e.mu.RUnlock()
	kv, ok := c.e.state.keys[key]
	if !ok {
		return coordination.KV{}, false, nil
	}
	return cloneKV(kv), true, nil
}

// List implements coordination.Store.
func (c *Client) List(ctx context.Context, prefix string) ([]coordination.KV, int64, error) {
	if err := c.admit(ctx); err != nil {
		return nil, 0, err
	}
	c.e.mu.RLock()
	defer c.e.mu.RUnlock()
	return c.e.state.list(prefix), c.e.state.revision, nil
}

// Do implements coordination.Store.
func (c *Client) Do(ctx context.Context, t coordination.Txn) (coordination.TxnResult, error) {
	if err := c.admit(ctx); err != nil {
		return coordination.TxnResult{}, err
	}
	fate := c.e.fate()
	if fate == dropped {
		return coordination.TxnResult{}, coordination.ErrUnavailable
	}
	var res coordination.TxnResult
	err := c.e.commit(ctx, c, func() (Change, error) {
		var ch Change
		var err error
		ch, res, err = c.e.evaluate(t)
		return ch, err
	})
	if fate == unanswered {
		err = coordination.ErrUnavailable
	}
	if err != nil {
		return coordination.TxnResult{}, err
	}
	return res, nil
}

// evaluate plans t; e.mu is held.
func (e *Engine) evaluate(t coordination.Txn) (Change, coordination.TxnResult, error) {
	res := coordination.TxnResult{Revision: e.state.revision}
	for _, op := range t.Ops {
		if !op.Delete && op.Session != "" && e.sessions[op.Session] == nil {
			return Change{}, coordination.TxnResult{}, coordination.ErrSessionExpired
		}
	}
	if !e.state.holds(t.Guards) {
		return Change{}, res, nil
	}
	ch := e.state.plan(t.Ops)
	res.Applied = true
	if len(ch.Events) > 0 {
		res.Revision = ch.Revision
	}
	return ch, res, nil
}

// Watch implements coordination.Store.
func (c *Client) Watch(ctx context.Context, prefix string, after int64) (<-chan coordination.Changes, error) {
	if err := c.admit(ctx); err != nil {
		return nil, err
	}
	c.e.mu.Lock()
	defer c.e.mu.Unlock()
	if err := c.e.refusal(c); err != nil {
		return nil, err
	}
	return c.e.watch(ctx, c, prefix, after), nil
}

// NewSession implements coordination.Store.
func (c *Client) NewSession(ctx context.Context, ttl time.Duration) (coordination.Session, error) {
	if ttl <= 0 {
		return nil, errTTL
	}
	if err := c.admit(ctx); err != nil {
		return nil, err
	}
	c.e.mu.Lock()
	defer c.e.mu.Unlock()
	if err := c.e.refusal(c); err != nil {
		return nil, err
	}
	return c.e.newSession(c, ttl), nil
}

// Close implements coordination.Store. Sessions are not ended: they expire.
func (c *Client) Close() error {
	c.e.mu.Lock()
	defer c.e.mu.Unlock()
	c.e.endClient(c, coordination.ErrClosed)
	return nil
}

// Fence cuts the client off for good, as if its process had died.
func (c *Client) Fence() {
	c.e.mu.Lock()
	defer c.e.mu.Unlock()
	c.e.endClient(c, coordination.ErrUnavailable)
}

// endClient ends c for the reason err, unless it has ended; e.mu is held.
func (e *Engine) endClient(c *Client, err error) {
	if c.err != nil {
		return
	}
	c.err = err
	close(c.ended)
	delete(e.clients, c)
	e.endWatches(c, err)
}
