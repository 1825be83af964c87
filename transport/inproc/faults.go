package inproc

import "github.com/tidemark-log/tidemark/protocol"

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

// Heal ends the cuts between a and b, in both directions. It does not end an
// Isolate or a SetDrop.
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

// HealAll ends every Cut, CutOneWay and Isolate. What SetDrop set stays.
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

// loses tells whether a fault takes m. No fault is between a broker and itself
// unless it names the broker twice.
func (s *state) loses(p path, m *protocol.Message) bool {
	if s.cuts[p] {
		return true
	}
	if p.from != p.to && (s.isolated[p.from] || s.isolated[p.to]) {
		return true
	}
	drop := s.filters[p]
	return drop != nil && drop(m)
}
