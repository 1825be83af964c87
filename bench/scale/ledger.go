package scale

import (
	"context"
	"fmt"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/tidemark-log/tidemark"
	"github.com/tidemark-log/tidemark/bench/cluster"
)

// ledger says what a topic's partitions must hold: the first acked values of each, one
// at every offset from 0 on.
type ledger struct {
	topic string
	*values
	sent  []int64 // by partition; of whoever appends to it
	acked []int64 // likewise, once the append has ended
}

func newLedger(topic string, partitions, size int) *ledger {
	return &ledger{topic: topic, values: newValues(size), sent: make([]int64, partitions), acked: make([]int64, partitions)}
}

func (l *ledger) partitions() int { return len(l.sent) }

// next is the next record of a partition.
func (l *ledger) next(partition int) tidemark.Record {
	n := l.sent[partition]
	l.sent[partition]++
	return tidemark.Record{Value: l.appendTo(make([]byte, 0, l.size), partition, n)}
}

// ack takes the end of a partition's next append.
func (l *ledger) ack(partition int, res tidemark.Result, err error) error {
	n := l.acked[partition]
	l.acked[partition]++
	switch {
	case err != nil:
		return fmt.Errorf("append to %s/%d: %w", l.topic, partition, err)
	case res.Base != n:
		return fmt.Errorf("append to %s/%d: record %d got offset %d", l.topic, partition, n, res.Base)
	}
	return nil
}

// verify reads every partition, and compares all that was acknowledged.
func (l *ledger) verify(ctx context.Context, c *cluster.Cluster) error {
	g, ctx := errgroup.WithContext(ctx)
	var next atomic.Int64
	for range 4 {
		g.Go(func() error {
			for {
				p := int(next.Add(1)) - 1
				if p >= l.partitions() {
					return nil
				}
				if err := l.read(ctx, c.Partition(l.topic, p), p); err != nil {
					return err
				}
			}
		})
	}
	return g.Wait()
}

// read compares one partition's records, as far as they were acknowledged.
func (l *ledger) read(ctx context.Context, from *tidemark.Partition, partition int) error {
	n, acked := int64(0), l.acked[partition]
	if acked == 0 {
		return nil
	}
	for rec, err := range from.Records(ctx, tidemark.Earliest()) {
		if err != nil {
			return fmt.Errorf("read %s/%d: %w", l.topic, partition, err)
		}
		if rec.Offset != n {
			return fmt.Errorf("read %s/%d: offset %d follows %d", l.topic, partition, rec.Offset, n-1)
		}
		if err := l.check(rec.Value, partition, n); err != nil {
			return fmt.Errorf("read %s: %w", l.topic, err)
		}
		if n++; n == acked {
			break
		}
	}
	return nil
}
