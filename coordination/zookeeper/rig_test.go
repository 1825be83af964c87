package zookeeper_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/coordination/zookeeper"
	"github.com/tidemark-log/tidemark/coordination/zookeeper/zkserver"
)

// shared is one server for all tests that leave it alone: each has a chroot of its own.
var shared struct {
	once   sync.Once
	dir    string
	server *zkserver.Server
	err    error
	used   atomic.Int64
}

func TestMain(m *testing.M) {
	m.Run()
	if shared.server != nil {
		_ = shared.server.Kill()
		_ = os.RemoveAll(shared.dir)
	}
}

// sharedServer returns the shared server and a chroot that nobody uses.
func sharedServer(t testing.TB) (addr, chroot string) {
	t.Helper()
	shared.once.Do(func() {
		if shared.dir, shared.err = os.MkdirTemp("", "zookeeper"); shared.err == nil {
			shared.server, shared.err = zkserver.Start(shared.dir, zkserver.Options{NoSync: true})
		}
	})
	if errors.Is(shared.err, zkserver.ErrNotInstalled) && os.Getenv("TIDEMARK_REQUIRE_ZOOKEEPER") != "1" {
		t.Skip(shared.err)
	}
	require.NoError(t, shared.err)
	return shared.server.Addr(), fmt.Sprintf("/test/%d", shared.used.Add(1))
}

// network is what lies between one handle and the server. It can be cut for good, and
// lose one transaction or its answer.
type network struct {
	mu    sync.Mutex
	cut   bool
	up    <-chan struct{} // not nil: closed once there is a server to dial
	fault fault
	held  chan struct{} // not nil: answers wait until it is closed
	conns map[*conn]struct{}
	asked map[uint32]int // requests of each kind
	first func()         // not nil: called before a transaction goes out
}

type fault int

const (
	none fault = iota
	drop       // the next transaction does not get through
	lose       // its answer does not
)

var errCut = errors.New("network: cut")

// dial is a Config's Dial.
func (n *network) dial(ctx context.Context, proto, address string) (net.Conn, error) {
	n.mu.Lock()
	cut, up := n.cut, n.up
	n.mu.Unlock()
	if cut {
		return nil, errCut
	}
	if up != nil {
		select {
		case <-up:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	inner, err := new(net.Dialer).DialContext(ctx, proto, address)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.conns == nil {
		n.conns = make(map[*conn]struct{})
	}
	c := &conn{Conn: inner, network: n}
	n.conns[c] = struct{}{}
	return c, nil
}

// setCut cuts the network, or mends it.
func (n *network) setCut(cut bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cut = cut
	if cut {
		for c := range n.conns {
			_ = c.Conn.Close()
		}
		clear(n.conns)
	}
}

// hold has answers wait until release is called.
func (n *network) hold() (release func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	held := make(chan struct{})
	n.held = held
	return sync.OnceFunc(func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.held = nil
		close(held)
	})
}

func (n *network) isCut() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.cut
}

// note counts the requests in b.
func (n *network) note(b []byte) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.asked == nil {
		n.asked = make(map[uint32]int)
	}
	for len(b) >= 12 {
		n.asked[binary.BigEndian.Uint32(b[8:])]++
		b = b[min(4+int(binary.BigEndian.Uint32(b)), len(b)):]
	}
}

// before has f called before each transaction goes out.
func (n *network) before(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.first = f
}

// count returns how many requests of a kind there were.
func (n *network) count(op uint32) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.asked[op]
}

// waitFor has dials wait until up is closed.
func (n *network) waitFor(up <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.up = up
}

// set sets what happens to the next transaction; it returns what was left of the last.
func (n *network) set(f fault) fault {
	n.mu.Lock()
	defer n.mu.Unlock()
	old := n.fault
	n.fault = f
	return old
}

type conn struct {
	net.Conn
	network *network
	losing  atomic.Bool
}

// Write looks for transactions. A write has whole frames, for so the client writes.
func (c *conn) Write(b []byte) (int, error) {
	const opMulti = 14
	c.network.note(b)
	for rest := b; len(rest) >= 12; rest = rest[min(4+int(binary.BigEndian.Uint32(rest)), len(rest)):] {
		if binary.BigEndian.Uint32(rest[8:]) != opMulti {
			continue
		}
		c.network.mu.Lock()
		first := c.network.first
		c.network.mu.Unlock()
		if first != nil {
			first()
		}
		switch c.network.set(none) {
		case drop:
			_ = c.Close()
			return 0, errCut
		case lose:
			c.losing.Store(true)
		}
	}
	return c.Conn.Write(b)
}

func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.network.mu.Lock()
	held := c.network.held
	c.network.mu.Unlock()
	if held != nil {
		<-held
	}
	if c.losing.Load() {
		_ = c.Conn.Close()
		return 0, errCut
	}
	return n, err
}

// handle is a Store behind a network of its own.
type handle struct {
	*zookeeper.Store
	network *network
	server  *faults
}

// faults are what the calls of Do will meet.
type faults struct{ drop, lose atomic.Int32 }

func take(n *atomic.Int32) bool {
	if n.Load() == 0 {
		return false
	}
	n.Add(-1)
	return true
}

// Do fails as it is told to. A transaction that writes nothing is not sent, so nothing can
// happen to it on the way.
func (h *handle) Do(ctx context.Context, t coordination.Txn) (coordination.TxnResult, error) {
	f := none
	if take(&h.server.drop) {
		f = drop
	} else if take(&h.server.lose) {
		f = lose
	}
	h.network.set(f)
	res, err := h.Store.Do(ctx, t)
	if h.network.set(none) != none {
		return coordination.TxnResult{}, coordination.ErrUnavailable
	}
	return res, err
}

// NewSession returns a session that is as dead as its handle, once that was fenced.
func (h *handle) NewSession(ctx context.Context, ttl time.Duration) (coordination.Session, error) {
	x, err := h.Store.NewSession(ctx, ttl)
	if err != nil {
		return nil, err
	}
	return &fenceable{x, h}, nil
}

// fenceable is a session of a handle. The model wants to hear of the fence, also when the
// handle was closed after it.
type fenceable struct {
	coordination.Session
	h *handle
}

func (f *fenceable) told(err error) error {
	if errors.Is(err, coordination.ErrClosed) && f.h.network.isCut() {
		return coordination.ErrUnavailable
	}
	return err
}

func (f *fenceable) Renew(ctx context.Context) error { return f.told(f.Session.Renew(ctx)) }
func (f *fenceable) Close(ctx context.Context) error { return f.told(f.Session.Close(ctx)) }

// open opens a Store for a test. Where a test is not about time a server may take its
// own: several of them share a small machine.
func open(t testing.TB, c zookeeper.Config) *zookeeper.Store {
	t.Helper()
	if c.RequestTimeout == 0 {
		c.RequestTimeout = 20 * time.Second
	}
	if c.DialTimeout == 0 {
		c.DialTimeout = 20 * time.Second
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	s, err := zookeeper.Open(ctx, c)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// fresh opens a Store in a chroot of its own on the shared server.
func fresh(t testing.TB) (*zookeeper.Store, zookeeper.Config) {
	t.Helper()
	addr, chroot := sharedServer(t)
	c := zookeeper.Config{Servers: []string{addr}, Chroot: chroot, DialTimeout: 10 * time.Second}
	return open(t, c), c
}

func put(key, value string) coordination.Op {
	return coordination.Op{Key: key, Value: []byte(value)}
}

func putFor(x coordination.Session, key, value string) coordination.Op {
	return coordination.Op{Key: key, Value: []byte(value), Session: x.ID()}
}

// do runs a transaction that must be applied.
func do(t testing.TB, s coordination.Store, ops ...coordination.Op) int64 {
	t.Helper()
	res, err := s.Do(t.Context(), coordination.Txn{Ops: ops})
	require.NoError(t, err)
	require.True(t, res.Applied)
	return res.Revision
}

func keys(t testing.TB, s coordination.Store, prefix string) (keys []string) {
	t.Helper()
	kvs, _, err := s.List(t.Context(), prefix)
	require.NoError(t, err)
	for _, kv := range kvs {
		keys = append(keys, kv.Key)
	}
	return keys
}

// session begins a session.
func session(t testing.TB, s coordination.Store, ttl time.Duration) coordination.Session {
	t.Helper()
	x, err := s.NewSession(t.Context(), ttl)
	require.NoError(t, err)
	return x
}

// watch begins a watch.
func watch(t testing.TB, s coordination.Store, prefix string, after int64) <-chan coordination.Changes {
	t.Helper()
	ch, err := s.Watch(t.Context(), prefix, after)
	require.NoError(t, err)
	return ch
}

// patience is how long a test waits for what has to happen soon.
const patience = 20 * time.Second

// next receives from a watch.
func next(t testing.TB, ch <-chan coordination.Changes) coordination.Changes {
	t.Helper()
	select {
	case c, ok := <-ch:
		require.True(t, ok, "watch has ended")
		return c
	case <-time.After(patience):
		require.FailNow(t, "watch is silent")
		return coordination.Changes{}
	}
}

// told receives n events, as text: "key=value" or "-key".
func told(t testing.TB, ch <-chan coordination.Changes, n int) (events []string) {
	t.Helper()
	for len(events) < n {
		c := next(t, ch)
		require.NoError(t, c.Err)
		for _, ev := range c.Events {
			if ev.Deleted {
				events = append(events, "-"+ev.Key)
			} else {
				events = append(events, ev.Key+"="+string(ev.Value))
			}
		}
	}
	return events
}

// ends requires that a watch ends with an error.
func ends(t testing.TB, ch <-chan coordination.Changes, err error) {
	t.Helper()
	for {
		if c := next(t, ch); c.Err != nil {
			require.ErrorIs(t, c.Err, err)
			return
		}
	}
}

// eventually polls until good returns true.
func eventually(t testing.TB, good func() bool) {
	t.Helper()
	require.Eventually(t, good, patience, 10*time.Millisecond)
}
