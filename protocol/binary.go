package protocol

import (
	"fmt"
	"slices"
)

// headerForm is the form of the header: the first byte of every message.
const headerForm = 1

// VersionError says that bytes are of a form or a version that this code does not
// know. Their sender is newer than this code, or no Tidemark.
type VersionError struct {
	Part    string // "header" or "payload"
	Version int    // what was found
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("protocol: %s of unknown version %d", e.Part, e.Version)
}

// WireError says that bytes are not the binary form of a message or payload, or
// that a message has none.
type WireError struct {
	At  int // where in the bytes
	Why string
}

func (e *WireError) Error() string {
	return fmt.Sprintf("protocol: wire form: %s at byte %d", e.Why, e.At)
}

// AppendBinary appends the binary form of the message to b. It appends at most
// m.Size() bytes, and allocates only if b has no room for as many. The error is a
// *WireError, and b is returned as it was: m has more than MaxMessageItems items,
// or a payload beside a fragment. It does not change m.
func (m *Message) AppendBinary(b []byte) ([]byte, error) {
	c := coder{b: slices.Grow(b, m.Size())}
	if m.wire(&c); c.err != nil {
		return b, c.err
	}
	return c.b, nil
}

// MarshalBinary returns the binary form of the message. See AppendBinary.
func (m *Message) MarshalBinary() ([]byte, error) { return m.AppendBinary(nil) }

// UnmarshalBinary makes m the message whose binary form is b. It refuses anything
// before or behind that, and takes memory in proportion to b, whatever b says.
// The error is a *VersionError or a *WireError, and m is zero then. m and b share
// nothing. What it accepts is well-formed, not more: see Valid.
func (m *Message) UnmarshalBinary(b []byte) error { return m.parse(coder{reading: true, b: b}) }

// Parse is UnmarshalBinary for bytes that belong to the message from now on: a
// transport has a fresh slice for each message that comes, and loses what Parse
// refuses. Batches that are half of b or more stay where they are; smaller ones
// are copied, so that whoever keeps one does not keep all that came with it.
func Parse(b []byte) (*Message, error) {
	m := new(Message)
	if err := m.parse(coder{reading: true, owned: true, b: b}); err != nil {
		return nil, err
	}
	return m, nil
}

func (m *Message) parse(c coder) error {
	*m = Message{}
	if m.wire(&c); c.err != nil {
		*m = Message{}
	}
	return c.err
}

// AppendBinary appends the binary form of the payload alone to b, at most
// p.Size()+2 bytes. See Message.AppendBinary.
func (p *Payload) AppendBinary(b []byte) ([]byte, error) {
	c := coder{b: slices.Grow(b, versionSize+p.Size())}
	if p.wire(&c); c.err != nil {
		return b, c.err
	}
	return c.b, nil
}

// MarshalBinary returns the binary form of the payload. See AppendBinary.
func (p *Payload) MarshalBinary() ([]byte, error) { return p.AppendBinary(nil) }

// UnmarshalBinary makes p the payload whose binary form is b, as
// Message.UnmarshalBinary does.
func (p *Payload) UnmarshalBinary(b []byte) error { return p.parse(coder{reading: true, b: b}) }

// ParsePayload is UnmarshalBinary for bytes that belong to the payload from now
// on, as those of Parse do.
func ParsePayload(b []byte) (p Payload, err error) {
	err = p.parse(coder{reading: true, owned: true, b: b})
	return p, err
}

func (p *Payload) parse(c coder) error {
	*p = Payload{}
	if p.wire(&c); c.err != nil {
		*p = Payload{}
	}
	return c.err
}
