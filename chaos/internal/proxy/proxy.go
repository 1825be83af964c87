// Package proxy passes TCP connections on to a target and has the faults of a
// network: cuts, black holes one way or both, delay, and a slow link.
package proxy

import (
	"errors"
	"net"
	"sync"
	"time"
)

// Fault is what a proxy does to its connections. Both directions are seen from
// whoever dialed: Forward is from the dialer to the target.
type Fault struct {
	// Cut closes all connections with a reset, and every new one.
	Cut bool
	// HoldForward and HoldBackward keep bytes back without closing anything, as a
	// network does that drops packets: what was held goes on when the fault is lifted,
	// as TCP sends it again. That a side closes is held back too.
	HoldForward, HoldBackward bool
	// Delay is added to what passes, each way, and up to Jitter more.
	Delay, Jitter time.Duration
	// Rate is how many bytes a second pass, each way, over all connections. 0: no limit.
	Rate int64
}

// and is what two faults at once amount to.
func (f Fault) and(g Fault) Fault {
	f.Cut = f.Cut || g.Cut
	f.HoldForward = f.HoldForward || g.HoldForward
	f.HoldBackward = f.HoldBackward || g.HoldBackward
	f.Delay, f.Jitter = f.Delay+g.Delay, f.Jitter+g.Jitter
	if g.Rate > 0 && (f.Rate == 0 || g.Rate < f.Rate) {
		f.Rate = g.Rate
	}
	return f
}

// Proxy listens on a port of the loopback interface. All methods may be called
// from any goroutine.
type Proxy struct {
	listener net.Listener
	running  sync.WaitGroup
	ways     [2]*pace // forward, backward

	mu      sync.Mutex
	target  string
	faults  map[*Fault]bool // in force, each its own
	fault   Fault           // all of them together
	changed chan struct{}   // closed when fault changes, or with Close
	pairs   map[*pair]bool
	closed  bool
	passed  [2]int64
}

// Listen starts a proxy. It has no target yet: until SetTarget connections are reset.
func Listen() (*Proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{
		listener: l, ways: [2]*pace{{}, {}}, faults: make(map[*Fault]bool),
		changed: make(chan struct{}), pairs: make(map[*pair]bool),
	}
	p.running.Go(p.accept)
	return p, nil
}

// Addr is where it listens.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// SetTarget says where new connections go. "" is nowhere.
func (p *Proxy) SetTarget(addr string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = addr
}

// Impose adds a fault to those in force, until lift is called. lift may be called again.
func (p *Proxy) Impose(f Fault) (lift func()) {
	key := &f
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults[key] = true
	p.settle()
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.faults[key] {
			delete(p.faults, key)
			p.settle()
		}
	}
}

// settle works out what is in force. The lock is held.
func (p *Proxy) settle() {
	var all Fault
	for f := range p.faults {
		all = all.and(*f)
	}
	p.fault = all
	if all.Cut {
		for c := range p.pairs {
			c.reset()
		}
	}
	if !p.closed {
		close(p.changed)
		p.changed = make(chan struct{})
	}
}

// Passed is how many bytes went each way.
func (p *Proxy) Passed() (forward, backward int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.passed[0], p.passed[1]
}

// Close resets all connections and waits until nothing of the proxy runs.
func (p *Proxy) Close() error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	p.closed = true
	close(p.changed)
	for c := range p.pairs {
		c.reset()
	}
	p.mu.Unlock()
	err := p.listener.Close()
	p.running.Wait()
	return err
}

func (p *Proxy) accept() {
	for {
		c, err := p.listener.Accept()
		switch {
		case err == nil:
			p.running.Go(func() { p.serve(c.(*net.TCPConn)) })
		case errors.Is(err, net.ErrClosed):
			return
		default: // out of descriptors: whoever dialed tries again
			timer := time.NewTimer(10 * time.Millisecond)
			<-timer.C
		}
	}
}

// dialTimeout bounds how long a connection waits for its target, which is on
// this machine.
const dialTimeout = 5 * time.Second

// serve passes one connection on.
func (p *Proxy) serve(from *net.TCPConn) {
	p.mu.Lock()
	target, cut := p.target, p.fault.Cut || p.closed
	p.mu.Unlock()
	if cut || target == "" {
		reset(from)
		return
	}
	to, err := net.DialTimeout("tcp", target, dialTimeout)
	if err != nil {
		reset(from)
		return
	}
	c := &pair{from: from, to: to.(*net.TCPConn), done: make(chan struct{})}
	p.mu.Lock()
	refused := p.fault.Cut || p.closed
	if !refused {
		p.pairs[c] = true
	}
	p.mu.Unlock()
	if refused {
		c.reset()
		return
	}
	var both sync.WaitGroup
	both.Go(func() { p.pump(c, 0, c.from, c.to) })
	both.Go(func() { p.pump(c, 1, c.to, c.from) })
	both.Wait()
	c.reset()
	p.mu.Lock()
	delete(p.pairs, c)
	p.mu.Unlock()
}

// pair is a connection and the one that it is passed on to.
type pair struct {
	from, to *net.TCPConn
	once     sync.Once
	done     chan struct{} // closed by reset
}

func (c *pair) reset() {
	c.once.Do(func() {
		close(c.done)
		reset(c.from)
		reset(c.to)
	})
}

// reset closes a connection so that the other side gets an error, not an end.
func reset(c *net.TCPConn) {
	_ = c.SetLinger(0)
	_ = c.Close()
}
