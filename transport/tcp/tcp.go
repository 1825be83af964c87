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
	acceptor    sync.WaitGroup
	all         sync.WaitGroup // the other goroutines
	ended       chan struct{}  // closed when Close is through

	// mu guards what follows. The lock of a peer may be taken under it; nothing is
	// waited for.
	mu      sync.RWMutex
	started bool
	conns   map[*socket]struct{} // all that are open, to be closed
	peers   map[int32]*outgoing
	sources map[int32]*source
	strangers
}

// socket is a connection that is open. What a host's Dial or Listener returns need
// not be fit for the key of a map.
type socket struct{ net.Conn }

var _ transport.Transport = (*Transport)(nil)

// New checks c and opens the listener, so that Addr is known. Connections are
// accepted from Start on. The error wraps ErrInvalidConfig, or is the network's.
// Whoever does not hand the Transport to a Broker has to close it.
func New(c Config) (*Transport, error) {
	c = c.withDefaults()
	if err := c.validate(); err != nil {
		return nil, err
	}
	t := &Transport{cfg: c, listener: c.Listener, began: time.Now(), closing: make(chan struct{}), ended: make(chan struct{}),
		conns: make(map[*socket]struct{}), peers: make(map[int32]*outgoing), sources: make(map[int32]*source)}
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
	t.acceptor.Go(t.accept)
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

// open notes a connection that Close has to close. Nil: Close was called, and it is
// closed already.
func (t *Transport) open(c net.Conn) *socket {
	t.mu.Lock()
	if !t.closed.Load() {
		s := &socket{c}
		t.conns[s] = struct{}{}
		t.mu.Unlock()
		return s
	}
	t.mu.Unlock()
	_ = c.Close()
	return nil
}

// shut closes a connection.
func (t *Transport) shut(s *socket) {
	t.mu.Lock()
	delete(t.conns, s)
	t.mu.Unlock()
	_ = s.Close()
}

// Close ends all connections, and stops accepting. What waits is lost. See
// transport.Transport; a Listener of the host's stays open. If that one cannot be
// told to stop, its error is returned: whoever waits in Accept is left there until
// the host closes it or one more connection comes, which is closed.
func (t *Transport) Close() error {
	t.mu.Lock()
	if t.closed.Swap(true) {
		t.mu.Unlock()
		<-t.ended
		return nil
	}
	defer close(t.ended)
	close(t.closing)
	t.cancel()
	conns := t.conns
	t.conns = make(map[*socket]struct{})
	t.mu.Unlock()
	err := t.stopAccepting()
	for s := range conns {
		_ = s.Close()
	}
	if err == nil {
		t.acceptor.Wait()
	}
	t.all.Wait()
	if !t.own {
		// The host's listener is as it was.
		if again := t.deadline(time.Time{}); err == nil {
			err = again
		}
	}
	return err
}

func (t *Transport) stopAccepting() error {
	if t.own {
		return t.listener.Close()
	}
	return t.deadline(time.Unix(1, 0))
}

// deadline sets that of the host's listener.
func (t *Transport) deadline(at time.Time) error {
	if err := t.listener.(deadliner).SetDeadline(at); err != nil && !errors.Is(err, net.ErrClosed) { // closed by the host
		return fmt.Errorf("tcp: deadline of the Listener: %w", err)
	}
	return nil
}
