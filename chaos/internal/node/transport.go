package node

import (
	"errors"
	"log/slog"

	"github.com/tidemark-log/tidemark/internal/devcert"
	"github.com/tidemark-log/tidemark/transport"
	"github.com/tidemark-log/tidemark/transport/tcp"
)

// openTransport makes the broker's transport, and says where it listens.
func openTransport(cfg Config, log *slog.Logger) (transport.Transport, string, error) {
	c := tcp.Config{ID: cfg.ID, Cluster: cfg.Cluster, Listen: "127.0.0.1:0", Plaintext: cfg.Certificates == "", Logger: log}
	if !c.Plaintext {
		var err error
		if c.TLS, err = devcert.Load(cfg.Certificates, cfg.ID); err != nil {
			return nil, "", err
		}
	}
	t, err := tcp.New(c)
	if err != nil {
		return nil, "", err
	}
	if t.Addr() == nil {
		return nil, "", errors.Join(errors.New("the transport does not say where it listens"), t.Close())
	}
	return &routed{t, cfg.Peers}, t.Addr().String(), nil
}
