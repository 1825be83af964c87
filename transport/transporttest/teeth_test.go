package transporttest

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/transport"
	"github.com/tidemark-log/tidemark/transport/inproc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// recorder stands in for the test that a faulty transport makes fail.
type recorder struct {
	testing.TB
	mu       sync.Mutex
	failed   bool
	said     []string
	cleanups []func()
}

func (r *recorder) Helper()           {}
func (r *recorder) Cleanup(f func())  { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Error(args ...any) { r.say(fmt.Sprint(args...)) }
func (r *recorder) Fatal(args ...any) { r.say(fmt.Sprint(args...)); runtime.Goexit() }
func (r *recorder) Fatalf(format string, args ...any) {
	r.Fatal(fmt.Sprintf(format, args...))
}

func (r *recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

func (r *recorder) say(s string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed, r.said = true, append(r.said, s)
}

// complaints runs one test of the suite and returns what it complained about.
func complaints(t *testing.T, c Config, name string) []string {
	i := slices.IndexFunc(c.tests(), func(tt test) bool { return tt.name == name })
	require.GreaterOrEqual(t, i, 0, "the suite has no test %s", name)
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			for _, f := range slices.Backward(r.cleanups) {
				f()
			}
		}()
		c.run(r, c.tests()[i].run)
	}()
	<-done
	return r.said
}

// faulty is a sound transport with one method replaced.
type faulty struct {
	transport.Transport
	net   *faultyNet
	id    int32
	start func(transport.Handler) error
	send  func(transport.Peer, *protocol.Message) error
	max   func() int
	close func() error
}

// faultyNet is what faulty transports of one test may know of each other.
type faultyNet struct {
	*inproc.Network
	over chan struct{} // closed when the test of the suite is over
	gone chan struct{} // closed when the test of the suite has complained

	mu       sync.Mutex
	handlers map[int32]transport.Handler
	closed   map[int32]int // how often
	dead     map[int32]bool
}

func (f *faulty) Start(h transport.Handler) error                   { return f.start(h) }
func (f *faulty) Send(to transport.Peer, m *protocol.Message) error { return f.send(to, m) }
func (f *faulty) MaxMessageBytes() int                              { return f.max() }
func (f *faulty) Close() error                                      { return f.close() }
func (n *faultyNet) locked(f func())                                { n.mu.Lock(); defer n.mu.Unlock(); f() }
func (n *faultyNet) handler(id int32) (h transport.Handler, closed int) {
	n.locked(func() { h, closed = n.handlers[id], n.closed[id] })
	return h, closed
}

// network is a Config with a fault planted into each transport.
func network(opts inproc.Options, faults inproc.Faults, plant func(*faulty)) Config {
	return Config{Ordered: true, New: func(t testing.TB) Join {
		n := &faultyNet{Network: inproc.New(opts), over: make(chan struct{}), gone: make(chan struct{}),
			handlers: make(map[int32]transport.Handler), closed: make(map[int32]int), dead: make(map[int32]bool)}
		n.SetFaults(inproc.Any, inproc.Any, faults)
		t.Cleanup(func() { close(n.over) })
		t.(*recorder).TB.Cleanup(func() { close(n.gone) })
		return func(id int32) (transport.Transport, transport.Peer) {
			inner := n.Transport(id)
			f := &faulty{Transport: inner, net: n, id: id, send: inner.Send, max: inner.MaxMessageBytes}
			f.start = func(h transport.Handler) error {
				n.locked(func() { n.handlers[id], n.closed[id] = h, 0 })
				return inner.Start(h)
			}
			f.close = func() error {
				n.locked(func() { n.closed[id]++ })
				return inner.Close()
			}
			plant(f)
			return f, transport.Peer{ID: id}
		}
	}}
}

func none(*faulty) {}

// onArrival replaces what the Handler is called with.
func onArrival(change func(f *faulty, m *protocol.Message, h transport.Handler)) func(*faulty) {
	return func(f *faulty) {
		start := f.start
		f.start = func(h transport.Handler) error {
			return start(func(m *protocol.Message) { change(f, m, h) })
		}
	}
}

// onSend replaces Send. next is the sound one.
func onSend(send func(f *faulty, to transport.Peer, m *protocol.Message, next func() error) error) func(*faulty) {
	return func(f *faulty) {
		next := f.send
		f.send = func(to transport.Peer, m *protocol.Message) error {
			return send(f, to, m, func() error { return next(to, m) })
		}
	}
}

// onClose replaces Close.
func onClose(end func(f *faulty, next func() error) error) func(*faulty) {
	return func(f *faulty) {
		next := f.close
		f.close = func() error { return end(f, next) }
	}
}

type tooth struct {
	name   string
	opts   inproc.Options
	faults inproc.Faults
	plant  func(*faulty)
	fails  string // test of the suite
	with   string // what it says
}

// TestTeeth plants faults, each of which one test of the suite must name.
func TestTeeth(t *testing.T) {
	bitten := make(map[string]bool)
	for _, tooth := range slices.Concat(deliveryTeeth(), roomTeeth(), peerTeeth(), lifeTeeth()) {
		bitten[tooth.fails] = true
		t.Run(tooth.name, func(t *testing.T) {
			c := network(tooth.opts, tooth.faults, tooth.plant)
			if slices.ContainsFunc([]string{"not arrive", "not return", "no answer", "lost"}, func(s string) bool { return strings.Contains(tooth.with, s) }) {
				c.Limit = time.Second // it is waited for
			}
			said := complaints(t, c, tooth.fails)
			require.Contains(t, strings.Join(said, "\n"), tooth.with, "%s does not notice", tooth.fails)
		})
	}
	c := network(inproc.Options{}, inproc.Faults{}, none)
	for _, tt := range c.tests() {
		require.True(t, bitten[tt.name], "no fault shows that %s can fail", tt.name)
		require.Empty(t, complaints(t, c, tt.name), "%s complains about a sound transport", tt.name)
	}
}

func deliveryTeeth() []tooth {
	var buffer []byte // shared by all messages
	return []tooth{
		{"drops everything", inproc.Options{}, inproc.Faults{Drop: 1}, none, "EveryMessage", "does not arrive"},
		{"drops large messages", inproc.Options{}, inproc.Faults{Drop: 1, Only: func(m *protocol.Message) bool { return m.Size() > 1<<20 }}, none,
			"SizeLimit", "does not arrive"},
		{"misdelivers", inproc.Options{}, inproc.Faults{Misdeliver: 0.5}, none, "Addressees", "that was sent to broker"},
		{"delivers a changed copy", inproc.Options{}, inproc.Faults{}, onArrival(func(_ *faulty, m *protocol.Message, h transport.Handler) {
			c := clone(m)
			c.Fragment = nil
			h(c)
		}), "EveryMessage", "Message.Fragment has length 0"},
		{"flips a bit of a batch", inproc.Options{}, inproc.Faults{}, onArrival(func(_ *faulty, m *protocol.Message, h transport.Handler) {
			c := clone(m)
			if len(c.Appends) > 0 {
				c.Appends[0].Batch[len(c.Appends[0].Batch)-1] ^= 4
			}
			h(c)
		}), "ConcurrentSenders", "Message.Payload.Appends[0].Batch has other bytes"},
		{"changes the sender's message", inproc.Options{}, inproc.Faults{}, onSend(func(_ *faulty, _ transport.Peer, m *protocol.Message, next func() error) error {
			m.Ack++
			return next()
		}), "EveryMessage", "changed the message that it was given"},
		{"invents a message", inproc.Options{}, inproc.Faults{}, onArrival(func(_ *faulty, m *protocol.Message, h transport.Handler) {
			c := clone(m)
			c.Session += 1 << 40
			h(c)
			h(m)
		}), "Addressees", "that nobody sent"},
		{"delivers nil", inproc.Options{}, inproc.Faults{}, onArrival(func(_ *faulty, m *protocol.Message, h transport.Handler) {
			h(nil)
			h(m)
		}), "Addressees", "got nil"},
		{"uses a buffer again", inproc.Options{}, inproc.Faults{}, onArrival(func(_ *faulty, m *protocol.Message, h transport.Handler) {
			c := clone(m)
			if len(c.Appends) > 0 {
				buffer = append(buffer[:0], c.Appends[0].Batch...)
				c.Appends[0].Batch = buffer
			}
			h(c)
		}), "BytesAreKept", "has other bytes"},
		{"holds a lock around the Handler", inproc.Options{}, inproc.Faults{}, func(f *faulty) {
			var mu sync.Mutex
			onArrival(func(f *faulty, m *protocol.Message, h transport.Handler) {
				mu.Lock()
				defer mu.Unlock()
				h(m)
			})(f)
			onSend(func(f *faulty, _ transport.Peer, _ *protocol.Message, next func() error) error {
				for !mu.TryLock() {
					select {
					case <-f.net.over:
						return transport.ErrClosed
					default:
						runtime.Gosched()
					}
				}
				defer mu.Unlock()
				return next()
			})(f)
		}, "HandlerSends", "no answer comes"},
		{"is for one sender", inproc.Options{}, inproc.Faults{}, func(f *faulty) {
			var mu sync.Mutex
			onSend(func(_ *faulty, _ transport.Peer, _ *protocol.Message, next func() error) error {
				if !mu.TryLock() {
					panic("two at once")
				}
				defer mu.Unlock()
				runtime.Gosched()
				return next()
			})(f)
		}, "ConcurrentSenders", "two at once"},
		{"takes what is too large", inproc.Options{}, inproc.Faults{}, func(f *faulty) {
			f.max = func() int { return 4 << 20 }
		}, "SizeLimit", "not ErrTooLarge"},
		{"delivers what it refused", inproc.Options{}, inproc.Faults{}, func(f *faulty) {
			f.max = func() int { return 4 << 20 }
			onSend(func(_ *faulty, _ transport.Peer, m *protocol.Message, next func() error) error {
				err := next()
				if m.Size() > 4<<20 {
					err = transport.ErrTooLarge
				}
				return err
			})(f)
		}, "SizeLimit", "that Send had refused"},
		{"refuses less than it says", inproc.Options{}, inproc.Faults{}, func(f *faulty) {
			f.max = func() int { return inproc.DefaultMaxMessageBytes + 1 }
		}, "SizeLimit", "message above MaxMessageBytes"},
		{"takes too little", inproc.Options{MaxMessageBytes: 10 << 10}, inproc.Faults{}, none, "SizeLimit", "a Broker needs 16 KiB"},
		{"knows its limit late", inproc.Options{}, inproc.Faults{}, func(f *faulty) {
			f.max = func() int {
				if h, _ := f.net.handler(f.id); h == nil {
					return 32 << 20
				}
				return inproc.DefaultMaxMessageBytes
			}
		}, "SizeLimit", "after Start, and was"},
	}
}

func roomTeeth() []tooth {
	return []tooth{
		{"loses some", inproc.Options{}, inproc.Faults{Drop: 0.05}, none, "Steady", "did not arrive"},
		{"loses some under load", inproc.Options{}, inproc.Faults{Drop: 0.01}, none, "TwoWayLoad", "was lost"},
		{"has room for few", inproc.Options{QueueMessages: 900}, inproc.Faults{}, none, "RoomForALink", "was refused: transport: send queue is full"},
		{"has room for few bytes", inproc.Options{QueueBytes: 8 << 20}, inproc.Faults{}, none, "RoomForALink", "was refused: transport: send queue is full"},
		{"loses what has no room", inproc.Options{QueueBytes: 8 << 20}, inproc.Faults{},
			onSend(func(_ *faulty, _ transport.Peer, _ *protocol.Message, next func() error) error {
				_ = next()
				return nil
			}),
			"RoomForALink", "were lost before a bound was reached"},
		{"doubles", inproc.Options{}, inproc.Faults{Double: 0.01}, none, "Order", "was doubled or overtaken"},
		{"reorders", inproc.Options{}, inproc.Faults{Reorder: 0.01}, none, "Order", "was doubled or overtaken"},
		{"has no bound", inproc.Options{QueueMessages: 1 << 30, QueueBytes: 1 << 40}, inproc.Faults{}, none, "StuckPeer", "waited for a broker that took none"},
		{"blocks while there is no room", inproc.Options{}, inproc.Faults{}, onSend(func(f *faulty, _ transport.Peer, _ *protocol.Message, next func() error) error {
			err := next()
			for errors.Is(err, transport.ErrBusy) {
				select {
				case <-f.net.over:
					return err
				case <-time.After(time.Millisecond):
					err = next()
				}
			}
			return err
		}), "StuckPeer", "the call does not return"},
		{"has one queue for all", inproc.Options{}, inproc.Faults{}, onSend(func(f *faulty, _ transport.Peer, _ *protocol.Message, next func() error) error {
			var full bool
			f.net.locked(func() { full = f.net.dead[f.id] })
			if full {
				return transport.ErrBusy
			}
			err := next()
			f.net.locked(func() { f.net.dead[f.id] = errors.Is(err, transport.ErrBusy) })
			return err
		}), "StuckPeer", "broker 1 sends to broker 3 does not arrive"},
	}
}

func peerTeeth() []tooth {
	absent := func(f *faulty, to transport.Peer) bool {
		h, closed := f.net.handler(to.ID)
		return h == nil || closed > 0
	}
	return []tooth{
		{"panics without a peer", inproc.Options{}, inproc.Faults{}, onSend(func(f *faulty, to transport.Peer, _ *protocol.Message, next func() error) error {
			if to.Address == "no such address" {
				panic("no such address")
			}
			return next()
		}), "AbsentPeer", "panic: no such address"},
		{"waits for a peer", inproc.Options{}, inproc.Faults{}, onSend(func(f *faulty, to transport.Peer, _ *protocol.Message, next func() error) error {
			if absent(f, to) {
				<-f.net.over
			}
			return next()
		}), "AbsentPeer", "the call does not return"},
		{"gives up a peer", inproc.Options{}, inproc.Faults{}, onSend(func(f *faulty, to transport.Peer, _ *protocol.Message, next func() error) error {
			gone := absent(f, to)
			f.net.locked(func() {
				f.net.dead[to.ID] = f.net.dead[to.ID] || gone
				gone = f.net.dead[to.ID]
			})
			if gone {
				return errors.New("no connection")
			}
			return next()
		}), "LatePeer", "does not arrive (the last Send returned: no connection)"},
		{"sends to the old life", inproc.Options{}, inproc.Faults{}, onSend(func(f *faulty, to transport.Peer, m *protocol.Message, next func() error) error {
			_, closed := f.net.handler(to.ID)
			f.net.locked(func() { f.net.dead[to.ID] = f.net.dead[to.ID] || closed > 0 })
			if f.net.dead[to.ID] {
				return nil
			}
			return next()
		}), "Restart", "does not arrive"},
	}
}

func lifeTeeth() []tooth {
	return []tooth{
		{"sends before Start", inproc.Options{}, inproc.Faults{}, onSend(func(_ *faulty, _ transport.Peer, _ *protocol.Message, next func() error) error {
			if err := next(); err != inproc.ErrNotStarted {
				return err
			}
			return nil
		}), "BeforeStart", "Send before Start returned <nil>"},
		{"panics before Start", inproc.Options{}, inproc.Faults{}, onSend(func(f *faulty, _ transport.Peer, _ *protocol.Message, next func() error) error {
			if h, _ := f.net.handler(f.id); h == nil {
				panic("not started")
			}
			return next()
		}), "BeforeStart", "panic: not started"},
		{"takes after Close", inproc.Options{}, inproc.Faults{}, onSend(func(_ *faulty, _ transport.Peer, _ *protocol.Message, next func() error) error {
			if err := next(); !errors.Is(err, transport.ErrClosed) {
				return err
			}
			return nil
		}), "AfterClose", "Send after Close returned <nil>"},
		{"starts again", inproc.Options{}, inproc.Faults{}, func(f *faulty) {
			start := f.start
			f.start = func(h transport.Handler) error {
				if err := start(h); !errors.Is(err, transport.ErrClosed) {
					return err
				}
				return nil
			}
		}, "BeforeStart", "Start after Close returned <nil>"},
		{"closes once", inproc.Options{}, inproc.Faults{}, onClose(func(f *faulty, next func() error) error {
			err := next()
			if _, closed := f.net.handler(f.id); closed > 1 {
				err = errors.New("closed already")
			}
			return err
		}), "AfterClose", "Close: closed already"},
		{"closes for one caller", inproc.Options{}, inproc.Faults{}, onClose(func(f *faulty, next func() error) error {
			err := next()
			if _, closed := f.net.handler(f.id); closed > 1 {
				panic("close of closed channel")
			}
			return err
		}), "CloseFromEverywhere", "panic: close of closed channel"},
		{"calls the Handler after Close", inproc.Options{}, inproc.Faults{}, onSend(func(f *faulty, to transport.Peer, m *protocol.Message, next func() error) error {
			if h, closed := f.net.handler(to.ID); closed > 0 {
				h(m)
			}
			return next()
		}), "CloseWhileReceiving", "was called after Close had returned"},
		{"does not wait for the Handler", inproc.Options{}, inproc.Faults{}, onClose(func(_ *faulty, next func() error) error {
			go next()
			return nil
		}), "CloseWaitsForTheHandler", "while the Handler was running"},
		{"waits for peers", inproc.Options{}, inproc.Faults{}, onClose(func(f *faulty, next func() error) error {
			for s := f.net.Stats(); s.Sent > s.Delivered; s = f.net.Stats() {
				select {
				case <-f.net.over:
					return nil
				case <-time.After(time.Millisecond):
				}
			}
			return next()
		}), "CloseBesideAStuckPeer", "Close: the call does not return"},
		{"panics in a late Send", inproc.Options{}, inproc.Faults{}, onSend(func(f *faulty, _ transport.Peer, _ *protocol.Message, next func() error) error {
			if _, closed := f.net.handler(f.id); closed > 0 {
				panic("send on closed channel")
			}
			return next()
		}), "CloseWhileSending", "panic: send on closed channel"},
		{"leaves a goroutine", inproc.Options{}, inproc.Faults{}, func(f *faulty) {
			start := f.start
			f.start = func(h transport.Handler) error {
				go func() { <-f.net.gone }()
				return start(h)
			}
		}, "AfterClose", "found unexpected goroutines"},
	}
}
