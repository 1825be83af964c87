package tcp

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/tidemark-log/tidemark/transport"
)

const (
	// staleAfter is how long a message waits for a connection: links say Hello again
	// soon enough.
	staleAfter = time.Second
	// chunkBytes is about how much is written at once, unless one message is larger.
	chunkBytes = 256 << 10
	// keepBuffer is the largest buffer that a peer keeps while nothing is sent.
	keepBuffer = 64 << 10

	firstBackoff = 50 * time.Millisecond
	lastBackoff  = time.Second
	// settled is how long a connection has to live to be no failure.
	settled = 2 * time.Second
)

// outgoing is what is sent to one peer. While something is, it has a goroutine, and
// another one for each connection's acks.
type outgoing struct {
	t    *Transport
	id   int32
	wake chan struct{} // has a token when the queue may have something
	news chan struct{} // has a token when the address is another

	sent         tally
	invalidQuiet gate // of log lines about messages without a binary form

	mu      sync.Mutex
	address string
	running bool
	q       queue
	last    time.Duration // when something was sent
	conn    *outConn      // nil: none
	abandon func()        // ends the attempt, or the connection; waits for nothing

	standing
}

func newOutgoing(t *Transport, id int32) *outgoing {
	return &outgoing{t: t, id: id, wake: make(chan struct{}, 1), news: make(chan struct{}, 1)}
}

func token(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // there is one
	}
}

// send queues e. The transport is open, and stays so meanwhile.
func (p *outgoing) send(address string, e queued) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = e.at
	if p.address != address {
		p.move(address)
	}
	if p.conn == nil {
		p.dropped.Stale += uint64(p.q.dropBefore(e.at - staleAfter))
	}
	ok, superseded := p.q.add(e, p.t.cfg.QueueBytes)
	p.dropped.Superseded += uint64(superseded)
	if !ok {
		p.dropped.Busy++
		return transport.ErrBusy
	}
	token(p.wake)
	if !p.running {
		p.running = true
		p.t.all.Go(p.run)
	}
	return nil
}

// move makes the peer be at another address. It is called with mu locked.
func (p *outgoing) move(address string) {
	p.address, p.conn = address, nil
	p.dropped.Disconnected += uint64(p.q.dropOrdered())
	if p.running {
		token(p.news)
	}
	if p.abandon != nil {
		p.abandon()
	}
}

// run keeps a connection to the peer as long as something is sent to it.
func (p *outgoing) run() {
	failures := 0
	for {
		if p.attempt() {
			failures = 0
		}
		if p.leave() {
			return
		}
		if p.pause(backoff(failures)) {
			failures++
		} else {
			failures = 0 // it is elsewhere
		}
	}
}

// backoff is how long to wait after so many failures in a row: not at all after the
// end of a connection that was a good one.
func backoff(failures int) time.Duration {
	if failures == 0 {
		return 0
	}
	d := min(firstBackoff<<min(failures-1, 10), lastBackoff)
	return d/2 + rand.N(d/2)
}

// pause waits, less if there is another address: then it returns false.
func (p *outgoing) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-p.news:
		return false
	case <-timer.C:
	case <-p.t.closing:
	}
	return true
}

// leave reports whether the peer needs its goroutine no more.
func (p *outgoing) leave() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.t.now()
	p.dropped.Stale += uint64(p.q.dropBefore(now - staleAfter))
	if p.t.closed.Load() || p.q.messages == 0 && p.idle(now) {
		p.running = false
	}
	return !p.running
}

func (p *outgoing) idle(now time.Duration) bool { return now-p.last >= p.t.cfg.IdleTimeout }

// attempt connects to the peer and sends until the connection ends. It reports
// whether the connection was a good one.
func (p *outgoing) attempt() bool {
	ctx, cancel := context.WithCancel(p.t.ctx)
	defer cancel()
	p.mu.Lock()
	address := p.address
	p.abandon = cancel
	select {
	case <-p.news: // this is it
	default:
	}
	p.mu.Unlock()

	c, err := p.t.dial(ctx, address)
	if err == nil {
		defer p.t.shut(c.raw)
		if p.hold(ctx, c, cancel) {
			err = p.t.introduce(c, p.id)
		} else {
			err = errMoved
		}
	}
	if err != nil {
		p.failed(address, err)
		return false
	}
	began := p.t.now()
	if !p.connected(c, address) {
		return false
	}
	p.t.all.Go(c.readAcks)
	c.end(p.serve(c))
	<-c.dead
	p.lost(address, c.cause)
	return p.t.now()-began >= settled
}

// hold lets the connection be given up from now on. False: it is given up already.
func (p *outgoing) hold(ctx context.Context, c *outConn, cancel context.CancelFunc) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if ctx.Err() != nil {
		return false
	}
	p.abandon = func() {
		cancel()
		c.end(errMoved)
	}
	return true
}

// serve writes what waits, and asks for signs of life where nothing does, until the
// connection ends. It returns why.
func (p *outgoing) serve(c *outConn) error {
	every := p.t.cfg.PeerTimeout / 4
	timer := time.NewTimer(every)
	defer timer.Stop()
	var (
		batch  []queued
		buffer []byte
	)
	for {
		p.mu.Lock()
		moved := p.conn != c // what waits is not for this connection
		if !moved {
			batch = p.q.take(batch[:0], chunkBytes)
		}
		p.mu.Unlock()
		if moved {
			return errMoved
		}
		if len(batch) > 0 {
			var err error
			if buffer, err = p.write(c, batch, buffer[:0]); err != nil {
				return err
			}
			timer.Reset(every)
			continue
		}
		select {
		case <-p.wake:
		case <-c.dead:
			return c.cause
		case <-p.t.closing:
			return transport.ErrClosed
		case <-timer.C:
			if p.rests() {
				return errIdle
			}
			if cap(buffer) > keepBuffer {
				buffer = nil
			}
			if err := c.write([]byte{0, 0, 0, 0}); err != nil { // a ping
				return err
			}
			timer.Reset(every)
		}
	}
}

func (p *outgoing) rests() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.idle(p.t.now())
}

// write writes what was taken from the queue, all at once. It returns the buffer.
func (p *outgoing) write(c *outConn, batch []queued, buffer []byte) ([]byte, error) {
	invalid := 0
	for i := range batch {
		before := len(buffer)
		framed, err := appendFrame(buffer, batch[i].m)
		if err != nil {
			invalid++
			p.tellInvalid(err)
			continue
		}
		buffer = framed
		batch[i].frame = len(buffer) - before
	}
	err := c.write(buffer)
	p.mu.Lock()
	p.dropped.Invalid += uint64(invalid)
	for i := range batch {
		e := &batch[i]
		p.q.done(e)
		switch {
		case e.frame == 0:
		case err != nil:
			p.dropped.Disconnected++
		default:
			p.sent.add(e.m.Kind, 1, e.frame)
		}
	}
	p.mu.Unlock()
	clear(batch) // messages belong to nobody here any more
	return buffer, err
}
