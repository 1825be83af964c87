// Package cluster keeps several brokers in this process, each with a store of its own
// on the disk, as the workloads need them: over loopback TCP or without sockets, on any
// coordination store, to be killed and opened again.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/tidemark-log/tidemark"
	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/coordination/memory"
	"github.com/tidemark-log/tidemark/storage/pebblestore"
	"github.com/tidemark-log/tidemark/transport/inproc"
)

// ErrUnknownBroker is returned for an id that the cluster does not have.
var ErrUnknownBroker = errors.New("bench: no such broker")

// Cluster is a set of brokers in this process. Its handles go straight to a partition's
// leader. All methods may be called from any goroutine.
type Cluster struct {
	*tidemark.Client

	o       Options
	network *inproc.Network // with Net "inproc"
	shared  *memory.Store   // without Coordination
	up      atomic.Pointer[[]*tidemark.Broker]
	closed  atomic.Bool

	mu    sync.Mutex // serialises Kill, Restart and Close
	nodes map[int32]*node
}

// Open opens the brokers and returns once each of them is ready. ctx bounds Open alone.
func Open(ctx context.Context, o Options) (*Cluster, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	c := &Cluster{o: o, nodes: make(map[int32]*node)}
	c.up.Store(&[]*tidemark.Broker{})
	c.Client = tidemark.NewClient(func() []*tidemark.Broker { return *c.up.Load() }, tidemark.ClientOptions{
		DefaultReplicationFactor: min(3, o.Brokers), Closed: c.closed.Load,
	})
	if o.Net == "inproc" {
		c.network = inproc.New(inproc.Options{})
	}
	if o.Coordination == nil {
		c.shared = memory.New(memory.Options{})
	}
	if err := c.start(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context) error {
	for id := int32(1); id <= int32(c.o.Brokers); id++ {
		if err := c.openNode(ctx, id); err != nil {
			return err
		}
	}
	for _, b := range c.Brokers() {
		if err := b.Ready(ctx); err != nil {
			return fmt.Errorf("bench: broker %d is not ready: %w", b.ID(), err)
		}
	}
	return nil
}

// coordination is a broker's way to the metadata.
func (c *Cluster) coordination(id int32) (coordination.Store, error) {
	if c.o.Coordination != nil {
		return c.o.Coordination(id)
	}
	return c.shared.Connect(), nil
}

// publish shows the brokers that are up to the handles.
func (c *Cluster) publish() {
	var up []*tidemark.Broker
	for id := int32(1); id <= int32(c.o.Brokers); id++ {
		if n := c.nodes[id]; n != nil {
			up = append(up, n.broker)
		}
	}
	c.up.Store(&up)
}

// Brokers returns the brokers that are up, by id.
func (c *Cluster) Brokers() []*tidemark.Broker { return slices.Clone(*c.up.Load()) }

// Broker returns the broker with that id, nil while it is down.
func (c *Cluster) Broker(id int32) *tidemark.Broker {
	for _, b := range c.Brokers() {
		if b.ID() == id {
			return b
		}
	}
	return nil
}

// Store returns the log store of the broker with that id, nil while it is down.
func (c *Cluster) Store(id int32) *pebblestore.Store {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := c.nodes[id]; n != nil {
		return n.store
	}
	return nil
}

// ExpireSessions ends the sessions of a killed broker now, in place of their time
// running out. It works with the shared coordination/memory only.
func (c *Cluster) ExpireSessions(ctx context.Context, id int32) error {
	if c.shared == nil {
		return fmt.Errorf("bench: sessions of another coordination store cannot be ended")
	}
	client := c.shared.Connect()
	defer client.Close()
	kv, ok, err := client.Get(ctx, fmt.Sprintf("/brokers/ids/%d", id))
	if err != nil {
		return fmt.Errorf("bench: session of broker %d: %w", id, err)
	}
	if ok {
		c.shared.ExpireSession(kv.Session)
	}
	return nil
}

// Kill ends a broker without a farewell, as kill -9 does: nothing more reaches the
// metadata, the other brokers or its disk, and its session is left to expire. Killing
// it again does nothing.
func (c *Cluster) Kill(id int32) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if id < 1 || id > int32(c.o.Brokers) {
		return fmt.Errorf("%w: %d", ErrUnknownBroker, id)
	}
	n := c.nodes[id]
	if n == nil {
		return nil
	}
	delete(c.nodes, id)
	c.publish()
	return n.kill()
}

// Restart opens a killed broker again on what its directory has. It does not wait until
// the broker is ready.
func (c *Cluster) Restart(ctx context.Context, id int32) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed.Load():
		return tidemark.ErrClosed
	case id < 1 || id > int32(c.o.Brokers):
		return fmt.Errorf("%w: %d", ErrUnknownBroker, id)
	case c.nodes[id] != nil:
		return fmt.Errorf("bench: broker %d is up", id)
	}
	return c.openNode(ctx, id)
}

// Close closes all brokers at once, then what they stand on.
func (c *Cluster) Close() error {
	c.closed.Store(true)
	c.mu.Lock()
	defer c.mu.Unlock()
	var g errgroup.Group
	errs := make([]error, c.o.Brokers+1)
	for id, n := range c.nodes {
		g.Go(func() error {
			errs[id] = n.close()
			return nil
		})
	}
	_ = g.Wait() // each says in errs how it ended
	clear(c.nodes)
	c.publish()
	if c.shared != nil {
		errs[0] = c.shared.Close()
	}
	return errors.Join(errs...)
}
