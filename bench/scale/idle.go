package scale

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/tidemark-log/tidemark"
	"github.com/tidemark-log/tidemark/bench/cluster"
	"github.com/tidemark-log/tidemark/bench/meter"
	"github.com/tidemark-log/tidemark/bench/pause"
	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/transport"
)

// idle is W10. Three brokers hold partitions to which nothing happens.
func idle(ctx context.Context, o Options) (res Result, err error) {
	var sent traffic
	r, err := o.open(ctx, "w10", spareBytes, cluster.Options{Tweak: func(cfg *tidemark.Config) {
		cfg.Transport = sent.counted(cfg.Transport)
	}})
	if err != nil {
		return res, err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	l := newLedger("w10", o.partitions(manyPartitions), 100)
	o.Say("W10: making %d partitions", l.partitions())
	began := time.Now()
	if err := r.create(ctx, l, 3); err != nil {
		return res, err
	}
	created := time.Since(began)
	if _, err := l.drive(ctx, r.Cluster, flow{inFlight: w1InFlight, bytes: int64(l.partitions() * l.size)}); err != nil {
		return res, err
	}
	// A watermark follows each append at once (D13); the rest is for the garbage.
	if err := pause.For(ctx, 3*time.Second); err != nil {
		return res, err
	}
	heap := heapInUse()
	goroutines := runtime.NumGoroutine()
	sent.reset()
	span := o.span(time.Minute)
	o.Say("W10: watching %v", span)
	before, err := meter.CPU()
	if err != nil {
		return res, err
	}
	if err := pause.For(ctx, span); err != nil {
		return res, err
	}
	after, err := meter.CPU()
	if err != nil {
		return res, err
	}
	res.Figures = []Figure{
		{"processor, of one core", 100 * float64(after-before) / float64(span), "%", atMost(2)},
		{"goroutines", float64(goroutines), "", atMost(100)},
		{"heap", float64(heap) / 1e6, "MB", atMost(300)},
		{"messages about partitions", float64(sent.data.Load()), "", atMost(0)},
		{"messages", float64(sent.all.Load()), "", Bound{}},
		{"making the partitions", millis(created), "ms", Bound{}},
	}
	return res, l.verify(ctx, r.Cluster)
}

// heapInUse is what is left after a collection.
func heapInUse() uint64 {
	runtime.GC()
	runtime.GC() // the first one may have run finalizers
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// traffic counts messages between brokers: all, and those with something in them.
type traffic struct{ all, data atomic.Int64 }

func (t *traffic) reset() {
	t.all.Store(0)
	t.data.Store(0)
}

// counted is a transport of which t counts what is sent.
func (t *traffic) counted(under transport.Transport) transport.Transport {
	return &countingTransport{under, t}
}

type countingTransport struct {
	transport.Transport
	t *traffic
}

func (c *countingTransport) Send(to transport.Peer, m *protocol.Message) error {
	c.t.all.Add(1)
	if m.Kind == protocol.Data {
		c.t.data.Add(1)
	}
	return c.Transport.Send(to, m)
}
