package tcp

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/tidemark-log/tidemark/protocol"
)

// A frame is its length and as many bytes, the binary form of a message. One of
// length 0 is a ping: there is nothing in it but that its sender lives.
const frameHeader = 4

const (
	readBuffer = 64 << 10
	firstPiece = 128 << 10 // what is allocated of a large frame before any of it has come,
	growth     = 16        // and how many times what has come after that
)

var errFrame = errors.New("frame")

// leastFrame is the length of the shortest message there is.
var leastFrame = sync.OnceValue(func() int {
	b, err := new(protocol.Message).MarshalBinary()
	if err != nil {
		return 1
	}
	return len(b)
})

// appendFrame appends the frame of m to b. With an error b is as it was.
func appendFrame(b []byte, m *protocol.Message) ([]byte, error) {
	at := len(b)
	framed, err := m.AppendBinary(append(b, 0, 0, 0, 0))
	if err != nil {
		return b, err
	}
	binary.BigEndian.PutUint32(framed[at:], uint32(len(framed)-at-frameHeader))
	return framed, nil
}

// frameReader reads frames of at most max bytes.
type frameReader struct {
	r   *bufio.Reader
	max int
}

func newFrameReader(r io.Reader, max int) *frameReader {
	return &frameReader{r: bufio.NewReaderSize(r, readBuffer), max: max}
}

// next returns the next message and the length of its frame; nil for a ping. The
// error is io.EOF where the stream ends between frames, io.ErrUnexpectedEOF within
// one, and wraps errFrame where it is no frame, or holds no message.
func (f *frameReader) next() (*protocol.Message, int, error) {
	head, err := f.r.Peek(frameHeader)
	if err != nil {
		if len(head) > 0 && err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return nil, 0, err
	}
	length := binary.BigEndian.Uint32(head)
	_, _ = f.r.Discard(frameHeader) // it is there
	if length == 0 {
		return nil, 0, nil
	}
	if int64(length) > int64(f.max) || length < uint32(leastFrame()) {
		return nil, 0, fmt.Errorf("%w of %d bytes, not from %d to %d", errFrame, length, leastFrame(), f.max)
	}
	n := int(length)
	m, err := f.message(n)
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return m, n, err
}

// message reads n bytes and what they mean.
func (f *frameReader) message(n int) (*protocol.Message, error) {
	if n <= readBuffer {
		b, err := f.r.Peek(n)
		if err != nil {
			return nil, err
		}
		m := new(protocol.Message) // it shares nothing with the buffer
		if err := m.UnmarshalBinary(b); err != nil {
			return nil, fmt.Errorf("%w of %d bytes: %w", errFrame, n, err)
		}
		_, _ = f.r.Discard(n) // it is there
		return m, nil
	}
	b, err := f.large(n)
	if err != nil {
		return nil, err
	}
	m, err := protocol.Parse(b)
	if err != nil {
		return nil, fmt.Errorf("%w of %d bytes: %w", errFrame, n, err)
	}
	return m, nil
}

// large reads n bytes into memory of their own, which grows with what has come.
func (f *frameReader) large(n int) ([]byte, error) {
	b := make([]byte, 0, min(n, firstPiece))
	for {
		have := len(b)
		b = b[:cap(b)]
		if _, err := io.ReadFull(f.r, b[have:]); err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
		if len(b) == n {
			return b, nil
		}
		grown := make([]byte, len(b), min(n, growth*len(b)))
		copy(grown, b)
		b = grown
	}
}

// An ack goes back to the dialer: how many bytes of frames have been read, with
// those that are read no further than into a buffer.
const ackSize = 8

func readAck(r io.Reader) (uint64, error) {
	var b [ackSize]byte
	_, err := io.ReadFull(r, b[:])
	return binary.BigEndian.Uint64(b[:]), err
}
