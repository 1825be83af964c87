// Package transport is the contract between Tidemark and the network that its
// host already has. A Transport moves whole messages between brokers; it needs
// no order, no delivery guarantee and no knowledge of what a message means.
//
// Tidemark's links (one per pair of brokers) number what they send, so a
// Transport may lose, double or reorder messages: links notice and recover.
package transport

import (
	"errors"

	"github.com/tidemark-log/tidemark/protocol"
)

// ErrClosed is returned by Start and Send after Close.
var ErrClosed = errors.New("transport: closed")

// ErrBusy is returned by Send when the message was refused because a queue is
// full. The message was not sent and will not be.
var ErrBusy = errors.New("transport: send queue is full")

// ErrTooLarge is returned by Send for a message above MaxMessageBytes.
var ErrTooLarge = errors.New("transport: message above MaxMessageBytes")

// Peer names a broker and says where its registration claims it can be reached.
type Peer struct {
	ID      int32
	Address string // opaque to Tidemark: whatever the host put into Config.Address
}

// Handler receives every message addressed to this broker. It does not block,
// and it may be called from several goroutines at once. The message and the
// bytes that it refers to belong to Tidemark from then on.
type Handler func(*protocol.Message)

// Transport moves messages between brokers. All methods may be called from any
// goroutine.
type Transport interface {
	// Start begins delivery to h. The Broker calls it once, before any Send.
	Start(h Handler) error
	// Send queues m for the peer, or refuses it with an error. It never blocks.
	// A nil error promises nothing: m may be lost, doubled or overtaken. Neither
	// side changes m or the bytes that it refers to after the call.
	Send(to Peer, m *protocol.Message) error
	// MaxMessageBytes is the largest Message.Size that Send takes.
	MaxMessageBytes() int
	// Close stops delivery and frees what the transport opened; listeners and
	// connections that the host supplied stay the host's. It is idempotent, and
	// once it returned the Handler is not called again.
	Close() error
}
