package cluster

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"

	"github.com/tidemark-log/tidemark"
	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/storage/pebblestore"
	"github.com/tidemark-log/tidemark/transport"
	"github.com/tidemark-log/tidemark/transport/tcp"
)

// node is one broker and what it stands on.
type node struct {
	broker    *tidemark.Broker
	store     *pebblestore.Store
	coord     coordination.Store
	transport transport.Transport
}

func (c *Cluster) openNode(ctx context.Context, id int32) error {
	n := &node{}
	if err := n.open(ctx, c, id); err != nil {
		return errors.Join(fmt.Errorf("bench: broker %d: %w", id, err), n.close())
	}
	c.nodes[id] = n
	c.publish()
	return nil
}

func (n *node) open(ctx context.Context, c *Cluster, id int32) (err error) {
	n.store, err = pebblestore.Open(filepath.Join(c.o.Dir, fmt.Sprintf("broker-%d", id)), pebblestore.Options{FS: c.o.FS})
	if err != nil {
		return err
	}
	if n.coord, err = c.coordination(id); err != nil {
		return err
	}
	cfg := tidemark.Config{
		ID: id, Store: n.store, Coordination: n.coord,
		Loops: max(1, min(8, runtime.GOMAXPROCS(0)/c.o.Brokers)), // all brokers share the processors
	}
	if cfg.Transport, cfg.Address, err = c.connect(id); err != nil {
		return err
	}
	if c.o.Tweak != nil {
		c.o.Tweak(&cfg)
	}
	n.transport = cfg.Transport
	n.broker, err = tidemark.Open(ctx, cfg)
	return err
}

// connect makes a broker's transport, and says where others reach it.
func (c *Cluster) connect(id int32) (transport.Transport, string, error) {
	if c.network != nil {
		return c.network.Transport(id), fmt.Sprintf("inproc:%d", id), nil
	}
	t, err := tcp.New(tcp.Config{ID: id, Cluster: "bench", Listen: "127.0.0.1:0", Plaintext: true})
	if err != nil {
		return nil, "", err
	}
	return t, t.Addr().String(), nil
}

// kill cuts the broker off from everything before it is closed.
func (n *node) kill() error {
	var errs []error
	if f, ok := n.coord.(interface{ Fence() }); ok {
		f.Fence()
	} else {
		errs = append(errs, n.coord.Close()) // its sessions stay until they expire
	}
	errs = append(errs, n.transport.Close(), n.store.Fence(), n.broker.Close(), n.coord.Close())
	return errors.Join(errs...)
}

// close closes whatever is open, the broker before what it stands on.
func (n *node) close() error {
	var errs []error
	if n.broker != nil {
		errs = append(errs, n.broker.Close())
	}
	if n.coord != nil {
		errs = append(errs, n.coord.Close())
	}
	if n.store != nil {
		errs = append(errs, n.store.Close())
	}
	return errors.Join(errs...)
}
