package transporttest

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/transport"
)

// The suite is not made for one transport: this one moves bytes over TCP, as
// simply as one can.
func TestOverTCP(t *testing.T) {
	Run(t, Config{Ordered: true, New: func(t testing.TB) Join {
		return func(id int32) (transport.Transport, transport.Peer) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(context.Background())
			s := &simpleTCP{l: l, ctx: ctx, cancel: cancel, peers: make(map[string]*outgoing)}
			return s, transport.Peer{ID: id, Address: l.Addr().String()}
		}
	}})
}

const (
	simpleMax   = 4 << 20
	simpleQueue = 24 << 20
)

// simpleTCP has a connection for each direction, and dials it when it sends.
type simpleTCP struct {
	l      net.Listener
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	all    sync.WaitGroup

	mu      sync.Mutex
	started bool
	peers   map[string]*outgoing // by address
}

// outgoing is a connection and what waits for it.
type outgoing struct {
	frames [][]byte
	bytes  int
	more   chan struct{} // has a token if there are frames
}

func (s *simpleTCP) MaxMessageBytes() int { return simpleMax }

func (s *simpleTCP) Start(h transport.Handler) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return transport.ErrClosed
	}
	s.started = true
	s.all.Go(func() {
		for {
			c, err := s.l.Accept()
			if err != nil {
				return
			}
			s.all.Go(func() { s.read(c, h) })
		}
	})
	return nil
}

func (s *simpleTCP) read(c net.Conn, h transport.Handler) {
	defer c.Close()
	defer context.AfterFunc(s.ctx, func() { c.Close() })()
	r := bufio.NewReader(c)
	var n [4]byte
	for {
		if _, err := io.ReadFull(r, n[:]); err != nil {
			return
		}
		b := make([]byte, min(binary.BigEndian.Uint32(n[:]), simpleMax))
		if _, err := io.ReadFull(r, b); err != nil {
			return
		}
		m, err := protocol.Parse(b)
		if err != nil || s.ctx.Err() != nil {
			return
		}
		h(m)
	}
}

func (s *simpleTCP) Send(to transport.Peer, m *protocol.Message) error {
	if m.Size() > simpleMax {
		return transport.ErrTooLarge
	}
	frame, err := m.AppendBinary(make([]byte, 4, 4+m.Size()))
	if err != nil {
		return err
	}
	binary.BigEndian.PutUint32(frame, uint32(len(frame)-4))
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ctx.Err() != nil:
		return transport.ErrClosed
	case !s.started:
		return errors.New("not started")
	}
	p := s.peers[to.Address]
	if p == nil {
		p = &outgoing{more: make(chan struct{}, 1)}
		s.peers[to.Address] = p
		s.all.Go(func() { s.write(to.Address, p) })
	}
	if p.bytes+len(frame) > simpleQueue {
		return transport.ErrBusy
	}
	p.frames, p.bytes = append(p.frames, frame), p.bytes+len(frame)
	select {
	case p.more <- struct{}{}:
	default:
	}
	return nil
}

// write sends what waits until the connection breaks. The next Send makes another.
func (s *simpleTCP) write(address string, p *outgoing) {
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.peers, address)
	}()
	c, err := new(net.Dialer).DialContext(s.ctx, "tcp", address)
	if err != nil {
		return
	}
	defer c.Close()
	defer context.AfterFunc(s.ctx, func() { c.Close() })()
	for {
		select {
		case <-p.more:
		case <-s.ctx.Done():
			return
		}
		s.mu.Lock()
		frames := net.Buffers(p.frames)
		p.frames = nil
		s.mu.Unlock()
		n, err := frames.WriteTo(c)
		if err != nil {
			return
		}
		s.mu.Lock()
		p.bytes -= int(n)
		s.mu.Unlock()
	}
}

func (s *simpleTCP) Close() error {
	s.mu.Lock()
	s.cancel()
	s.mu.Unlock()
	err := s.l.Close()
	s.all.Wait()
	if errors.Is(err, net.ErrClosed) {
		err = nil
	}
	return err
}
