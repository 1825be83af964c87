package engine

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/tidemark-log/tidemark/coordination"
)

// session is the server's side of a session and the client's handle in one.
type session struct {
	client   *Client
	id       string
	number   uint64
	ttl      time.Duration
	deadline time.Time
	ended    bool
	done     chan struct{}
}

var _ coordination.Session = (*session)(nil)

func (s *session) ID() string            { return s.id }
func (s *session) Done() <-chan struct{} { return s.done }

// Renew implements coordination.Session.
func (s *session) Renew(ctx context.Context) error {
	if err := s.client.admit(ctx); err != nil {
		return err
	}
	e := s.client.e
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.refusal(s.client); err != nil {
		return err
	}
	if s.ended {
		return coordination.ErrSessionExpired
	}
	// The timer stays as it is: its pass finds the new deadline.
	s.deadline = time.Now().Add(s.ttl)
	return nil
}

// Close implements coordination.Session. It also succeeds when the session has
// ended already and its keys are gone.
func (s *session) Close(ctx context.Context) error {
	if err := s.client.admit(ctx); err != nil {
		return err
	}
	e := s.client.e
	return e.commit(ctx, s.client, func() (Change, error) {
		e.endSession(s)
		return e.state.planEnd(s.id), nil
	})
}

// end marks the session as ended; e.mu is held.
func (s *session) end() {
	if !s.ended {
		s.ended = true
		close(s.done)
	}
}

// newSession begins a session of c; e.mu is held.
func (e *Engine) newSession(c *Client, ttl time.Duration) *session {
	e.forgive(time.Now())
	e.made++
	s := &session{
		client: c, ttl: ttl, number: e.made,
		id:       fmt.Sprintf("s%d-%d", e.generation, e.made),
		deadline: time.Now().Add(ttl),
		done:     make(chan struct{}),
	}
	e.sessions[s.id] = s
	e.schedule()
	return s
}

// endSession ends s, so that no put and no renewal succeeds any more; its keys are
// the caller's business. e.mu is held.
func (e *Engine) endSession(s *session) {
	s.end()
	delete(e.sessions, s.id)
}

// Expire ends a session as if its time were over, and returns whether it was alive.
// Its keys are gone on return, unless the store fails or closes.
func (e *Engine) Expire(id string) bool {
	e.mu.Lock()
	s := e.sessions[id]
	if s == nil {
		e.mu.Unlock()
		return false
	}
	rest := e.expire([]*session{s})
	e.mu.Unlock()
	e.reap(rest)
	return true
}

// expire ends the sessions; e.mu is held. Without a disk the keys go in the same
// step. Else the sessions are returned, for reap without the lock.
func (e *Engine) expire(sessions []*session) []*session {
	for _, s := range sessions {
		e.endSession(s)
		if e.persist == nil {
			e.install(e.state.planEnd(s.id))
		}
	}
	if e.persist == nil {
		return nil
	}
	return sessions
}

// reap deletes the keys of ended sessions, one transaction each.
func (e *Engine) reap(sessions []*session) {
	for _, s := range sessions {
		err := e.commit(context.Background(), nil, func() (Change, error) { return e.state.planEnd(s.id), nil })
		if err != nil {
			return // closed or failed: the next open drops all ephemeral keys
		}
	}
}

// expiry is the plan of the next expiry pass. A pass runs at the earliest
// deadline, but at least four times per shortest ttl. A pass that comes more than a
// quarter of this ttl late shows that the process stood still: renewals could not
// arrive either, so everybody gets one more ttl (D16). The regular passes matter:
// with the deadline alone, a session whose deadline falls just before the end of
// the pause would expire. As it is, a pause goes unnoticed only below half a ttl,
// and a session that was renewed every third of its ttl survives that.
type expiry struct {
	timer *time.Timer
	due   time.Time     // when the next pass should run; zero: no pass is planned
	slack time.Duration // how late it may be
}

func (x *expiry) stop() {
	if x.timer != nil {
		x.timer.Stop()
	}
}

// schedule plans the next pass from scratch; e.mu is held.
func (e *Engine) schedule() {
	e.expiry.stop()
	e.expiry.due = time.Time{}
	if e.manual || e.closed || e.failed != nil || e.faults.down || len(e.sessions) == 0 {
		return
	}
	var first time.Time
	var shortest time.Duration
	for _, s := range e.sessions {
		if first.IsZero() || s.deadline.Before(first) {
			first = s.deadline
		}
		if shortest == 0 || s.ttl < shortest {
			shortest = s.ttl
		}
	}
	e.expiry.slack = shortest / 4
	e.expiry.due = time.Now().Add(max(shortest/4, 1))
	if first.Before(e.expiry.due) {
		e.expiry.due = first
	}
	e.arm()
}

// arm sets the timer for the planned pass; e.mu is held.
func (e *Engine) arm() {
	wait := max(time.Until(e.expiry.due), 0)
	if e.expiry.timer == nil {
		e.expiry.timer = time.AfterFunc(wait, e.pass)
	} else {
		e.expiry.timer.Reset(wait)
	}
}

// pass ends the sessions whose time is over.
func (e *Engine) pass() {
	e.mu.Lock()
	// A paused store has its pass when it goes on, and one that is down plans anew.
	if e.closed || e.failed != nil || e.faults.gate != nil || e.expiry.due.IsZero() {
		e.mu.Unlock()
		return
	}
	now := time.Now()
	if now.Before(e.expiry.due) { // planned anew while this one was about to start
		e.arm()
		e.mu.Unlock()
		return
	}
	var over []*session
	e.forgive(now)
	for _, s := range e.sessions {
		if !now.Before(s.deadline) {
			over = append(over, s)
		}
	}
	slices.SortFunc(over, func(a, b *session) int { return cmp.Compare(a.number, b.number) })
	rest := e.expire(over)
	e.schedule()
	e.mu.Unlock()
	e.reap(rest)
}

// forgive gives every session one more ttl when the planned pass is late; e.mu is
// held. It comes before everything that plans anew, which would hide the delay.
func (e *Engine) forgive(now time.Time) {
	if !e.expiry.due.IsZero() && now.Sub(e.expiry.due) > e.expiry.slack {
		e.rebase(now)
	}
}

// rebase gives every session one more ttl; e.mu is held.
func (e *Engine) rebase(now time.Time) {
	for _, s := range e.sessions {
		s.deadline = now.Add(s.ttl)
	}
}
