// Package transport is the contract between Tidemark and the network that its
// host already has. A Transport moves whole messages between brokers; it needs
// no order, no delivery guarantee and no knowledge of what a message means.
// Package transporttest tests an implementation against what is written here.
//
// # What a Transport may do
//
// Tidemark's links (one per pair of brokers) number what they send, so a
// Transport may lose, double, delay or reorder messages: links notice and
// recover. None of it should be the rule. A lost message ends its link's
// session, and so does one that comes SessionTimeout/12 after what was sent
// behind it, or behind which more than a thousand others came first; nothing
// heard for SessionTimeout/2 is taken for a broker that is down.
//
// # What it must not do
//
// It must not invent a message, change one, or hand it to another broker than
// the one at the Peer it was sent to. Links and checksums notice much of that,
// but nobody can notice all of it. Who may take part is the Transport's to know
// as well: whoever gets a message to a Handler is a broker to Tidemark.
//
// # Room
//
// What waits for one peer is bounded in bytes. The bound is best above 16 MiB
// and 1,024 messages: that is how far a link sends ahead of its peer, and what
// is refused is lost. A peer that takes nothing must not hold up messages to
// other peers, nor from them.
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
// A broker that restarted may be reached elsewhere: the Peer of the call counts,
// not an earlier one of the same ID.
type Peer struct {
	ID      int32
	Address string // opaque to Tidemark: whatever the host put into Config.Address
}

// Handler receives every message addressed to this broker. It does not block,
// and it may be called from several goroutines at once. It calls Send of the same
// Transport, so that no lock may be held around it that Send needs. It never
// calls Close. The message and the bytes that it refers to belong to Tidemark
// from then on: they are kept, and must not be used for the next message.
type Handler func(*protocol.Message)

// Transport moves messages between brokers. All methods may be called from any
// goroutine.
type Transport interface {
	// Start begins delivery to h. The Broker calls it once, before any Send.
	// What arrived before that may be lost. After Close it returns ErrClosed.
	Start(h Handler) error

	// Send queues m for the peer, or refuses it with an error: ErrTooLarge
	// whoever the peer is, ErrBusy when there is no room, ErrClosed after Close,
	// any error before Start or while the peer cannot be reached. It never blocks,
	// not even to connect. A nil error promises nothing: m may be lost, doubled or
	// overtaken. Neither side changes m or the bytes that it refers to after the
	// call.
	Send(to Peer, m *protocol.Message) error

	// MaxMessageBytes is the largest Message.Size that Send takes. It does not
	// change, does not block, and is known before Start. A Broker needs 16 KiB at
	// least; what is larger than the limit travels in fragments.
	MaxMessageBytes() int

	// Close stops delivery and frees what the transport opened; listeners and
	// connections that the host supplied stay the host's. It waits for the calls
	// of the Handler that are running, and for no peer: when it returns, the
	// Handler is not running, is not called again, and no goroutine of the
	// transport is left. It is idempotent, may come before Start, and is not
	// called from within the Handler.
	Close() error
}
