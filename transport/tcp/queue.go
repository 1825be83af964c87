package tcp

import (
	"time"

	"github.com/tidemark-log/tidemark/protocol"
)

const (
	// messageOverhead is about what a message takes in memory besides its Size.
	messageOverhead = 512
	// maxUrgent bounds the link control that waits for one peer.
	maxUrgent = 256
)

// queued is a message that waits.
type queued struct {
	m    *protocol.Message
	size int           // its Size
	at   time.Duration // when it was sent, on the transport's clock

	frame int // being written: the length of its frame
}

func (q *queued) cost() int { return q.size + messageOverhead }

// fifo is a queue in a slice.
type fifo struct {
	items []queued
	head  int
}

func (f *fifo) len() int { return len(f.items) - f.head }

func (f *fifo) first() *queued { return &f.items[f.head] }

func (f *fifo) push(q queued) { f.items = append(f.items, q) }

func (f *fifo) pop() queued {
	q := f.items[f.head]
	f.items[f.head] = queued{}
	f.head++
	switch {
	case f.head < len(f.items):
		if f.head >= 64 && f.head > len(f.items)/2 { // each moves at most once on average
			n := copy(f.items, f.items[f.head:])
			clear(f.items[n:])
			f.items, f.head = f.items[:n], 0
		}
	case cap(f.items) > 4096:
		*f = fifo{}
	default:
		f.items, f.head = f.items[:0], 0
	}
	return q
}

// queue is what waits for one peer. Link control (Hello, Welcome, Reset) stands on
// its own and goes first; the rest keeps its order.
type queue struct {
	urgent, ordered fifo
	bytes           int // cost of what waits or is being written
	messages        int
}

func urgent(k protocol.Kind) bool {
	return k == protocol.Hello || k == protocol.Welcome || k == protocol.Reset
}

// add queues it, or returns false for want of room. The number of those that it
// makes superfluous is returned as well.
func (q *queue) add(e queued, limit int) (ok bool, superseded int) {
	if urgent(e.m.Kind) {
		superseded = q.supersede(e.m)
		if q.urgent.len() >= maxUrgent {
			return false, superseded
		}
		q.urgent.push(e)
	} else {
		if q.messages > 0 && q.bytes+e.cost() > limit {
			return false, 0
		}
		q.ordered.push(e)
	}
	q.bytes += e.cost()
	q.messages++
	return true, superseded
}

// supersede drops what belongs to a session that is over on this side, as m shows:
// where the network is slow, the next session would wait behind the last one's
// messages, and might end for it.
func (q *queue) supersede(m *protocol.Message) int {
	over := func(e *queued) bool { return e.m.Session != m.Session } // Hello, Welcome: the session there is
	if m.Kind == protocol.Reset {
		over = func(e *queued) bool { return e.m.Session == m.Session } // the one there is not
	}
	waiting := q.ordered.items[q.ordered.head:]
	kept := waiting[:0]
	for i := range waiting {
		if e := waiting[i]; over(&e) {
			q.done(&e)
		} else {
			kept = append(kept, e)
		}
	}
	n := len(waiting) - len(kept)
	clear(waiting[len(kept):])
	q.ordered.items = q.ordered.items[:len(q.ordered.items)-n]
	return n
}

// take moves what is to be written next to batch, until it is target bytes or more.
// What is taken counts as waiting until done.
func (q *queue) take(batch []queued, target int) []queued {
	for size := 0; size < target; {
		from := &q.urgent
		if from.len() == 0 {
			if from = &q.ordered; from.len() == 0 {
				break
			}
		}
		e := from.pop()
		size += e.size
		batch = append(batch, e)
	}
	return batch
}

// done takes e out of the count.
func (q *queue) done(e *queued) {
	q.bytes -= e.cost()
	q.messages--
}

// dropOrdered drops all but link control.
func (q *queue) dropOrdered() (n int) {
	for ; q.ordered.len() > 0; n++ {
		e := q.ordered.pop()
		q.done(&e)
	}
	return n
}

// dropBefore drops what was sent before a time.
func (q *queue) dropBefore(t time.Duration) (n int) {
	for _, f := range []*fifo{&q.urgent, &q.ordered} {
		for ; f.len() > 0 && f.first().at < t; n++ {
			e := f.pop()
			q.done(&e)
		}
	}
	return n
}
