package transporttest

import (
	"errors"

	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/transport"
)

var peerTests = []test{
	{"AbsentPeer", testAbsentPeer},
	{"LatePeer", testLatePeer},
	{"StuckPeer", testStuckPeer},
	{"Restart", testRestart},
}

// testAbsentPeer: sending to who is not there blocks nothing and disturbs nobody.
func testAbsentPeer(e *env) {
	a, b := e.start(1), e.start(2)
	e.connect(a, b)
	gone := e.start(3)
	e.connect(a, gone)
	gone.close()
	closed := e.broker(4)
	closed.close()
	unstarted := e.broker(5)
	for _, peer := range []transport.Peer{gone.peer, closed.peer, unstarted.peer, {ID: 6}, {ID: 7, Address: "no such address"}} {
		for range 100 {
			e.absent(a, peer, small())
			e.absent(a, peer, bulk(10_000, 1))
		}
		e.connect(a, b)
	}
	a.close()
}

// absent sends to a peer that is not there: any result will do.
func (e *env) absent(from *broker, to transport.Peer, m *protocol.Message) {
	e.t.Helper()
	if err := e.send(from, to, e.address(m, from.id, to.ID)); broken(err) {
		e.t.Fatalf("Send to %+v, which is not there: %v", to, err)
	}
}

// testLatePeer: who was not there is reached once he is.
func testLatePeer(e *env) {
	a, b := e.start(1), e.broker(2)
	for range 100 {
		e.absent(a, b.peer, small())
	}
	b.start()
	e.connect(a, b)
}

// testStuckPeer: a broker that takes nothing costs a bounded number of bytes, and
// nobody else notices.
func testStuckPeer(e *env) {
	a, b, c := e.start(1), e.broker(2), e.start(3)
	gate := newGate()
	defer gate.open()
	b.hook = func(*protocol.Message) { gate.wait() }
	b.lean = true
	b.start()
	e.deliver(a, b, small())

	m := e.address(bulk(a.room(64<<10), 1), 1, 2)
	taken := 0
	for ; taken*m.Size() <= e.c.QueueBytes; taken++ {
		if err := e.send(a, b.peer, m); errors.Is(err, transport.ErrBusy) {
			break
		} else if broken(err) {
			e.t.Fatalf("Send to a broker that takes nothing: %v", err)
		}
	}
	e.connect(a, c)
	e.deliver(b, a, small()) // only what it takes waits
	e.deliver(b, c, small())

	gate.open()
	e.deliver(a, b, small())
	if taken*m.Size() > e.c.QueueBytes && b.await(e.quiet(), func() bool { return b.seen[m.Session] >= taken }) {
		e.t.Fatalf("%d messages of %d bytes waited for a broker that took none", taken, m.Size())
	}
	e.connect(a, b)
}

// testRestart: a broker that comes back is reached again, by those who reached it
// before, and reaches them.
func testRestart(e *env) {
	a, b, c := e.start(1), e.start(2), e.start(3)
	e.connect(a, b)
	for range 3 {
		b.close()
		for range 20 {
			e.absent(a, b.peer, small())
		}
		e.connect(a, c)
		b = e.start(2)
		e.connect(a, b)
		e.connect(c, b)
	}
	a.close()
	b.close()
	a, b = e.start(1), e.start(2)
	e.connect(a, b)
	e.connect(c, b)
}
