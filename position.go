package tidemark

import (
	"context"
	"errors"
	"iter"
	"time"

	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/record"
)

// Position is where to begin reading.
type Position struct {
	kind   positionKind
	offset int64
	millis int64
}

type positionKind uint8

const (
	fromStart positionKind = iota
	fromEnd
	fromOffset
	fromTime
)

// Earliest is the oldest record that the log still has.
func Earliest() Position { return Position{kind: fromStart} }

// Latest is the first record that is not committed yet: only what comes from now on.
func Latest() Position { return Position{kind: fromEnd} }

// At is the record with that offset.
func At(offset int64) Position { return Position{kind: fromOffset, offset: offset} }

// AfterTime is the first record of the log whose Timestamp is t or later, to the
// millisecond. What follows it comes in order of offsets, whatever its time. While
// there is no such record it is the next one that is appended with such a time.
//
// Timestamps are the appenders'. There is no index of them: the log is read from its
// start until the record is found, a MiB at a time. Batches that are older as a
// whole are not looked into.
func AfterTime(t time.Time) Position {
	// No record has a time outside of these; t itself may not fit milliseconds.
	const first, last = 0, 253402300800 // the years 1970 to 9999
	switch s := t.Unix(); {
	case s < first:
		return Position{kind: fromTime}
	case s >= last:
		return Position{kind: fromTime, millis: last * 1000}
	}
	return Position{kind: fromTime, millis: t.UnixMilli()}
}

// cursor is a reader's place in a partition.
type cursor struct {
	p       *Partition
	at      reading
	next    int64
	millis  int64
	seeking bool // records older than millis are passed over until the first that is not
	// loose means that nothing was given out yet of a reader that began at the log's
	// start: should that move meanwhile, it follows.
	loose bool
}

// open finds a position's offset; of a time, the log's start. ends are the log's
// then, unless the position is an offset.
func (p *Partition) open(ctx context.Context, from Position) (c cursor, ends protocol.ReadAnswer, err error) {
	c = cursor{p: p, next: from.offset, millis: from.millis, seeking: from.kind == fromTime}
	if from.kind == fromOffset {
		return c, ends, nil
	}
	ends, err = p.ask(ctx, protocol.Read{Kind: protocol.ReadEnds, MaxWaitMs: readWaitMs}, &c.at)
	c.loose, c.next = from.kind != fromEnd, ends.LogStart
	if from.kind == fromEnd {
		c.next = ends.HW
	}
	return c, ends, err
}

// read returns the next batches, none when nothing came in time.
func (c *cursor) read(ctx context.Context, waitMs int32) ([][]byte, error) {
	for {
		a, err := c.p.ask(ctx, protocol.Read{From: c.next, MaxBytes: 1 << 20, MaxWaitMs: waitMs}, &c.at)
		if c.loose && errors.Is(err, ErrOffsetOutOfRange) && a.LogStart > c.next {
			c.next = a.LogStart
			continue
		}
		return a.Batches, err
	}
}

// records gives out what a batch holds for this reader.
func (c *cursor) records(batch []byte) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		if c.seeking {
			info, err := record.Peek(batch)
			if err != nil {
				yield(Record{}, err)
				return
			}
			if info.MaxTimestamp < c.millis {
				c.next = info.End()
				return
			}
		}
		for rec, err := range recordsOf(batch, c.next) {
			if err != nil {
				yield(rec, err)
				return
			}
			c.next = rec.Offset + 1
			if c.seeking && rec.Timestamp.UnixMilli() < c.millis {
				continue
			}
			c.seeking, c.loose = false, false
			if !yield(rec, nil) {
				return
			}
		}
	}
}

// Records iterates over the committed records from a position on, in order and
// without a gap. At the end it waits for more; it survives failovers. It ends
// when ctx ends, with ctx's error, or with the first other error: with
// ErrTopicRecreated or ErrUnknownTopic when the topic that it began with is gone.
// The records' bytes are the caller's. To read what there is and stop, ask Find for
// Latest first and leave the loop at the offset before that.
func (p *Partition) Records(ctx context.Context, from Position) iter.Seq2[Record, error] {
	ctx = given(ctx)
	return func(yield func(Record, error) bool) {
		c, _, err := p.open(ctx, from)
		for err == nil {
			var batches [][]byte
			batches, err = c.read(ctx, readWaitMs)
			for _, b := range batches {
				for rec, err := range c.records(b) {
					if !yield(rec, err) || err != nil {
						return
					}
				}
			}
		}
		yield(Record{}, err)
	}
}

// Find returns the offset that a position has now, for Fetch. Of a time that no
// committed record has reached it is the high watermark. That of At is returned as it
// is: whether the log has it shows when it is read.
func (p *Partition) Find(ctx context.Context, at Position) (int64, error) {
	ctx = given(ctx)
	c, ends, err := p.open(ctx, at)
	for err == nil && c.seeking && c.next < ends.HW {
		var batches [][]byte
		batches, err = c.read(ctx, readWaitMs)
		if err == nil && len(batches) == 0 {
			break // the log has become shorter than it was (EL-2)
		}
		for _, b := range batches {
			for rec, err := range c.records(b) {
				return rec.Offset, err
			}
		}
	}
	return c.next, err
}
