package tcp

import (
	"errors"
	"log/slog"
	"time"

	"github.com/tidemark-log/tidemark/transport"
)

// standing is how it is with the connection to a peer, and what was told of it.
type standing struct {
	state    peerState
	since    time.Time
	lastErr  error
	connects uint64
	failures uint64
	dropped  Dropped
	lines    burst
	reminded time.Duration
}

type peerState uint8

const (
	peerNew         peerState = iota // not tried yet, or idle since
	peerConnected                    //
	peerLost                         // no attempt has failed since
	peerUnreachable                  // an attempt has failed
)

// connected notes that c is the connection, unless the peer has moved meanwhile. What
// has waited too long for it goes.
func (p *outgoing) connected(c *outConn, address string) bool {
	p.mu.Lock()
	if p.address != address {
		p.abandon = nil
		p.mu.Unlock()
		return false
	}
	now := p.t.now()
	p.conn, p.state, p.since, p.lastErr = c, peerConnected, time.Now(), nil
	p.connects++
	p.dropped.Stale += uint64(p.q.dropBefore(now - staleAfter))
	say, missed := p.lines.open(now)
	p.mu.Unlock()
	p.tell(say, slog.LevelInfo, "peer is connected", address, nil, missed)
	return true
}

// lost notes that the connection has ended. What waits belongs to link sessions that
// will not survive what was lost with it.
func (p *outgoing) lost(address string, why error) {
	p.mu.Lock()
	now := p.t.now()
	idle := errors.Is(why, errIdle)
	p.conn, p.abandon, p.since, p.lastErr = nil, nil, time.Now(), why
	p.state = peerLost
	switch {
	case idle:
		p.state = peerNew
	case errors.Is(why, errMoved): // what waits is for the new address
	default:
		p.dropped.Disconnected += uint64(p.q.dropOrdered())
	}
	say, missed := p.lines.open(now)
	p.mu.Unlock()
	switch {
	case errors.Is(why, transport.ErrClosed), p.t.closed.Load():
	case idle:
		p.tell(say, slog.LevelDebug, "peer is idle", address, nil, missed)
	default:
		p.tell(say, slog.LevelWarn, "connection to peer is lost", address, why, missed)
	}
}

// failed notes that an attempt to connect has failed. It is told once, and then
// once a minute.
func (p *outgoing) failed(address string, why error) {
	var r *refusal
	if errors.As(why, &r) { // by this side: what else befalls an attempt is the network's or the peer's
		p.t.refused[r.cause].Add(1)
	}
	p.mu.Lock()
	now := p.t.now()
	p.abandon = nil
	if p.address != address { // it was given up
		p.mu.Unlock()
		return
	}
	p.lastErr = why
	p.failures++
	say, missed := false, 0
	if p.state != peerUnreachable || now >= p.reminded+remindEvery {
		p.state, p.reminded = peerUnreachable, now
		say, missed = p.lines.open(now)
	}
	p.mu.Unlock()
	if !p.t.closed.Load() {
		p.tell(say, slog.LevelWarn, "peer cannot be reached", address, why, missed)
	}
}

// tell logs a line, and what is not to be said for debugging only.
func (p *outgoing) tell(say bool, level slog.Level, text, address string, why error, missed int) {
	if !say {
		level = slog.LevelDebug
	}
	args := []any{"broker", p.t.cfg.ID, "peer", p.id, "address", address}
	if why != nil {
		args = append(args, "error", why)
	}
	if missed > 0 {
		args = append(args, "since_last", missed)
	}
	p.t.cfg.Logger.Log(p.t.ctx, level, text, args...)
}

// tellInvalid tells that a message has no binary form: a fault of this program, which
// may concern each message there is.
func (p *outgoing) tellInvalid(err error) {
	say, before := p.invalidQuiet.open(p.t.now())
	level := slog.LevelError
	if !say {
		level = slog.LevelDebug
	}
	p.t.cfg.Logger.Log(p.t.ctx, level, "message cannot be sent", "broker", p.t.cfg.ID, "peer", p.id, "error", err, "since_last", before)
}

// stats is a peer's part of Transport.Stats.
func (p *outgoing) stats() PeerStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := PeerStats{Address: p.address, Connected: p.conn != nil, Since: p.since, LastError: p.lastErr,
		Connects: p.connects, Failures: p.failures, QueueMessages: p.q.messages, QueueBytes: p.q.bytes,
		Sent: p.sent.traffic(), Dropped: p.dropped}
	if p.conn != nil {
		acked := p.conn.acked.Load() // before what it can never exceed
		s.Unacked = p.conn.written.Load() - acked
	}
	return s
}
