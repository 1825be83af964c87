package tcp

import (
	"bufio"
	"net"
	"sync"
)

// Package tls writes each record of 16 KiB by itself, and reads not much more at a
// time. For what is sent in bulk these calls to the kernel cost as much as the
// encryption does, so the connections below TLS gather them.

// recordsGathered is how many bytes of records are written, or read, at once.
const recordsGathered = 256 << 10

// gatherWrites is the connection below TLS of the side that sends messages.
type gatherWrites struct {
	net.Conn
	mu      sync.Mutex // package tls may also write while it reads
	holding bool
	held    []byte
}

// hold has records wait for release.
func (g *gatherWrites) hold() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.holding = true
}

func (g *gatherWrites) release() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.holding = false
	return g.flush()
}

func (g *gatherWrites) Write(b []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.holding {
		return g.Conn.Write(b)
	}
	g.held = append(g.held, b...)
	if len(g.held) < recordsGathered {
		return len(b), nil
	}
	return len(b), g.flush()
}

// flush needs mu.
func (g *gatherWrites) flush() error {
	if len(g.held) == 0 {
		return nil
	}
	_, err := g.Conn.Write(g.held)
	if g.held = g.held[:0]; cap(g.held) > 2*recordsGathered {
		g.held = nil
	}
	return err
}

// gatherReads is the connection below TLS of the side that takes messages.
type gatherReads struct {
	net.Conn
	r *bufio.Reader
}

func newGatherReads(c net.Conn) *gatherReads {
	return &gatherReads{c, bufio.NewReaderSize(c, recordsGathered)}
}

func (g *gatherReads) Read(b []byte) (int, error) { return g.r.Read(b) }
