package cluster

import (
	"context"
	"errors"
	"fmt"

	"github.com/tidemark-log/tidemark"
	"github.com/tidemark-log/tidemark/bench/pause"
)

// CreateTopic creates a topic and waits until every partition has a leader and all its
// replicas in sync.
func (c *Cluster) CreateTopic(ctx context.Context, name string, cfg tidemark.TopicConfig) error {
	for {
		err := c.Controller().CreateTopic(ctx, name, cfg)
		if err == nil {
			break
		}
		if !errors.Is(err, tidemark.ErrTooFewBrokers) {
			return fmt.Errorf("bench: topic %s: %w", name, err)
		}
		if err := pause.Shortly(ctx); err != nil {
			return err
		}
	}
	for n := range int(cfg.Partitions) {
		if err := c.inSync(ctx, name, n, int(cfg.ReplicationFactor)); err != nil {
			return err
		}
	}
	return nil
}

// inSync waits until so many replicas of a partition are in sync.
func (c *Cluster) inSync(ctx context.Context, topic string, n, replicas int) error {
	for {
		s, err := c.Partition(topic, n).Status(ctx)
		if err != nil {
			return fmt.Errorf("bench: status of %s/%d: %w", topic, n, err)
		}
		if s.Leader >= 0 && len(s.ISR) == replicas {
			return nil
		}
		if err := pause.Shortly(ctx); err != nil {
			return fmt.Errorf("bench: %s/%d has in sync %v: %w", topic, n, s.ISR, err)
		}
	}
}
