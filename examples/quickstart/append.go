package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/tidemark-log/tidemark"
)

// windowSize is how many lines of one partition are under way at a time, so that
// halfway through the file is halfway through the appends.
const windowSize = 500

// appendMissing appends every line that the log does not have, and returns how
// long the failover took.
func (j *job) appendMissing(ctx context.Context, before *reading) (time.Duration, error) {
	missing := make([][]int, j.o.partitions)
	total := 0
	j.acked = make([]bool, len(j.in.lines))
	for i := range j.in.lines {
		if j.acked[i] = before.seen[i] > 0; !j.acked[i] {
			n := tidemark.PartitionFor(key(i), j.o.partitions)
			missing[n] = append(missing[n], i)
			total++
		}
	}
	j.say.Printf("%d lines are there, %d to append", len(j.in.lines)-total, total)
	if total == 0 {
		return 0, nil
	}
	c := &crash{job: j, halfway: (len(missing[0]) + 1) / 2}
	if len(missing[0]) == 0 {
		j.say.Print("partition 0 lacks nothing: no broker is killed")
	}
	if err := j.appendAll(ctx, missing, c); err != nil {
		return 0, err
	}
	return c.took(), c.restart(ctx)
}

// appendAll runs one writer for each partition, all of them on one Producer.
func (j *job) appendAll(ctx context.Context, missing [][]int, c *crash) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	producer := j.topic.Producer(tidemark.ProducerOptions{Acks: j.o.acks})
	var acked atomic.Int64
	writers, writing := errgroup.WithContext(ctx)
	for n, lines := range missing {
		w := &writer{job: j, producer: producer, partition: n, todo: lines, window: semaphore.NewWeighted(windowSize), total: &acked}
		if n == 0 {
			w.crash = c
		}
		writers.Go(func() error { return w.run(writing) })
	}
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		j.watch(writing, &acked, cancel)
	}()
	err := writers.Wait() // and this ends the watch
	<-watched
	closeErr := producer.Close(ctx)
	switch cause := context.Cause(ctx); {
	case err == nil:
		return closeErr
	case cause != nil:
		return cause // what ended the writers, not how they ended
	}
	return err
}

// watch tells how it goes, and gives up when nothing goes for too long.
func (j *job) watch(ctx context.Context, acked *atomic.Int64, giveUp context.CancelCauseFunc) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	last, since := int64(-1), time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := acked.Load()
		j.say.Printf("%d lines acknowledged", now)
		if now != last {
			last, since = now, time.Now()
		} else if time.Since(since) > patience {
			giveUp(fmt.Errorf("no line was acknowledged for %v", patience))
		}
	}
}

// writer appends the lines of one partition in the order of the file, until each
// of them is acknowledged.
type writer struct {
	job       *job
	producer  *tidemark.Producer
	partition int
	todo      []int // lines without an acknowledgement
	window    *semaphore.Weighted
	total     *atomic.Int64
	crash     *crash // partition 0 only; nil otherwise
}

func (w *writer) run(ctx context.Context) error {
	for len(w.todo) > 0 {
		if err := w.pass(ctx); err != nil {
			return fmt.Errorf("partition %d: %w", w.partition, err)
		}
	}
	return nil
}

// pass appends what is to do, up to the first failure; waits until everything has
// ended; and makes ready for the next pass, which begins with the first line that
// was not acknowledged. That is what keeps the order.
func (w *writer) pass(ctx context.Context) error {
	passing, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	for i, line := range w.todo {
		if err := w.crash.step(ctx, len(w.todo)-i); err != nil {
			return err
		}
		send := w.send
		if w.crash.wantsProbe() {
			send = w.probe
		}
		err := send(passing, line, func(err error) {
			if tidemark.OutcomeOf(err) != tidemark.Appended {
				fail(err)
				return
			}
			w.job.acked[line] = true
			w.total.Add(1)
		})
		if err != nil {
			fail(err)
			break
		}
	}
	if err := w.drain(ctx); err != nil {
		return err
	}
	w.dropAcked()
	return w.resume(ctx, context.Cause(passing))
}

// send appends a line through the Producer and does not wait. end is called from
// the Producer's goroutine, unless send fails.
func (w *writer) send(ctx context.Context, line int, end func(error)) error {
	if err := w.window.Acquire(ctx, 1); err != nil {
		return err
	}
	err := w.producer.AppendAsync(ctx, w.job.in.record(line), func(res tidemark.Result, err error) {
		defer w.window.Release(1)
		end(err)
		if w.job.o.acks == tidemark.AcksAll && err == nil {
			w.crash.survived(res)
		}
	})
	if err != nil {
		w.window.Release(1)
	}
	return err
}

// probe appends a line with acks=all, whatever the level of the others, when
// nothing is under way that it could overtake.
func (w *writer) probe(ctx context.Context, line int, end func(error)) error {
	if err := w.drain(ctx); err != nil {
		return err
	}
	res, err := w.job.topic.Partition(w.partition).Append(ctx, w.job.in.record(line))
	end(err)
	if err == nil {
		w.crash.survived(res)
	}
	return nil
}

// drain waits until nothing is under way.
func (w *writer) drain(ctx context.Context) error {
	if err := w.window.Acquire(ctx, windowSize); err != nil {
		return err
	}
	w.window.Release(windowSize)
	return nil
}

func (w *writer) dropAcked() {
	left := w.todo[:0]
	for _, line := range w.todo {
		if !w.job.acked[line] {
			left = append(left, line)
		}
	}
	w.todo = left
}

// resume decides what to do about the failure that ended a pass. After an unknown
// outcome the partition takes nothing until we say Resume: only we know that a
// duplicate is better for us than a gap.
func (w *writer) resume(ctx context.Context, failure error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case failure == nil || len(w.todo) == 0:
		return nil
	case !passes(failure):
		return failure
	}
	w.job.say.Printf("%v; appending again from line %d", failure, w.todo[0]+1)
	if err := w.producer.Resume(w.partition); err != nil {
		return err
	}
	return pause(ctx)
}

// passes reports whether an append may succeed when it is tried again.
func passes(err error) bool {
	if tidemark.OutcomeOf(err) == tidemark.Unknown {
		return true
	}
	for _, target := range []error{tidemark.ErrResume, tidemark.ErrNotLeader, tidemark.ErrNotEnoughReplicas, tidemark.ErrOverloaded} {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}
