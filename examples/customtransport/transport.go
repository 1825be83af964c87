package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"sync"

	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/transport"
)

// overHTTP posts each message to the peer's Address. Order and losses are for Tidemark's links.
type overHTTP struct {
	http     http.Transport
	ctx      context.Context         // of all requests; ends with Close
	cancel   context.CancelCauseFunc // by Close, with ErrClosed
	requests sync.WaitGroup          // both ways
	mu       sync.Mutex
	handle   transport.Handler // nil before Start
	waiting  map[string]int    // messages, by Address
}

func newOverHTTP() *overHTTP {
	ctx, cancel := context.WithCancelCause(context.Background())
	return &overHTTP{ctx: ctx, cancel: cancel, waiting: make(map[string]int)}
}
func (t *overHTTP) MaxMessageBytes() int { return 64 << 10 } // what is larger comes in fragments
func (t *overHTTP) Start(h transport.Handler) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.handle = h
	return context.Cause(t.ctx)
}

func (t *overHTTP) Send(to transport.Peer, m *protocol.Message) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if m.Size() > t.MaxMessageBytes() {
		return transport.ErrTooLarge
	} else if t.handle == nil || t.ctx.Err() != nil {
		return transport.ErrClosed
	} else if t.waiting[to.Address] == 1536 {
		return transport.ErrBusy
	}
	t.waiting[to.Address]++
	t.requests.Go(func() {
		defer func() { t.mu.Lock(); t.waiting[to.Address]--; t.mu.Unlock() }()
		body, _ := m.MarshalBinary()
		if req, err := http.NewRequestWithContext(t.ctx, http.MethodPost, to.Address, bytes.NewReader(body)); err == nil {
			if resp, err := t.http.RoundTrip(req); err == nil {
				resp.Body.Close()
			}
		}
	})
	return nil
}

func (t *overHTTP) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(http.MaxBytesReader(w, r.Body, int64(t.MaxMessageBytes())))
	var handled sync.WaitGroup
	defer handled.Wait() // so that what waits here counts at the sender
	t.mu.Lock()
	defer t.mu.Unlock()
	if m, err := protocol.Parse(body); err == nil && t.handle != nil && t.ctx.Err() == nil {
		handled.Add(1)
		t.requests.Go(func() { defer handled.Done(); t.handle(m) })
	}
}

func (t *overHTTP) Close() error {
	t.mu.Lock()
	t.cancel(transport.ErrClosed)
	t.mu.Unlock()
	t.requests.Wait()
	t.http.CloseIdleConnections()
	return nil
}
