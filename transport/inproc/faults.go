package inproc

import (
	"time"

	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/transport"
)

// Faults take effect at Send: messages that a queue holds when a fault begins
// are still delivered, as if they had been on the wire. A fault is bound to
// broker ids, not to endpoints, so it outlives a restart of a broker, and it
// may be set before the broker exists.

// Cut loses everything between a and b, in both directions.
func (n *Network) Cut(a, b int32) {
	n.change(func(s *state) {
		s.cuts[path{a, b}] = true
		s.cuts[path{b, a}] = true
	})
}

// CutOneWay loses everything from one broker to another; the way back stays open.
func (n *Network) CutOneWay(from, to int32) {
	n.change(func(s *state) { s.cuts[path{from, to}] = true })
}

// Heal ends the cuts between a and b, in both directions, and nothing else.
func (n *Network) Heal(a, b int32) {
	n.change(func(s *state) {
		delete(s.cuts, path{a, b})
		delete(s.cuts, path{b, a})
	})
}

// HealOneWay ends the cut from one broker to another.
func (n *Network) HealOneWay(from, to int32) {
	n.change(func(s *state) { delete(s.cuts, path{from, to}) })
}

// Isolate loses everything from and to one broker, whoever the other is, until
// Rejoin or HealAll.
func (n *Network) Isolate(id int32) {
	n.change(func(s *state) { s.isolated[id] = true })
}

// Rejoin ends Isolate. Cuts that name the broker stay.
func (n *Network) Rejoin(id int32) {
	n.change(func(s *state) { delete(s.isolated, id) })
}

// HealAll ends every Cut, CutOneWay and Isolate, and nothing else.
func (n *Network) HealAll() {
	n.change(func(s *state) {
		clear(s.cuts)
		clear(s.isolated)
	})
}

// SetDrop loses the messages from one broker to another for which drop returns
// true; nil ends that. It replaces what was set for that direction before. drop
// runs on the goroutines that send, several at once, and must neither change
// nor keep the message.
func (n *Network) SetDrop(from, to int32, drop func(*protocol.Message) bool) {
	n.change(func(s *state) {
		if drop == nil {
			delete(s.filters, path{from, to})
			return
		}
		s.filters[path{from, to}] = drop
	})
}

// Any stands for every broker in SetFaults.
const Any int32 = -1

// Faults is what befalls the messages of a direction. Chances are from 0, never,
// to 1, always, and each message takes them anew. The zero value is no fault.
type Faults struct {
	// Only says which messages are concerned; nil: all. It runs on the goroutines
	// that send, several at once, and must neither change nor keep the message.
	Only func(*protocol.Message) bool

	Drop       float64 // chance of being lost
	Double     float64 // chance of being delivered twice
	Misdeliver float64 // chance of going to another open broker, which may be the sender
	// Reorder is the chance of being overtaken by the next message of the
	// direction. Where none comes within 10 ms, the message goes on.
	Reorder float64

	// Delay is how late every message is, and Jitter how much more it may be, at
	// random: with Jitter messages overtake each other.
	Delay, Jitter time.Duration
}

// SetFaults sets the faults from one broker to another, in place of those set
// for that direction before; none ends them. Either broker may be Any. A message
// meets all of them, and those set for Any; their delays add up.
func (n *Network) SetFaults(from, to int32, faults ...Faults) {
	n.change(func(s *state) {
		if len(faults) == 0 {
			delete(s.faults, path{from, to})
			return
		}
		s.faults[path{from, to}] = append([]Faults(nil), faults...)
	})
}

// Hold keeps what one broker sends to another until Release. Messages that other
// faults lose are not kept, and Delay, Jitter and Reorder do nothing to those that
// are. They count as waiting for their receiver.
func (n *Network) Hold(from, to int32) {
	n.change(func(s *state) { s.held[path{from, to}] = true })
}

// Release ends Hold and delivers what it kept, in the order in which it was sent,
// whatever faults there are by now.
func (n *Network) Release(from, to int32) { n.release(path{from, to}, false) }

// ReleaseReversed is Release with the last message first.
func (n *Network) ReleaseReversed(from, to int32) { n.release(path{from, to}, true) }

func (n *Network) release(p path, reversed bool) {
	n.change(func(s *state) { delete(s.held, p) })
	n.wire.release(p, reversed)
}

// EndFaults ends every fault there is, those of HealAll, SetDrop, SetFaults and
// Hold. What Hold kept is delivered; delayed messages come when they are due.
func (n *Network) EndFaults() {
	var held map[path]bool
	n.change(func(s *state) {
		held = s.held
		s.cuts, s.isolated, s.filters, s.faults, s.held = nil, nil, nil, nil, nil
	})
	for p := range held {
		n.wire.release(p, false)
	}
}

// sendFaulty is send for a network with faults.
func (n *Network) sendFaulty(s *state, p path, it item) error {
	if s.cutOff(p) {
		n.cut.Add(1)
		n.dropped.Add(1)
		return nil
	}
	if drop := s.filters[p]; drop != nil && drop(it.m) {
		n.lost.Add(1)
		n.dropped.Add(1)
		return nil
	}
	faults := s.faultsOf(p, it.m)
	e := s.endpoints[p.to]
	switch {
	case len(faults) > 0 || s.held[p]:
		if !n.wire.send(p, it, faults) {
			return transport.ErrBusy
		}
	case e == nil:
		n.dropped.Add(1)
	default:
		return e.queue(it)
	}
	return nil
}

// cutOff tells whether nothing gets through. No Isolate is between a broker and itself.
func (s *state) cutOff(p path) bool {
	return s.cuts[p] || p.from != p.to && (s.isolated[p.from] || s.isolated[p.to])
}

// faultsOf collects what m meets.
func (s *state) faultsOf(p path, m *protocol.Message) []Faults {
	if len(s.faults) == 0 {
		return nil
	}
	var met []Faults
	for _, key := range [...]path{p, {p.from, Any}, {Any, p.to}, {Any, Any}} {
		for _, f := range s.faults[key] {
			if f.Only == nil || f.Only(m) {
				met = append(met, f)
			}
		}
	}
	return met
}
