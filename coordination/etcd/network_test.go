package etcd_test

import (
	"bytes"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/coordination/etcd"
)

// buffer is a log that can be read while it is written.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// TestOpenBeforeEtcd: a Store does not wait for etcd, and finds it when it comes.
func TestOpenBeforeEtcd(t *testing.T) {
	c := oneMember(t)
	var log buffer
	s := open(t, etcd.Config{Endpoints: []string{c.Client}, Logger: slog.New(slog.NewTextHandler(&log, nil)), RequestTimeout: time.Second})
	_, _, err := s.Get(ctx, "k")
	require.ErrorIs(t, err, coordination.ErrUnavailable)
	_, err = s.Watch(ctx, "", 0)
	require.ErrorIs(t, err, coordination.ErrUnavailable)
	_, err = s.NewSession(ctx, time.Second)
	require.ErrorIs(t, err, coordination.ErrUnavailable)
	require.Eventually(t, func() bool { return bytes.Contains([]byte(log.String()), []byte("out of reach")) }, 10*time.Second, 10*time.Millisecond)
	startProcess(t, c).endpoint()
	begun := time.Now()
	require.Eventually(t, func() bool { _, _, err := s.Get(ctx, "k"); return err == nil }, 5*time.Second, time.Millisecond)
	require.Less(t, time.Since(begun), time.Second)
	require.Eventually(t, func() bool { return bytes.Contains([]byte(log.String()), []byte("within reach again")) }, 10*time.Second, 10*time.Millisecond)
	require.Equal(t, 2, bytes.Count([]byte(log.String()), []byte("\n")), log.String())
}

// TestHalfOpen: the peer vanishes without a word, so that the connection takes writes
// and answers nothing. It is replaced, and until then calls end by their own limits.
func TestHalfOpen(t *testing.T) {
	p := newProxy(t, startProcess(t, oneMember(t)).endpoint())
	defer p.close()
	s := open(t, etcd.Config{Endpoints: []string{p.address()}, RequestTimeout: 500 * time.Millisecond, StallLimit: time.Second})
	sess := session(t, s, 4*time.Second)
	rev := do(t, s, coordination.Op{Key: "e", Session: sess.ID()})
	ch, err := s.Watch(ctx, "", rev)
	require.NoError(t, err)
	p.setMute(true)
	begun := time.Now()
	_, _, err = s.Get(ctx, "e")
	require.ErrorIs(t, err, coordination.ErrUnavailable)
	require.Less(t, time.Since(begun), 2*time.Second)
	changes := <-ch // ends with the connection
	require.ErrorIs(t, changes.Err, coordination.ErrUnavailable)
	require.Less(t, time.Since(begun), 4*time.Second)
	p.setMute(false)
	require.Eventually(t, func() bool { return renewOnce(sess) == nil }, 5*time.Second, 10*time.Millisecond)
	_, there, err := s.Get(ctx, "e")
	require.NoError(t, err)
	require.True(t, there)
}

// TestOneEndpointOfTwo: what is left of the endpoints serves.
func TestOneEndpointOfTwo(t *testing.T) {
	endpoint := startProcess(t, oneMember(t)).endpoint()
	good, bad := newProxy(t, endpoint), newProxy(t, endpoint)
	defer good.close()
	defer bad.close()
	s := open(t, etcd.Config{Endpoints: []string{bad.address(), good.address()}, StallLimit: time.Second})
	const ttl = 2 * time.Second
	sess := session(t, s, ttl)
	do(t, s, coordination.Op{Key: "e", Session: sess.ID()})
	r := renew(sess, ttl)
	for _, silent := range []bool{false, true} {
		if silent {
			bad.setMute(true)
		} else {
			bad.setCut(true)
		}
		<-time.After(2 * ttl)
		bad.setCut(false)
		<-time.After(ttl / 4)
	}
	r.stop()
	require.NoError(t, r.err)
	_, there, err := s.Get(ctx, "e")
	require.NoError(t, err)
	require.True(t, there)
	t.Logf("longest gap of renewals %v", r.gap)
	require.Less(t, r.gap, ttl)
}

// TestNothingIsLeft: a Store that was closed has no goroutine, whatever it was at.
func TestNothingIsLeft(t *testing.T) {
	p := newProxy(t, startProcess(t, oneMember(t)).endpoint())
	defer p.close()
	before := goleak.IgnoreCurrent()
	for i := range 10 {
		s, err := etcd.Open(ctx, etcd.Config{Endpoints: []string{p.address()}})
		require.NoError(t, err)
		if i%3 < 2 {
			sess := session(t, s, time.Second)
			do(t, s, coordination.Op{Key: "e", Session: sess.ID()})
			_, err = s.Watch(ctx, "", 0)
			require.NoError(t, err)
		}
		p.setMute(i%2 == 0) // a peer that does not answer holds up nothing
		pending := make(chan error, 2)
		go func() { _, _, err := s.Get(ctx, "k"); pending <- err }()
		go func() { _, err := s.NewSession(ctx, time.Second); pending <- err }()
		begun := time.Now()
		require.NoError(t, s.Close())
		require.Less(t, time.Since(begun), time.Second)
		<-pending
		<-pending
		p.setMute(false)
		p.setCut(true)
		p.setCut(false)
	}
	require.Eventually(t, func() bool { return goleak.Find(before) == nil }, 10*time.Second, 100*time.Millisecond)
}
