package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/tidemark-log/tidemark/chaos/internal/coordrpc"
	"github.com/tidemark-log/tidemark/chaos/internal/node"
	"github.com/tidemark-log/tidemark/coordination/memory"
)

// store is the coordination store of a cluster.
type store interface {
	// start runs it and says where it listens.
	start(ctx context.Context) (address string, err error)
	// down ends it without warning; up runs it again on what it had, and says where.
	down() error
	up(ctx context.Context) (address string, err error)
	// pause makes it stand still until resume.
	pause() error
	resume() error
	// stop ends it for good.
	stop() error
}

func newStore(c *Cluster) (store, error) {
	switch c.o.Coordination {
	case node.Memory:
		return &inMemory{}, nil
	case node.Etcd:
		return newEtcdStore(c)
	case node.ZooKeeper:
		return newZooKeeperStore(c), nil
	}
	return nil, fmt.Errorf("unknown coordination store %q", c.o.Coordination)
}

// inMemory is a store in this process, served to the brokers.
type inMemory struct {
	store  *memory.Store
	server *coordrpc.Server
}

func (m *inMemory) start(context.Context) (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	m.store = memory.New(memory.Options{})
	m.server = coordrpc.Serve(l, m.store.Connect())
	return m.server.Addr(), nil
}

func (m *inMemory) down() error {
	m.store.SetUnavailable(true)
	return nil
}

func (m *inMemory) up(context.Context) (string, error) {
	m.store.SetUnavailable(false)
	return m.server.Addr(), nil
}

func (m *inMemory) pause() error {
	m.store.Pause()
	return nil
}

func (m *inMemory) resume() error {
	m.store.Resume()
	return nil
}

func (m *inMemory) stop() error {
	if m.server == nil {
		return nil
	}
	return errors.Join(m.server.Close(), m.store.Close())
}
