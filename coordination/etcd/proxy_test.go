package etcd_test

import (
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// proxy is the network between one client and etcd.
type proxy struct {
	l      net.Listener
	target string
	wg     sync.WaitGroup

	mu    sync.Mutex
	cut   bool
	mute  bool // bytes vanish without a word
	conns map[net.Conn]struct{}
}

func newProxy(t testing.TB, endpoint string) *proxy {
	_, target, _ := strings.Cut(endpoint, "://")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{l: l, target: target, conns: make(map[net.Conn]struct{})}
	p.wg.Go(p.accept)
	return p
}

func (p *proxy) address() string { return p.l.Addr().String() }

func (p *proxy) accept() {
	for {
		in, err := p.l.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", p.target)
		if err != nil {
			in.Close()
			continue
		}
		p.mu.Lock()
		if p.cut {
			in.Close()
			out.Close()
		} else {
			p.conns[in], p.conns[out] = struct{}{}, struct{}{}
			p.wg.Go(func() { p.copy(in, out) })
			p.wg.Go(func() { p.copy(out, in) })
		}
		p.mu.Unlock()
	}
}

func (p *proxy) copy(to, from net.Conn) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		p.mu.Lock()
		mute := p.mute
		p.mu.Unlock()
		if n > 0 && !mute {
			_, err = to.Write(buf[:n])
		}
		if err != nil && err != io.EOF || n == 0 {
			p.drop(from, to)
			return
		}
	}
}

func (p *proxy) drop(conns ...net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		c.Close()
		delete(p.conns, c)
	}
}

// setCut closes all connections and takes no new ones, or takes them again.
func (p *proxy) setCut(cut bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = cut
	if cut {
		for c := range p.conns {
			c.Close()
		}
	}
}

// setMute makes the connections take everything and pass nothing on.
func (p *proxy) setMute(mute bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mute = mute
}

func (p *proxy) close() {
	p.l.Close()
	p.setCut(true)
	p.wg.Wait()
}
