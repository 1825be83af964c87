package tcp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync/atomic"
	"time"

	"github.com/tidemark-log/tidemark/protocol"
)

// source is a broker from which messages come. Its newest connection is the one
// that counts; whoever was before gives way.
type source struct {
	id       int32
	turn     chan struct{} // has room for the one that delivers
	received tally

	// Under Transport.mu.
	now   *inbound // nil: none
	since time.Time
	users int // connections that have not left yet
}

// inbound is a connection on which a known broker sends messages.
type inbound struct {
	t       *Transport
	raw     *countedConn
	conn    net.Conn // raw, or TLS over it
	source  *source
	limit   int           // of a message
	every   time.Duration // how often an ack is due while something comes
	silence time.Duration // how long nothing may come

	replaced atomic.Bool
	gone     chan struct{} // closed when it is replaced

	read    uint64 // bytes of frames
	arrived uint64 // of raw, when last looked at
	heard   time.Time
	acked   time.Time
	owed    bool      // something has come since acked
	armed   time.Time // when the deadline of reading was set
}

// countedConn counts what arrives, below TLS: a record that is on its way for long
// is a sign of life all the while.
type countedConn struct {
	net.Conn
	arrived atomic.Uint64
}

func (c *countedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.arrived.Add(uint64(n))
	return n, err
}

// seat makes in the connection of a broker, in place of the one before.
func (t *Transport) seat(in *inbound, id int32) *refusal {
	in.gone = make(chan struct{})
	t.mu.Lock()
	s := t.sources[id]
	if s == nil {
		if !t.roomForSource() {
			t.mu.Unlock()
			return refuse(CausePeers, "broker %d comes when %d are connected (MaxPeers)", id, t.cfg.MaxPeers)
		}
		s = &source{id: id, turn: make(chan struct{}, 1)}
		t.sources[id] = s
	}
	before := s.now
	s.now, s.since, in.source = in, time.Now(), s
	s.users++
	t.mu.Unlock()
	if before != nil {
		before.replaced.Store(true)
		close(before.gone)
		_ = before.raw.Close()
	}
	return nil
}

// roomForSource makes room for one more broker, if need be in place of one that has
// left. It is called with mu locked.
func (t *Transport) roomForSource() bool {
	if len(t.sources) < t.cfg.MaxPeers {
		return true
	}
	for id, s := range t.sources {
		if s.users == 0 {
			delete(t.sources, id)
			return true
		}
	}
	return false
}

func (t *Transport) unseat(in *inbound) {
	t.mu.Lock()
	defer t.mu.Unlock()
	in.source.users--
	if in.source.now == in {
		in.source.now, in.source.since = nil, time.Now()
	}
}

// receive delivers what comes until the connection ends. One connection of a broker
// at a time does, so that what the one before has read comes first. The error is
// nil if it ended as connections do.
func (t *Transport) receive(in *inbound) error {
	select {
	case in.source.turn <- struct{}{}:
	case <-in.gone:
		return nil
	case <-t.closing:
		return nil
	}
	defer func() { <-in.source.turn }()
	t.cfg.Logger.Debug("peer has connected", "broker", t.cfg.ID, "peer", in.source.id, "address", addressOf(in.raw))
	in.heard = time.Now()
	in.acked = in.heard
	frames := newFrameReader(in, in.limit)
	for {
		m, n, err := frames.next()
		switch {
		case err == io.EOF:
			return nil
		case errors.Is(err, errFrame):
			return &refusal{CauseFrame, err}
		case err != nil:
			return err
		case m == nil: // a ping
			continue
		case m.From != in.source.id || m.To != t.cfg.ID:
			return refuse(CauseForged, "broker %d sent a message from broker %d to broker %d", in.source.id, m.From, m.To)
		case t.closed.Load() || in.replaced.Load():
			return nil
		}
		in.source.received.add(m.Kind, 1, n+frameHeader)
		t.handler(m)
	}
}

// Read reads from the connection, answers signs of life, and ends with a refusal
// when there are none. Deadlines that pass leave a connection as it was, TLS too.
func (in *inbound) Read(p []byte) (int, error) {
	for {
		now := time.Now()
		if err := in.tend(now); err != nil {
			return 0, err
		}
		if now.Sub(in.armed) > in.every/4 {
			if err := in.raw.SetReadDeadline(now.Add(in.every)); err != nil {
				return 0, err
			}
			in.armed = now
		}
		n, err := in.conn.Read(p)
		if n > 0 {
			in.read += uint64(n)
			return n, nil // an error comes again
		}
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return 0, err
		}
	}
}

// tend sends an ack if one is due.
func (in *inbound) tend(now time.Time) error {
	if arrived := in.raw.arrived.Load(); arrived != in.arrived {
		in.arrived, in.heard, in.owed = arrived, now, true
	}
	if now.Sub(in.heard) > in.silence {
		return refuse(CauseSilence, "nothing came for %v", in.silence)
	}
	if !in.owed || now.Sub(in.acked) < in.every {
		return nil
	}
	in.acked, in.owed = now, false
	// The peer always reads: where there is no room for a few bytes, there is no peer.
	if err := in.raw.SetWriteDeadline(now.Add(in.every)); err != nil {
		return err
	}
	var b [ackSize]byte
	binary.BigEndian.PutUint64(b[:], in.read)
	if _, err := in.conn.Write(b[:]); err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return &refusal{CauseSilence, fmt.Errorf("acks are not read: %w", err)}
		}
		return err
	}
	return nil
}

// tally counts messages by kind.
type tally [kinds]struct{ messages, bytes atomic.Uint64 }

const kinds = int(protocol.Reset) + 1

func (t *tally) add(k protocol.Kind, messages, bytes int) {
	if int(k) >= kinds {
		k = 0 // of a later version
	}
	t[k].messages.Add(uint64(messages))
	t[k].bytes.Add(uint64(bytes))
}

func (t *tally) traffic() (out Traffic) {
	for k := range t {
		out[k] = Count{Messages: t[k].messages.Load(), Bytes: t[k].bytes.Load()}
	}
	return out
}
