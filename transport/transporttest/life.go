package transporttest

import (
	"errors"
	"sync"
	"time"

	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/transport"
)

var lifeTests = []test{
	{"BeforeStart", testBeforeStart},
	{"AfterClose", testAfterClose},
	{"CloseFromEverywhere", testCloseFromEverywhere},
	{"CloseWaitsForTheHandler", testCloseWaitsForTheHandler},
	{"CloseBesideAStuckPeer", testCloseBesideAStuckPeer},
	{"CloseWhileSending", testCloseWhileSending},
	{"CloseWhileReceiving", testCloseWhileReceiving},
}

// testBeforeStart: a transport that was not started refuses, and can be closed.
func testBeforeStart(e *env) {
	b := e.start(2)
	a := e.broker(1)
	if n := a.tr.MaxMessageBytes(); n != b.tr.MaxMessageBytes() {
		e.t.Fatalf("MaxMessageBytes is %d before Start", n)
	}
	if err := e.send(a, b.peer, e.address(small(), 1, 2)); err == nil || broken(err) {
		e.t.Fatalf("Send before Start returned %v, not an error", err)
	}
	a.start()
	e.connect(a, b)

	c := e.broker(3)
	c.close()
	e.closed(c, b)
}

// closed requires that a transport is closed for good.
func (e *env) closed(b, peer *broker) {
	e.t.Helper()
	if err := e.send(b, peer.peer, e.address(small(), b.id, peer.id)); !errors.Is(err, transport.ErrClosed) {
		e.t.Fatalf("Send after Close returned %v, not ErrClosed", err)
	}
	if err := e.call("Start", func() error { return b.tr.Start(b.receive) }); !errors.Is(err, transport.ErrClosed) {
		e.t.Fatalf("Start after Close returned %v, not ErrClosed", err)
	}
	b.close()
}

// testAfterClose: everything is refused, and the others do not notice.
func testAfterClose(e *env) {
	a, b, c := e.start(1), e.start(2), e.start(3)
	e.connect(a, b)
	e.connect(a, c)
	a.close()
	e.closed(a, b)
	for range 20 {
		e.absent(b, a.peer, small())
	}
	e.connect(b, c)
	e.closed(a, b)
}

func testCloseFromEverywhere(e *env) {
	a, b := e.start(1), e.start(2)
	e.connect(a, b)
	for i := range 100 {
		_ = e.send(b, a.peer, e.address(bulk(1000, byte(i)), 2, 1))
		_ = e.send(a, b.peer, e.address(bulk(1000, byte(i)), 1, 2))
	}
	parallel(16, func(int) {
		if err := e.call("Close", a.tr.Close); err != nil {
			e.fault("one of many calls of Close: %v", err)
		}
		a.over.Store(true)
	})
	e.closed(a, b)
}

// testCloseWaitsForTheHandler: Close does not return while the Handler runs.
func testCloseWaitsForTheHandler(e *env) {
	a, b := e.start(1), e.broker(2)
	gate := newGate()
	defer gate.open()
	b.hook = func(*protocol.Message) { gate.wait() }
	b.start()
	e.deliver(a, b, small())
	closed := make(chan error, 1)
	go func() { closed <- e.call("Close", b.tr.Close) }()
	select {
	case err := <-closed:
		e.t.Fatalf("Close returned (%v) while the Handler was running", err)
	case <-e.quiet():
	}
	gate.open()
	e.must("Close", <-closed)
	b.over.Store(true)
	e.closed(b, a)
}

// testCloseBesideAStuckPeer: Close does not wait until a peer takes what waits.
func testCloseBesideAStuckPeer(e *env) {
	a, b := e.start(1), e.broker(2)
	gate := newGate()
	defer gate.open()
	b.hook = func(*protocol.Message) { gate.wait() }
	b.start()
	e.deliver(a, b, small())
	for i := range linkBytes / (64 << 10) {
		_ = e.send(a, b.peer, e.address(bulk(a.room(64<<10), byte(i)), 1, 2))
	}
	a.close()
	e.closed(a, b)
}

// testCloseWhileSending: every Send ends, and all of them are refused soon.
func testCloseWhileSending(e *env) {
	for range 5 {
		a, b := e.start(1), e.start(2)
		e.connect(a, b)
		started := make(chan struct{}, 4)
		var senders sync.WaitGroup
		for range cap(started) {
			senders.Go(func() { e.sendUntilClosed(a, b, started) })
		}
		for range cap(started) {
			<-started
		}
		a.close()
		senders.Wait()
		e.closed(a, b)
		b.close()
	}
}

func (e *env) sendUntilClosed(a, b *broker, started chan<- struct{}) {
	defer func() { started <- struct{}{} }() // also if there is nothing to wait for
	m := e.address(bulk(100, 1), 1, 2)
	start := time.Now()
	for i := 0; time.Since(start) < e.c.Limit; i++ {
		err := e.send(a, b.peer, m)
		if errors.Is(err, transport.ErrClosed) || broken(err) {
			return
		}
		if i == 20 {
			started <- struct{}{}
		}
		if err != nil {
			pause()
		}
	}
	e.fault("Send goes on without ErrClosed though Close was called")
}

// testCloseWhileReceiving: the Handler of a broker that is closed and comes back,
// while others send to it, is not called after Close. The Handler sees to that.
func testCloseWhileReceiving(e *env) {
	a := e.start(1)
	m := e.address(small(), 1, 2)
	for range 10 {
		b := e.start(2)
		stop := make(chan struct{})
		var senders sync.WaitGroup
		for range 2 {
			senders.Go(func() { e.flood(a, b, m, stop) })
		}
		arrived := b.has(m, e.limit())
		if arrived {
			b.close()
			e.absent(a, b.peer, small()) // so that somebody sends after Close
		}
		close(stop)
		senders.Wait()
		if !arrived {
			e.t.Fatal("nothing arrives at a broker that came back")
		}
	}
}

// flood sends m over and over.
func (e *env) flood(from, to *broker, m *protocol.Message, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		default:
		}
		if err := e.send(from, to.peer, m); broken(err) {
			return
		} else if err != nil {
			pause()
		}
	}
}
