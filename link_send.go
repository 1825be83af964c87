package tidemark

import (
	"fmt"
	"time"

	"github.com/tidemark-log/tidemark/protocol"
)

// What a link sends is numbered as it leaves. A payload of one item that is too
// large for a message leaves as fragments of its binary form. An item may be
// larger than all that the peer should have to hold, so its fragments leave as
// credit comes back. Bulk that is sent meanwhile leaves behind them, control at once:
// each keeps its order, and fragments are never between those of another payload.

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
	return l.pace.window - l.inFlight
}

// largest is how large a message may be: on a slow way a large one is silence for as
// long as it takes, and nothing gets before it.
func (l *link) largest() int { return min(l.cfg.maxMessage, max(l.pace.window/4, minMessage)) }

// waitingMessage is one that has not left yet.
type waitingMessage struct {
	*protocol.Message
	control bool
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
	largest := l.largest()
	if p.Fits(largest) {
		l.sendWhole(now, p, out)
		return true
	}
	for _, part := range p.Split(largest) {
		if part.Fits(largest) {
			l.sendWhole(now, part, out)
			continue
		}
		fragments, err := part.Fragments(largest)
		if err != nil { // the rest of p cannot be sent as if there were no such item
			l.fault(now, fmt.Errorf("tidemark: payload cannot be sent in fragments: %w", err), out)
			return false
		}
		_, bulk := part.Cut()
		for i, f := range fragments {
			l.put(now, waitingMessage{&protocol.Message{Fragment: f, More: i < len(fragments)-1}, bulk.Empty()}, out)
		}
	}
	return true
}

// sendWhole sends what one message takes. Where bulk waits, control goes before it.
func (l *link) sendWhole(now time.Duration, p protocol.Payload, out *linkOut) {
	if len(l.waiting) > 0 {
		control, bulk := p.Cut()
		if !control.Empty() && l.controls == 0 {
			l.number(now, &protocol.Message{Payload: control}, out)
			control = protocol.Payload{}
		}
		if !control.Empty() {
			l.put(now, waitingMessage{&protocol.Message{Payload: control}, true}, out)
		}
		if p = bulk; p.Empty() {
			return
		}
	}
	l.put(now, waitingMessage{&protocol.Message{Payload: p}, false}, out)
}

// put sends m, or lets it wait for its turn.
func (l *link) put(now time.Duration, m waitingMessage, out *linkOut) {
	if len(l.waiting) == 0 && l.mayLeave(m) {
		l.number(now, m.Message, out)
		return
	}
	l.waiting = append(l.waiting, m)
	l.queued += m.Size()
	if m.control {
		l.controls++
	}
}

// mayLeave reports whether m may leave if nothing is before it. Only fragments wait
// for room.
func (l *link) mayLeave(m waitingMessage) bool { return len(m.Fragment) == 0 || l.room() > 0 }

// release sends what need not wait any longer.
func (l *link) release(now time.Duration, out *linkOut) {
	for len(l.waiting) > 0 && l.mayLeave(l.waiting[0]) {
		m := l.waiting[0]
		l.waiting[0] = waitingMessage{}
		l.waiting = l.waiting[1:]
		l.queued -= m.Size()
		if m.control {
			l.controls--
		}
		l.number(now, m.Message, out)
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
	l.pace.left(now, l.sent, size, l.inFlight)
}

// acknowledge returns the credit of the envelopes up to ack, and sends what waited
// for it.
func (l *link) acknowledge(now time.Duration, ack uint64, out *linkOut) {
	if ack <= l.acked {
		return
	}
	end, bytes := l.settled+int(ack-l.acked), 0
	for _, size := range l.sizes[l.settled:end] {
		bytes += size
	}
	l.pace.took(now, ack, bytes, l.inFlight)
	l.inFlight -= bytes
	l.acked, l.settled = ack, end
	if l.settled > len(l.sizes)/2 { // each size moves at most once on average
		n := copy(l.sizes, l.sizes[l.settled:])
		l.sizes, l.settled = l.sizes[:n], 0
	}
	l.release(now, out)
}
