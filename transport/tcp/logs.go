package tcp

import (
	"log/slog"
	"net"
	"sync"
	"time"
)

// remindEvery is how often at most one thing that goes on is said again.
const remindEvery = time.Minute

// gate lets one line a minute through.
type gate struct {
	mu     sync.Mutex
	opened bool
	last   time.Duration
	missed int
}

// open reports whether to say it now, and how often it was not said since.
func (g *gate) open(now time.Duration) (bool, int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.opened && now < g.last+remindEvery {
		g.missed++
		return false, g.missed
	}
	missed := g.missed
	g.opened, g.last, g.missed = true, now, 0
	return true, missed
}

// burst is gate for changes of a state: burstLines in a row, and then one each time
// that a part of remindEvery has passed, ten seconds.
type burst struct {
	tokens int // spent
	since  time.Duration
	missed int
}

const burstLines = 6

// open is gate.open. The caller serializes it.
func (b *burst) open(now time.Duration) (bool, int) {
	if n := int((now - b.since) / (remindEvery / burstLines)); n > 0 {
		b.tokens, b.since = max(b.tokens-n, 0), now
	}
	if b.tokens >= burstLines {
		b.missed++
		return false, b.missed
	}
	missed := b.missed
	b.tokens, b.missed = b.tokens+1, 0
	return true, missed
}

// addressOf is where a connection comes from, if that is known.
func addressOf(c net.Conn) string {
	if a := c.RemoteAddr(); a != nil {
		return a.String()
	}
	return ""
}

// refuse counts and tells that a connection which came in ended for a cause. peer is
// -1 if it is not known whose it was.
func (t *Transport) refuse(from string, peer int32, err error) {
	cause := causeOf(err)
	t.refused[cause].Add(1)
	level := slog.LevelWarn
	switch cause {
	case CauseBroken: // somebody looked whether there is a listener, or a peer died
		level = slog.LevelDebug
	}
	say, before := t.quiet[cause].open(t.now())
	if !say {
		level = slog.LevelDebug
	}
	t.cfg.Logger.Log(t.ctx, level, "connection refused", "broker", t.cfg.ID, "peer", peer, "address", from,
		"cause", cause.String(), "error", err, "since_last", before)
}
