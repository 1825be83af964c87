// Package inproc is a Transport between brokers of one process. A Network
// joins them; messages pass by reference, without a copy, and every endpoint
// has one goroutine that hands them to its Handler.
//
// Without faults a Network keeps the order of each pair of brokers and loses
// only what is sent to a broker that is not there. Its faults are for tests, of
// hosts too: Cut and Isolate lose everything, Hold keeps messages until Release,
// and SetFaults loses, doubles, delays, reorders and misdelivers a share of them.
package inproc

import (
	"errors"
	"maps"
	"math/rand/v2"
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
	// QueueMessages bounds the messages that wait for one receiver, with those
	// that are delayed or held on their way to it; default 8192.
	QueueMessages int
	// QueueBytes bounds the sum of Message.Size that waits for one receiver,
	// delayed or held as above; default 64 MiB. A message of its own larger than
	// that is taken while nothing else waits.
	QueueBytes int
	// Seed is where the chances of Faults come from. The n-th message of a
	// direction meets the same fate in every Network with the same seed and the
	// same faults. Any value will do.
	Seed uint64
}

// Stats counts messages since New. Once a Network is idle and holds nothing,
// Sent and Doubled together are Delivered and Dropped together.
type Stats struct {
	Sent      int64 // taken by Send, with a nil error
	Delivered int64 // handed to a Handler
	Dropped   int64 // lost to a fault, to an absent receiver, or to its Close
	Refused   int64 // not taken: the receiver's queue was full (transport.ErrBusy)

	Cut          int64 // of Dropped: by Cut, CutOneWay or Isolate
	Lost         int64 // of Dropped: by SetDrop or Faults.Drop
	Doubled      int64 // second copies made by Faults.Double
	Delayed      int64 // late by Faults.Delay or Faults.Jitter, copies too
	Reordered    int64 // overtaken because of Faults.Reorder
	Misdelivered int64 // sent on to another broker by Faults.Misdeliver
	Held         int64 // kept back by Hold
}

// Network joins the endpoints of any number of brokers. All methods may be
// called from any goroutine.
type Network struct {
	opts Options

	mu    sync.Mutex // serializes writers of state
	state atomic.Pointer[state]
	wire  wire

	sent, delivered, dropped, refused, cut, lost atomic.Int64
}

// state is immutable once published: Send reads it without a lock.
type state struct {
	endpoints map[int32]*endpoint
	faulty    bool // one of the rest is not empty
	cuts      map[path]bool
	isolated  map[int32]bool
	filters   map[path]func(*protocol.Message) bool
	faults    map[path][]Faults
	held      map[path]bool
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
	n.wire = wire{net: n, waiting: make(map[int32]*load), chances: make(map[path]*rand.Rand),
		held: make(map[path][]*flight), behind: make(map[path]*flight)}
	return n
}

// Transport returns a new endpoint for one open of a broker. It joins the
// network with Start and leaves it with Close, which must not be called from
// its own Handler. At most one endpoint per broker id is open at a time: Start
// fails with ErrInUse until the Close of the one before has returned.
func (n *Network) Transport(brokerID int32) transport.Transport {
	return &endpoint{
		net:   n,
		id:    brokerID,
		ahead: n.wire.load(brokerID),
		wake:  make(chan struct{}, 1),
		stop:  make(chan struct{}),
		done:  make(chan struct{}),
	}
}

// Stats returns the counts so far. They are read one after the other, so that
// they may disagree by the messages that are on their way.
func (n *Network) Stats() Stats {
	s := n.wire.stats()
	s.Sent, s.Delivered, s.Dropped, s.Refused = n.sent.Load(), n.delivered.Load(), n.dropped.Load(), n.refused.Load()
	s.Cut, s.Lost = n.cut.Load(), n.lost.Load()
	return s
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
		faults:    copyOf(old.faults),
		held:      copyOf(old.held),
	}
	edit(next)
	next.faulty = len(next.cuts)+len(next.isolated)+len(next.filters)+len(next.faults)+len(next.held) > 0
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

// leave takes e out. With the last endpoint goes whatever is still on its way.
func (n *Network) leave(e *endpoint) {
	n.change(func(s *state) { delete(s.endpoints, e.id) })
	n.wire.settle()
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
	var err error
	switch {
	case s.faulty:
		err = n.sendFaulty(s, path{from, to}, item{m, size})
	case e == nil:
		n.dropped.Add(1)
	default:
		err = e.queue(item{m, size})
	}
	if err != nil {
		n.refused.Add(1)
		return err
	}
	n.sent.Add(1)
	return nil
}
