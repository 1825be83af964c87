package tcp

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tidemark-log/tidemark/internal/devcert"
	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/transport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	soon = 10 * time.Second // for what must happen
	step = 5 * time.Millisecond
)

func nobody(*protocol.Message) {}

// message is a small one of that kind.
func message(k protocol.Kind, from, to int32, seq uint64) *protocol.Message {
	return &protocol.Message{Kind: k, From: from, To: to, Session: 1, Seq: seq, MinVersion: 1, MaxVersion: 1}
}

// bulk is one with a batch of that size, which is no sound one.
func bulk(from, to int32, seq uint64, size int) *protocol.Message {
	m := message(protocol.Data, from, to, seq)
	m.Appends = []protocol.Append{{Batch: bytes.Repeat([]byte{byte(seq)}, size)}}
	return m
}

// box keeps what a Handler was given.
type box struct {
	mu  sync.Mutex
	got []*protocol.Message
}

func (b *box) handle(m *protocol.Message) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.got = append(b.got, m)
}

func (b *box) all() []*protocol.Message {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]*protocol.Message(nil), b.got...)
}

func (b *box) has(seq uint64) bool {
	for _, m := range b.all() {
		if m.Seq == seq {
			return true
		}
	}
	return false
}

// lines keeps log lines.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Count(l.b.Bytes(), []byte(text))
}

func (l *lines) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.ReplaceAll(l.b.String(), `\"`, `"`)
}

func (l *lines) String() string { return l.text() }

func (l *lines) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// rig is a cluster in the making.
type rig struct {
	t      testing.TB
	secure bool
	ca     *devcert.Authority
}

func newRig(t testing.TB, secure bool) *rig {
	ca, err := devcert.NewAuthority("c")
	require.NoError(t, err)
	return &rig{t: t, secure: secure, ca: ca}
}

// both runs a test without TLS and with it.
func both(t *testing.T, f func(t *testing.T, r *rig)) {
	t.Run("plain", func(t *testing.T) { f(t, newRig(t, false)) })
	t.Run("TLS", func(t *testing.T) { f(t, newRig(t, true)) })
}

func (r *rig) config(id int32, edit func(*Config)) Config {
	c := Config{ID: id, Cluster: "c", Listen: "127.0.0.1:0", Plaintext: !r.secure}
	if r.secure {
		var err error
		c.TLS, err = r.ca.Config(id)
		require.NoError(r.t, err)
	}
	if edit != nil {
		edit(&c)
	}
	return c
}

// open starts a transport, which is closed with the test.
func (r *rig) open(id int32, edit func(*Config), h transport.Handler) *Transport {
	tr, err := New(r.config(id, edit))
	require.NoError(r.t, err)
	r.t.Cleanup(func() { require.NoError(r.t, tr.Close()) })
	require.NoError(r.t, tr.Start(h))
	return tr
}

func peerOf(tr *Transport) transport.Peer {
	return transport.Peer{ID: tr.cfg.ID, Address: tr.Addr().String()}
}

// eventually polls until ok. It takes no goroutine, so that ok may count them.
func eventually(t testing.TB, ok func() bool, what string, args ...any) {
	t.Helper()
	for start := time.Now(); !ok(); <-time.After(step) {
		if time.Since(start) > soon {
			t.Fatalf(what, args...)
		}
	}
}

// reach sends until something has arrived.
func reach(t testing.TB, from *Transport, to transport.Peer, b *box, seq uint64) {
	t.Helper()
	start := time.Now()
	for wait := 20 * time.Millisecond; time.Since(start) < soon; {
		require.NoError(t, from.Send(to, message(protocol.Heartbeat, from.cfg.ID, to.ID, seq)))
		for tried := time.Now(); time.Since(tried) < wait; <-time.After(step) {
			if b.has(seq) {
				return
			}
		}
	}
	t.Fatalf("broker %d does not reach broker %d: %+v", from.cfg.ID, to.ID, from.Stats().Peers[to.ID])
}

// connection is one to a transport that a test speaks on by itself.
type connection struct {
	net.Conn
	t testing.TB
}

// dial connects to tr, with TLS if there is a configuration.
func dial(t testing.TB, tr *Transport, c *tls.Config) *connection {
	raw, err := net.Dial("tcp", tr.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = raw.Close() })
	require.NoError(t, raw.SetDeadline(time.Now().Add(soon)))
	if c == nil {
		return &connection{raw, t}
	}
	c = c.Clone()
	c.InsecureSkipVerify = true // the test is not what is tested
	return &connection{tls.Client(raw, c), t}
}

func (c *connection) send(b []byte) {
	c.t.Helper()
	_, _ = c.Write(b) // whether the other end takes it is what the test is about
}

// ends waits until the other end closes the connection, and returns what came before.
func (c *connection) ends() []byte {
	c.t.Helper()
	var all []byte
	for {
		b := make([]byte, 1000)
		n, err := c.Read(b)
		all = append(all, b[:n]...)
		if err != nil {
			var late net.Error
			require.False(c.t, errors.As(err, &late) && late.Timeout(), "the connection stays: %v", err)
			return all
		}
	}
}

// greeting is what a broker says first.
func greeting(from, to int32, edit func(*hello)) []byte {
	h := hello{version: wireVersion, timeout: DefaultPeerTimeout, limit: minMessageBytes, from: from, to: to, cluster: "c"}
	if edit != nil {
		edit(&h)
	}
	return h.append(nil)
}

// greet says hello, and requires to be welcome.
func (c *connection) greet(from, to int32, edit func(*hello)) {
	c.t.Helper()
	_, err := c.Write(greeting(from, to, edit))
	require.NoError(c.t, err)
	answer, err := readHello(c)
	require.NoError(c.t, err)
	require.Equal(c.t, welcome, answer.status)
}

func frameOf(t testing.TB, m *protocol.Message) []byte {
	b, err := appendFrame(nil, m)
	require.NoError(t, err)
	return b
}

// logged shows what a transport has refused, at the time when it is printed.
type logged struct{ *Transport }

func (l logged) String() string {
	s := l.Stats()
	return fmt.Sprintf("%v %+v", s.Refused, s.Peers)
}
