package main

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"

	"github.com/tidemark-log/tidemark"
	"github.com/tidemark-log/tidemark/coordination/pebblecoord"
	"github.com/tidemark-log/tidemark/storage/pebblestore"
)

const topic = "events"

// node is the broker and what it stands on. A single broker needs no Transport.
type node struct {
	store  *pebblestore.Store
	coord  *pebblecoord.Store
	broker *tidemark.Broker
	events *tidemark.Partition
}

func openNode(ctx context.Context, dir string, log *slog.Logger) (*node, error) {
	n := &node{}
	if err := n.open(ctx, dir, log); err != nil {
		return nil, errors.Join(err, n.close())
	}
	return n, nil
}

func (n *node) open(ctx context.Context, dir string, log *slog.Logger) (err error) {
	if n.coord, err = pebblecoord.Open(filepath.Join(dir, "coordination"), pebblecoord.Options{Logger: log}); err != nil {
		return err
	}
	if n.store, err = pebblestore.Open(filepath.Join(dir, "logs"), pebblestore.Options{Logger: log}); err != nil {
		return err
	}
	n.broker, err = tidemark.Open(ctx, tidemark.Config{
		ID: 1, Store: n.store, Coordination: n.coord.Connect(), Logger: log, MemoryBudget: 64 << 20,
	})
	if err != nil {
		return err
	}
	if err := n.broker.Ready(ctx); err != nil {
		return err
	}
	one := tidemark.TopicConfig{Partitions: 1, ReplicationFactor: 1, MinISR: 1}
	n.events = n.broker.Partition(topic, 0)
	return n.broker.Controller().EnsureTopic(ctx, topic, one)
}

// shutdown lets the broker finish what it has under way, until ctx ends.
func (n *node) shutdown(ctx context.Context) error {
	return errors.Join(n.broker.Shutdown(ctx), n.close())
}

// close closes whatever is open, the broker before what it stands on.
func (n *node) close() error {
	var errs []error
	if n.broker != nil {
		errs = append(errs, n.broker.Close())
	}
	if n.store != nil {
		errs = append(errs, n.store.Close())
	}
	if n.coord != nil {
		errs = append(errs, n.coord.Close())
	}
	return errors.Join(errs...)
}
