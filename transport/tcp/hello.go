package tcp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"
)

// wireVersion is the version of hellos and frames that this code speaks.
const wireVersion = 1

// What TLS begins with, for who has it at one end only.
const (
	tlsAlert     = 0x15
	tlsHandshake = 0x16
)

var magic = [8]byte{'t', 'i', 'd', 'e', 'm', 'a', 'r', 'k'}

const helloFixed = len(magic) + 1 + 1 + 4 + 4 + 4 + 4 + 1

// hello is the first thing on a connection, both ways: the dialer's, and then the
// answer to it. Nothing else is sent before the answer has come.
type hello struct {
	version  uint8
	status   status        // answer: whether frames are taken
	timeout  time.Duration // PeerTimeout of the sender, in milliseconds on the wire
	limit    uint32        // dialer: the largest message it may send; answer: the largest that is taken
	from, to int32
	cluster  string
}

func (h *hello) append(b []byte) []byte {
	b = append(b, magic[:]...)
	b = append(b, h.version, byte(h.status))
	b = binary.BigEndian.AppendUint32(b, uint32(h.timeout/time.Millisecond))
	b = binary.BigEndian.AppendUint32(b, h.limit)
	b = binary.BigEndian.AppendUint32(b, uint32(h.from))
	b = binary.BigEndian.AppendUint32(b, uint32(h.to))
	b = append(b, byte(len(h.cluster)))
	return append(b, h.cluster...)
}

var (
	errMagic   = errors.New("not a hello")
	errVersion = errors.New("unknown version")
)

// readHello reads a hello and nothing behind it. What a hello of another version
// holds behind the version is not read: h.version is set, and the error errVersion.
func readHello(r io.Reader) (h hello, err error) {
	var fixed [helloFixed]byte
	const head = len(magic) + 1
	// The magic alone first: whatever speaks here without being asked, or waits to
	// be spoken to, is told from a hello as soon as can be.
	n, err := io.ReadFull(r, fixed[:head])
	if got := fixed[:min(n, len(magic))]; !bytes.HasPrefix(magic[:], got) {
		if got[0] == tlsHandshake || got[0] == tlsAlert {
			return h, fmt.Errorf("%w, perhaps TLS: %q", errMagic, got)
		}
		return h, fmt.Errorf("%w: %q", errMagic, got)
	}
	if err != nil {
		return h, err
	}
	if h.version = fixed[len(magic)]; h.version != wireVersion {
		return h, fmt.Errorf("%w %d", errVersion, h.version)
	}
	if _, err := io.ReadFull(r, fixed[head:]); err != nil {
		return h, err
	}
	rest := fixed[head:]
	h.status = status(rest[0])
	h.timeout = time.Duration(binary.BigEndian.Uint32(rest[1:])) * time.Millisecond
	h.limit = binary.BigEndian.Uint32(rest[5:])
	h.from = int32(binary.BigEndian.Uint32(rest[9:]))
	h.to = int32(binary.BigEndian.Uint32(rest[13:]))
	name := make([]byte, rest[17])
	if _, err := io.ReadFull(r, name); err != nil {
		return h, err
	}
	h.cluster = string(name)
	return h, nil
}

// status is what an answer says about the connection.
type status uint8

const (
	welcome      status = iota
	badVersion          // the version is not spoken here
	badCluster          // this is another cluster
	badIdentity         // the certificate is not that of the broker which the hello names
	badAddressee        // this is another broker than was meant
	badLimit            // the dialer's messages may be larger than what is taken here
	badCrowd            // too many brokers are connected
	badTimeout          // PeerTimeout is out of bounds
)

func (s status) String() string {
	switch s {
	case welcome:
		return "welcome"
	case badVersion:
		return "its version differs"
	case badCluster:
		return "it is of another cluster"
	case badIdentity:
		return "this broker's certificate does not have this broker's id"
	case badAddressee:
		return "it is another broker"
	case badLimit:
		return "it takes smaller messages only (MaxReceiveBytes)"
	case badCrowd:
		return "it has too many peers"
	case badTimeout:
		return "it wants another PeerTimeout"
	}
	return fmt.Sprintf("status %d", uint8(s))
}
