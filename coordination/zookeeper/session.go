package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/coordination/zookeeper/internal/wire"
)

var (
	errTTL = errors.New("zookeeper: session ttl is not positive")
	// errTimeout is for servers that are set up for other sessions than asked for.
	errTimeout = errors.New("zookeeper: servers do not allow this ttl")
)

// session is a coordination.Session: a ZooKeeper session on a connection of its own,
// over which nothing goes but what its holder asks for. So the server's time runs
// from the last renewal. When the connection is lost, the next call makes another
// one; nothing does by itself, for that would renew the session, too.
//
// While it lasts it has an ephemeral node, its lease, by which everybody can see that
// it does.
type session struct {
	s        *Store
	id       string
	sid      int64
	password []byte
	ttl      time.Duration
	turn     chan struct{} // held by the one that connects
	done     chan struct{}

	mu      sync.Mutex
	conn    *wire.Conn // nil: none
	renewed time.Time
	ended   bool
}

var _ coordination.Session = (*session)(nil)

// validSession says whether a session's id is one of ZooKeeper's.
func validSession(id string) bool {
	hex, ok := strings.CutPrefix(id, "0x")
	v, err := strconv.ParseUint(hex, 16, 64)
	return ok && err == nil && v != 0 && sessionID(int64(v)) == id
}

// NewSession implements coordination.Store. A ttl that the servers do not allow
// (minSessionTimeout, maxSessionTimeout) is an error. Expiry is late by up to the
// servers' tickTime.
func (s *Store) NewSession(ctx context.Context, ttl time.Duration) (coordination.Session, error) {
	if ttl <= 0 {
		return nil, errTTL
	}
	if err := s.admit(ctx); err != nil {
		return nil, err
	}
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	x, err := s.newSession(ctx, ttl)
	if err != nil {
		return nil, s.unavailable(err)
	}
	return x, nil
}

func (s *Store) newSession(ctx context.Context, ttl time.Duration) (*session, error) {
	if _, err := s.link.get(ctx); err != nil { // it makes the nodes that a session needs
		return nil, err
	}
	h := s.cfg.hello()
	h.Timeout = (ttl + time.Millisecond - 1).Truncate(time.Millisecond)
	begun := time.Now()
	conn, err := s.connect(ctx, h)
	if err != nil {
		return nil, err
	}
	x := &session{
		s: s, id: sessionID(conn.SessionID()), sid: conn.SessionID(), password: conn.Password(), ttl: h.Timeout,
		turn: make(chan struct{}, 1), done: make(chan struct{}), conn: conn, renewed: begun,
	}
	if got := conn.Timeout(); got != h.Timeout {
		err = fmt.Errorf("%w: %v was asked for, they offer %v: see minSessionTimeout and maxSessionTimeout", errTimeout, h.Timeout, got)
	} else {
		err = x.lease(ctx, conn)
	}
	if err == nil && !s.keep(x) {
		err = coordination.ErrClosed
	}
	if err != nil {
		closeCtx, cancel := context.WithTimeout(s.ctx, 100*time.Millisecond)
		defer cancel()
		_ = conn.Call(closeCtx, wire.CloseSession()) // else it expires
		conn.Close()
		return nil, err
	}
	go x.mind()
	return x, nil
}

// lease makes the session's lease.
func (x *session) lease(ctx context.Context, conn *wire.Conn) error {
	create := wire.Multi([]wire.Op{wire.Create(x.s.tree.lease(x.id), nil, x.s.cfg.acl(), true)})
	if err := x.s.call(ctx, conn, create); err != nil {
		return err
	}
	return create.Err
}

// keep counts a session and its goroutine in, unless the Store is closed.
func (s *Store) keep(x *session) bool {
	if !s.begin() {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sessions[x.id] = x
	return true
}

// forget ends a session of this Store that turned out to be over.
func (s *Store) forget(id string) {
	s.mu.Lock()
	x := s.sessions[id]
	s.mu.Unlock()
	if x != nil {
		x.end()
	}
}

// ID implements coordination.Session. It is the id of ZooKeeper's session, in hex.
func (x *session) ID() string { return x.id }

// Done implements coordination.Session.
func (x *session) Done() <-chan struct{} { return x.done }

// Renew implements coordination.Session.
func (x *session) Renew(ctx context.Context) error {
	if err := x.s.admit(ctx); err != nil {
		return err
	}
	ctx, cancel := x.s.bounded(ctx)
	defer cancel()
	lease := wire.Exists(x.s.tree.lease(x.id), false)
	err := x.ask(ctx, func(conn *wire.Conn) error { return x.s.call(ctx, conn, lease) })
	if err == nil && lease.Err != nil {
		if !errors.Is(lease.Err, wire.NoNode) {
			return x.s.unavailable(lease.Err)
		}
		x.end() // somebody has removed it
		err = coordination.ErrSessionExpired
	}
	return err
}

// ask calls f with the session's connection, and again with another one if that was lost:
// it may have been, because the session has ended.
func (x *session) ask(ctx context.Context, f func(*wire.Conn) error) error {
	var err error
	for range 2 {
		var conn *wire.Conn
		if conn, err = x.attach(ctx); err != nil {
			break
		}
		begun := time.Now()
		if err = f(conn); err == nil {
			x.mu.Lock()
			x.renewed = begun
			x.mu.Unlock()
			return nil
		}
		if errors.Is(err, wire.SessionExpired) {
			x.end()
			return coordination.ErrSessionExpired
		}
		conn.Close() // a server that does not answer is not asked again
		if ctx.Err() != nil {
			break
		}
	}
	return x.s.unavailable(err)
}

// attach returns the session's connection, and makes another one if it was lost.
func (x *session) attach(ctx context.Context) (*wire.Conn, error) {
	select {
	case x.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-x.turn }()
	x.mu.Lock()
	conn, ended := x.conn, x.ended
	x.mu.Unlock()
	if ended {
		return nil, coordination.ErrSessionExpired
	}
	if conn != nil && conn.Err() == nil {
		return conn, nil
	}
	h := x.s.cfg.hello()
	h.Timeout, h.SessionID, h.Password = x.ttl, x.sid, x.password
	begun := time.Now()
	conn, err := x.s.connect(ctx, h)
	if errors.Is(err, wire.SessionExpired) {
		x.end()
		return nil, coordination.ErrSessionExpired
	}
	if err != nil {
		return nil, err
	}
	if !x.adopt(conn, begun) {
		conn.Close()
		return nil, coordination.ErrClosed
	}
	return conn, nil
}

// adopt takes a connection as the session's, unless the Store is closed.
func (x *session) adopt(conn *wire.Conn, begun time.Time) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.s.isClosed() {
		return false
	}
	x.conn, x.renewed = conn, begun
	return true
}

// Close implements coordination.Session.
func (x *session) Close(ctx context.Context) error {
	if err := x.s.admit(ctx); err != nil {
		return err
	}
	ctx, cancel := x.s.bounded(ctx)
	defer cancel()
	err := x.ask(ctx, func(conn *wire.Conn) error { return x.s.call(ctx, conn, wire.CloseSession()) })
	if err != nil && !errors.Is(err, coordination.ErrSessionExpired) {
		return err
	}
	x.end()
	conn, err := x.s.link.get(ctx)
	if err == nil {
		if err = x.s.sync(ctx, conn); err == nil {
			err = x.s.adopt(ctx, conn)
		}
	}
	if err != nil {
		return x.s.unavailable(err) // the keys are gone all the same, and whoever looks will tell
	}
	return nil
}

// end marks the session as ended.
func (x *session) end() {
	x.mu.Lock()
	first, conn := !x.ended, x.conn
	x.ended = true
	x.mu.Unlock()
	if !first {
		return
	}
	x.s.mu.Lock()
	delete(x.s.sessions, x.id)
	x.s.mu.Unlock()
	if conn != nil {
		conn.Close()
	}
	close(x.done)
}

// drop ends the connection, and not the session.
func (x *session) drop() {
	x.mu.Lock()
	conn := x.conn
	x.mu.Unlock()
	if conn != nil {
		conn.Close()
	}
}

// mind notices the end of the session: the server hangs up then. When it does, or the
// time is over without a renewal, the lease tells, for which another connection asks.
func (x *session) mind() {
	defer x.s.work.Done()
	pause := max(x.ttl/8, time.Millisecond)
	timer := time.NewTimer(x.ttl)
	defer timer.Stop()
	var looked *wire.Conn // the lost connection after which the lease was looked at
	for {
		x.mu.Lock()
		conn, left := x.conn, time.Until(x.renewed.Add(x.ttl))
		x.mu.Unlock()
		var lost <-chan struct{}
		if conn != looked {
			lost = conn.Dead()
		}
		timer.Reset(max(left, pause))
		select {
		case <-x.s.ctx.Done():
			return
		case <-x.done:
			return
		case <-lost:
			looked = conn
		case <-timer.C:
			x.mu.Lock()
			early := time.Until(x.renewed.Add(x.ttl)) > 0
			x.mu.Unlock()
			if early {
				continue
			}
		}
		if x.over() {
			x.end()
			return
		}
	}
}

// over asks whether the lease is gone.
func (x *session) over() bool {
	conn, err := x.s.link.get(x.s.ctx)
	if err != nil {
		return false
	}
	if err := x.s.sync(x.s.ctx, conn); err != nil {
		return false
	}
	over, err := x.s.ended(x.s.ctx, conn, x.id)
	return err == nil && over
}
