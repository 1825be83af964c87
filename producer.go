package tidemark

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/record"
)

// ProducerOptions adjusts a Producer. The zero value is right for most.
type ProducerOptions struct {
	// Acks is what an append waits for. Default AcksAll.
	Acks Acks
	// MaxBufferedBytes bounds what was appended and is not decided yet; AppendAsync
	// blocks beyond it. Default 32 MiB; one record always fits.
	MaxBufferedBytes int64
	// RetryFor is how long an append that is refused, for want of a leader or of
	// in-sync replicas, is sent again in its place. After that it ends as NotAppended,
	// and so does everything behind it. Default 1 min.
	RetryFor time.Duration
	// Compression packs each batch, where that makes it smaller. It happens on the
	// Producer's goroutine. Batches are closed by what they take without it. Default none.
	Compression Compression
	// Partitioner chooses the partition of a record, from 0 to partitions-1. Default:
	// PartitionFor the key, or one after the other for records without a key. It is
	// called from the goroutines that append, with the number of partitions that the
	// topic has by then: when that grows, a key may move to another partition.
	Partitioner func(rec Record, partitions int) int
}

// Producer appends records to the partitions of one topic: in the order of the
// calls within each partition, in batches that grow with the load, several of
// them under way at a time.
//
// It never stores a record twice and never lets one overtake another: an append
// that was refused is sent again in its place, and one whose outcome is unknown,
// or that was refused for longer than RetryFor, stops its partition. Then
// everything behind it ends, in order, and new appends to that partition are
// refused with ErrResume until Resume is called; what to do about the unknown ones
// is the application's decision.
//
// A Producer stays with the topic that it first appended to: when that is deleted
// and created again, appends fail with ErrTopicRecreated.
//
// All methods may be called from any goroutine; the order of concurrent calls is
// the order in which they get to it.
type Producer struct {
	topic *Topic
	opts  ProducerOptions
	space *semaphore.Weighted

	mu      sync.Mutex
	streams map[int32]*stream
	active  []*stream // those to look at
	rotor   int
	since   *flushSpan // what was appended since the last Flush began
	closed  bool
	bound   protocol.UUID // the topic that it first appended to

	known    atomic.Pointer[knownTopic]
	builders sync.Pool // of *record.Builder, empty

	inbox   *mailbox[*recordBatch] // answered batches, and nil for "look at the streams"
	ctx     context.Context        // ends when the Producer is closed
	cancel  context.CancelFunc
	stopped chan struct{}
}

// flushSpan counts the batches of records that were appended between two calls of
// Flush and have not ended. A Flush waits for the spans that it finds.
type flushSpan struct {
	open   int
	sealed bool          // a Flush began after it
	ended  chan struct{} // closed once it is sealed and none is open
	before *flushSpan    // nil once that one has ended
}

func newProducer(t *Topic, o ProducerOptions) *Producer {
	if o.MaxBufferedBytes <= 0 {
		o.MaxBufferedBytes = 32 << 20
	}
	if o.RetryFor <= 0 {
		o.RetryFor = time.Minute
	}
	if o.Partitioner == nil {
		o.Partitioner = func(Record, int) int { return -1 }
	}
	p := &Producer{
		topic: t, opts: o, space: semaphore.NewWeighted(o.MaxBufferedBytes), streams: make(map[int32]*stream),
		inbox: newMailbox[*recordBatch](), stopped: make(chan struct{}), since: &flushSpan{ended: make(chan struct{})},
	}
	p.builders.New = func() any { return new(record.Builder) }
	p.ctx, p.cancel = context.WithCancel(context.Background())
	go p.run()
	return p
}

// AppendAsync queues a record and returns; its bytes are copied. It blocks only
// while MaxBufferedBytes are under way. done is called once, from the Producer's
// own goroutine, in the order of the appends within each partition; it must not
// block, nor call AppendAsync, Flush or Close. Records that fail together may get the
// same error value. When AppendAsync fails the record was not queued and done is not
// called.
func (p *Producer) AppendAsync(ctx context.Context, rec Record, done func(Result, error)) error {
	ctx = given(ctx)
	_, err := p.appendAsync(ctx, rec, done)
	return err
}

// appendAsync also returns the partition that was chosen; -1: none was.
func (p *Producer) appendAsync(ctx context.Context, rec Record, done func(Result, error)) (int, error) {
	k, err := p.topicNow(ctx)
	if err != nil {
		return -1, p.refused(-1, err)
	}
	n, err := p.choose(rec, int(k.topic.Config.Partitions))
	if err != nil {
		return n, p.refused(n, err)
	}
	size := record.MaxRecordSize(&rec)
	if err := p.check(&k.via.cfg, &k.topic.Config, &rec, size); err != nil {
		return n, p.refused(n, err)
	}
	room := min(int64(size), p.opts.MaxBufferedBytes)
	if err := p.space.Acquire(ctx, room); err != nil {
		return n, p.refused(n, p.ctxError(ctx, n, errNoRoom))
	}
	if err := p.enqueue(n, k, &rec, size, room, done); err != nil {
		p.space.Release(room)
		return n, p.refused(n, err)
	}
	return n, nil
}

// knownTopic is the topic as a broker at hand knew it when it was last looked up.
type knownTopic struct {
	via      *Broker
	topic    protocol.Topic
	maxBatch int             // the least MaxBatchBytes of the brokers at hand
	changed  <-chan struct{} // closed with the next change of what the broker knows
}

// topicNow finds the topic. Most calls find it where the last one did.
func (p *Producer) topicNow(ctx context.Context) (*knownTopic, error) {
	if k := p.known.Load(); k != nil && !p.topic.client.closed() && k.via.takesCalls() {
		select {
		case <-k.changed:
		default:
			return k, nil
		}
	}
	b, t, err := p.topic.client.topicOf(ctx, p.topic.name, 0)
	if err != nil {
		return nil, err
	}
	k := &knownTopic{via: b, topic: t, maxBatch: b.cfg.MaxBatchBytes}
	for _, other := range p.topic.client.source() {
		if other != nil {
			k.maxBatch = min(k.maxBatch, other.cfg.MaxBatchBytes) // any of them may come to lead
		}
	}
	if now, ok, _, changed := b.view.topic(p.topic.name); ok {
		k.topic, k.changed = now, changed
		p.known.Store(k)
	}
	return k, nil
}

// errNoRoom is why an append waited.
var errNoRoom = errors.New("tidemark: MaxBufferedBytes are under way")

// check refuses what cannot be appended; encoded is the record's MaxRecordSize.
func (p *Producer) check(cfg *Config, topic *TopicConfig, rec *Record, encoded int) error {
	switch {
	case p.opts.Acks < AcksAll || p.opts.Acks > AcksNone:
		return fmt.Errorf("%w: %d", ErrInvalidAcks, p.opts.Acks)
	case !p.opts.Compression.Valid():
		return fmt.Errorf("%w: %v", ErrInvalidCompression, p.opts.Compression)
	}
	if size, limit := recordBytes(rec), recordLimit(cfg, topic); size > limit {
		return fmt.Errorf("%w: %d bytes, the limit is %d", ErrRecordTooLarge, size, limit)
	}
	if !rec.Timestamp.IsZero() {
		if err := record.CheckTime(rec.Timestamp); err != nil {
			return fmt.Errorf("%w: %w", ErrInvalidRecord, err)
		}
	}
	if size := record.HeaderSize + encoded; size > cfg.largestBatch() {
		return fmt.Errorf("%w: %d bytes with its headers, the limit is %d", ErrRecordTooLarge, size, cfg.largestBatch())
	}
	return nil
}

// ctxError says that ctx ended, and why a partition took nothing until then: what
// its last refusal was, if there was one, else why.
func (p *Producer) ctxError(ctx context.Context, n int, why error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.streams[int32(n)]; s != nil && s.refusal != nil {
		why = s.refusal
	}
	return ctxError(ctx, why)
}

// Append queues a record and waits for its end. When ctx ends first the outcome
// is Unknown to the caller, though the record goes its way; the error then says why
// the partition took nothing, if that was so.
func (p *Producer) Append(ctx context.Context, rec Record) (Result, error) {
	ctx = given(ctx)
	type end struct {
		res Result
		err error
	}
	ended := make(chan end, 1)
	n, err := p.appendAsync(ctx, rec, func(res Result, err error) { ended <- end{res, err} })
	if err != nil {
		return Result{Base: -1, Last: -1}, err
	}
	select {
	case e := <-ended:
		return e.res, e.err
	case <-ctx.Done():
		return Result{Base: -1, Last: -1}, &AppendError{Topic: p.topic.name, Partition: n, Outcome: Unknown, Err: p.ctxError(ctx, n, nil)}
	}
}

func (p *Producer) refused(n int, err error) error {
	return &AppendError{Topic: p.topic.name, Partition: n, Outcome: NotAppended, Err: err}
}

// choose finds the record's partition.
func (p *Producer) choose(rec Record, partitions int) (int, error) {
	n := p.opts.Partitioner(rec, partitions)
	switch {
	case n >= partitions || n < -1:
		return n, fmt.Errorf("%w: partitioner chose %d of %d", ErrUnknownPartition, n, partitions)
	case n >= 0:
		return n, nil
	case rec.Key != nil:
		return PartitionFor(rec.Key, partitions), nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rotor++
	return p.rotor % partitions, nil
}

// enqueue puts a record into its partition's stream.
func (p *Producer) enqueue(n int, k *knownTopic, rec *Record, size int, room int64, done func(Result, error)) error {
	var now time.Time
	if rec.Timestamp.IsZero() {
		now = time.Now()
		if err := record.CheckTime(now); err != nil {
			return fmt.Errorf("%w: %w", ErrInvalidRecord, err)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return ErrClosed
	case p.bound.IsZero():
		p.bound = k.topic.ID
	case p.bound != k.topic.ID:
		return fmt.Errorf("%w: %q", ErrTopicRecreated, p.topic.name)
	}
	s := p.streams[int32(n)]
	if s == nil {
		s = &stream{p: p, n: int32(n), topic: p.bound, id: k.via.randomUint64() | 1, wakeAt: 1}
		p.streams[int32(n)] = s
	}
	if s.halted {
		return ErrResume
	}
	b := s.filling(size, k.maxBatch)
	if err := b.records.Add(rec, now); err != nil { // what can be wrong with it was found before
		return fmt.Errorf("%w: %w", ErrInvalidRecord, err)
	}
	b.ends = append(b.ends, done)
	b.room += room
	s.queued += room
	if s.queued >= s.wakeAt {
		s.wakeAt = noWake
		p.activate(s)
		p.inbox.put(nil)
	}
	return nil
}

// activate has the Producer's goroutine look at a stream. The lock is held.
func (p *Producer) activate(s *stream) {
	if !s.active {
		s.active = true
		p.active = append(p.active, s)
	}
}

// Resume lets a partition take appends again after one with an unknown outcome, or
// one that was refused for longer than RetryFor.
// It does nothing for a partition that does not wait for it, and fails with
// ErrResume while appends from before have not all ended: Flush waits for them.
func (p *Producer) Resume(partition int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.streams[partitionNumber(partition)]
	if s == nil || !s.halted {
		return nil
	}
	if !s.drained {
		return fmt.Errorf("%w: appends from before have not ended", ErrResume)
	}
	s.halted, s.drained = false, false
	return nil
}

// Flush waits until everything that was appended before has ended.
func (p *Producer) Flush(ctx context.Context) error {
	ctx = given(ctx)
	p.mu.Lock()
	span := p.since
	if span.open > 0 || span.before != nil {
		span.sealed = true
		p.since = &flushSpan{ended: make(chan struct{}), before: span}
		p.settleSpan(span)
	} else {
		span = nil
	}
	p.mu.Unlock()
	for span != nil {
		select {
		case <-span.ended:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		p.mu.Lock()
		span = span.before
		p.mu.Unlock()
	}
	return nil
}

// settleSpan notes whether a span has ended, and forgets the ones before it that
// have. The lock is held.
func (p *Producer) settleSpan(s *flushSpan) {
	if s.sealed && s.open == 0 {
		select {
		case <-s.ended:
		default:
			close(s.ended)
		}
	}
	for at := p.since; at.before != nil; {
		if b := at.before; b.sealed && b.open == 0 {
			at.before = b.before
		} else {
			at = b
		}
	}
}

// Close takes no more appends, waits until those under way have ended or ctx
// ends, and frees the Producer. What it cut off ends with ErrClosed: Unknown if it
// was sent, else NotAppended. It is idempotent.
func (p *Producer) Close(ctx context.Context) error {
	ctx = given(ctx)
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	err := p.Flush(ctx)
	p.cancel()
	<-p.stopped
	return err
}

// run is the Producer's goroutine: it sends what is queued, and ends what was answered.
func (p *Producer) run() {
	defer close(p.stopped)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	var answers []*recordBatch
	for {
		if p.pump() {
			timer.Reset(retryPause)
		} else {
			timer.Stop()
		}
		select {
		case <-p.ctx.Done():
			p.cutOff()
			return
		case <-timer.C:
		case <-p.inbox.ready:
		}
		answers = p.inbox.take(answers)
		for _, a := range answers {
			if a != nil {
				a.answered = true
				p.end(a.stream.settle())
			}
		}
	}
}

// end ends batches: their room is free before the callbacks run, and they count as
// under way until those have returned.
func (p *Producer) end(done []ended) {
	if len(done) == 0 {
		return
	}
	for i := range done {
		p.space.Release(done[i].b.room)
		done[i].tell()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range done {
		for _, span := range done[i].b.spans {
			if span.open--; span.open == 0 {
				p.settleSpan(span)
			}
		}
	}
}

// pump lets the streams to look at send what they can; true when one of them has to
// try again.
func (p *Producer) pump() (again bool) {
	p.mu.Lock()
	active := p.active
	p.active = nil
	for _, s := range active {
		s.active = false
	}
	p.mu.Unlock()
	for _, s := range active {
		done, blocked := s.send()
		p.end(done)
		if blocked {
			again = true
			p.mu.Lock()
			p.activate(s)
			p.mu.Unlock()
		}
	}
	return again
}

// cutOff ends everything when the Producer is closed before it ended by itself.
func (p *Producer) cutOff() {
	p.mu.Lock()
	all := slices.Collect(maps.Values(p.streams))
	p.mu.Unlock()
	for _, s := range all {
		p.end(s.abandon())
	}
}
