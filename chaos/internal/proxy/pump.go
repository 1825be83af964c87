package proxy

import (
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

// chunk is what one read brought.
type chunk struct {
	data []byte
	due  time.Time // not before
	end  error     // how the direction ended, after data
}

// depth is how many chunks of one direction of one connection are on their way: few,
// so that a slow link does not hide seconds of bytes in here.
const (
	depth     = 12
	chunkSize = 32 << 10
)

// pump passes on what comes from src to dst until that ends.
func (p *Proxy) pump(c *pair, way int, src, dst *net.TCPConn) {
	onWay := make(chan chunk, depth)
	var reading sync.WaitGroup
	reading.Go(func() { p.read(c, src, onWay) })
	defer reading.Wait()
	for {
		var x chunk
		select {
		case x = <-onWay:
		case <-c.done:
			return
		}
		if !p.pass(c, way, x, dst) {
			return
		}
	}
}

// read takes what comes, and says when it may go on.
func (p *Proxy) read(c *pair, src *net.TCPConn, onWay chan<- chunk) {
	var last time.Time
	for {
		buf := make([]byte, chunkSize)
		n, err := src.Read(buf)
		x := chunk{data: buf[:n], due: p.due(last), end: err}
		last = x.due
		select {
		case onWay <- x:
		case <-c.done:
			return
		}
		if err != nil {
			return
		}
	}
}

// due says when what came now may go on; never before what came earlier.
func (p *Proxy) due(last time.Time) time.Time {
	p.mu.Lock()
	f := p.fault
	p.mu.Unlock()
	at := time.Now().Add(f.Delay)
	if f.Jitter > 0 {
		at = at.Add(rand.N(f.Jitter))
	}
	if at.Before(last) {
		return last
	}
	return at
}

// pass writes a chunk when that is due and nothing holds it. false: the direction ended.
func (p *Proxy) pass(c *pair, way int, x chunk, dst *net.TCPConn) bool {
	if !sleepUntil(x.due, c.done) || !p.unheld(c, way) {
		return false
	}
	if len(x.data) > 0 {
		p.mu.Lock()
		rate := p.fault.Rate
		p.mu.Unlock()
		if !sleepUntil(p.ways[way].take(len(x.data), rate), c.done) {
			return false
		}
		if _, err := dst.Write(x.data); err != nil {
			c.reset()
			return false
		}
		p.mu.Lock()
		p.passed[way] += int64(len(x.data))
		p.mu.Unlock()
	}
	switch {
	case x.end == nil:
		return true
	case errors.Is(x.end, io.EOF):
		_ = dst.CloseWrite()
	default:
		c.reset()
	}
	return false
}

// unheld waits while the direction is held. false: the connection ended.
func (p *Proxy) unheld(c *pair, way int) bool {
	for {
		p.mu.Lock()
		held := p.fault.HoldForward && way == 0 || p.fault.HoldBackward && way == 1
		changed, closed := p.changed, p.closed
		p.mu.Unlock()
		if !held || closed {
			return !closed
		}
		select {
		case <-changed:
		case <-c.done:
			return false
		}
	}
}

// sleepUntil returns false when done was closed first.
func sleepUntil(at time.Time, done <-chan struct{}) bool {
	left := time.Until(at)
	if left <= 0 {
		select {
		case <-done:
			return false
		default:
			return true
		}
	}
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-done:
		return false
	}
}

// pace says when bytes may pass a link of some rate.
type pace struct {
	mu   sync.Mutex
	next time.Time // when the link is free
}

func (l *pace) take(n int, rate int64) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if rate <= 0 {
		l.next = now
		return now
	}
	if l.next.Before(now) {
		l.next = now
	}
	at := l.next
	l.next = at.Add(time.Duration(int64(n) * int64(time.Second) / rate))
	return at
}
