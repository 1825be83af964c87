package tcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/transport"
)

var (
	// ErrStarted is returned by a second Start.
	ErrStarted = errors.New("tcp: transport was started before")
	// ErrNotStarted is returned by Send before Start.
	ErrNotStarted = errors.New("tcp: transport is not started")
	// ErrAddressee is returned by Send for a message that is not from this broker, or
	// not to the peer of the call.
	ErrAddressee = errors.New("tcp: message is of another broker")
)

// Transport moves messages over TCP. It is made by New; all methods may be called
// from any goroutine.
type Transport struct {
	cfg      Config
	security *security // nil: Plaintext
	listener net.Listener
	own      bool // the listener was opened here
	began    time.Time
	handler  transport.Handler // set by Start, before anything reads it

	refused     [causes]atomic.Uint64
	quiet       [causes]gate // of log lines about refusals
	acceptQuiet gate
	closed      atomic.Bool
	closing     chan struct{}   // closed with closed
	ctx         context.Context // ends with Close
	cancel      context.CancelFunc
	all         sync.WaitGroup

	// mu guards what follows. The lock of a peer may be taken under it; nothing is
	// waited for.
	mu      sync.RWMutex
	started bool
	conns   map[net.Conn]struct{} // all that are open, to be closed
	peers   map[int32]*outgoing
	sources map[int32]*source
	strangers
}

var _ transport.Transport = (*Transport)(nil)

// New checks c and opens the listener, so that Addr is known. Connections are
// accepted from Start on. The error wraps ErrInvalidConfig, or is the network's.
// Whoever does not hand the Transport to a Broker has to close it.
func New(c Config) (*Transport, error) {
	c = c.withDefaults()
	if err := c.validate(); err != nil {
		return nil, err
	}
	t := &Transport{cfg: c, listener: c.Listener, began: time.Now(), closing: make(chan struct{}),
		conns: make(map[net.Conn]struct{}), peers: make(map[int32]*outgoing), sources: make(map[int32]*source)}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	if !c.Plaintext {
		var err error
		if t.security, err = newSecurity(&c); err != nil {
			return nil, err
		}
	}
	if t.listener == nil {
		l, err := net.Listen("tcp", c.Listen)
		if err != nil {
			return nil, fmt.Errorf("tcp: %w", err)
		}
		t.listener, t.own = l, true
	}
	return t, nil
}

// Addr is where connections are accepted. What other brokers have to dial may
// differ: behind a translation of addresses, or where Listen names no host.
func (t *Transport) Addr() net.Addr { return t.listener.Addr() }

// MaxMessageBytes is Config.MaxMessageBytes.
func (t *Transport) MaxMessageBytes() int { return t.cfg.MaxMessageBytes }

// now is the transport's clock.
func (t *Transport) now() time.Duration { return time.Since(t.began) }

// Start begins to accept connections, and to deliver to h. It is called once.
func (t *Transport) Start(h transport.Handler) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.closed.Load():
		return transport.ErrClosed
	case t.started:
		return ErrStarted
	}
	t.started, t.handler = true, h
	t.all.Go(t.accept)
	return nil
}

// Send queues m for the peer, and has a connection opened if there is none. While
// the peer cannot be reached, messages wait for a second at most. See transport.Transport.
func (t *Transport) Send(to transport.Peer, m *protocol.Message) error {
	size := m.Size()
	if size > t.cfg.MaxMessageBytes {
		return transport.ErrTooLarge
	}
	t.mu.RLock()
	defer t.mu.RUnlock() // so that Close comes before or after
	switch {
	case t.closed.Load():
		return transport.ErrClosed
	case !t.started:
		return ErrNotStarted
	case m.From != t.cfg.ID || m.To != to.ID:
		return ErrAddressee
	}
	p := t.peers[to.ID]
	if p == nil {
		t.mu.RUnlock()
		p = t.addPeer(to.ID)
		t.mu.RLock()
		if t.closed.Load() {
			return transport.ErrClosed
		}
	}
	return p.send(to.Address, queued{m: m, size: size, at: t.now()})
}

func (t *Transport) addPeer(id int32) *outgoing {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.peers[id]
	if p == nil {
		p = newOutgoing(t, id)
		t.peers[id] = p
	}
	return p
}

// open notes a connection that Close has to close. False: Close was called, and it
// is closed already.
func (t *Transport) open(c net.Conn) bool {
	t.mu.Lock()
	if !t.closed.Load() {
		t.conns[c] = struct{}{}
		t.mu.Unlock()
		return true
	}
	t.mu.Unlock()
	_ = c.Close()
	return false
}

// shut closes a connection.
func (t *Transport) shut(c net.Conn) {
	t.mu.Lock()
	delete(t.conns, c)
	t.mu.Unlock()
	_ = c.Close()
}

// Close ends all connections, and stops accepting. What waits is lost. See
// transport.Transport; a Listener of the host's stays open.
func (t *Transport) Close() error {
	t.mu.Lock()
	first := !t.closed.Swap(true)
	if first {
		close(t.closing)
		t.cancel()
	}
	conns := t.conns
	t.conns = make(map[net.Conn]struct{})
	t.mu.Unlock()
	var err error
	if first {
		err = t.stopAccepting()
		for c := range conns {
			_ = c.Close()
		}
	}
	t.all.Wait()
	if first && !t.own {
		// The host's listener is as it was.
		err = t.listener.(deadliner).SetDeadline(time.Time{})
		if errors.Is(err, net.ErrClosed) {
			err = nil // by the host
		}
	}
	return err
}

func (t *Transport) stopAccepting() error {
	if t.own {
		return t.listener.Close()
	}
	if err := t.listener.(deadliner).SetDeadline(time.Unix(1, 0)); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}
