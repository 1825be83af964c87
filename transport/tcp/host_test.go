package tcp

import (
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/transport"
)

// A host's listener that cannot be told to stop does not hold up Close, which says so.
func TestListenerThatCannotStop(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	accepting := make(chan struct{}, 10)
	stubborn := &stubbornListener{TCPListener: l.(*net.TCPListener), accepting: accepting}
	r := newRig(t, false)
	b, err := New(r.config(2, func(c *Config) { c.Listen, c.Listener = "", stubborn }))
	require.NoError(t, err)
	require.NoError(t, b.Start(nobody))
	<-accepting
	require.ErrorIs(t, b.Close(), errStubborn)
	require.NoError(t, b.Close())

	// Whoever is left there does not take part any more.
	c := dial(t, b, nil)
	require.Empty(t, c.ends())
	require.NoError(t, l.Close())
	require.Empty(t, accepting)
}

var errStubborn = errors.New("no deadline here")

// stubbornListener refuses deadlines that are past.
type stubbornListener struct {
	*net.TCPListener
	accepting chan struct{}
}

func (l *stubbornListener) Accept() (net.Conn, error) {
	l.accepting <- struct{}{}
	return l.TCPListener.Accept()
}

func (l *stubbornListener) SetDeadline(at time.Time) error {
	if !at.IsZero() {
		return errStubborn
	}
	return nil
}

// Once Close has returned, nobody is in the host's listener.
func TestCloseLeavesListener(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	slow := &slowListener{TCPListener: l.(*net.TCPListener), entered: make(chan struct{}, 1)}
	b := newRig(t, false).open(2, func(c *Config) { c.Listen, c.Listener = "", slow }, nobody)
	<-slow.entered
	require.NoError(t, b.Close())
	require.True(t, slow.left.Load())
}

type slowListener struct {
	*net.TCPListener
	entered chan struct{}
	left    atomic.Bool
}

func (l *slowListener) Accept() (net.Conn, error) {
	l.entered <- struct{}{}
	c, err := l.TCPListener.Accept()
	<-time.After(10 * step)
	l.left.Store(true)
	return c, err
}

// What the host's Dial and Listener return may be of any type, one that cannot be
// compared as well, and know no addresses.
func TestHostsConnectionsOfAnyType(t *testing.T) {
	both(t, func(t *testing.T, r *rig) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer l.Close()
		got := new(box)
		b := r.open(2, func(c *Config) { c.Listen, c.Listener = "", oddListener{l.(*net.TCPListener)} }, got.handle)
		a := r.open(1, func(c *Config) {
			c.Dial = func(ctx context.Context, address string) (net.Conn, error) {
				conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
				return oddConn{Conn: conn}, err
			}
		}, nobody)
		reach(t, a, peerOf(b), got, 1)
		c := dial(t, b, nil)
		c.send([]byte("SSH-2.0-OpenSSH\r\n"))
		c.ends()
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
	})
}

type oddConn struct {
	net.Conn
	_ []int // cannot be compared
}

func (oddConn) RemoteAddr() net.Addr { return nil }

type oddListener struct{ *net.TCPListener }

func (l oddListener) Accept() (net.Conn, error) {
	c, err := l.TCPListener.Accept()
	if err != nil {
		return nil, err
	}
	return oddConn{Conn: c}, nil
}

// A connection that is given up does not deliver later what the kernel still has: it
// is reset.
func TestAbandonedConnectionIsReset(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	a := newRig(t, false).open(1, nil, nobody)
	require.NoError(t, a.Send(transport.Peer{ID: 2, Address: l.Addr().String()}, message(protocol.Data, 1, 2, 1)))
	c, err := l.Accept()
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.SetDeadline(time.Now().Add(soon)))
	_, err = readHello(c)
	require.NoError(t, err)
	_, err = c.Write(greeting(2, 1, nil))
	require.NoError(t, err)
	eventually(t, func() bool { s := a.Stats().Peers[2]; return s.Sent.Total().Messages == 1 }, "it is not sent")
	require.NoError(t, a.Send(transport.Peer{ID: 2, Address: "127.0.0.1:1"}, message(protocol.Data, 1, 2, 2)))
	_, err = io.Copy(io.Discard, c)
	require.ErrorIs(t, err, syscall.ECONNRESET)
}

// The receiver waits for the larger of both ends' PeerTimeout, whichever that is.
func TestSilenceIsTheLargerTimeout(t *testing.T) {
	const short, long = 20 * time.Millisecond, 400 * time.Millisecond
	for name, timeouts := range map[string][2]time.Duration{"its own": {long, short}, "the peer's": {short, long}} {
		t.Run(name, func(t *testing.T) {
			b := newRig(t, false).open(2, func(c *Config) { c.PeerTimeout = timeouts[0] }, nobody)
			c := dial(t, b, nil)
			began := time.Now()
			c.greet(1, 2, func(h *hello) { h.timeout = timeouts[1] })
			c.ends()
			require.GreaterOrEqual(t, time.Since(began), long)
			eventually(t, func() bool { return b.Stats().Refused[CauseSilence] == 1 }, "%v", logged{b})
		})
	}
}

// What has waited too long while the connection was made does not go on it.
func TestStaleWhenConnected(t *testing.T) {
	r := newRig(t, false)
	b := r.open(2, nil, nobody)
	dialing, proceed := make(chan struct{}), make(chan struct{})
	var dials atomic.Int64
	a := r.open(1, func(c *Config) {
		c.DialTimeout = time.Minute
		c.Dial = func(ctx context.Context, address string) (net.Conn, error) {
			if dials.Add(1) == 1 {
				close(dialing)
				<-proceed
			}
			return new(net.Dialer).DialContext(ctx, "tcp", address)
		}
	}, nobody)
	require.NoError(t, a.Send(peerOf(b), message(protocol.Data, 1, 2, 1)))
	<-dialing
	<-time.After(staleAfter + 50*time.Millisecond)
	close(proceed)
	eventually(t, func() bool { s := a.Stats().Peers[2]; return s.Connected && s.QueueMessages == 0 }, "it is not connected")
	s := a.Stats().Peers[2]
	require.EqualValues(t, 1, s.Dropped.Stale)
	require.Zero(t, s.Sent.Total().Messages)
}
