package scale

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/tidemark-log/tidemark"
	"github.com/tidemark-log/tidemark/bench/cluster"
	"github.com/tidemark-log/tidemark/bench/meter"
)

// flow is how records are appended: with so many in flight, until so many bytes were
// sent or the time is over.
type flow struct {
	inFlight int
	bytes    int64         // 0: no end
	span     time.Duration // 0: no end
}

func (f *flow) goesOn(sent int64, past time.Duration) bool {
	return (f.bytes == 0 || sent < f.bytes) && (f.span == 0 || past < f.span)
}

// drive appends to a ledger's partitions in turn, waits for the ends of all, and says
// how fast it went.
func (l *ledger) drive(ctx context.Context, c *cluster.Cluster, f flow) (meter.Round, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	p := c.Topic(l.topic).Producer(tidemark.ProducerOptions{
		MaxBufferedBytes: 64 << 20,
		Partitioner:      func(rec tidemark.Record, _ int) int { return partitionOf(rec.Value) },
	})
	var latencies meter.Latencies
	var r meter.Round
	var ended atomic.Int64
	slots := make(chan struct{}, f.inFlight)
	began := time.Now()
	for n := 0; f.goesOn(r.Bytes, time.Since(began)); n++ {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
		partition := n % l.partitions()
		rec, sent := l.next(partition), time.Now()
		err := p.AppendAsync(ctx, rec, func(res tidemark.Result, err error) {
			ended.Store(int64(time.Since(began)))
			latencies.Add(time.Since(sent))
			if err := l.ack(partition, res, err); err != nil {
				cancel(err)
			}
			<-slots
		})
		if err != nil {
			cancel(err)
			break
		}
		r.Records++
		r.Bytes += int64(l.size)
	}
	err := p.Close(ctx)
	r.Elapsed, r.Latency = time.Duration(ended.Load()), latencies.Percentiles()
	return r, errors.Join(context.Cause(ctx), err)
}
