package proxy_test

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tidemark-log/tidemark/chaos/internal/proxy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a proxy in front of a listener, with one connection through it.
type rig struct {
	t        testing.TB
	p        *proxy.Proxy
	listener net.Listener
	from, to net.Conn
}

func newRig(t testing.TB) *rig {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p, err := proxy.Listen()
	require.NoError(t, err)
	p.SetTarget(l.Addr().String())
	r := &rig{t: t, p: p, listener: l}
	t.Cleanup(func() {
		require.NoError(t, p.Close())
		require.NoError(t, p.Close())
		_ = r.from.Close()
		_ = r.to.Close()
		_ = l.Close()
	})
	r.connect()
	return r
}

func (r *rig) connect() {
	var err error
	r.from, err = net.Dial("tcp", r.p.Addr())
	require.NoError(r.t, err)
	r.to, err = r.listener.Accept()
	require.NoError(r.t, err)
}

func (r *rig) write(c net.Conn, s string) {
	_, err := c.Write([]byte(s))
	require.NoError(r.t, err)
}

// read wants exactly s, within a time.
func (r *rig) read(c net.Conn, s string) {
	r.t.Helper()
	require.NoError(r.t, c.SetReadDeadline(time.Now().Add(10*time.Second)))
	buf := make([]byte, len(s))
	_, err := io.ReadFull(c, buf)
	require.NoError(r.t, err)
	require.Equal(r.t, s, string(buf))
}

// silent wants nothing to come for a while.
func (r *rig) silent(c net.Conn) {
	r.t.Helper()
	require.NoError(r.t, c.SetReadDeadline(time.Now().Add(100*time.Millisecond)))
	_, err := c.Read(make([]byte, 1))
	var timeout net.Error
	require.ErrorAs(r.t, err, &timeout)
	require.True(r.t, timeout.Timeout())
}

func TestPassesOn(t *testing.T) {
	r := newRig(t)
	r.write(r.from, "there")
	r.read(r.to, "there")
	r.write(r.to, "back")
	r.read(r.from, "back")
	require.NoError(t, r.from.(*net.TCPConn).CloseWrite())
	_, err := r.to.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
	r.write(r.to, "half open")
	r.read(r.from, "half open")
	forward, backward := r.p.Passed()
	require.EqualValues(t, 5, forward)
	require.EqualValues(t, 13, backward)
}

func TestCut(t *testing.T) {
	r := newRig(t)
	lift := r.p.Impose(proxy.Fault{Cut: true})
	for _, c := range []net.Conn{r.from, r.to} {
		_, err := c.Read(make([]byte, 1))
		require.Error(t, err)
	}
	c, err := net.Dial("tcp", r.p.Addr())
	if err == nil {
		_, err = c.Read(make([]byte, 1))
		require.Error(t, err)
		require.NoError(t, c.Close())
	}
	lift()
	lift()
	r.connect()
	r.write(r.from, "again")
	r.read(r.to, "again")
}

func TestOneWay(t *testing.T) {
	r := newRig(t)
	lift := r.p.Impose(proxy.Fault{HoldForward: true})
	r.write(r.from, "held")
	r.write(r.to, "passes")
	r.read(r.from, "passes")
	r.silent(r.to)
	lift()
	r.read(r.to, "held")
	lift = r.p.Impose(proxy.Fault{HoldBackward: true})
	both := r.p.Impose(proxy.Fault{HoldForward: true})
	r.write(r.to, "held")
	r.write(r.from, "held too")
	require.NoError(t, r.to.(*net.TCPConn).CloseWrite(), "nobody hears of that either")
	r.silent(r.from)
	r.silent(r.to)
	both()
	r.read(r.to, "held too")
	r.silent(r.from)
	lift()
	r.read(r.from, "held")
}

func TestDelayAndRate(t *testing.T) {
	r := newRig(t)
	lift := r.p.Impose(proxy.Fault{Delay: 80 * time.Millisecond, Jitter: 40 * time.Millisecond})
	began := time.Now()
	for range 10 {
		r.write(r.from, "x")
	}
	r.read(r.to, "xxxxxxxxxx")
	took := time.Since(began)
	require.GreaterOrEqual(t, took, 80*time.Millisecond)
	require.Less(t, took, 700*time.Millisecond, "delays do not add up")
	lift()

	defer r.p.Impose(proxy.Fault{Rate: 1 << 20})()
	big := make([]byte, 512<<10)
	began = time.Now()
	sent := make(chan error, 1)
	go func() {
		_, err := r.from.Write(big)
		sent <- err
	}()
	require.NoError(t, r.to.SetReadDeadline(time.Now().Add(10*time.Second)))
	_, err := io.ReadFull(r.to, make([]byte, len(big)))
	require.NoError(t, err)
	require.NoError(t, <-sent)
	require.GreaterOrEqual(t, time.Since(began), 400*time.Millisecond)
}

// Close ends what hangs, and nothing is left.
func TestCloseWhileHeld(t *testing.T) {
	r := newRig(t)
	r.p.Impose(proxy.Fault{HoldForward: true, HoldBackward: true, Rate: 1})
	r.write(r.from, "a")
	r.write(r.to, "b")
}

func TestNoTarget(t *testing.T) {
	p, err := proxy.Listen()
	require.NoError(t, err)
	defer p.Close()
	if c, err := net.Dial("tcp", p.Addr()); err == nil {
		_, err = c.Read(make([]byte, 1))
		require.Error(t, err)
		require.NoError(t, c.Close())
	}
}
