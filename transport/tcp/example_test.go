package tcp_test

import (
	"context"
	"log/slog"

	"github.com/tidemark-log/tidemark"
	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/storage"
	"github.com/tidemark-log/tidemark/transport/tcp"
)

// A broker over TCP. Its certificate says in a URI who it is (tidemark://orders/broker/1),
// and may be replaced in its files while the broker runs.
func Example() {
	open := func(ctx context.Context, store storage.Store, coord coordination.Store, logger *slog.Logger) (*tidemark.Broker, error) {
		files, err := tcp.LoadFiles(tcp.Paths{CA: "ca.pem", Certificate: "broker-1.pem", Key: "broker-1-key.pem"}, logger)
		if err != nil {
			return nil, err
		}
		t, err := tcp.New(tcp.Config{
			ID: 1, Cluster: "orders", Listen: ":7070",
			TLS: files.TLS(), Roots: files.Roots, Logger: logger,
		})
		if err != nil {
			return nil, err
		}
		// The Broker closes the transport, also when it cannot be opened.
		return tidemark.Open(ctx, tidemark.Config{
			ID: 1, Address: "10.0.0.1:7070", Transport: t,
			Store: store, Coordination: coord, Logger: logger,
		})
	}
	_ = open
}
