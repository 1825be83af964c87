package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/tidemark-log/tidemark"
	"github.com/tidemark-log/tidemark/local"
)

// load writes the numbers 0, 1, 2 … to every partition, one after the other, and
// goes on only when a number was acknowledged.
type load struct {
	c      *local.Cluster
	counts [partitions]atomic.Int64 // acknowledged
	cancel context.CancelFunc
	group  *errgroup.Group
}

func startLoad(ctx context.Context, c *local.Cluster) *load {
	l := &load{c: c}
	ctx, l.cancel = context.WithCancel(ctx)
	l.group, ctx = errgroup.WithContext(ctx)
	for n := range partitions {
		l.group.Go(func() error { return l.write(ctx, n) })
	}
	return l
}

// acked is how many numbers of a partition are acknowledged.
func (l *load) acked(n int) int64 { return l.counts[n].Load() }

// stop ends the load and returns what went wrong.
func (l *load) stop() error {
	l.cancel()
	return l.group.Wait()
}

func (l *load) write(ctx context.Context, n int) error {
	p := l.c.Partition(topic, n)
	for i := int64(0); ; {
		_, err := p.Append(ctx, tidemark.Record{Value: fmt.Append(nil, i)})
		switch {
		case err == nil:
			i++
			l.counts[n].Store(i)
		case ctx.Err() != nil:
			return nil // stopped; the last number may be in the log or not
		case tidemark.OutcomeOf(err) == tidemark.Unknown, errors.Is(err, tidemark.ErrNotEnoughReplicas):
			// Sent again, it may be there twice. It cannot be out of order, for nothing was sent behind it.
		default:
			return fmt.Errorf("partition %d: %w", n, err)
		}
	}
}

// check reads all partitions back and compares them with what was acknowledged.
func (l *load) check(ctx context.Context, sum *summary) error {
	for n := range partitions {
		if err := l.checkPartition(ctx, n, sum); err != nil {
			return fmt.Errorf("partition %d: %w", n, err)
		}
	}
	return nil
}

func (l *load) checkPartition(ctx context.Context, n int, sum *summary) error {
	p := l.c.Partition(topic, n)
	ends, err := p.Offsets(ctx)
	if err != nil {
		return err
	}
	if ends.LogStart == ends.HighWatermark {
		return nil // nothing to read, and Records would wait for more
	}
	acked := l.acked(n)
	seen := make(map[int64]bool)
	latest := int64(-1)
	for rec, err := range p.Records(ctx, tidemark.Earliest()) {
		if err != nil {
			return err
		}
		var v int64
		if _, err := fmt.Sscan(string(rec.Value), &v); err != nil {
			return err
		}
		switch {
		case seen[v]:
			sum.Duplicated++
		case v < latest:
			sum.OutOfOrder++
		}
		seen[v], latest = true, max(latest, v)
		if rec.Offset+1 == ends.HighWatermark {
			break
		}
	}
	for v := range acked {
		if !seen[v] {
			sum.Lost++
		}
	}
	sum.Acked += int(acked)
	return nil
}
