package scale

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tidemark-log/tidemark/bench/cluster"
	"github.com/tidemark-log/tidemark/bench/meter"
)

const (
	w1InFlight   = 1024 // as in W1
	kib          = 1 << 10
	gib          = 1 << 30
	tailers      = 3
	latencyBlock = 250 // lone appends in a row with a reader, and then as many without
)

// readers is W8. One partition of 1 KiB records, as in W1.
func readers(ctx context.Context, o Options) (res Result, err error) {
	total := o.bytes(4 * gib)
	r, err := o.open(ctx, "w8", 3*(total+total/2), cluster.Options{})
	if err != nil {
		return res, err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	l := newLedger("w8", 1, kib)
	if err := r.create(ctx, l, 3); err != nil {
		return res, err
	}
	for _, part := range []func(context.Context, *Options, *rig, *ledger) ([]Figure, error){
		tailing, fromAppendToReader, func(ctx context.Context, o *Options, r *rig, l *ledger) ([]Figure, error) {
			return readBack(ctx, o, r, l, total)
		},
	} {
		figures, err := part(ctx, &o, r, l)
		if err != nil {
			return res, err
		}
		res.Figures = append(res.Figures, figures...)
	}
	return res, nil
}

// readBack appends so many bytes, opens the cluster again, and reads all there is.
func readBack(ctx context.Context, o *Options, r *rig, l *ledger, total int64) ([]Figure, error) {
	o.Say("W8: appending %d MiB", total>>20)
	written, err := l.drive(ctx, r.Cluster, flow{inFlight: w1InFlight, bytes: total})
	if err != nil {
		return nil, err
	}
	o.Say("W8: reading after a reopen")
	if err := r.reopen(ctx); err != nil {
		return nil, err
	}
	began := time.Now()
	if err := l.read(ctx, r.Partition(l.topic, 0), 0); err != nil {
		return nil, err
	}
	read := meter.Round{Bytes: l.acked[0] * int64(l.size), Elapsed: time.Since(began)}
	return []Figure{
		{"appended (W1)", written.MBRate(), "MB/s", Bound{}},
		{"read back", read.MBRate(), "MB/s", Bound{}},
		{"read back, of W1", read.MBRate() / written.MBRate(), "times", atLeast(2)},
	}, nil
}

// tailing compares W1 with and without readers at the end of the log.
func tailing(ctx context.Context, o *Options, r *rig, l *ledger) ([]Figure, error) {
	f := flow{inFlight: w1InFlight, span: o.span(4 * time.Second)}
	var alone, watched []meter.Round
	for i := range o.Rounds {
		o.Say("W8: W1 with %d readers and without, %d of %d", tailers, i+1, o.Rounds)
		round, err := l.drive(ctx, r.Cluster, f)
		if err != nil {
			return nil, err
		}
		alone = append(alone, round)
		if round, err = watchedBy(ctx, tailers, r.Cluster, l, f); err != nil {
			return nil, err
		}
		watched = append(watched, round)
	}
	without, with := meter.MedianBy(alone, meter.Round.MBRate), meter.MedianBy(watched, meter.Round.MBRate)
	return []Figure{
		{"W1 without readers", without, "MB/s", Bound{}},
		{fmt.Sprintf("W1 with %d readers", tailers), with, "MB/s", Bound{}},
		{"cost of the readers", 100 * (1 - with/without), "%", atMost(15)},
	}, nil
}

// watchedBy drives a flow while readers follow it. Each of them must see all of it.
func watchedBy(ctx context.Context, n int, c *cluster.Cluster, l *ledger, f flow) (meter.Round, error) {
	var all []*tail
	for range n {
		all = append(all, startTail(ctx, c, l, nil))
	}
	round, err := l.drive(ctx, c, f)
	for _, t := range all {
		if err == nil {
			err = t.reach(ctx, l.acked[0])
		}
		err = errors.Join(err, t.stop())
	}
	return round, err
}

// fromAppendToReader compares the latency of a lone append (W5) with the time until a
// reader at the end of the log has the record.
func fromAppendToReader(ctx context.Context, o *Options, r *rig, l *ledger) ([]Figure, error) {
	var appended, read meter.Latencies
	for n := o.partitions(2000); n > 0; n -= latencyBlock {
		for range latencyBlock {
			began := time.Now()
			if err := appendOne(ctx, r.Cluster, l); err != nil {
				return nil, err
			}
			appended.Add(time.Since(began))
		}
		if err := readOneByOne(ctx, r.Cluster, l, &read); err != nil {
			return nil, err
		}
	}
	w5, seen := appended.Percentiles(), read.Percentiles()
	o.Say("W8: append p50 %v p99 %v, reader p50 %v p99 %v", w5.P50, w5.P99, seen.P50, seen.P99)
	return []Figure{
		{"lone append (W5), p50", micros(w5.P50), "µs", Bound{}},
		{"append to reader, p50", micros(seen.P50), "µs", Bound{}},
		{"append to reader, p99", micros(seen.P99), "µs", Bound{}},
		{"append to reader, of W5's p50", float64(seen.P50) / float64(w5.P50), "times", atMost(1.2)},
	}, nil
}

// readOneByOne appends a block of records, each once a reader has seen the one before.
func readOneByOne(ctx context.Context, c *cluster.Cluster, l *ledger, read *meter.Latencies) error {
	seen := make(chan time.Time, latencyBlock)
	t := startTail(ctx, c, l, seen)
	for range latencyBlock {
		began := time.Now()
		if err := appendOne(ctx, c, l); err != nil {
			return errors.Join(err, t.stop())
		}
		select {
		case at := <-seen:
			read.Add(at.Sub(began))
		case <-t.done:
			return errors.Join(errors.New("the reader ended"), t.stop())
		}
	}
	return t.stop()
}

// appendOne appends a partition's next record, and waits for it.
func appendOne(ctx context.Context, c *cluster.Cluster, l *ledger) error {
	res, err := c.Partition(l.topic, 0).Append(ctx, l.next(0))
	return l.ack(0, res, err)
}
