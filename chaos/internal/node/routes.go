package node

import (
	"fmt"

	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/transport"
)

// routed is a transport that reaches each broker by a way of this sender's own, so
// that the faults of the way from one broker to another are nobody else's.
type routed struct {
	transport.Transport
	ways map[int32]string // by id
}

// Send implements transport.Transport.
func (r *routed) Send(to transport.Peer, m *protocol.Message) error {
	way, ok := r.ways[to.ID]
	if !ok {
		return fmt.Errorf("there is no way to broker %d", to.ID)
	}
	to.Address = way
	return r.Transport.Send(to, m)
}
