package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tidemark-log/tidemark"
	"github.com/tidemark-log/tidemark/local"
)

const (
	topic      = "trades"
	partitions = 3
	brokers    = 3
)

// play opens the cluster, has brokers die and return under load, and looks at what is left.
func play(ctx context.Context, o options, s *screen) (sum summary, err error) {
	c, err := local.Open(ctx, "", local.Options{Brokers: brokers, InMemory: true})
	if err != nil {
		return sum, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	if err := c.Controller().EnsureTopic(ctx, topic, tidemark.TopicConfig{Partitions: partitions}); err != nil {
		return sum, err
	}
	l := startLoad(ctx, c)
	sum.Rounds = o.rounds
	for round := 1; err == nil && round <= o.rounds; round++ {
		var took time.Duration
		if took, err = kill(ctx, c, l, s, fmt.Sprintf("round %d of %d", round, o.rounds), o.pause); err == nil {
			sum.FailoverMs = append(sum.FailoverMs, took.Milliseconds())
		}
	}
	if err := errors.Join(err, l.stop()); err != nil {
		return sum, err
	}
	if err := s.show(ctx, c, l, "the load has ended", 0, settled); err != nil {
		return sum, err
	}
	if err := l.check(ctx, &sum); err != nil {
		return sum, err
	}
	sum.ReplicasEqual, err = equal(ctx, c)
	return sum, err
}

// kill is one round.
func kill(ctx context.Context, c *local.Cluster, l *load, s *screen, round string, pause time.Duration) (failover time.Duration, err error) {
	if err := s.show(ctx, c, l, round+": all brokers are up", pause, inSync); err != nil {
		return 0, err
	}
	status, err := c.Partition(topic, 0).Status(ctx)
	if err != nil {
		return 0, err
	}
	victim, began, acked := status.Leader, time.Now(), l.acked(0)
	if err := c.Kill(victim); err != nil {
		return 0, err
	}
	// The record that was under way is answered, as unknown, before anything new is acknowledged.
	again := func(context.Context, *local.Cluster) (bool, error) {
		if failover == 0 && l.acked(0) > acked+1 {
			failover = time.Since(began)
		}
		return failover > 0, nil
	}
	if err := s.show(ctx, c, l, fmt.Sprintf("%s: broker %d is killed", round, victim), pause, again); err != nil {
		return 0, err
	}
	if err := c.Restart(ctx, victim); err != nil {
		return 0, err
	}
	return failover, s.show(ctx, c, l, fmt.Sprintf("%s: broker %d is back", round, victim), pause, inSync)
}

// inSync reports whether every replica of every partition is in sync.
func inSync(ctx context.Context, c *local.Cluster) (bool, error) {
	for n := range partitions {
		st, err := c.Partition(topic, n).Status(ctx)
		if err != nil || len(st.ISR) < brokers {
			return false, err
		}
	}
	return true, nil
}

// settled reports whether every copy has everything, and knows that all of it is committed.
func settled(ctx context.Context, c *local.Cluster) (bool, error) {
	for n := range partitions {
		ends, err := c.Partition(topic, n).Offsets(ctx)
		if err != nil {
			return false, err
		}
		for _, b := range c.Brokers() {
			r, err := b.Replica(ctx, topic, n)
			if err != nil || r.HighWatermark != ends.LogEnd || r.StoredEnd != ends.LogEnd {
				return false, err
			}
		}
	}
	return inSync(ctx, c)
}

// equal compares the copies of every partition, batch by batch.
func equal(ctx context.Context, c *local.Cluster) (bool, error) {
	for n := range partitions {
		var first []byte
		for i, b := range c.Brokers() {
			r, err := b.Replica(ctx, topic, n)
			if err != nil {
				return false, err
			}
			var all []byte
			for batch, err := range r.Batches(ctx, r.LogStart) {
				if err != nil {
					return false, err
				}
				all = append(all, batch...)
			}
			if i == 0 {
				first = all
			} else if !bytes.Equal(first, all) {
				return false, nil
			}
		}
	}
	return true, nil
}
