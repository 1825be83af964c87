package tidemark

import (
	"fmt"
	"time"

	"github.com/tidemark-log/tidemark/protocol"
)

// What a link sends is numbered as it leaves. A payload of one item that is too
// large for a message leaves as fragments of its binary form. An item may be
// larger than all that the peer should have to hold, so its fragments leave as
// credit comes back, and what is sent meanwhile leaves behind them: a payload is
// never between the fragments of another, and order stays what it was.

// credit is how many more bytes should be sent now: the window less what is not
// yet acknowledged, or not yet sent. It may be negative, and it is never above 0
// when there is no room.
func (l *link) credit() int { return l.room() - l.queued }

// room is the window less what is not yet acknowledged. It is 0 while the link is
// not up, or while so many envelopes are under way that a transport which lets one
// overtake all others could overrun the peer's reorder window.
func (l *link) room() int {
	if l.phase != linkUp || len(l.sizes)-l.settled >= linkReorder*3/4 {
		return 0
	}
	return l.cfg.window - l.inFlight
}

// send numbers p and sends it, in several envelopes if it is large. False: the
// link is not up, and p was not taken. Credit is the caller's to look at.
func (l *link) send(now time.Duration, p protocol.Payload, out *linkOut) bool {
	l.expire(now, out)
	if l.phase != linkUp {
		return false
	}
	if p.Empty() {
		return true
	}
	if p.Fits(l.cfg.maxMessage) {
		l.put(now, &protocol.Message{Payload: p}, out)
		return true
	}
	for _, part := range p.Split(l.cfg.maxMessage) {
		if part.Fits(l.cfg.maxMessage) {
			l.put(now, &protocol.Message{Payload: part}, out)
			continue
		}
		fragments, err := part.Fragments(l.cfg.maxMessage)
		if err != nil { // the rest of p cannot be sent as if there were no such item
			l.fault(now, fmt.Errorf("tidemark: payload cannot be sent in fragments: %w", err), out)
			return false
		}
		for i, f := range fragments {
			l.put(now, &protocol.Message{Fragment: f, More: i < len(fragments)-1}, out)
		}
	}
	return true
}

// put sends m, or lets it wait for its turn.
func (l *link) put(now time.Duration, m *protocol.Message, out *linkOut) {
	if len(l.waiting) == 0 && l.mayLeave(m) {
		l.number(now, m, out)
		return
	}
	l.waiting = append(l.waiting, m)
	l.queued += m.Size()
}

// mayLeave reports whether m may leave if nothing is before it. Only fragments wait
// for room.
func (l *link) mayLeave(m *protocol.Message) bool { return len(m.Fragment) == 0 || l.room() > 0 }

// release sends what need not wait any longer.
func (l *link) release(now time.Duration, out *linkOut) {
	for len(l.waiting) > 0 && l.mayLeave(l.waiting[0]) {
		m := l.waiting[0]
		l.waiting[0] = nil
		l.waiting = l.waiting[1:]
		l.queued -= m.Size()
		l.number(now, m, out)
	}
}

// number sends m as the next envelope.
func (l *link) number(now time.Duration, m *protocol.Message, out *linkOut) {
	l.sent++
	m.Kind, m.Session, m.Seq, m.Ack = protocol.Data, l.session, l.sent, l.received
	m.MinVersion, m.MaxVersion = l.version, l.version
	l.owed, l.told = 0, l.received
	l.lastSent = now
	size := l.emit(m, out)
	l.sizes = append(l.sizes, size)
	l.inFlight += size
}

// acknowledge returns the credit of the envelopes up to ack, and sends what waited
// for it.
func (l *link) acknowledge(now time.Duration, ack uint64, out *linkOut) {
	if ack <= l.acked {
		return
	}
	end := l.settled + int(ack-l.acked)
	for _, size := range l.sizes[l.settled:end] {
		l.inFlight -= size
	}
	l.acked, l.settled = ack, end
	if l.settled > len(l.sizes)/2 { // each size moves at most once on average
		n := copy(l.sizes, l.sizes[l.settled:])
		l.sizes, l.settled = l.sizes[:n], 0
	}
	l.release(now, out)
}
