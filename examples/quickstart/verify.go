package main

import (
	"bytes"
	"context"
	"fmt"
	"iter"

	"github.com/tidemark-log/tidemark"
)

// reading is what was read back from the log.
type reading struct {
	records    int
	seen       []int // by line: how many records
	latest     []int // by partition: the latest line so far
	outOfOrder int
}

func newReading(lines, partitions int) *reading {
	r := &reading{seen: make([]int, lines), latest: make([]int, partitions)}
	for n := range r.latest {
		r.latest[n] = -1
	}
	return r
}

// add takes note of the next record of partition n. Only the first record of a
// line has a place in the order.
func (r *reading) add(n, line int) {
	r.records++
	r.seen[line]++
	if r.seen[line] > 1 {
		return
	}
	if line < r.latest[n] {
		r.outOfOrder++
	}
	r.latest[n] = max(r.latest[n], line)
}

// readBack reads every partition from its start to its high watermark.
func (j *job) readBack(ctx context.Context) (*reading, error) {
	r := newReading(len(j.in.lines), j.o.partitions)
	for n := range j.o.partitions {
		if err := j.readPartition(ctx, n, r); err != nil {
			return nil, fmt.Errorf("partition %d: %w", n, err)
		}
	}
	return r, nil
}

func (j *job) readPartition(ctx context.Context, n int, r *reading) error {
	p := j.topic.Partition(n)
	ends, err := p.Offsets(ctx)
	if err != nil {
		return err
	}
	if ends.LogStart == ends.HighWatermark {
		return nil // nothing to read, and Records would wait for more
	}
	for rec, err := range p.Records(ctx, tidemark.Earliest()) {
		if err != nil {
			return err
		}
		line, err := j.in.line(rec)
		if err != nil {
			return err
		}
		if want := tidemark.PartitionFor(rec.Key, j.o.partitions); want != n {
			return fmt.Errorf("line %d belongs to partition %d", line+1, want)
		}
		r.add(n, line)
		if rec.Offset+1 >= ends.HighWatermark {
			break
		}
	}
	return nil
}

// summary compares what was read with what was acknowledged.
func (r *reading) summary(acked []bool) summary {
	s := summary{Lines: len(acked), Read: r.records, OutOfOrder: r.outOfOrder}
	for i, ok := range acked {
		if ok {
			s.Acked++
		}
		if ok && r.seen[i] == 0 {
			s.Lost++
		}
		s.Duplicated += max(0, r.seen[i]-1)
	}
	return s
}

// compareReplicas reports whether all copies of every partition are the same bytes.
func (j *job) compareReplicas(ctx context.Context) (bool, error) {
	for n := range j.o.partitions {
		var first *tidemark.Replica
		for _, b := range j.cluster.Brokers() {
			r, err := b.Replica(ctx, j.topic.Name(), n)
			if err != nil {
				return false, err
			}
			if first == nil {
				first = r
				continue
			}
			equal, err := sameLog(ctx, first, r)
			if err != nil {
				return false, fmt.Errorf("partition %d: %w", n, err)
			}
			if !equal {
				j.say.Printf("partition %d: broker %d and broker %d differ", n, first.Broker, r.Broker)
				return false, nil
			}
		}
	}
	return true, nil
}

func sameLog(ctx context.Context, a, b *tidemark.Replica) (bool, error) {
	if a.LogStart != b.LogStart || a.LogEnd != b.LogEnd {
		return false, nil
	}
	if a.LogStart == a.LogEnd {
		return true, nil // a copy without records has nothing on its disk
	}
	return sameBatches(a.Batches(ctx, a.LogStart), b.Batches(ctx, b.LogStart))
}

func sameBatches(a, b iter.Seq2[[]byte, error]) (bool, error) {
	next, stop := iter.Pull2(b)
	defer stop()
	for x, err := range a {
		y, more, errs := pull(next, err)
		if errs != nil {
			return false, errs
		}
		if !more || !bytes.Equal(x, y) {
			return false, nil
		}
	}
	_, more, err := pull(next, nil)
	return !more, err
}

// pull takes the next batch, unless there was an error before it.
func pull(next func() ([]byte, error, bool), err error) ([]byte, bool, error) {
	if err != nil {
		return nil, false, err
	}
	batch, err, more := next()
	return batch, more, err
}
