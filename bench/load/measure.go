package load

import (
	"context"
	"time"

	"github.com/tidemark-log/tidemark/bench/meter"
	"github.com/tidemark-log/tidemark/bench/pause"
)

// reading is what the meters show at one time.
type reading struct {
	at      time.Time
	records int64
	cpu     time.Duration
	disk    int64
	written int64
	syncs   int64
}

func (r *run) read() (reading, error) {
	cpu, err := meter.CPU()
	g := reading{cpu: cpu, disk: meter.DiskWritten(), written: meter.Unknown, syncs: meter.Unknown}
	if w := r.peer.Writes(); w != nil {
		g.written, g.syncs = w.Bytes(), w.Syncs()
	}
	g.records, g.at = r.acked.Load(), time.Now()
	return g, err
}

// measure waits for the warm-up and the time to measure, and returns what happened in
// between. Of the records that were begun in that time the latencies count.
func (r *run) measure(going context.Context) (meter.Round, error) {
	if err := pause.For(going, r.plan.WarmUp); err != nil {
		return meter.Round{}, err
	}
	before, err := r.read()
	if err != nil {
		return meter.Round{}, err
	}
	r.measuring.Store(true)
	if err := pause.For(going, r.plan.Duration); err != nil {
		return meter.Round{}, err
	}
	for r.acked.Load()-before.records < r.plan.MinRecords {
		if err := pause.For(going, time.Millisecond); err != nil {
			return meter.Round{}, err
		}
	}
	after, err := r.read()
	r.measuring.Store(false)
	if err != nil {
		return meter.Round{}, err
	}
	records := after.records - before.records
	return meter.Round{
		Records: records, Bytes: records * int64(r.plan.ValueBytes), Elapsed: after.at.Sub(before.at),
		CPU: after.cpu - before.cpu, Disk: difference(after.disk, before.disk),
		Written: difference(after.written, before.written), Syncs: difference(after.syncs, before.syncs),
	}, nil
}

func difference(after, before int64) int64 {
	if after < 0 || before < 0 {
		return meter.Unknown
	}
	return after - before
}
