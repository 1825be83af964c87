package tidemark

import (
	"errors"
	"time"
)

// errCutOff is why a Controller steps aside.
var errCutOff = errors.New("tidemark: fewer than half of the brokers can be reached")

// reach is what the Controller knows of its way to a broker (D18).
type reach struct {
	life  int64         // the registration that the rest is about
	full  time.Duration // reached until then, whatever happens: a registration begins so
	down  time.Duration // since when there has been no link; 0: there is one
	acked uint64        // of the feed, as of the last look
	owes  time.Duration // since when an update has waited for an answer; 0: none does
	ok    bool          // reached, as of the last look
}

// ends is when the broker ceases to be reached unless something happens; 0: never.
// A link that ends may be back at once: it counts as lost when it has been silent,
// with what it was silent for before it ended, for a whole session.
func (r *reach) ends(session time.Duration) (at time.Duration) {
	if r.down != 0 {
		at = r.down + session/2
	}
	if r.owes != 0 && (at == 0 || r.owes+session < at) {
		at = r.owes + session
	}
	if at == 0 {
		return 0
	}
	return max(at, r.full)
}

// reached reports that the broker can be told to lead. A new registration, and a
// broker that a new Controller finds, begins with a whole session.
func (m *metadata) reached(broker int32) bool {
	b := m.brokers[broker]
	return broker == m.self || m.session == 0 || b != nil && (b.reach.life != b.epoch || b.reach.ok)
}

// watchReach looks who is reached, and how many. A change has the partitions of
// that broker looked at again.
func (m *metadata) watchReach(now time.Duration) {
	if m.session == 0 {
		return
	}
	var turned map[int32]bool
	registered, reached := 0, 0
	for id, b := range m.brokers {
		if b.epoch == 0 {
			continue
		}
		was := m.reached(id)
		m.lookAt(b, now)
		registered++
		if m.reached(id) {
			reached++
		}
		if was != m.reached(id) {
			if turned == nil {
				turned = make(map[int32]bool)
			}
			turned[id] = true
		}
	}
	m.markAll(turned)
	switch {
	case 2*reached >= registered:
		m.cutOff = 0
	case m.cutOff == 0:
		m.cutOff = now
	case now >= m.cutOff+2*m.session:
		m.resigned = firstError(m.resigned, errCutOff)
	}
}

// lookAt brings what is known of the way to a broker up to date.
func (m *metadata) lookAt(b *brokerEntry, now time.Duration) {
	r := &b.reach
	if r.life != b.epoch {
		*r = reach{life: b.epoch, full: now + m.session, acked: b.feed.seq}
		b.feed.acked = b.feed.seq // what its earlier life was sent needs no answer
	}
	switch {
	case b.feed.linked:
		r.down = 0
	case r.down == 0:
		r.down = now
	}
	if b.feed.acked > r.acked {
		r.acked, r.owes = b.feed.acked, 0 // an answer; if more are due, they are from now on
	}
	at := r.ends(m.session)
	r.ok = at == 0 || now < at
}

// watchAnswers notes since when which broker owes an answer to an update, and when
// to look again.
func (m *metadata) watchAnswers(now time.Duration) {
	m.reachAt = 0
	if m.session == 0 {
		return
	}
	sooner := func(at time.Duration) {
		if at > now && (m.reachAt == 0 || at < m.reachAt) {
			m.reachAt = at
		}
	}
	for id, b := range m.brokers {
		if b.epoch == 0 || id == m.self {
			continue
		}
		if r := &b.reach; b.feed.seq > r.acked && r.owes == 0 {
			r.owes = now
		}
		sooner(b.reach.ends(m.session))
	}
	if m.cutOff != 0 {
		sooner(m.cutOff + 2*m.session)
	}
}

// standAside is for how long a Controller that was cut off stands back: two
// sessions, and twice as long after each term in which it reached too few from the
// beginning. before is how long it was the last time.
func standAside(before, term, session time.Duration) time.Duration {
	if before == 0 || term > 4*session {
		return 2 * session
	}
	return min(2*before, 16*session)
}
