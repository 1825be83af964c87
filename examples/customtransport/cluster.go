package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/tidemark-log/tidemark"
	"github.com/tidemark-log/tidemark/coordination/memory"
	"github.com/tidemark-log/tidemark/storage/memstore"
)

const (
	topic   = "orders"
	brokers = 3
)

// cluster is three brokers, each with a server of its own. The host keeps the
// servers: a Transport closes only what it opened.
type cluster struct {
	coord  *memory.Store
	nodes  [brokers]*node
	client *tidemark.Client
}

type node struct {
	address   string // of the server, without the path
	server    *http.Server
	transport *overHTTP
	store     *memstore.Store
	broker    *tidemark.Broker
}

func open(ctx context.Context) (*cluster, error) {
	c := &cluster{coord: memory.New(memory.Options{})}
	if err := c.start(ctx); err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

func (c *cluster) start(ctx context.Context) (err error) {
	var all []*tidemark.Broker
	for id := range int32(brokers) {
		n := &node{address: "127.0.0.1:0", transport: newOverHTTP()}
		c.nodes[id] = n
		if err := c.serve(id); err != nil {
			return err
		}
		if n.store, err = memstore.NewDisk().Open(); err != nil {
			return err
		}
		n.broker, err = tidemark.Open(ctx, tidemark.Config{
			ID: id, Address: "http://" + n.address + "/tidemark", Transport: n.transport,
			Store: n.store, Coordination: c.coord.Connect(), SessionTimeout: 2 * time.Second, MaxLag: 2 * time.Second,
		})
		if err != nil {
			return err
		}
		all = append(all, n.broker)
	}
	c.client = tidemark.NewClient(func() []*tidemark.Broker { return all }, tidemark.ClientOptions{})
	for _, b := range all {
		if err := b.Ready(ctx); err != nil {
			return err
		}
	}
	return c.client.Controller().EnsureTopic(ctx, topic, tidemark.TopicConfig{})
}

// serve starts the server of a broker, on the address that it had before if it had one.
func (c *cluster) serve(id int32) error {
	n := c.nodes[id]
	l, err := net.Listen("tcp", n.address)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/tidemark", n.transport)
	n.address = l.Addr().String()
	n.server = &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	go n.server.Serve(l) // it ends with Close
	return nil
}

// waitInSync waits until every replica is in sync.
func (c *cluster) waitInSync(ctx context.Context) (int, error) {
	for {
		s, err := c.client.Partition(topic, 0).Status(ctx)
		if err != nil || len(s.ISR) == brokers {
			return len(s.ISR), err
		}
		select {
		case <-ctx.Done():
			return len(s.ISR), context.Cause(ctx)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (c *cluster) close() error {
	var errs []error
	for _, n := range c.nodes {
		if n == nil {
			continue
		}
		if n.broker != nil {
			errs = append(errs, n.broker.Close())
		}
		if n.server != nil {
			errs = append(errs, n.server.Close())
		}
		if n.store != nil {
			errs = append(errs, n.store.Close())
		}
	}
	return errors.Join(append(errs, c.coord.Close())...)
}
