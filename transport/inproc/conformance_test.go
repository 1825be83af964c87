package inproc

import (
	"testing"
	"time"

	"github.com/tidemark-log/tidemark/transport"
	"github.com/tidemark-log/tidemark/transport/transporttest"
)

func TestConformance(t *testing.T) {
	transporttest.Run(t, transporttest.Config{New: joiner(func(*Network) {}), Ordered: true})
}

// A network that loses a few messages is still a Transport, though a bad one.
func TestConformanceWithFaults(t *testing.T) {
	transporttest.Run(t, transporttest.Config{Lossy: true, New: joiner(func(n *Network) {
		n.SetFaults(Any, Any, Faults{Drop: 0.1, Double: 0.1, Reorder: 0.1, Jitter: time.Millisecond})
	})})
}

func joiner(prepare func(*Network)) func(testing.TB) transporttest.Join {
	return func(testing.TB) transporttest.Join {
		n := New(Options{MaxMessageBytes: 1 << 20})
		prepare(n)
		return func(id int32) (transport.Transport, transport.Peer) {
			return n.Transport(id), transport.Peer{ID: id, Address: "anywhere"}
		}
	}
}
