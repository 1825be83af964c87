package scale

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tidemark-log/tidemark/bench/cluster"
	"github.com/tidemark-log/tidemark/bench/meter"
)

// growth measures the same load at several places of three axes.
func growth(ctx context.Context, o Options) (res Result, err error) {
	type place struct {
		against                    string
		x                          int
		partitions, size, replicas int
	}
	var all []place
	for _, n := range []int{1, 10, 100, 1000, 10_000} {
		all = append(all, place{"partitions", n, n, kib, 3})
	}
	for _, n := range []int{100, kib, 10 * kib, 100 * kib, 1 << 20} {
		all = append(all, place{"record bytes", n, 16, n, 3})
	}
	for _, n := range []int{1, 3, 5} {
		all = append(all, place{"replicas", n, 16, kib, n})
	}
	for _, p := range all {
		o.Say("growth: %s %d", p.against, p.x)
		figures, err := growthAt(ctx, &o, p.partitions, p.size, p.replicas)
		if err != nil {
			return res, fmt.Errorf("%s %d: %w", p.against, p.x, err)
		}
		res.Points = append(res.Points, Point{p.against, float64(p.x), figures})
	}
	return res, nil
}

// growthAt measures one place: a flow with much in flight, and then lone appends.
func growthAt(ctx context.Context, o *Options, partitions, size, replicas int) (figures []Figure, err error) {
	r, err := o.open(ctx, "growth", 4*gib, cluster.Options{Brokers: max(replicas, 3)})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	l := newLedger("growth", partitions, size)
	began := time.Now()
	if err := r.create(ctx, l, replicas); err != nil {
		return nil, err
	}
	created, heap := time.Since(began), heapInUse()
	f := flow{inFlight: max(min(4096, 32<<20/size), 16), span: o.span(time.Second)}
	if _, err := l.drive(ctx, r.Cluster, f); err != nil {
		return nil, err
	}
	f.span = o.span(3 * time.Second)
	before, err := meter.CPU()
	if err != nil {
		return nil, err
	}
	loaded, err := l.drive(ctx, r.Cluster, f)
	if err != nil {
		return nil, err
	}
	after, err := meter.CPU()
	if err != nil {
		return nil, err
	}
	lone, err := l.drive(ctx, r.Cluster, flow{inFlight: 1, span: o.span(time.Second)})
	if err != nil {
		return nil, err
	}
	return []Figure{
		{"throughput", loaded.MBRate(), "MB/s", Bound{}},
		{"records", loaded.RecordRate(), "1/s", Bound{}},
		{"latency under load, p50", micros(loaded.Latency.P50), "µs", Bound{}},
		{"latency under load, p99", micros(loaded.Latency.P99), "µs", Bound{}},
		{"processor per record", micros(after-before) / float64(max(loaded.Records, 1)), "µs", Bound{}},
		{"lone append, p50", micros(lone.Latency.P50), "µs", Bound{}},
		{"making the topic", millis(created), "ms", Bound{}},
		{"heap after that", float64(heap) / 1e6, "MB", Bound{}},
	}, l.verify(ctx, r.Cluster)
}
