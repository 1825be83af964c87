package node

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/tidemark-log/tidemark/chaos/internal/coordrpc"
	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/coordination/etcd"
	"github.com/tidemark-log/tidemark/coordination/zookeeper"
)

// openCoordination makes the client of the coordination store. One that cannot be made
// while the store is away is tried until ctx ends.
func openCoordination(ctx context.Context, c Coordination, log *slog.Logger) (coordination.Store, error) {
	for {
		s, err := connect(ctx, c, log)
		if err == nil {
			return s, nil
		}
		log.Warn("could not open the coordination store", "error", err)
		timer := time.NewTimer(200 * time.Millisecond)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, err
		}
	}
}

func connect(ctx context.Context, c Coordination, log *slog.Logger) (coordination.Store, error) {
	switch c.Kind {
	case Memory:
		return coordrpc.Open(c.Address), nil
	case Etcd:
		s, err := etcd.Open(ctx, etcd.Config{Endpoints: []string{c.Address}, Logger: log})
		if err != nil {
			return nil, err // not s, which would be an interface that is not nil
		}
		return s, nil
	case ZooKeeper:
		s, err := zookeeper.Open(ctx, zookeeper.Config{Servers: []string{c.Address}, Logger: log})
		if err != nil {
			return nil, err
		}
		return s, nil
	}
	return nil, fmt.Errorf("unknown coordination store %q", c.Kind)
}
