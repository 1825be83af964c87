package tcp

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/protocol"
)

// FuzzHello: what is read as a hello is one, and nothing behind it is read.
func FuzzHello(f *testing.F) {
	f.Add(greeting(2, 1, nil))
	f.Add(append(greeting(1<<31-1, 0, nil), 0, 0, 0, 0))
	f.Add(greeting(2, 1, func(h *hello) { h.version = 2 }))
	f.Add(greeting(2, 1, func(h *hello) { h.status, h.cluster = badCluster, "" }))
	f.Add(greeting(2, 1, nil)[:30])
	f.Add([]byte("GET / HTTP/1.1\r\n"))
	f.Add([]byte("tide"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		h, err := readHello(r)
		used := len(b) - r.Len()
		slow, slowErr := readHello(iotest.OneByteReader(bytes.NewReader(b)))
		require.Equal(t, h, slow)
		require.Equal(t, err == nil, slowErr == nil)
		switch {
		case err == nil:
			require.Equal(t, b[:used], h.append(nil))
		case errors.Is(err, errMagic):
			require.False(t, bytes.HasPrefix(b, magic[:]))
		case errors.Is(err, errVersion):
			require.NotEqual(t, uint8(wireVersion), h.version)
		default:
			require.Contains(t, []error{io.EOF, io.ErrUnexpectedEOF}, err)
			require.Equal(t, len(b), used)
		}
	})
}

// FuzzFrames: whatever comes is messages that mean what they say, or an end of a known
// kind; how it comes in pieces does not matter.
func FuzzFrames(f *testing.F) {
	whole := func(m *protocol.Message) []byte { return frameOf(f, m) }
	f.Add(whole(message(protocol.Heartbeat, 1, 2, 3)))
	f.Add(append(append([]byte{0, 0, 0, 0}, whole(bulk(1, 2, 3, 1000))...), whole(message(protocol.Hello, 1, 2, 3))...))
	f.Add(whole(bulk(1, 2, 3, 1000))[:900])
	f.Add(length(1 << 31))
	f.Add(length(uint32(leastFrame())))
	f.Add(append(length(100_000), make([]byte, 200)...))
	f.Add([]byte{0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		const limit = 128 << 10
		read := func(r io.Reader) (all []*protocol.Message, end error) {
			frames := newFrameReader(r, limit)
			for {
				m, n, err := frames.next()
				if err != nil {
					return all, err
				}
				if m != nil {
					require.GreaterOrEqual(t, n, leastFrame())
					require.LessOrEqual(t, n, limit)
					all = append(all, m)
				}
			}
		}
		all, end := read(bytes.NewReader(b))
		again, endAgain := read(iotest.HalfReader(bytes.NewReader(b)))
		require.Equal(t, all, again)
		require.Equal(t, end.Error(), endAgain.Error())
		switch {
		case end == io.EOF, end == io.ErrUnexpectedEOF, errors.Is(end, errFrame):
		default:
			t.Fatalf("ends with %v", end)
		}
		var sent []byte
		for _, m := range all {
			sent = append(sent, frameOf(t, m)...)
		}
		back, end := read(bytes.NewReader(sent))
		require.Equal(t, all, back)
		require.Equal(t, io.EOF, end)
	})
}
