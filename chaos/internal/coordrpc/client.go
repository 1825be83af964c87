package coordrpc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/tidemark-log/tidemark/coordination"
)

// errNoConnection is why a call failed that had no way to the server.
var errNoConnection = fmt.Errorf("%w: no connection", coordination.ErrUnavailable)

// Client is a coordination.Store at the other end of a connection. It connects with
// the first call, and again with the first call after a connection was lost; calls
// and watches of a connection that is lost end with coordination.ErrUnavailable.
type Client struct {
	addr    string
	closing chan struct{}
	running sync.WaitGroup
	dialing chan struct{} // one place: one dials, the others wait for it

	mu       sync.Mutex
	link     *link // nil: none
	why      error // it was ended; nil: it was not
	sessions map[string]*session
}

var _ coordination.Store = (*Client)(nil)

// Open makes a Client of the server at an address. It does not connect yet.
func Open(addr string) *Client {
	return &Client{addr: addr, closing: make(chan struct{}), dialing: make(chan struct{}, 1), sessions: make(map[string]*session)}
}

// link is one connection, and what waits for answers over it.
type link struct {
	c    *Client
	pipe *pipe
	done chan struct{} // closed when it has ended

	mu      sync.Mutex
	next    uint64
	waiting map[uint64]chan response
	watches map[uint64]*watching
	err     error // why it ended
}

// connected returns the connection there is, or makes one.
func (c *Client) connected(ctx context.Context) (*link, error) {
	if ctx.Err() != nil {
		return nil, interrupted(ctx)
	}
	select {
	case c.dialing <- struct{}{}:
		defer func() { <-c.dialing }()
	case <-ctx.Done():
		return nil, interrupted(ctx)
	case <-c.closing:
		return nil, c.reason()
	}
	c.mu.Lock()
	l, why := c.link, c.why
	c.mu.Unlock()
	switch {
	case why != nil:
		return nil, why
	case l != nil:
		return l, nil
	}
	d := net.Dialer{Timeout: dialTimeout}
	conn, err := d.DialContext(ctx, "tcp", c.addr)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", coordination.ErrUnavailable, err)
	}
	l = &link{
		c: c, pipe: newPipe(conn), done: make(chan struct{}),
		waiting: make(map[uint64]chan response), watches: make(map[uint64]*watching),
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.why != nil {
		_ = conn.Close()
		return nil, c.why
	}
	c.link = l
	c.running.Go(l.read)
	c.running.Go(func() { l.pipe.beats(&request{Kind: ping}, l.done) })
	var live []string
	for id := range c.sessions {
		live = append(live, id)
	}
	c.running.Go(func() {
		for _, id := range live {
			_ = l.pipe.send(&request{ID: l.id(), Kind: attach, Session: id})
		}
	})
	return l, nil
}

func interrupted(ctx context.Context) error {
	return fmt.Errorf("%w: %w", coordination.ErrUnavailable, context.Cause(ctx))
}

// read takes what the server sends until the connection ends.
func (l *link) read() {
	var err error
	for {
		var r response
		if err = l.pipe.receive(&r); err != nil {
			break
		}
		switch {
		case r.Ended != "":
			l.c.ended(r.Ended)
		case r.Changes != nil || r.End:
			l.changed(&r)
		case r.ID != 0:
			l.mu.Lock()
			answer := l.waiting[r.ID]
			delete(l.waiting, r.ID)
			l.mu.Unlock()
			if answer != nil {
				answer <- r // has room
			}
		}
	}
	l.end(fmt.Errorf("%w: %w", errNoConnection, err))
}

// end ends the connection and everything that waits on it.
func (l *link) end(err error) {
	l.c.mu.Lock()
	if l.c.link == l {
		l.c.link = nil
	}
	if l.c.why != nil {
		err = l.c.why
	}
	l.c.mu.Unlock()
	_ = l.pipe.conn.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return
	}
	l.err = err
	close(l.done)
	for id, w := range l.watches {
		delete(l.watches, id)
		w.end(err)
	}
}

func (l *link) id() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next++
	return l.next
}

// call sends a request and waits for its answer.
func (c *Client) call(ctx context.Context, q request) (response, error) {
	l, err := c.connected(ctx)
	if err != nil {
		return response{}, err
	}
	q.ID = l.id()
	return l.call(ctx, &q)
}

func (l *link) call(ctx context.Context, q *request) (response, error) {
	answer := make(chan response, 1)
	l.mu.Lock()
	l.waiting[q.ID] = answer
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.waiting, q.ID)
	}()
	// A black hole may hold up the writing, which must not hold up the caller.
	sent := make(chan error, 1)
	l.c.running.Go(func() { sent <- l.pipe.send(q) })
	for {
		select {
		case r := <-answer:
			return r, r.Err.err()
		case err := <-sent:
			if err != nil {
				l.end(fmt.Errorf("%w: %w", errNoConnection, err))
			}
			sent = nil
		case <-l.done:
			l.mu.Lock()
			defer l.mu.Unlock()
			return response{}, l.err
		case <-ctx.Done():
			l.c.running.Go(func() { _ = l.pipe.send(&request{ID: q.ID, Kind: cancel}) })
			return response{}, interrupted(ctx)
		}
	}
}

// Get implements coordination.Store.
func (c *Client) Get(ctx context.Context, key string) (coordination.KV, bool, error) {
	r, err := c.call(ctx, request{Kind: get, Key: key})
	return r.KV, r.Found, err
}

// List implements coordination.Store.
func (c *Client) List(ctx context.Context, prefix string) ([]coordination.KV, int64, error) {
	r, err := c.call(ctx, request{Kind: list, Key: prefix})
	return r.KVs, r.Revision, err
}

// Do implements coordination.Store.
func (c *Client) Do(ctx context.Context, t coordination.Txn) (coordination.TxnResult, error) {
	r, err := c.call(ctx, request{Kind: do, Txn: t})
	return r.Result, err
}

// Close implements coordination.Store. Sessions are not ended: they expire.
func (c *Client) Close() error {
	c.shut(coordination.ErrClosed)
	return nil
}

// Fence cuts the client off for good, as if its process had died.
func (c *Client) Fence() { c.shut(coordination.ErrUnavailable) }

func (c *Client) shut(why error) {
	c.mu.Lock()
	l := c.link
	if c.why == nil {
		c.why = why
		close(c.closing)
	}
	c.mu.Unlock()
	if l != nil {
		l.end(why)
	}
	c.running.Wait()
}

func (c *Client) reason() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.why
}

// session is the client's side of a session.
type session struct {
	c    *Client
	id   string
	once sync.Once
	done chan struct{}
}

// NewSession implements coordination.Store.
func (c *Client) NewSession(ctx context.Context, ttl time.Duration) (coordination.Session, error) {
	r, err := c.call(ctx, request{Kind: newSession, TTL: ttl})
	if err != nil {
		return nil, err
	}
	s := &session{c: c, id: r.Session, done: make(chan struct{})}
	c.mu.Lock()
	l := c.link
	c.sessions[s.id] = s
	c.mu.Unlock()
	if l != nil { // the session may have ended before it was in the table
		c.running.Go(func() { _ = l.pipe.send(&request{ID: l.id(), Kind: attach, Session: s.id}) })
	}
	return s, nil
}

// ended takes note of the end of a session.
func (c *Client) ended(id string) {
	c.mu.Lock()
	s := c.sessions[id]
	delete(c.sessions, id)
	c.mu.Unlock()
	if s != nil {
		s.end()
	}
}

func (s *session) end()                  { s.once.Do(func() { close(s.done) }) }
func (s *session) ID() string            { return s.id }
func (s *session) Done() <-chan struct{} { return s.done }

// Renew implements coordination.Session.
func (s *session) Renew(ctx context.Context) error {
	_, err := s.c.call(ctx, request{Kind: renew, Session: s.id})
	if errors.Is(err, coordination.ErrSessionExpired) {
		s.c.ended(s.id)
	}
	return err
}

// Close implements coordination.Session.
func (s *session) Close(ctx context.Context) error {
	_, err := s.c.call(ctx, request{Kind: endSession, Session: s.id})
	if err == nil {
		s.c.ended(s.id)
	}
	return err
}
