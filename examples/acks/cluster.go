package main

import (
	"context"
	"errors"
	"time"

	"github.com/tidemark-log/tidemark"
	"github.com/tidemark-log/tidemark/coordination/memory"
	"github.com/tidemark-log/tidemark/storage/memstore"
	"github.com/tidemark-log/tidemark/transport/inproc"
)

const topic = "ledger"

// cluster is three brokers wired by hand, so that network and disks can misbehave.
type cluster struct {
	network *inproc.Network
	coord   *memory.Store
	nodes   map[int32]*node
	client  *tidemark.Client
}

// node is one broker and what it stands on. The disk outlives the broker.
type node struct {
	broker *tidemark.Broker
	store  *memstore.Store
	disk   *memstore.Disk
}

func open(ctx context.Context) (*cluster, error) {
	c := &cluster{
		network: inproc.New(inproc.Options{}), coord: memory.New(memory.Options{}), nodes: make(map[int32]*node),
	}
	// Without the brokers that have crashed, calls go to those that are left.
	c.client = tidemark.NewClient(c.up, tidemark.ClientOptions{})
	for id := int32(1); id <= 3; id++ {
		c.nodes[id] = &node{disk: memstore.NewDisk()}
		if err := c.start(ctx, id); err != nil {
			return nil, errors.Join(err, c.close())
		}
	}
	for _, n := range c.nodes {
		if err := n.broker.Ready(ctx); err != nil {
			return nil, errors.Join(err, c.close())
		}
	}
	if err := c.client.Controller().EnsureTopic(ctx, topic, tidemark.TopicConfig{}); err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

func (c *cluster) start(ctx context.Context, id int32) (err error) {
	n := c.nodes[id]
	if n.store, err = n.disk.Open(); err != nil {
		return err
	}
	n.broker, err = tidemark.Open(ctx, tidemark.Config{
		ID: id, Store: n.store, Coordination: c.coord.Connect(), Transport: c.network.Transport(id),
		SessionTimeout: time.Second,
	})
	return err
}

func (c *cluster) node(id int32) *node { return c.nodes[id] }

// up are the brokers. A closed one may be among them: the Client passes it over.
func (c *cluster) up() (all []*tidemark.Broker) {
	for id := int32(1); id <= 3; id++ {
		if n := c.nodes[id]; n != nil && n.broker != nil {
			all = append(all, n.broker)
		}
	}
	return all
}

// cutOff loses everything that a broker sends to the others.
func (c *cluster) cutOff(id int32) {
	for other := range c.nodes {
		if other != id {
			c.network.CutOneWay(id, other)
		}
	}
}

// crash ends a broker: what its disk does not have is gone, and nobody hears from
// it again. Closing it gives its session back, which otherwise would expire.
func (c *cluster) crash(id int32) {
	n := c.nodes[id]
	n.disk.Crash(0)
	c.network.Isolate(id)
	_ = n.broker.Close() // its store is gone: whatever that says
}

// restart mends network and disk and opens the broker again.
func (c *cluster) restart(ctx context.Context, id int32) error {
	c.network.HealAll()
	c.nodes[id].disk.Unhang()
	return c.start(ctx, id)
}

// waitLogEnd waits until a broker's copy has stored one offset and ends at another.
func (c *cluster) waitLogEnd(ctx context.Context, id int32, stored, end int64) error {
	return poll(ctx, func() (bool, error) {
		r, err := c.nodes[id].broker.Replica(ctx, topic, 0)
		return err == nil && r.StoredEnd == stored && r.LogEnd == end, err
	})
}

// waitInSync waits until all three replicas are in sync.
func (c *cluster) waitInSync(ctx context.Context) error {
	return poll(ctx, func() (bool, error) {
		s, err := c.client.Partition(topic, 0).Status(ctx)
		return err == nil && len(s.ISR) == 3, err
	})
}

func poll(ctx context.Context, done func() (bool, error)) error {
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func (c *cluster) close() error {
	var errs []error
	for _, n := range c.nodes {
		if n.broker != nil {
			errs = append(errs, n.broker.Close())
		}
		if n.store != nil {
			errs = append(errs, n.store.Close())
		}
	}
	return errors.Join(append(errs, c.coord.Close())...)
}
