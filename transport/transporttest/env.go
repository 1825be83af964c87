package transporttest

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/transport"
)

// env is what one test works with. It notes every message that is sent, and
// holds at the end that nothing else was delivered.
type env struct {
	t    testing.TB
	c    Config
	join Join

	mu      sync.Mutex
	last    uint64           // Session of the newest message: each has its own
	sent    map[uint64]*sent // by Session
	faults  []string
	brokers []*broker
}

// sent is what is known of a message.
type sent struct {
	original *protocol.Message // as the transport got it
	before   *protocol.Message // a copy from before that
	taken    bool              // some Send did not refuse it
}

// broker is one life of a broker.
type broker struct {
	e    *env
	id   int32
	peer transport.Peer
	tr   transport.Transport
	hook func(*protocol.Message) // runs in the Handler; nil: nothing
	lean bool                    // got is not kept

	over atomic.Bool // Close has returned

	mu   sync.Mutex
	got  []*protocol.Message
	seen map[uint64]int // deliveries by Session
	news chan struct{}  // closed at the next delivery
}

// fault notes what a transport must not do, from any goroutine.
func (e *env) fault(format string, args ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.faults) < 20 {
		e.faults = append(e.faults, fmt.Sprintf(format, args...))
	}
}

// broker makes a broker that is not started.
func (e *env) broker(id int32) *broker {
	e.t.Helper()
	tr, peer := e.join(id)
	if tr == nil || peer.ID != id {
		e.t.Fatalf("Config.New: joined as broker %d, and got the peer %+v", id, peer)
	}
	b := &broker{e: e, id: id, tr: tr, peer: peer, seen: make(map[uint64]int), news: make(chan struct{})}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.brokers = append(e.brokers, b)
	return b
}

// start makes a broker and starts it.
func (e *env) start(id int32) *broker {
	e.t.Helper()
	b := e.broker(id)
	b.start()
	return b
}

func (b *broker) start() {
	b.e.t.Helper()
	b.e.must("Start", b.e.call("Start", func() error { return b.tr.Start(b.receive) }))
}

// room is size, or how large a bulk message may be when that is less.
func (b *broker) room(size int) int { return min(size, b.tr.MaxMessageBytes()-1000) }

// receive is the Handler.
func (b *broker) receive(m *protocol.Message) {
	switch {
	case b.over.Load():
		b.e.fault("broker %d: the Handler was called after Close had returned", b.id)
		return
	case m == nil:
		b.e.fault("broker %d: the Handler got nil", b.id)
		return
	case m.To != b.id:
		b.e.fault("broker %d: the Handler got a message that was sent to broker %d", b.id, m.To)
		return
	}
	b.mu.Lock()
	if !b.lean {
		b.got = append(b.got, m)
	}
	b.seen[m.Session]++
	close(b.news)
	b.news = make(chan struct{})
	b.mu.Unlock()
	if b.hook != nil {
		b.hook(m)
	}
	if b.over.Load() {
		b.e.fault("broker %d: Close returned while the Handler was running", b.id)
	}
}

// await waits until ok, which is called with b.mu locked.
func (b *broker) await(limit <-chan time.Time, ok func() bool) bool {
	for {
		b.mu.Lock()
		good, news := ok(), b.news
		b.mu.Unlock()
		if good {
			return true
		}
		select {
		case <-news:
		case <-limit:
			return false
		}
	}
}

// has waits until b has got m.
func (b *broker) has(m *protocol.Message, limit <-chan time.Time) bool {
	return b.await(limit, func() bool { return b.seen[m.Session] > 0 })
}

// errNoReturn is what call returns for a call that has not returned by now.
var errNoReturn = errors.New("the call does not return")

type panicked struct{ value any }

func (p panicked) Error() string { return fmt.Sprintf("panic: %v", p.value) }

// call calls f, which must return soon and must not panic.
func (e *env) call(what string, f func() error) error {
	done := make(chan error, 1)
	go func() {
		defer func() {
			if v := recover(); v != nil {
				done <- panicked{v}
			}
		}()
		done <- f()
	}()
	timer := time.NewTimer(e.c.Limit)
	defer timer.Stop()
	var err error
	select {
	case err = <-done:
	case <-timer.C:
		err = errNoReturn
	}
	if broken(err) {
		e.fault("%s: %v", what, err)
	}
	return err
}

func broken(err error) bool { return errors.Is(err, errNoReturn) || errors.As(err, new(panicked)) }

// must ends the test if there is an error.
func (e *env) must(what string, err error) {
	e.t.Helper()
	if err != nil {
		e.t.Fatalf("%s: %v", what, err)
	}
}

// address makes m one that a broker sends to another, different from all others.
func (e *env) address(m *protocol.Message, from, to int32) *protocol.Message {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.last++
	m.From, m.To, m.Session = from, to, e.last
	return m
}

// note remembers m before it is sent.
func (e *env) note(m *protocol.Message) *sent {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.sent[m.Session]
	if s == nil {
		s = &sent{original: m, before: clone(m)}
		e.sent[m.Session] = s
	}
	return s
}

// send calls Send, from any goroutine. m may have been sent before.
func (e *env) send(from *broker, to transport.Peer, m *protocol.Message) error {
	s := e.note(m)
	err := e.call(fmt.Sprintf("Send to %+v", to), func() error { return from.tr.Send(to, m) })
	if !errors.Is(err, transport.ErrBusy) && !errors.Is(err, transport.ErrTooLarge) && !errors.Is(err, transport.ErrClosed) {
		e.mu.Lock()
		s.taken = true
		e.mu.Unlock()
	}
	return err
}

// try sends m until it has arrived: a transport may lose it, and may refuse it
// while it does not reach the peer yet. It may be called from any goroutine.
func (e *env) try(from, to *broker, m *protocol.Message) error {
	var err error
	arrived := e.repeat(func(pause <-chan time.Time) bool {
		err = e.send(from, to.peer, m)
		return hopeless(err) || to.has(m, pause)
	})
	switch {
	case hopeless(err):
		return fmt.Errorf("send from broker %d to broker %d: %w", from.id, to.id, err)
	case !arrived:
		return fmt.Errorf("what broker %d sends to broker %d does not arrive (the last Send returned: %v)", from.id, to.id, err)
	}
	return nil
}

// hopeless reports whether another Send would not help.
func hopeless(err error) bool {
	return broken(err) || errors.Is(err, transport.ErrTooLarge) || errors.Is(err, transport.ErrClosed)
}

// deliver is try for a message that has no address yet; failing ends the test.
func (e *env) deliver(from, to *broker, m *protocol.Message) {
	e.t.Helper()
	if err := e.try(from, to, e.address(m, from.id, to.id)); err != nil {
		e.t.Fatal(err)
	}
}

// connect makes sure that both reach each other.
func (e *env) connect(a, b *broker) {
	e.t.Helper()
	e.deliver(a, b, small())
	e.deliver(b, a, small())
}

// close closes the broker's transport.
func (b *broker) close() {
	b.e.t.Helper()
	err := b.e.call("Close", b.tr.Close)
	b.over.Store(err == nil)
	b.e.must("Close", err)
}

// finish closes what is still open, and reports every fault there was.
func (e *env) finish() {
	for _, b := range e.brokers {
		if err := e.call("Close", b.tr.Close); err != nil && !broken(err) {
			e.fault("broker %d: Close: %v", b.id, err)
		}
		b.over.Store(true)
	}
	for _, s := range e.sent {
		if d := diff(s.before, s.original); d != "" {
			e.fault("the transport changed the message that it was given: %s", d)
		}
	}
	for _, b := range e.brokers {
		b.mu.Lock()
		got, seen := slices.Clone(b.got), len(b.seen)
		b.mu.Unlock()
		for _, m := range got {
			e.compare(b, m)
		}
		if b.lean && seen > len(e.sent) {
			e.fault("broker %d: the Handler got messages that nobody sent", b.id)
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, f := range e.faults {
		e.t.Error(f)
	}
}

// compare holds a delivered message against what was sent.
func (e *env) compare(b *broker, m *protocol.Message) {
	s := e.sent[m.Session]
	if s == nil {
		e.fault("broker %d: the Handler got a message that nobody sent", b.id)
		return
	}
	if d := diff(s.before, m); d != "" {
		e.fault("broker %d: the Handler got another message than was sent: %s", b.id, d)
	}
	if !s.taken {
		e.fault("broker %d: the Handler got a message that Send had refused", b.id)
	}
}
