package engine

import (
	"time"

	"github.com/tidemark-log/tidemark/coordination"
)

// faults are the switches by which tests make the store misbehave.
type faults struct {
	down bool
	drop int
	lose int
	gate chan struct{} // not nil while paused; closed when it goes on
}

// fate is what becomes of one Do.
type fate int

const (
	normal     fate = iota
	dropped         // not applied, no answer
	unanswered      // applied, no answer
)

func (e *Engine) fate() fate {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.faults.drop > 0:
		e.faults.drop--
		return dropped
	case e.faults.lose > 0:
		e.faults.lose--
		return unanswered
	}
	return normal
}

// DropRequests makes the next n calls of Do fail with ErrUnavailable without effect.
func (e *Engine) DropRequests(n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.faults.drop = n
}

// LoseReplies makes the next n calls of Do that are not dropped take effect and
// yet fail with ErrUnavailable.
func (e *Engine) LoseReplies(n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.faults.lose = n
}

// SetUnavailable takes the store down, and up again. While it is down all calls fail
// with ErrUnavailable without effect and no session expires; its watches end. Once
// up, every session has a full ttl.
func (e *Engine) SetUnavailable(down bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.faults.down == down {
		return
	}
	e.faults.down = down
	if down {
		e.endWatches(nil, coordination.ErrUnavailable)
	} else {
		e.rebase(time.Now())
	}
	e.schedule()
}

// Pause makes the store stand still: calls wait (in manual mode: fail), and no
// expiry pass runs. Watches stay.
func (e *Engine) Pause() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.faults.gate == nil && !e.closed {
		e.faults.gate = make(chan struct{})
	}
}

// Resume ends Pause. The pass that is overdue by then runs.
func (e *Engine) Resume() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.faults.gate == nil {
		return
	}
	e.resume()
	if !e.expiry.due.IsZero() && !e.closed && e.failed == nil {
		e.arm()
	}
}

func (e *Engine) resume() {
	if e.faults.gate != nil {
		close(e.faults.gate)
		e.faults.gate = nil
	}
}

// SetUnavailable cuts the connection of one client, and mends it. While it is cut the
// client's calls fail with ErrUnavailable without effect, its watches end, and its
// sessions go on aging.
func (c *Client) SetUnavailable(cut bool) {
	c.e.mu.Lock()
	defer c.e.mu.Unlock()
	c.cut = cut
	if cut {
		c.e.endWatches(c, coordination.ErrUnavailable)
	}
}
