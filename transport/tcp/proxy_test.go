package tcp

import (
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/transport"
)

// proxy stands before a transport, and does to connections what networks do.
type proxy struct {
	l       net.Listener
	to      string
	there   way // from who dials
	back    way
	dialled atomic.Int64
	all     sync.WaitGroup

	mu    sync.Mutex
	conns []net.Conn
	over  bool
}

// way is one direction of all connections.
type way struct {
	swallow atomic.Bool  // bytes vanish, without an error
	rate    atomic.Int64 // bytes a second; 0: no limit
	carried atomic.Int64
}

func newProxy(t testing.TB, to string) *proxy {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{l: l, to: to}
	p.all.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

func (p *proxy) peer(id int32) transport.Peer {
	return transport.Peer{ID: id, Address: p.l.Addr().String()}
}

func (p *proxy) accept() {
	for {
		a, err := p.l.Accept()
		if err != nil {
			return
		}
		p.dialled.Add(1)
		b, err := net.Dial("tcp", p.to)
		if err != nil {
			_ = a.Close()
			continue
		}
		p.mu.Lock()
		if p.over {
			_, _ = a.Close(), b.Close()
		} else {
			p.conns = append(p.conns, a, b)
			p.all.Go(func() { p.carry(a, b, &p.there) })
			p.all.Go(func() { p.carry(b, a, &p.back) })
		}
		p.mu.Unlock()
	}
}

// carry ends when from does, or to does not take it; then it ends both, unless bytes
// vanish: then their end is not seen either.
func (p *proxy) carry(from, to net.Conn, w *way) {
	b := make([]byte, 4<<10)
	for {
		part := b
		rate := w.rate.Load()
		if rate > 0 {
			part = b[:max(1, min(int64(len(b)), rate/50))]
		}
		n, err := from.Read(part)
		if rate > 0 {
			<-time.After(time.Duration(n) * time.Second / time.Duration(rate))
		}
		if !w.swallow.Load() {
			if err == nil {
				_, err = to.Write(part[:n])
			}
			if err != nil {
				_, _ = from.Close(), to.Close()
			}
		}
		if err != nil {
			return
		}
		w.carried.Add(int64(n))
	}
}

// cut ends all connections that there are.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		_ = c.Close()
	}
	p.conns = nil
}

func (p *proxy) close() {
	_ = p.l.Close()
	p.mu.Lock()
	p.over = true
	p.mu.Unlock()
	p.cut()
	p.all.Wait()
}
