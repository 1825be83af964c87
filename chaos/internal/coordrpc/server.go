package coordrpc

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/tidemark-log/tidemark/coordination"
)

// Server serves one Store.
type Server struct {
	store    coordination.Store
	listener net.Listener
	ctx      context.Context // ends with Close
	stop     context.CancelFunc
	running  sync.WaitGroup

	mu       sync.Mutex
	conns    map[*serving]bool
	sessions map[string]coordination.Session
	closed   bool
}

// Serve answers whoever connects to l with what store says, until Close. The store
// stays the caller's; the listener is closed by Close.
func Serve(l net.Listener, store coordination.Store) *Server {
	s := &Server{store: store, listener: l, conns: make(map[*serving]bool), sessions: make(map[string]coordination.Session)}
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.running.Go(s.accept)
	return s
}

// Addr is where it listens.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// Close ends all connections and waits until nothing of the server runs. Sessions go
// on in the store until their time is over.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	for c := range s.conns {
		_ = c.pipe.conn.Close()
	}
	s.mu.Unlock()
	s.stop()
	err := s.listener.Close()
	s.running.Wait()
	return err
}

func (s *Server) accept() {
	for {
		conn, err := s.listener.Accept()
		if err != nil {
			return
		}
		c := &serving{s: s, pipe: newPipe(conn), cancels: make(map[uint64]context.CancelFunc)}
		c.ctx, c.stop = context.WithCancel(s.ctx)
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			_ = conn.Close()
			return
		}
		s.conns[c] = true
		s.mu.Unlock()
		s.running.Go(c.run)
	}
}

// session finds a session that was begun through this server.
func (s *Server) session(id string) coordination.Session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sessions[id]
}

// serving is one connection.
type serving struct {
	s    *Server
	pipe *pipe
	ctx  context.Context // ends with the connection
	stop context.CancelFunc

	mu      sync.Mutex
	cancels map[uint64]context.CancelFunc // of requests and watches under way
}

func (c *serving) run() {
	var calls sync.WaitGroup
	calls.Go(func() { c.pipe.beats(&response{}, c.ctx.Done()) })
	for {
		var q request
		if c.pipe.receive(&q) != nil {
			break
		}
		switch q.Kind {
		case ping:
		case cancel:
			c.mu.Lock()
			if f := c.cancels[q.ID]; f != nil {
				f()
			}
			c.mu.Unlock()
		default:
			ctx, f := context.WithCancel(c.ctx)
			c.mu.Lock()
			c.cancels[q.ID] = f
			c.mu.Unlock()
			calls.Go(func() {
				defer c.over(q.ID, f)
				c.serve(ctx, &q)
			})
		}
	}
	c.stop()
	_ = c.pipe.conn.Close()
	calls.Wait()
	c.s.mu.Lock()
	delete(c.s.conns, c)
	c.s.mu.Unlock()
}

func (c *serving) over(id uint64, f context.CancelFunc) {
	f()
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.cancels, id)
}

// serve does what a request asks for.
func (c *serving) serve(ctx context.Context, q *request) {
	r := response{ID: q.ID}
	var err error
	store := c.s.store
	switch q.Kind {
	case get:
		r.KV, r.Found, err = store.Get(ctx, q.Key)
	case list:
		r.KVs, r.Revision, err = store.List(ctx, q.Key)
	case do:
		r.Result, err = store.Do(ctx, q.Txn)
	case watch:
		c.watch(ctx, q)
		return
	case newSession:
		r.Session, err = c.begin(ctx, q.TTL)
	case renew, endSession:
		err = c.use(ctx, q)
	case attach:
		c.attach(q.Session)
		return
	}
	r.Err = failed(err)
	_ = c.pipe.send(&r)
	if q.Kind == newSession && err == nil {
		c.attach(r.Session) // this goroutine stays, and tells when it ends
	}
}

func (c *serving) begin(ctx context.Context, ttl time.Duration) (string, error) {
	session, err := c.s.store.NewSession(ctx, ttl)
	if err != nil {
		return "", err
	}
	s, id := c.s, session.ID()
	s.mu.Lock()
	s.sessions[id] = session
	s.mu.Unlock()
	s.running.Go(func() {
		select {
		case <-session.Done():
			s.mu.Lock()
			delete(s.sessions, id)
			s.mu.Unlock()
		case <-s.ctx.Done():
		}
	})
	return id, nil
}

// use renews or ends a session.
func (c *serving) use(ctx context.Context, q *request) error {
	session := c.s.session(q.Session)
	switch {
	case session == nil && q.Kind == renew:
		return coordination.ErrSessionExpired
	case session == nil:
		return nil
	case q.Kind == renew:
		return session.Renew(ctx)
	}
	return session.Close(ctx)
}

// attach tells the client once the session has ended.
func (c *serving) attach(id string) {
	if session := c.s.session(id); session != nil {
		select {
		case <-session.Done():
		case <-c.ctx.Done():
			return
		}
	}
	_ = c.pipe.send(&response{Ended: id})
}

// watch passes the changes on until the watch ends.
func (c *serving) watch(ctx context.Context, q *request) {
	changes, err := c.s.store.Watch(ctx, q.Key, q.After)
	if c.pipe.send(&response{ID: q.ID, Err: failed(err)}) != nil || err != nil {
		return
	}
	for x := range changes {
		r := response{ID: q.ID, Changes: &coordination.Changes{Events: x.Events, Revision: x.Revision}, Err: failed(x.Err), End: x.Err != nil}
		if c.pipe.send(&r) != nil {
			return // the client's watches end with the connection; this one with its context
		}
		if x.Err != nil {
			return
		}
	}
	// Its context has ended: the client wants it no more, or the connection is about to end,
	// which the client must not take for an end that it asked for.
}
