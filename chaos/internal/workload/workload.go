// Package workload appends to a cluster and reads from it as clients would, and writes
// down what they saw.
package workload

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidemark-log/tidemark/chaos/history"
	"github.com/tidemark-log/tidemark/chaos/internal/cluster"
)

// Options describe a workload. All are required, but for Resend.
type Options struct {
	Partitions int
	Producers  int // of each partition
	InFlight   int // appends of each producer
	Readers    int // of each partition
	Rate       int // appends a second at most, all together
	// CallTimeout is how long a broker may try to append, or to read.
	CallTimeout time.Duration
	// Resend has what ended as unknown sent again, as another attempt with the same value.
	Resend bool
}

// Load is a workload that runs.
type Load struct {
	o       Options
	c       *cluster.Cluster
	ids     []int32
	history *history.History
	began   time.Time

	ctx     context.Context // of producers
	stop    context.CancelFunc
	reading context.Context // of readers
	enough  context.CancelFunc
	running sync.WaitGroup // producers
	readers sync.WaitGroup
	late    sync.WaitGroup // calls that were left to themselves

	acked, refused, unknown, reads atomic.Int64
	ackedAfterResume               atomic.Int64

	acks        []*timeline // by partition
	mu          sync.Mutex
	outstanding map[*call]bool
	pressed     atomic.Int64   // values made by Press
	positions   []atomic.Int64 // by reader: the offset that it wants next
}

// Start begins to append and to read.
func Start(c *cluster.Cluster, h *history.History, o Options) *Load {
	l := &Load{
		o: o, c: c, ids: c.IDs(), history: h, began: time.Now(), outstanding: make(map[*call]bool),
		positions: make([]atomic.Int64, o.Partitions*o.Readers),
	}
	l.ctx, l.stop = context.WithCancel(context.Background())
	l.reading, l.enough = context.WithCancel(context.Background())
	for range o.Partitions {
		l.acks = append(l.acks, &timeline{changed: make(chan struct{})})
	}
	for i := range o.Partitions * o.Producers {
		p := &producer{l: l, id: i, partition: i % o.Partitions}
		for slot := range o.InFlight {
			l.running.Go(func() { p.run(slot) })
		}
	}
	for i := range l.positions {
		l.readers.Go(func() { l.read(i) })
	}
	return l
}

// Now is the time since the start, on the clock that the history uses.
func (l *Load) Now() time.Duration { return time.Since(l.began) }

// Counts are what happened so far: attempts by outcome, and records read.
type Counts struct{ Acked, Refused, Unknown, Reads int64 }

// Counts may be called at any time.
func (l *Load) Counts() Counts {
	return Counts{l.acked.Load(), l.refused.Load(), l.unknown.Load(), l.reads.Load()}
}

// AckedAfterResume is how many of the appends that MarkResume counted were acknowledged.
func (l *Load) AckedAfterResume() int64 { return l.ackedAfterResume.Load() }

// ErrStuck means that calls were not answered though nothing holds them up.
var ErrStuck = errors.New("appends were not answered in time")

// StopAppending ends the producers, and waits until all appends are decided.
func (l *Load) StopAppending(limit time.Duration) error {
	l.stop()
	l.running.Wait()
	done := make(chan struct{})
	go func() {
		l.late.Wait()
		close(done)
	}()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-done:
		return nil
	case <-timer.C:
		return ErrStuck
	}
}

// StopReading waits until every reader has got all records below the ends given, by
// partition, or until ctx ends, and ends the readers. It reports whether they had.
func (l *Load) StopReading(ctx context.Context, ends []int64) bool {
	defer func() {
		l.enough()
		l.readers.Wait()
	}()
	for {
		behind := false
		for i := range l.positions {
			behind = behind || l.positions[i].Load() < ends[i%l.o.Partitions]
		}
		if !behind {
			return true
		}
		if !wait(ctx, 20*time.Millisecond) {
			return false
		}
	}
}

// Close ends everything that still runs. Calls whose process is gone have ended.
func (l *Load) Close() {
	l.stop()
	l.enough()
	l.running.Wait()
	l.readers.Wait()
	l.late.Wait()
}

// wait waits; false when ctx ended first.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
