package scale

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/tidemark-log/tidemark"
	"github.com/tidemark-log/tidemark/bench/cluster"
)

// tail is a reader at the end of a ledger's first partition, that compares what it sees.
type tail struct {
	cancel context.CancelFunc
	done   chan struct{}
	err    error // once done is closed
	next   atomic.Int64
}

// startTail begins to read behind what was acknowledged so far. seen, if not nil, gets
// the time at which each record came.
func startTail(ctx context.Context, c *cluster.Cluster, l *ledger, seen chan<- time.Time) *tail {
	ctx, cancel := context.WithCancel(ctx)
	t := &tail{cancel: cancel, done: make(chan struct{})}
	t.next.Store(l.acked[0])
	go func() {
		defer close(t.done)
		t.err = t.run(ctx, c.Partition(l.topic, 0), l.values, seen)
	}()
	return t
}

func (t *tail) run(ctx context.Context, from *tidemark.Partition, v *values, seen chan<- time.Time) error {
	for rec, err := range from.Records(ctx, tidemark.At(t.next.Load())) {
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reader: %w", err)
		}
		if seen != nil {
			seen <- time.Now()
		}
		n := t.next.Load()
		if rec.Offset != n {
			return fmt.Errorf("reader: offset %d follows %d", rec.Offset, n-1)
		}
		if err := v.check(rec.Value, 0, n); err != nil {
			return fmt.Errorf("reader: %w", err)
		}
		t.next.Store(n + 1)
	}
	return nil
}

// reach waits until the reader has seen all records below end.
func (t *tail) reach(ctx context.Context, end int64) error {
	for t.next.Load() < end {
		select {
		case <-t.done:
			return errors.Join(errors.New("a reader ended early"), t.err)
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(time.Millisecond):
		}
	}
	return nil
}

// stop ends the reader and returns what it found wrong.
func (t *tail) stop() error {
	t.cancel()
	<-t.done
	return t.err
}
