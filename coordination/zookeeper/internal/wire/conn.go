// Package wire speaks ZooKeeper's client protocol on one connection.
//
// It is here, rather than a client library, because of what a coordination.Session
// needs: nothing may reach the server in a session's name unless the session's
// holder asks for it. Client libraries ping, reconnect and begin new sessions by
// themselves, and send in a new session what was meant for the one that ended. A
// Conn does none of that: it is one connection in one session, and when either is
// over it is of no use any more.
package wire

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// Errors that end a connection, for use with errors.Is.
var (
	// ErrClosed means that Close was called.
	ErrClosed = errors.New("zookeeper: connection is closed")
	// ErrSilent means that the server did not answer in time.
	ErrSilent = errors.New("zookeeper: server does not answer")
)

const (
	maxFrame = 64 << 20
	window   = 512 // requests of one Call that are under way at a time
)

// Event is a change that a watch was set for.
type Event struct{ Path string }

// Hello says how to begin a connection.
type Hello struct {
	// Timeout is that of the session to begin. The server may choose another one.
	Timeout time.Duration
	// SessionID and Password are of a session to go on with; 0: begin one.
	SessionID int64
	Password  []byte
	// Scheme and Auth prove who the client is; "": it does not say.
	Scheme string
	Auth   []byte
	// Ping keeps the session alive while the connection lasts.
	Ping bool
	// AnswerLimit is how long the server may be silent while it owes an answer.
	AnswerLimit time.Duration
	// OnEvent is called for each event, in order with the answers. It must not block.
	OnEvent func(Event)
}

// Conn is one connection in one session. All methods may be called from any goroutine.
type Conn struct {
	hello     Hello
	net       net.Conn
	sessionID int64
	password  []byte
	timeout   time.Duration
	kick      chan struct{} // there is something to write
	dead      chan struct{} // closed once err is set
	ended     sync.WaitGroup

	mu      sync.Mutex // never held during I/O
	err     error
	xid     int32
	out     []byte    // not yet written
	pending []*waiter // requests without an answer, in order
	pings   []*waiter
	quiet   time.Time // when the server last was heard, or began to owe something
	wrote   time.Time
}

// waiter is a request that is under way, as a part of a Call.
type waiter struct {
	xid  int32
	req  *Request
	call *call
}

// call is what one Call waits for.
type call struct {
	left int // guarded by Conn.mu
	done chan struct{}
}

// Begin shakes hands over a network connection, which it takes over: it is closed
// when Begin fails. An error that is SessionExpired means that the session to go on
// with has ended.
func Begin(ctx context.Context, nc net.Conn, h Hello) (*Conn, error) {
	stop := context.AfterFunc(ctx, func() { _ = nc.SetDeadline(time.Unix(1, 0)) })
	c := &Conn{
		hello: h, net: nc, kick: make(chan struct{}, 1), dead: make(chan struct{}),
		quiet: time.Now(), wrote: time.Now(),
	}
	in := bufio.NewReaderSize(nc, 64<<10)
	err := c.shakeHands(in)
	if err == nil && h.Scheme != "" {
		err = c.authenticate(in)
	}
	if !stop() {
		err = ctx.Err()
	}
	if err != nil {
		_ = nc.Close()
		return nil, err
	}
	c.ended.Add(2)
	go c.write()
	go c.read(in)
	return c, nil
}

func (c *Conn) shakeHands(in *bufio.Reader) error {
	e := encoder{b: make([]byte, 4)}
	e.int32(0) // protocol version
	// Without the zxid that this client has seen: a server that is behind it would
	// hang up without a word. The caller looks at the zxid of the first answer.
	e.int64(0)
	e.int32(int32(min(c.hello.Timeout.Milliseconds(), 1<<31-1)))
	e.int64(c.hello.SessionID)
	if c.hello.SessionID == 0 {
		e.bytes(make([]byte, 16))
	} else {
		e.bytes(c.hello.Password)
	}
	e.bool(false) // not content with a read-only server
	if err := c.send(e.b); err != nil {
		return err
	}
	frame, err := readFrame(in)
	if err != nil {
		return err
	}
	d := decoder{b: frame}
	d.int32()
	c.timeout = time.Duration(d.int32()) * time.Millisecond
	c.sessionID = d.int64()
	c.password = d.bytes()
	if d.err == nil && (c.sessionID == 0 || c.timeout <= 0) {
		return SessionExpired
	}
	return d.err
}

// authenticate proves who the client is, before anything else is sent.
func (c *Conn) authenticate(in *bufio.Reader) error {
	e := encoder{b: make([]byte, 4)}
	e.int32(xidAuth)
	e.int32(opAuth)
	e.int32(0)
	e.string(c.hello.Scheme)
	e.bytes(c.hello.Auth)
	if err := c.send(e.b); err != nil {
		return err
	}
	frame, err := readFrame(in)
	if err != nil {
		return err
	}
	d := decoder{b: frame}
	d.take(12)
	if code := Code(d.int32()); d.err == nil && code != 0 {
		return code
	}
	return d.err
}

// send writes a frame whose first four bytes are left for its length.
func (c *Conn) send(frame []byte) error {
	binary.BigEndian.PutUint32(frame, uint32(len(frame)-4))
	_, err := c.net.Write(frame)
	return err
}

func readFrame(in *bufio.Reader) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(in, head[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > maxFrame {
		return nil, fmt.Errorf("zookeeper: answer of %d bytes", n)
	}
	frame := make([]byte, n)
	_, err := io.ReadFull(in, frame)
	return frame, err
}

// SessionID is the session's id, Password what it takes to go on with it on another
// connection, and Timeout what the server has agreed to.
func (c *Conn) SessionID() int64 { return c.sessionID }

// Password is what it takes to go on with the session on another connection.
func (c *Conn) Password() []byte { return c.password }

// Timeout is the session's timeout as the server has agreed to it.
func (c *Conn) Timeout() time.Duration { return c.timeout }

// Dead is closed once the connection is of no use any more; Err then says why.
func (c *Conn) Dead() <-chan struct{} { return c.dead }

// Err says why the connection is dead; nil: it is not.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Close ends the connection, but not the session, and waits for its goroutines.
func (c *Conn) Close() {
	c.fail(ErrClosed)
	c.ended.Wait()
}

// Call sends the requests, in order and without waiting in between, and returns once
// all are answered. An error leaves open which of them have taken effect, or will.
func (c *Conn) Call(ctx context.Context, reqs ...*Request) error {
	for len(reqs) > 0 {
		n := min(len(reqs), window)
		if err := c.await(ctx, c.enqueue(reqs[:n], false)); err != nil {
			return err
		}
		reqs = reqs[n:]
	}
	return nil
}

// Ping has the session last another timeout, and returns the zxid of the last change
// that the server has applied.
func (c *Conn) Ping(ctx context.Context) (zxid int64, err error) {
	r := &Request{op: opPing}
	if err := c.await(ctx, c.enqueue([]*Request{r}, true)); err != nil {
		return 0, err
	}
	if r.Err != nil {
		return 0, r.Err
	}
	return r.Zxid, nil
}

func (c *Conn) await(ctx context.Context, w *call) error {
	select {
	case <-w.done:
		return nil
	case <-c.dead:
		select {
		case <-w.done: // the last answer came just before
			return nil
		default:
			return c.Err()
		}
	case <-ctx.Done():
		return ctx.Err()
	}
}

// enqueue puts requests into the outbox.
func (c *Conn) enqueue(reqs []*Request, ping bool) *call {
	w := &call{left: len(reqs), done: make(chan struct{})}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil || len(reqs) == 0 {
		return w
	}
	if len(c.pending)+len(c.pings) == 0 {
		c.quiet = time.Now()
	}
	for _, r := range reqs {
		xid := int32(xidPing)
		if ping {
			c.pings = append(c.pings, &waiter{xid, r, w})
		} else {
			c.xid = (c.xid + 1) & 0x7fffffff
			xid = c.xid
			c.pending = append(c.pending, &waiter{xid, r, w})
		}
		e := encoder{b: c.out}
		e.int32(int32(r.Size()))
		e.int32(xid)
		e.int32(r.op)
		c.out = append(e.b, r.body...)
	}
	select {
	case c.kick <- struct{}{}:
	default:
	}
	return w
}

// fail ends the connection for the reason err, unless it has ended.
func (c *Conn) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
		close(c.dead)
		_ = c.net.Close()
	}
}

// write empties the outbox, pings, and notices a server that is silent.
func (c *Conn) write() {
	defer c.ended.Done()
	every := c.hello.AnswerLimit / 4
	if c.hello.Ping {
		every = min(every, c.timeout/6)
	}
	ticker := time.NewTicker(max(every, time.Millisecond))
	defer ticker.Stop()
	var spare []byte
	for {
		select {
		case <-c.dead:
			return
		case <-c.kick:
		case now := <-ticker.C:
			if err := c.tick(now); err != nil {
				c.fail(err)
				return
			}
		}
		c.mu.Lock()
		out := c.out
		c.out = spare[:0]
		if len(out) > 0 {
			c.wrote = time.Now()
		}
		c.mu.Unlock()
		if len(out) > 0 {
			_ = c.net.SetWriteDeadline(time.Now().Add(c.hello.AnswerLimit))
			if _, err := c.net.Write(out); err != nil {
				c.fail(err)
				return
			}
		}
		if spare = out; cap(spare) > 1<<20 {
			spare = nil
		}
	}
}

// tick looks after the connection.
func (c *Conn) tick(now time.Time) error {
	c.mu.Lock()
	owes, quiet, idle := len(c.pending)+len(c.pings) > 0, now.Sub(c.quiet), now.Sub(c.wrote)
	c.mu.Unlock()
	if owes && quiet > c.hello.AnswerLimit {
		return fmt.Errorf("%w for %v", ErrSilent, quiet.Round(time.Millisecond))
	}
	if c.hello.Ping && idle >= c.timeout/3 {
		c.enqueue([]*Request{{op: opPing}}, true)
	}
	return nil
}

// read takes the answers in.
func (c *Conn) read(in *bufio.Reader) {
	defer c.ended.Done()
	for {
		frame, err := readFrame(in)
		if err == nil {
			err = c.take(frame)
		}
		if err != nil {
			c.fail(err)
			return
		}
	}
}

func (c *Conn) take(frame []byte) error {
	d := decoder{b: frame}
	xid, zxid, code := d.int32(), d.int64(), Code(d.int32())
	if d.err != nil {
		return d.err
	}
	if xid == xidEvent {
		d.take(8) // kind, and state of the session
		if path := d.string(); d.err == nil && c.hello.OnEvent != nil {
			c.hello.OnEvent(Event{path})
		}
		return d.err
	}
	w := c.pop(xid)
	if w == nil {
		return fmt.Errorf("zookeeper: answer %d to no request", xid)
	}
	if err := w.req.answer(zxid, code, d.b); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if w.call.left--; w.call.left == 0 {
		close(w.call.done)
	}
	return nil
}

// pop takes the request that is answered next, if it has that xid.
func (c *Conn) pop(xid int32) *waiter {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.quiet = time.Now()
	queue := &c.pending
	if xid == xidPing {
		queue = &c.pings
	}
	if len(*queue) == 0 || (*queue)[0].xid != xid {
		return nil
	}
	w := (*queue)[0]
	(*queue)[0] = nil
	*queue = (*queue)[1:]
	return w
}
