package tidemark

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/record"
)

// Record is one entry of a log: Key and Value ([]byte, nil and empty are distinct),
// Headers ([]Header), Timestamp (milliseconds are kept; zero becomes the time of the
// append), and Offset and LeaderEpoch, which the log sets and appends ignore.
type Record = record.Record

// Header is one of a record's headers: Key (string) and Value ([]byte).
type Header = record.Header

// Acks says what an append waits for before it counts as done.
type Acks = protocol.Acks

const (
	// AcksAll waits until every in-sync replica has the records on disk, and
	// refuses them while fewer than MinISR are in sync. Whatever was acknowledged
	// so survives the loss of all but one of those replicas. The default.
	AcksAll = protocol.AcksAll
	// AcksLeader waits until the leader has the records on disk. They are lost if
	// the leader fails before a follower has them.
	AcksLeader = protocol.AcksLeader
	// AcksNone waits for nothing but the leader's taking them. They may be lost at any time.
	AcksNone = protocol.AcksNone
)

// Compression is how the records of a batch are packed, on disk and on the wire.
type Compression = record.Compression

const (
	NoCompression = record.NoCompression
	Gzip          = record.Gzip   // small and slow
	Snappy        = record.Snappy // as Kafka's Java client frames it
	LZ4           = record.LZ4    // fast
	Zstd          = record.Zstd   // small, and faster than Gzip
)

// AppendOptions adjusts one append.
type AppendOptions struct {
	Acks Acks // what to wait for. Default AcksAll
	// Compression packs the batch, where that makes it smaller. Limits on batches
	// count what it takes then. Default none.
	Compression Compression
}

// Result says where the records of an append are. It means something only when
// OutcomeOf the error is Appended.
type Result struct {
	Base, Last  int64 // offsets of the first and the last record; -1 with AcksNone, or when not known
	LeaderEpoch int32 // the epoch under which they were stored
}

// noResult is the Result of an append that has none, or whose is not known.
var noResult = Result{Base: -1, Last: -1}

// Partition is an ordered, append-only log: the handle that an application holds.
// It works from any broker, follows the leader, and retries what is safe to retry
// until the context ends. It is a small value without resources; all methods may
// be called from any goroutine.
type Partition struct {
	client *Client
	topic  string
	n      int32
}

// Topic is the topic's name.
func (p *Partition) Topic() string { return p.topic }

// Number is the partition's number within its topic.
func (p *Partition) Number() int { return int(p.n) }

// Append stores the records with AcksAll, as one batch: all of them or none, at
// consecutive offsets.
func (p *Partition) Append(ctx context.Context, recs ...Record) (Result, error) {
	return p.AppendWith(ctx, AppendOptions{}, recs...)
}

// AppendWith stores the records as one batch. The bytes are copied before it
// returns. An error is an *AppendError: its Outcome says whether the records are,
// are not, or may be in the log. An append whose outcome is unknown is never
// retried here; one that was refused because the leader moved is, and one that was
// refused for want of in-sync replicas (ErrNotEnoughReplicas) is not.
//
// Once taken, an append with AcksAll waits without bound until enough replicas
// are in sync again, should they fail just then: give ctx a deadline.
func (p *Partition) AppendWith(ctx context.Context, o AppendOptions, recs ...Record) (Result, error) {
	ctx = given(ctx)
	if o.Acks < AcksAll || o.Acks > AcksNone {
		return noResult, p.appendError(NotAppended, fmt.Errorf("%w: %d", ErrInvalidAcks, o.Acks))
	}
	b, t, err := p.client.topicOf(ctx, p.topic, 0)
	if err != nil {
		return noResult, p.appendError(NotAppended, err)
	}
	batch, err := encodeBatch(&b.cfg, &t.Config, o.Compression, recs)
	if err != nil {
		return noResult, p.appendError(NotAppended, err)
	}
	why := error(nil)
	for attempt := 0; ; attempt++ {
		r, err := p.client.locate(ctx, p.topic, p.n, t.ID, attempt)
		if err != nil {
			return noResult, p.appendError(NotAppended, err)
		}
		if ctx.Err() != nil {
			return noResult, p.appendError(NotAppended, ctxError(ctx, why))
		}
		answered := make(chan protocol.AppendAnswer, 1)
		var hint *protocol.PartitionState
		if r.append(protocol.Append{LeaderEpoch: -1, Acks: o.Acks, Batch: batch}, nil, func(a protocol.AppendAnswer) { answered <- a }) {
			select {
			case <-ctx.Done():
				return noResult, p.appendError(Unknown, ctxError(ctx, why))
			case a := <-answered:
				if a.Code == protocol.OK {
					return Result{a.Base, a.Last, a.LeaderEpoch}, nil
				}
				why, hint = codeError(a.Code), a.State
				if a.Outcome == Unknown {
					why = lostLeader(p.client, a.Code)
				}
				if s := a.State; a.Code == protocol.NotEnoughReplicas && s != nil {
					why = fmt.Errorf("%w: in sync %v, MinISR %d", why, s.ISR, s.MinISR)
				}
				if a.Outcome != NotAppended || !elsewhere(a.Code) {
					return Result{a.Base, a.Last, a.LeaderEpoch}, p.appendError(a.Outcome, why)
				}
			}
		}
		if err := r.again(ctx, hint); err != nil {
			return noResult, p.appendError(NotAppended, ctxError(ctx, why))
		}
	}
}

func (p *Partition) appendError(o Outcome, err error) error {
	return &AppendError{Topic: p.topic, Partition: int(p.n), Outcome: o, Err: err}
}

// encodeBatch makes one batch of the records, within the limits of a broker at hand
// and of the topic.
func encodeBatch(cfg *Config, topic *TopicConfig, c Compression, recs []Record) ([]byte, error) {
	switch limit := recordLimit(cfg, topic); {
	case len(recs) == 0:
		return nil, fmt.Errorf("%w: no records", ErrInvalidRecord)
	case !c.Valid():
		return nil, fmt.Errorf("%w: %v", ErrInvalidCompression, c)
	default:
		for i := range recs {
			if n := recordBytes(&recs[i]); n > limit {
				return nil, fmt.Errorf("%w: record %d has %d bytes, the limit is %d", ErrRecordTooLarge, i, n, limit)
			}
		}
	}
	now := time.Now()
	size := record.EncodedSize(recs, now)
	room := size
	if c != NoCompression {
		room = 0 // not known yet
	} else if size > cfg.largestBatch() {
		return nil, fmt.Errorf("%w: %d bytes, the limit is %d", ErrBatchTooLarge, size, cfg.largestBatch())
	}
	batch, err := record.EncodeCompressed(make([]byte, 0, room), recs, now, c)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidRecord, err)
	}
	if len(batch) > cfg.largestBatch() {
		return nil, fmt.Errorf("%w: %d bytes, the limit is %d", ErrBatchTooLarge, len(batch), cfg.largestBatch())
	}
	return batch, nil
}

// recordLimit is the most bytes that a record of the topic may have.
func recordLimit(cfg *Config, topic *TopicConfig) int {
	if topic.MaxRecordBytes > 0 {
		return min(cfg.MaxRecordBytes, int(topic.MaxRecordBytes))
	}
	return cfg.MaxRecordBytes
}

// recordBytes is what counts against MaxRecordBytes.
func recordBytes(r *Record) int {
	n := len(r.Key) + len(r.Value)
	for i := range r.Headers {
		n += len(r.Headers[i].Key) + len(r.Headers[i].Value)
	}
	return n
}

// Offsets are the ends of what can be read.
type Offsets struct {
	LogStart      int64 // the oldest record
	HighWatermark int64 // one behind the newest committed record
	LogEnd        int64 // the leader's log end offset; what lies above the high watermark is not committed
	LeaderEpoch   int32
}

// Offsets asks the leader for the ends of the log. It waits until the high
// watermark is valid for the present leader epoch, so that it never seems to go
// backwards after a failover.
func (p *Partition) Offsets(ctx context.Context) (Offsets, error) {
	ctx = given(ctx)
	a, err := p.ask(ctx, protocol.Read{Kind: protocol.ReadEnds, MaxWaitMs: readWaitMs}, &reading{})
	if err != nil {
		return Offsets{}, err
	}
	return Offsets{a.LogStart, a.HW, a.LogEnd, a.LeaderEpoch}, nil
}

// FetchOptions bounds one Fetch.
type FetchOptions struct {
	MaxBytes int           // about how much to return; at least one batch, which may unpack to 64 MiB. Default 1 MiB
	MaxWait  time.Duration // how long to wait for the first record. Default 0: return what is there
}

// Fetched is what one Fetch returned. The records' bytes are the caller's.
type Fetched struct {
	Records       []Record
	HighWatermark int64
	LogStart      int64
	LeaderEpoch   int32
}

// Fetch reads committed records from offset on. At the high watermark it returns
// none; outside the log it fails with ErrOffsetOutOfRange.
func (p *Partition) Fetch(ctx context.Context, offset int64, o FetchOptions) (Fetched, error) {
	ctx = given(ctx)
	if o.MaxBytes <= 0 {
		o.MaxBytes = 1 << 20
	}
	q := protocol.Read{From: offset, MaxBytes: int32(min(o.MaxBytes, 1<<30))}
	var a protocol.ReadAnswer
	var at reading
	for end := time.Now().Add(max(o.MaxWait, 0)); ; {
		left := time.Until(end)
		q.MaxWaitMs = int32(min(max(left.Milliseconds(), 0), readWaitMs))
		var err error
		if a, err = p.ask(ctx, q, &at); err != nil {
			return Fetched{}, err
		}
		if len(a.Batches) > 0 || left <= readWaitMs*time.Millisecond {
			break
		}
	}
	f := Fetched{HighWatermark: a.HW, LogStart: a.LogStart, LeaderEpoch: a.LeaderEpoch}
	size := 0
	for _, b := range a.Batches {
		if size >= o.MaxBytes {
			break // compressed batches are more than they were on their way
		}
		for rec, err := range recordsOf(b, offset) {
			if err != nil {
				return f, err
			}
			f.Records = append(f.Records, rec)
			size += recordBytes(&rec)
		}
	}
	return f, nil
}

// recordsOf decodes a batch into records at or above from. What a reader gets is
// never aliased with the log's memory: bytes that are not unpacked are copied.
func recordsOf(batch []byte, from int64) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		if info, err := record.Peek(batch); err == nil && info.Compression == record.NoCompression {
			batch = bytes.Clone(batch)
		}
		for rec, err := range record.All(batch) {
			if err == nil && rec.Offset < from {
				continue
			}
			if !yield(rec, err) {
				return
			}
		}
	}
}

// readWaitMs is how long one round of a waiting read stays with the leader.
const readWaitMs = 5000

// reading is what a reader holds on to from one answer to the next: the topic that
// it began with, and the newest leader epoch that answered. A leader of an older
// one was deposed without knowing it, and what it says is out of date.
type reading struct {
	topic protocol.UUID
	epoch int32
}

// ask sends a read to the leader and retries while the leader moves.
func (p *Partition) ask(ctx context.Context, q protocol.Read, at *reading) (protocol.ReadAnswer, error) {
	if q.From < 0 {
		return protocol.ReadAnswer{}, fmt.Errorf("%w: %d", ErrOffsetOutOfRange, q.From)
	}
	why := error(nil)
	for attempt := 0; ; attempt++ {
		r, err := p.client.locate(ctx, p.topic, p.n, at.topic, attempt)
		if err != nil {
			return protocol.ReadAnswer{}, err
		}
		at.topic, at.epoch = r.id.Topic, max(at.epoch, r.epoch)
		answered := make(chan protocol.ReadAnswer, 1)
		var hint *protocol.PartitionState
		if r.read(q, func(a protocol.ReadAnswer) { answered <- a }) {
			select {
			case <-ctx.Done():
				return protocol.ReadAnswer{}, ctxError(ctx, why)
			case a := <-answered:
				if a.LeaderEpoch < at.epoch && (a.Code == protocol.OK || a.Code == protocol.OutOfRange) {
					a.Code = protocol.NotLeader
				}
				if a.Code == protocol.OK {
					at.epoch = a.LeaderEpoch
					return a, nil
				}
				why, hint = codeError(a.Code), a.State
				if a.Code == protocol.OutOfRange {
					return a, fmt.Errorf("%w: %d outside [%d, %d]", why, q.From, a.LogStart, a.LogEnd)
				}
				if !elsewhere(a.Code) {
					return a, why
				}
			}
		}
		if err := r.again(ctx, hint); err != nil {
			return protocol.ReadAnswer{}, ctxError(ctx, why)
		}
	}
}
