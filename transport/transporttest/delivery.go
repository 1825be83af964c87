package transporttest

import (
	"errors"
	"sync"
	"time"

	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/transport"
)

var deliveryTests = []test{
	{"EveryMessage", testEveryMessage},
	{"Addressees", testAddressees},
	{"SizeLimit", testSizeLimit},
	{"BytesAreKept", testBytesAreKept},
	{"ConcurrentSenders", testConcurrentSenders},
	{"HandlerSends", testHandlerSends},
}

// steadyTests are about what happens while nothing is wrong.
var steadyTests = []test{
	{"Steady", testSteady},
	{"RoomForALink", testRoomForALink},
	{"TwoWayLoad", testTwoWayLoad},
}

// testEveryMessage: whatever a message is made of arrives, in both directions.
func testEveryMessage(e *env) {
	a, b := e.start(1), e.start(2)
	for _, m := range messages() {
		if m.Size() > a.tr.MaxMessageBytes() {
			continue // such a one travels in fragments
		}
		e.deliver(a, b, clone(m))
		e.deliver(b, a, m)
	}
}

// testAddressees: a message goes to the broker at the peer, and to no other.
func testAddressees(e *env) {
	var all []*broker
	for _, id := range []int32{0, 1, 2, 1<<31 - 1} {
		all = append(all, e.start(id))
	}
	for range 3 {
		for _, from := range all {
			for _, to := range all {
				if from != to {
					e.deliver(from, to, small())
				}
			}
		}
	}
}

// testSizeLimit: Send takes exactly what MaxMessageBytes says.
func testSizeLimit(e *env) {
	a, b := e.broker(1), e.start(2)
	limit := a.tr.MaxMessageBytes()
	if limit < 16<<10 {
		e.t.Fatalf("MaxMessageBytes is %d: a Broker needs 16 KiB", limit)
	}
	if limit > 128<<20 {
		e.t.Skipf("MaxMessageBytes is %d: too much for a test", limit)
	}
	a.start()
	if again := a.tr.MaxMessageBytes(); again != limit {
		e.t.Fatalf("MaxMessageBytes is %d after Start, and was %d", again, limit)
	}
	e.deliver(a, b, sized(limit))
	e.deliver(a, b, sized(limit-1))
	over := e.address(sized(limit+1), 1, 2)
	absent := e.broker(3)
	absent.close()
	for _, to := range []transport.Peer{b.peer, absent.peer} {
		if err := e.send(a, to, over); !errors.Is(err, transport.ErrTooLarge) {
			e.t.Fatalf("Send of %d bytes to %+v, one above MaxMessageBytes, returned %v, not ErrTooLarge", over.Size(), to, err)
		}
	}
	e.connect(a, b) // it is in nobody's way
}

// testBytesAreKept: later messages leave those that came before as they are. What
// was received is compared at the end of each test.
func testBytesAreKept(e *env) {
	a, b := e.start(1), e.start(2)
	for i := range 64 {
		e.deliver(a, b, bulk(a.room(50_000), byte(i)))
	}
}

func testConcurrentSenders(e *env) {
	a, b, c := e.start(1), e.start(2), e.start(3)
	parallel(8, func(i int) {
		to := []*broker{b, c}[i%2]
		for j := range 50 {
			m := e.address(bulk(100*j, byte(i)), a.id, to.id)
			if err := e.try(a, to, m); err != nil {
				e.fault("sender %d: %v", i, err)
				return
			}
		}
	})
}

// testHandlerSends: the Handler answers on the transport that has called it.
func testHandlerSends(e *env) {
	a, b := e.start(1), e.broker(2)
	var mu sync.Mutex
	answers := make(map[uint64]*protocol.Message)
	b.hook = func(m *protocol.Message) {
		mu.Lock()
		answer := answers[m.Session]
		mu.Unlock()
		_ = b.tr.Send(a.peer, answer) // if it is refused, the question comes again
	}
	b.start()
	for range 20 {
		question, answer := e.address(small(), 1, 2), e.address(small(), 2, 1)
		e.note(answer).taken = true
		mu.Lock()
		answers[question.Session] = answer
		mu.Unlock()
		if !e.ask(a, b, question, answer) {
			e.t.Fatal("no answer comes from a Handler that calls Send")
		}
	}
}

// ask sends a question until its answer has come.
func (e *env) ask(from, to *broker, question, answer *protocol.Message) bool {
	return e.repeat(func(pause <-chan time.Time) bool {
		_ = e.send(from, to.peer, question)
		return from.has(answer, pause)
	})
}

// testSteady: one message after the other arrives at the first attempt.
func testSteady(e *env) {
	a, b := e.start(1), e.start(2)
	e.connect(a, b)
	for i := range 500 {
		from, to := a, b
		if i%2 == 1 {
			from, to = b, a
		}
		m := e.address(bulk(i, byte(i)), from.id, to.id)
		e.must("Send", e.send(from, to.peer, m))
		if !to.has(m, e.limit()) {
			e.t.Fatalf("message %d of 500, sent while nothing else was, did not arrive", i)
		}
	}
}

// What a link sends ahead of its peer.
const (
	linkMessages = 1024
	linkBytes    = 16 << 20
)

// testRoomForALink: all that a link sends ahead waits until the peer takes it.
func testRoomForALink(e *env) {
	for _, size := range []int{0, linkBytes/200 - 1000} {
		a, b := e.start(1), e.broker(2)
		gate := newGate()
		b.hook = func(*protocol.Message) { gate.wait() }
		b.start()
		func() {
			defer gate.open()
			e.connect(a, b)
			size, count := a.room(size), linkMessages
			if size > 0 {
				count = linkBytes / (size + 1000)
			}
			for i := range count {
				err := e.send(a, b.peer, e.address(bulk(size, byte(i)), 1, 2))
				if err != nil {
					e.t.Fatalf("message %d of %d, of about %d bytes each, was refused: %v", i, count, size, err)
				}
			}
			gate.open()
			if !b.await(e.limit(), func() bool { return len(b.seen) == count+1 }) {
				e.t.Fatalf("messages of about %d bytes were lost before a bound was reached", size)
			}
		}()
		a.close()
		b.close()
	}
}

// testTwoWayLoad: both sides send as much as the other acknowledges, and nothing
// of it is lost: so links stay up.
func testTwoWayLoad(e *env) {
	a, b := e.start(1), e.start(2)
	e.connect(a, b)
	parallel(2, func(i int) {
		from, to := a, b
		if i == 1 {
			from, to = b, a
		}
		e.stream(from, to, 2000, 4000)
	})
}

// stream sends count messages with at most 256 on their way, and returns
// them if all have arrived.
func (e *env) stream(from, to *broker, count, size int) []*protocol.Message {
	const ahead = 256
	all := make([]*protocol.Message, count)
	for i := range all {
		all[i] = e.address(bulk(size, byte(i)), from.id, to.id)
		if i >= ahead && !to.has(all[i-ahead], e.limit()) {
			e.fault("broker %d to broker %d: message %d of a stream was lost", from.id, to.id, i-ahead)
			return nil
		}
		if err := e.send(from, to.peer, all[i]); err != nil {
			e.fault("broker %d to broker %d: message %d of a stream was refused: %v", from.id, to.id, i, err)
			return nil
		}
	}
	for i, m := range all[max(0, count-ahead):] {
		if !to.has(m, e.limit()) {
			e.fault("broker %d to broker %d: the last message but %d of a stream was lost", from.id, to.id, ahead-1-i)
			return nil
		}
	}
	return all
}

// testOrder: a stream arrives as it was sent, while others send to the same broker.
func testOrder(e *env) {
	a, b, c := e.start(1), e.start(2), e.start(3)
	e.connect(a, b)
	e.connect(c, b)
	var all [2][]*protocol.Message
	parallel(2, func(i int) { all[i] = e.stream([]*broker{a, c}[i], b, 1000, 200) })
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, sent := range all {
		if len(sent) == 0 {
			continue // stream has said why
		}
		next := 0
		for _, m := range b.got {
			if m.From != sent[0].From || m.Session < sent[0].Session {
				continue // another stream, or what came before
			}
			if next == len(sent) || m.Session != sent[next].Session {
				e.t.Fatalf("message %d from broker %d was doubled or overtaken", next, sent[0].From)
			}
			next++
		}
	}
}
