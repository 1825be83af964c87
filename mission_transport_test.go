package tidemark_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark"
	"github.com/tidemark-log/tidemark/coordination/memory"
	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/storage/memstore"
	"github.com/tidemark-log/tidemark/storage/pebblestore"
	"github.com/tidemark-log/tidemark/transport"
)

// hostNet is a transport as a host may have one: a goroutine per message, so no
// order at all.
type hostNet struct {
	mu       sync.Mutex
	handlers map[int32]transport.Handler
	sending  sync.WaitGroup
}

type hostEndpoint struct {
	net *hostNet
	id  int32
}

func (e hostEndpoint) Start(h transport.Handler) error {
	e.net.mu.Lock()
	defer e.net.mu.Unlock()
	e.net.handlers[e.id] = h
	return nil
}

func (e hostEndpoint) Send(to transport.Peer, m *protocol.Message) error {
	e.net.mu.Lock()
	defer e.net.mu.Unlock()
	h := e.net.handlers[to.ID]
	if h == nil {
		return transport.ErrClosed
	}
	e.net.sending.Add(1)
	go func() {
		defer e.net.sending.Done()
		h(m)
	}()
	return nil
}

func (e hostEndpoint) MaxMessageBytes() int { return 4 << 20 }

func (e hostEndpoint) Close() error {
	e.net.mu.Lock()
	delete(e.net.handlers, e.id)
	e.net.mu.Unlock()
	e.net.sending.Wait()
	return nil
}

// M4: the public types, over a transport of the host's own and the Pebble store.
func TestM04OverAHostsTransport(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	network := &hostNet{handlers: make(map[int32]transport.Handler)}
	coord := memory.New(memory.Options{})
	defer func() { require.NoError(t, coord.Close()) }()
	var brokers []*tidemark.Broker
	for id := range int32(3) {
		store, err := pebblestore.Open("store", pebblestore.Options{FS: vfs.NewMem(), MemtableBytes: 1 << 20})
		require.NoError(t, err)
		defer func() { require.NoError(t, store.Close()) }()
		b, err := tidemark.Open(ctx, tidemark.Config{ID: id, Store: store, Coordination: coord.Connect(), Transport: hostEndpoint{network, id}})
		require.NoError(t, err)
		defer func() { require.NoError(t, b.Close()) }()
		brokers = append(brokers, b)
	}
	for _, b := range brokers {
		require.NoError(t, b.Ready(ctx))
	}
	require.NoError(t, brokers[1].Controller().EnsureTopic(ctx, "t", tidemark.TopicConfig{Partitions: 3}))
	for n := range 3 {
		for i, b := range brokers { // every broker reaches every leader
			res, err := b.Partition("t", n).Append(ctx, tidemark.Record{Value: []byte{byte(n), byte(i)}})
			require.NoError(t, err)
			require.Equal(t, int64(i), res.Base)
		}
		for _, b := range brokers {
			got, err := b.Partition("t", n).Fetch(ctx, 0, tidemark.FetchOptions{})
			require.NoError(t, err)
			require.Len(t, got.Records, 3)
			rep, err := b.Replica(ctx, "t", n)
			require.NoError(t, err)
			require.GreaterOrEqual(t, rep.LogEnd, int64(3))
		}
	}
}

// A forgotten Transport is named as the reason why a broker never gets ready.
func TestReadyNamesAMissingTransport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		coord := memory.New(memory.Options{})
		var second *tidemark.Broker
		for id := range int32(2) {
			store, err := memstore.NewDisk().Open()
			require.NoError(t, err)
			b, err := tidemark.Open(t.Context(), tidemark.Config{ID: id, Store: store, Coordination: coord.Connect()})
			require.NoError(t, err)
			second = b
			t.Cleanup(func() { require.NoError(t, errors.Join(b.Close(), store.Close())) })
			synctest.Wait()
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorContains(t, second.Ready(ctx), "Config.Transport is nil")
	})
}
