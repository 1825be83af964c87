// Package transporttest is the conformance suite of transport.Transport: what
// every implementation must do, whatever it moves messages with. The contract
// that it tests is written in package transport.
//
//	transporttest.Run(t, transporttest.Config{New: func(t testing.TB) transporttest.Join {
//		return func(id int32) (transport.Transport, transport.Peer) {
//			mesh := newMesh(t, id)
//			return mesh, transport.Peer{ID: id, Address: mesh.Address()}
//		}
//	}})
package transporttest

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tidemark-log/tidemark/transport"
)

// Join lets a broker take part in a network: it returns a new transport, which
// is not started, and the Peer under which other brokers reach it. A broker
// that restarts joins again, after its transport before was closed.
type Join func(id int32) (transport.Transport, transport.Peer)

// Config says what to test.
type Config struct {
	// New makes a network without brokers for one test. What it opens it has t.Cleanup
	// close, before goroutines are counted.
	New func(t testing.TB) Join
	// Lossy is set for a transport that loses messages also while nothing is wrong.
	// What it loses costs sessions, so the tests of steady traffic are left out.
	Lossy bool
	// Ordered is set for a transport that promises to deliver what one broker sends
	// to another once at most, and in order, while nothing is wrong.
	Ordered bool
	// QueueBytes is how many bytes may wait for one peer at most, at both ends and
	// between them. The default is 128 MiB.
	QueueBytes int
	// Limit is how long what must happen soon may take. The default is 10 s. It is
	// waited for only where a test fails.
	Limit time.Duration
}

type test struct {
	name string
	run  func(*env)
}

// Run runs all tests as subtests of t. They take real time, little of it.
func Run(t *testing.T, c Config) {
	for _, tt := range c.tests() {
		t.Run(tt.name, func(t *testing.T) { c.run(t, tt.run) })
	}
}

func (c Config) tests() []test {
	tests := append([]test(nil), deliveryTests...)
	if !c.Lossy {
		tests = append(tests, steadyTests...)
	}
	if c.Ordered {
		tests = append(tests, test{"Order", testOrder})
	}
	tests = append(tests, peerTests...)
	return append(tests, lifeTests...)
}

// run runs f in a fresh network, and checks what came of it.
func (c Config) run(t testing.TB, f func(*env)) {
	if c.Limit <= 0 {
		c.Limit = 10 * time.Second
	}
	if c.QueueBytes <= 0 {
		c.QueueBytes = 128 << 20
	}
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { // after those of New: what the host opened is closed by then
		if !t.Failed() {
			goleak.VerifyNone(t, before)
		}
	})
	e := &env{t: t, c: c, join: c.New(t), sent: make(map[uint64]*sent)}
	defer e.finish()
	f(e)
}
