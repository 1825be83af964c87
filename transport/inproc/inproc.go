// Package inproc is a Transport between brokers of one process. A Network
// joins them; messages pass by reference, without a copy, and every endpoint
// has one goroutine that hands them to its Handler.
//
// Without faults a Network keeps the order of each pair of brokers and loses
// only what is sent to a broker that is not there. The faults of a Network
// (Cut, Isolate, SetDrop) make it lose more, for tests.
package inproc

import (
	"errors"
	"maps"
	"sync"
	"sync/atomic"

	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/transport"
)

// Defaults of Options.
const (
	DefaultMaxMessageBytes = 16 << 20
	DefaultQueueMessages   = 8192
	DefaultQueueBytes      = 64 << 20
)

var (
	// ErrInUse is returned by Start while another endpoint of the same broker id is open.
	ErrInUse = errors.New("inproc: broker id has an open endpoint")
	// ErrStarted is returned by a second Start of one endpoint.
	ErrStarted = errors.New("inproc: endpoint was started before")
	// ErrNotStarted is returned by Send before Start.
	ErrNotStarted = errors.New("inproc: endpoint is not started")
)

// Options sets the bounds of a Network. A field that is zero or negative means
// its default.
type Options struct {
	// MaxMessageBytes is the largest Message.Size that Send takes; default 16 MiB.
	MaxMessageBytes int
	// QueueMessages bounds the messages that wait for one receiver; default 8192.
	QueueMessages int
	// QueueBytes bounds the sum of Message.Size that waits for one receiver;
	// default 64 MiB. A message of its own larger than that is taken while
	// nothing else waits.
	QueueBytes int
}

// Stats counts messages since New. Once a Network is idle, Sent is the sum of
// Delivered and Dropped.
type Stats struct {
	Sent      int64 // taken by Send, with a nil error
	Delivered int64 // handed to a Handler
	Dropped   int64 // lost to a fault, to an absent receiver, or to its Close
	Refused   int64 // not taken: the receiver's queue was full (transport.ErrBusy)
}

// Network joins the endpoints of any number of brokers. All methods may be
// called from any goroutine.
type Network struct {
	opts Options

	mu    sync.Mutex // serializes writers of state
	state atomic.Pointer[state]

	sent, delivered, dropped, refused atomic.Int64
}

// state is immutable once published: Send reads it without a lock.
type state struct {
	endpoints map[int32]*endpoint
	cuts      map[path]bool
	isolated  map[int32]bool
	filters   map[path]func(*protocol.Message) bool
}

type path struct{ from, to int32 }

// New returns a Network without endpoints and faults.
func New(opts Options) *Network {
	if opts.MaxMessageBytes <= 0 {
		opts.MaxMessageBytes = DefaultMaxMessageBytes
	}
	if opts.QueueMessages <= 0 {
		opts.QueueMessages = DefaultQueueMessages
	}
	if opts.QueueBytes <= 0 {
		opts.QueueBytes = DefaultQueueBytes
	}
	n := &Network{opts: opts}
	n.state.Store(&state{})
	return n
}

// Transport returns a new endpoint for one open of a broker. It joins the
// network with Start and leaves it with Close, which must not be called from
// its own Handler. At most one endpoint per broker id is open at a time: Start
// fails with ErrInUse until the Close of the one before has returned.
func (n *Network) Transport(brokerID int32) transport.Transport {
	return &endpoint{
		net:  n,
		id:   brokerID,
		wake: make(chan struct{}, 1),
		stop: make(chan struct{}),
		done: make(chan struct{}),
	}
}

// Stats returns the counts so far. They are read one after the other, so that
// they may disagree by the messages that are on their way.
func (n *Network) Stats() Stats {
	return Stats{
		Sent:      n.sent.Load(),
		Delivered: n.delivered.Load(),
		Dropped:   n.dropped.Load(),
		Refused:   n.refused.Load(),
	}
}

// change publishes a changed copy of the state. Changes are rare, reads are
// one for each message.
func (n *Network) change(edit func(*state)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	old := n.state.Load()
	next := &state{
		endpoints: copyOf(old.endpoints),
		cuts:      copyOf(old.cuts),
		isolated:  copyOf(old.isolated),
		filters:   copyOf(old.filters),
	}
	edit(next)
	n.state.Store(next)
}

// copyOf is maps.Clone that never returns nil.
func copyOf[M ~map[K]V, K comparable, V any](m M) M {
	c := make(M, len(m)+1)
	maps.Copy(c, m)
	return c
}

func (n *Network) join(e *endpoint) error {
	var err error
	n.change(func(s *state) {
		if s.endpoints[e.id] != nil {
			err = ErrInUse
			return
		}
		s.endpoints[e.id] = e
	})
	return err
}

func (n *Network) leave(e *endpoint) {
	n.change(func(s *state) { delete(s.endpoints, e.id) })
}

// send routes m from one broker to another. It runs on the sender's goroutine
// and holds no lock while a filter runs.
func (n *Network) send(from, to int32, m *protocol.Message) error {
	size := m.Size()
	if size > n.opts.MaxMessageBytes {
		return transport.ErrTooLarge
	}
	s := n.state.Load()
	e := s.endpoints[to]
	if e == nil || s.loses(path{from, to}, m) {
		n.sent.Add(1)
		n.dropped.Add(1)
		return nil
	}
	err := e.queue(m, size)
	if err != nil {
		n.refused.Add(1)
		return err
	}
	n.sent.Add(1)
	return nil
}
