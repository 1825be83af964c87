// Package load drives a workload on a peer: it keeps a number of records under way,
// measures for a while, waits for all of them, and then reads every one of them back.
package load

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidemark-log/tidemark/bench/meter"
	"github.com/tidemark-log/tidemark/bench/peers"
)

// Plan says what to do.
type Plan struct {
	Partitions int
	ValueBytes int
	// InFlight is how many records are under way, begun by one goroutine.
	InFlight int
	// Callers, if not 0, are goroutines that append one record each and wait for it, in
	// place of InFlight.
	Callers int
	// Half makes values that compress by half.
	Half bool
	// WarmUp and Duration are the time before measuring and while measuring, which goes
	// on until MinRecords are acknowledged.
	WarmUp, Duration time.Duration
	MinRecords       int64
}

// run is one Run.
type run struct {
	plan   Plan
	peer   peers.Peer
	values *values
	sent   [][]uint64 // by partition and writer; in the end, all of it is acknowledged

	acked     atomic.Int64 // records
	measuring atomic.Bool
	latencies meter.Latencies

	stop   context.CancelFunc // begins nothing more
	failed sync.Once
	err    error
}

// Run does what the plan says. An append that fails ends it with that error, and so does
// a record that cannot be read back as it was acknowledged.
func Run(ctx context.Context, p peers.Peer, plan Plan) (meter.Round, error) {
	v, err := newValues(plan.ValueBytes, plan.Half)
	if err != nil {
		return meter.Round{}, err
	}
	r := &run{plan: plan, peer: p, values: v, sent: make([][]uint64, plan.Partitions)}
	for i := range r.sent {
		r.sent[i] = make([]uint64, max(1, plan.Callers))
	}
	going, stop := context.WithCancel(ctx)
	defer stop()
	r.stop = stop
	var appending sync.WaitGroup
	if plan.Callers == 0 {
		if err := r.many(ctx, going, &appending); err != nil {
			return meter.Round{}, err
		}
	}
	for writer := range plan.Callers {
		appending.Go(func() { r.call(ctx, going, writer) })
	}
	round, err := r.measure(going)
	stop()
	appending.Wait()
	if r.err != nil {
		err = r.err // what stopped the rest
	}
	if err != nil {
		return meter.Round{}, err
	}
	round.Latency = r.latencies.Percentiles()
	if round.Checked, err = check(ctx, p, v, r.sent); err != nil {
		return meter.Round{}, err
	}
	return round, nil
}

// fail keeps the first error, and stops.
func (r *run) fail(err error) {
	r.failed.Do(func() {
		r.err = fmt.Errorf("bench: append: %w", err)
		r.stop()
	})
}

// many begins to keep many records under way.
func (r *run) many(ctx, going context.Context, appending *sync.WaitGroup) error {
	switch p := r.peer.(type) {
	case peers.Log:
		appending.Go(func() { r.stream(ctx, going, p) })
	case peers.Feeder:
		appending.Go(func() { r.feed(going, p) })
	default:
		return fmt.Errorf("bench: %T takes one record at a time", p)
	}
	return nil
}

// feed has the peer feed itself.
func (r *run) feed(going context.Context, p peers.Feeder) {
	fill := func(value []byte, number uint64) { r.values.fill(value, 0, 0, number) }
	err := p.Feed(going, fill, func(values int, took time.Duration) {
		r.acked.Add(int64(values))
		if r.measuring.Load() {
			r.latencies.Add(took)
		}
	})
	if err != nil {
		r.fail(err)
	}
	r.sent[0][0] = uint64(r.acked.Load())
}

// slot is one of the records that are under way.
type slot struct {
	value    []byte
	began    time.Time
	measured bool
	done     func(error)
}

// stream keeps InFlight records under way, to one partition after the other, until
// going ends, and waits for them.
func (r *run) stream(ctx, going context.Context, p peers.Log) {
	free := make(chan *slot, r.plan.InFlight)
	for range r.plan.InFlight {
		s := &slot{value: make([]byte, r.plan.ValueBytes)}
		s.done = func(err error) {
			if err != nil {
				r.fail(err)
			} else {
				r.end(s.began, s.measured)
			}
			free <- s
		}
		free <- s
	}
	for i := 0; going.Err() == nil; i++ {
		s := <-free
		partition := i % r.plan.Partitions
		number := &r.sent[partition][0]
		r.values.fill(s.value, uint32(partition), 0, *number)
		*number++ // if it is not acknowledged, the whole run has failed
		s.measured, s.began = r.measuring.Load(), time.Now()
		p.Append(ctx, partition, s.value, s.done)
	}
	for range r.plan.InFlight {
		<-free
	}
}

// call appends one record after the other to one partition.
func (r *run) call(ctx, going context.Context, writer int) {
	partition := writer % r.plan.Partitions
	value := make([]byte, r.plan.ValueBytes)
	number := &r.sent[partition][writer]
	for ; going.Err() == nil; *number++ {
		r.values.fill(value, uint32(partition), uint32(writer), *number)
		measured, began := r.measuring.Load(), time.Now()
		if err := r.peer.AppendWait(ctx, partition, value); err != nil {
			r.fail(err)
			return
		}
		r.end(began, measured)
	}
}

// end takes note of a record that was acknowledged.
func (r *run) end(began time.Time, measured bool) {
	r.acked.Add(1)
	if measured {
		r.latencies.Add(time.Since(began))
	}
}
