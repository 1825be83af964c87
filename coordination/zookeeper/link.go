package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/coordination/zookeeper/internal/wire"
)

// errBehind means that the servers know less than this Store has seen in them.
var errBehind = errors.New("zookeeper: servers are behind what they once answered: they were restored from a backup, or are not the same ones")

// errNoServer means that no server could be connected to.
var errNoServer = errors.New("zookeeper: no server answers")

// link is the Store's connection for everything but its sessions. It is made when it
// is needed, and made anew by the first call that finds it dead: nothing is tried in
// the background.
type link struct {
	s *Store

	mu      sync.Mutex
	conn    *wire.Conn
	dialing *dialing

	founded bool // of dial only: the nodes that a Store needs are there
}

// dialing is an attempt to connect that callers share.
type dialing struct {
	done chan struct{} // closed once conn or err is set
	conn *wire.Conn
	err  error
}

// get returns the connection.
func (l *link) get(ctx context.Context) (*wire.Conn, error) {
	l.mu.Lock()
	if l.conn != nil && l.conn.Err() == nil {
		defer l.mu.Unlock()
		return l.conn, nil
	}
	d := l.dialing
	if d == nil {
		d = &dialing{done: make(chan struct{})}
		if !l.s.begin() {
			l.mu.Unlock()
			return nil, coordination.ErrClosed
		}
		l.dialing = d
		go l.dial(d, l.conn)
	}
	l.mu.Unlock()
	select {
	case <-d.done:
		return d.conn, d.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// dial makes a connection in place of old.
func (l *link) dial(d *dialing, old *wire.Conn) {
	defer l.s.work.Done()
	if old != nil {
		old.Close()
	}
	h := l.s.cfg.hello()
	// No key hangs on this session. It only has to outlive an answer that is late.
	h.Timeout, h.Ping, h.OnEvent = 2*l.s.cfg.RequestTimeout, true, l.s.feed.notify
	conn, err := l.s.connect(l.s.ctx, h)
	if err != nil {
		err = fmt.Errorf("%w: %w", errNoServer, err)
	} else if err = l.found(conn); err != nil {
		conn.Close()
		conn = nil
	}
	l.mu.Lock()
	l.dialing = nil
	if err == nil {
		l.conn = conn
	}
	d.conn, d.err = conn, err
	close(d.done)
	l.mu.Unlock()
}

// found has the first connection make the nodes that a Store needs.
func (l *link) found(conn *wire.Conn) error {
	if l.founded {
		return nil
	}
	ctx, cancel := context.WithTimeout(l.s.ctx, l.s.cfg.RequestTimeout)
	defer cancel()
	err := l.s.found(ctx, conn)
	l.founded = err == nil
	return err
}

// close ends the connection, and its session, if the server is quick.
func (l *link) close() {
	l.mu.Lock()
	conn := l.conn
	l.mu.Unlock()
	if conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	_ = conn.Call(ctx, wire.CloseSession()) // else the session expires
	conn.Close()
}

// drop ends the connection.
func (l *link) drop() {
	l.mu.Lock()
	conn := l.conn
	l.mu.Unlock()
	if conn != nil {
		conn.Close()
	}
}

// connect connects to one of the servers. A server that does not know what this Store
// has seen is passed over: it lags behind the others, or all of them have gone back.
func (s *Store) connect(ctx context.Context, h wire.Hello) (*wire.Conn, error) {
	var errs []error
	first := rand.IntN(len(s.cfg.Servers))
	for i := range s.cfg.Servers {
		server := s.cfg.Servers[(first+i)%len(s.cfg.Servers)]
		conn, err := s.connectTo(ctx, server, h)
		if err == nil {
			return conn, nil
		}
		if errors.Is(err, wire.SessionExpired) || ctx.Err() != nil {
			return nil, err
		}
		errs = append(errs, fmt.Errorf("%s: %w", server, err))
	}
	err := errors.Join(errs...)
	s.complain("no connection to ZooKeeper", err)
	return nil, err
}

func (s *Store) connectTo(ctx context.Context, server string, h wire.Hello) (*wire.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.DialTimeout)
	defer cancel()
	nc, err := s.cfg.Dial(ctx, "tcp", server)
	if err != nil {
		return nil, err
	}
	conn, err := wire.Begin(ctx, nc, h)
	if err != nil {
		return nil, err
	}
	seen := s.seen.zxid.Load()
	sync := wire.Sync(s.tree.chroot)
	err = conn.Call(ctx, sync)
	if err == nil && sync.Zxid < seen {
		err = fmt.Errorf("%w: it is at zxid 0x%x, 0x%x was seen", errBehind, sync.Zxid, seen)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	s.complained.Store(0)
	s.cfg.Logger.Debug("connected to ZooKeeper", "server", server, "session", sessionID(conn.SessionID()))
	return conn, nil
}

// seen is the most that was seen of the store, by which it is noticed when it goes back.
type seen struct {
	zxid  atomic.Int64
	entry atomic.Int64
}

func raise(v *atomic.Int64, to int64) {
	for old := v.Load(); to > old && !v.CompareAndSwap(old, to); old = v.Load() {
	}
}

// call is Conn.Call with a look at the zxids.
func (s *Store) call(ctx context.Context, conn *wire.Conn, reqs ...*wire.Request) error {
	if err := conn.Call(ctx, reqs...); err != nil {
		return err
	}
	for _, r := range reqs {
		raise(&s.seen.zxid, r.Zxid)
	}
	return nil
}

// sync has the server that conn leads to catch up: with the leader, and with all that this
// Store has seen through other servers. The leader itself does not wait: it may
// have promised what it has not yet applied.
func (s *Store) sync(ctx context.Context, conn *wire.Conn) error {
	seen := s.seen.zxid.Load()
	for attempt := range maxAttempts {
		sync := wire.Sync(s.tree.chroot)
		if err := s.call(ctx, conn, sync); err != nil {
			return err
		}
		if sync.Zxid >= seen {
			return nil
		}
		if !pause(ctx, attempt) {
			return ctx.Err()
		}
	}
	return errBehind
}

// complain tells the operator what is wrong, once a second at most.
func (s *Store) complain(what string, err error) {
	now := time.Now().UnixNano()
	last := s.complained.Load()
	if now-last >= int64(time.Second) && s.complained.CompareAndSwap(last, now) && s.ctx.Err() == nil {
		s.cfg.Logger.Warn(what, "error", err)
	}
}
