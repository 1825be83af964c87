package etcd

import (
	"context"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// conns are the connections to etcd. A peer that vanishes without a word leaves a
// connection that takes writes for many minutes: one that does not answer is closed,
// and gRPC makes another.
type conns struct {
	dialer net.Dialer

	mu   sync.Mutex
	open map[*conn]struct{}
}

func newConns(timeout time.Duration) *conns {
	return &conns{dialer: net.Dialer{Timeout: timeout}, open: make(map[*conn]struct{})}
}

func (cs *conns) dial(ctx context.Context, address string) (net.Conn, error) {
	network := "tcp"
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		network, address = "unix", strings.TrimPrefix(path, "//")
	}
	nc, err := cs.dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: nc, of: cs}
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.open[c] = struct{}{}
	return c, nil
}

// closeStalled closes the connections that have left a write unanswered for longer
// than limit, and returns how many those were.
func (cs *conns) closeStalled(limit time.Duration) (n int) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for c := range cs.open {
		if c.waited() > limit {
			c.Conn.Close()
			delete(cs.open, c)
			n++
		}
	}
	return n
}

// waiting returns for how long a connection has left a write unanswered.
func (cs *conns) waiting() (longest time.Duration) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for c := range cs.open {
		longest = max(longest, c.waited())
	}
	return longest
}

func (cs *conns) close() {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for c := range cs.open {
		c.Conn.Close()
		delete(cs.open, c)
	}
}

var clockZero = time.Now()

// conn remembers since when it has waited for an answer.
type conn struct {
	net.Conn
	of      *conns
	waiting atomic.Int64 // since clockZero; 0: it does not wait
}

func (c *conn) waited() time.Duration {
	since := c.waiting.Load()
	if since == 0 {
		return 0
	}
	return time.Since(clockZero) - time.Duration(since)
}

func (c *conn) Write(b []byte) (int, error) {
	c.waiting.CompareAndSwap(0, int64(time.Since(clockZero)))
	return c.Conn.Write(b)
}

func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.waiting.Store(0)
	}
	return n, err
}

func (c *conn) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}
