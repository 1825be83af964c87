package tcp

import (
	"time"

	"github.com/tidemark-log/tidemark/protocol"
)

// Stats is what a Transport counts, since New. The parts are read one after the
// other, so that they may disagree by what happens meanwhile.
type Stats struct {
	// Peers are the brokers to which something was sent, or which have connected. The
	// former stay until Close, a few hundred bytes each; of the latter MaxPeers do.
	Peers map[int32]PeerStats
	// Refused counts connections that this side refused, or ended because of what came
	// from them. Causes that never occurred are absent.
	Refused map[Cause]uint64
	// Handshakes is how many connections have not shown yet who they are.
	Handshakes int
	// Connections is how many are open, both ways, with Handshakes.
	Connections int
}

// PeerStats is about one peer. What is sent has a connection of its own; so has
// what is received.
type PeerStats struct {
	Address   string    // to which the newest message was sent
	Connected bool      // to it, for what is sent
	Since     time.Time // of Connected, or of its end; zero: there was no connection yet
	// LastError is why there is no connection; nil while there is one, and before the
	// first attempt has ended. It is for people to read: what Dial returned, an error of
	// the network or of TLS, a refusal by either side, that the peer showed no sign of
	// life or moved, or that nothing was sent for IdleTimeout, which is no fault.
	LastError error

	Connects uint64 // connections made to it
	Failures uint64 // attempts that failed

	QueueMessages int    // that wait to be sent, or are being written
	QueueBytes    int    // the memory that they take
	Unacked       uint64 // bytes written that the peer has not read yet

	Sent    Traffic // written; whether it arrived is not known
	Dropped Dropped

	Receiving      bool      // it has a connection to this broker
	ReceivingSince time.Time // of Receiving, or of its end
	Received       Traffic
}

// Traffic counts messages by protocol.Kind; 0 stands for kinds that are not known.
// Bytes are those of frames, before encryption.
type Traffic [kinds]Count

// Count is a number of messages, and their bytes.
type Count struct{ Messages, Bytes uint64 }

// Of returns the count of a kind.
func (t *Traffic) Of(k protocol.Kind) Count {
	if int(k) >= kinds {
		k = 0
	}
	return t[k]
}

// Total is the sum over all kinds.
func (t *Traffic) Total() (c Count) {
	for _, k := range t {
		c.Messages += k.Messages
		c.Bytes += k.Bytes
	}
	return c
}

// Dropped counts messages to a peer that were not sent, by cause.
type Dropped struct {
	Busy         uint64 // refused by Send: no room
	Disconnected uint64 // waiting, or being written, when the connection ended, or the peer moved
	Stale        uint64 // waited too long for a connection
	Superseded   uint64 // of a link session that had ended by then
	Invalid      uint64 // without a binary form
}

// Stats returns the counts so far.
func (t *Transport) Stats() Stats {
	s := Stats{Peers: make(map[int32]PeerStats), Refused: make(map[Cause]uint64)}
	for c := range t.refused {
		if n := t.refused[c].Load(); n > 0 {
			s.Refused[Cause(c)] = n
		}
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	s.Handshakes, s.Connections = t.waiting.Len(), len(t.conns)
	for id, p := range t.peers {
		s.Peers[id] = p.stats()
	}
	for id, src := range t.sources {
		p := s.Peers[id]
		p.Receiving, p.ReceivingSince, p.Received = src.now != nil, src.since, src.received.traffic()
		s.Peers[id] = p
	}
	return s
}
