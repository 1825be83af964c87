package tidemark

import (
	"math"
	"slices"
	"time"

	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/record"
)

const (
	// batchesInFlight is how many batches of one stream may be under way.
	batchesInFlight = 4
	// pipelineBytes is how much must be queued for another batch to be sent while
	// one is under way: less is better gathered.
	pipelineBytes = 16 << 10
)

// stream is one producer's way into one partition (D22). Its batches are sent,
// answered and ended in order. A batch of another generation, for another leader
// epoch, or on another way there is sent only when nothing of the last one is
// under way, so that nothing can overtake.
type stream struct {
	p     *Producer
	n     int32
	topic protocol.UUID
	id    uint64

	// Guarded by the Producer's lock.
	queue   []*recordBatch // not sent, in order; the last may still be filled
	queued  int64          // its room
	usual   int            // how many records the last batch had
	wakeAt  int64          // what queued must come to for the stream to be looked at; noWake: something else brings that about
	refusal error          // why nothing is taken at present; nil: it is, or nothing was sent
	active  bool           // in the Producer's list of streams to look at
	halted  bool           // an outcome was unknown: nothing is taken until Resume
	drained bool           // halted, and everything from before has ended

	// Of the Producer's goroutine alone.
	sent       []*recordBatch // in order
	generation uint32
	sentGen    uint32    // of the batches under way
	sentRoute  route     // the way that they went
	session    uint64    // and the link session that they went in
	tries      int       // that led to nothing: the next one goes by another broker
	notBefore  time.Time // after a refusal, when to try again
	refusing   time.Time // since when nothing was taken; zero: it is taken
	missing    time.Time // since when the topic or the partition is not found; zero: it is
}

// noWake is more than can be queued.
const noWake = math.MaxInt64

// recordBatch is records that are appended as one: first it is filled, then under
// way, then answered, and waiting for those before it.
type recordBatch struct {
	stream  *stream
	records *record.Builder       // nil once it is encoded
	ends    []func(Result, error) // by record; nil: nobody asks
	room    int64                 // of MaxBufferedBytes
	spans   []*flushSpan          // in which its records were appended

	encoded  []byte
	route    route
	answer   protocol.AppendAnswer
	answered bool
}

func (b *recordBatch) refused() bool {
	return b.answer.Code != protocol.OK && b.answer.Outcome == NotAppended
}

func (b *recordBatch) unknown() bool {
	return b.answer.Code != protocol.OK && b.answer.Outcome == Unknown
}

// ended is a batch's end.
type ended struct {
	b   *recordBatch
	res Result // of the first record, where err is nil
	err error
}

// tell calls what waits for the records' ends.
func (e *ended) tell() {
	res := e.res
	for _, done := range e.b.ends {
		if done != nil {
			done(res, e.err)
		}
		if e.err == nil && res.Base >= 0 {
			res.Base, res.Last = res.Base+1, res.Base+1
		}
	}
}

// filling returns the batch that takes the next record, which needs size bytes at
// most. The Producer's lock is held.
func (s *stream) filling(size, maxBatch int) *recordBatch {
	if n := len(s.queue); n > 0 {
		b := s.queue[n-1]
		if b.records != nil && b.records.Size()+size <= maxBatch {
			if b.spans[len(b.spans)-1] != s.p.since { // a Flush has begun meanwhile
				b.spans = append(b.spans, s.p.since)
				s.p.since.open++
			}
			return b
		}
	}
	b := &recordBatch{
		stream: s, records: s.p.builders.Get().(*record.Builder), spans: []*flushSpan{s.p.since}, ends: make([]func(Result, error), 0, min(s.usual, 64)),
	}
	s.p.since.open++
	s.queue = append(s.queue, b)
	return b
}

// due reports whether the stream may send another batch now, the way there aside.
func (s *stream) due() bool {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	s.wakeAt = noWake
	switch {
	case len(s.queue) == 0:
		s.wakeAt = 1
		return false
	case len(s.sent) == 0:
		return true
	case len(s.sent) >= batchesInFlight, s.sentGen != s.generation:
		return false // the answer to what is under way brings us back
	case s.queued < pipelineBytes:
		s.wakeAt = pipelineBytes
		return false
	}
	return true
}

// next takes a batch off the queue. Nothing is added to it any more.
func (s *stream) next() *recordBatch {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	b := s.queue[0]
	s.queue = dropFront(s.queue, 1)
	s.queued -= b.room
	s.usual = len(b.ends)
	return b
}

// send sends what may be sent. blocked means that it has to be tried again.
func (s *stream) send() (done []ended, blocked bool) {
	for s.due() {
		if time.Now().Before(s.notBefore) {
			return nil, true
		}
		r, no := s.p.topic.client.look(s.p.topic.name, s.n, s.topic, s.tries)
		switch {
		case no != nil && no.over(&s.missing) && len(s.sent) > 0:
			return nil, false // those ahead end first
		case no != nil && no.over(&s.missing):
			return s.refuseQueue(no.err), false
		case no != nil:
			return s.giveUp(no.err), true
		case len(s.sent) == 0:
			s.session = 0
		case r.epoch != s.sentRoute.epoch || r.via != s.sentRoute.via:
			return nil, false
		}
		b := s.next()
		b.encode(s.p.opts.Compression)
		b.route = r
		s.sentRoute, s.sentGen = r, s.generation
		s.sent = append(s.sent, b)
		a := protocol.Append{
			LeaderEpoch: r.epoch, Acks: s.p.opts.Acks, Stream: protocol.Stream{ID: s.id, Generation: s.generation},
			Batch: b.encoded,
		}
		s.missing = time.Time{}
		if !r.append(a, &s.session, func(a protocol.AppendAnswer) { b.answer = a; s.p.inbox.put(b) }) {
			s.sent = s.sent[:len(s.sent)-1]
			s.requeue([]*recordBatch{b})
			s.tries++
			return s.giveUp(ErrNotLeader), true
		}
	}
	return nil, false
}

// giveUp ends everything, in order, once nothing has been taken for longer than
// the Producer is told to try: as after an unknown outcome, the application
// decides what to do before anything else is taken.
func (s *stream) giveUp(why error) []ended {
	now := time.Now()
	if s.refusing.IsZero() {
		s.refusing = now
	}
	s.setRefusal(why)
	if len(s.sent) > 0 || now.Sub(s.refusing) < s.p.opts.RetryFor {
		return nil
	}
	s.halt()
	done := s.refuseQueue(why)
	s.p.mu.Lock()
	s.drained = true
	s.p.mu.Unlock()
	return done
}

// encode makes the batch's bytes, once. They are no larger than the batch, for a
// leader keeps them in memory as they are, and stamps them when it takes them: until
// then they are sent again as they are.
func (b *recordBatch) encode(c Compression) {
	if b.encoded != nil {
		return
	}
	room := 0 // not known for a compressed batch
	if c == NoCompression {
		room = b.records.Size()
	}
	// What can be wrong with a record was found before it was queued.
	b.encoded, _ = b.records.Encode(make([]byte, 0, room), c)
	b.records.Reset()
	b.stream.p.builders.Put(b.records)
	b.records = nil
}

// settle ends the batches at the front that are decided.
func (s *stream) settle() (done []ended) {
	defer s.lookAgain()
	for len(s.sent) > 0 && s.sent[0].answered {
		b := s.sent[0]
		if b.refused() && !s.stopped() && passing(b.answer.Code) {
			// It is sent again, and everything behind it that was refused for its sake,
			// once all of that is decided.
			if slices.ContainsFunc(s.sent, func(b *recordBatch) bool { return !b.answered }) {
				return done
			}
			if !slices.ContainsFunc(s.sent, (*recordBatch).unknown) {
				return append(done, s.sendAgain()...)
			}
			s.halt()
		}
		s.sent = s.sent[1:]
		done = append(done, s.endBatch(b))
	}
	if len(s.sent) == 0 && s.stopped() {
		done = append(done, s.refuseQueue(ErrResume)...)
		s.p.mu.Lock()
		s.drained = s.halted
		s.p.mu.Unlock()
	}
	return done
}

// lookAgain has the stream looked at: there may be room to send.
func (s *stream) lookAgain() {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	s.p.activate(s)
}

// passing reports whether a refusal may be over by the time of another attempt.
func passing(c protocol.Code) bool {
	return elsewhere(c) || c == protocol.NotEnoughReplicas || c == protocol.Overloaded
}

func (s *stream) endBatch(b *recordBatch) ended {
	a := &b.answer
	switch {
	case a.Code == protocol.OK:
		return s.acked(b)
	case b.refused() && s.stopped():
		return s.failed(b, noResult, NotAppended, ErrResume)
	}
	s.nextGeneration(b)
	if b.unknown() {
		s.halt()
	}
	why := codeError(a.Code)
	if b.unknown() {
		why = lostLeader(s.p.topic.client, a.Code)
	}
	return s.failed(b, Result{a.Base, a.Last, a.LeaderEpoch}, a.Outcome, why)
}

// nextGeneration follows a refusal: the leader refuses the rest of the generation.
func (s *stream) nextGeneration(b *recordBatch) {
	s.generation = max(s.generation, s.sentGen, b.answer.Generation) + 1
}

// halt stops the stream: what is not sent is refused, and so is what comes.
func (s *stream) halt() {
	s.p.mu.Lock()
	s.halted, s.drained = true, false
	s.refusing, s.refusal = time.Time{}, nil
	s.p.mu.Unlock()
}

func (s *stream) stopped() bool {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	return s.halted
}

// sendAgain puts refused batches back in their place.
func (s *stream) sendAgain() (done []ended) {
	var again []*recordBatch
	for _, b := range s.sent {
		if b.refused() {
			again = append(again, b)
			s.nextGeneration(b)
			b.route.via.view.learn(b.route.id, b.answer.State)
		} else {
			done = append(done, s.endBatch(b))
		}
	}
	s.sent = nil
	s.notBefore = time.Now().Add(retryPause / 4)
	s.tries++
	why := codeError(again[0].answer.Code)
	s.requeue(again)
	return append(done, s.giveUp(why)...)
}

// requeue puts batches back in front of what is not sent.
func (s *stream) requeue(batches []*recordBatch) {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	for _, b := range batches {
		b.answered, b.answer = false, protocol.AppendAnswer{}
		s.queued += b.room
	}
	s.queue = append(batches, s.queue...)
	s.p.activate(s)
}

// setRefusal notes why nothing is taken.
func (s *stream) setRefusal(why error) {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	s.refusal = why
}

func (s *stream) acked(b *recordBatch) ended {
	if !s.refusing.IsZero() {
		s.refusing = time.Time{}
		s.setRefusal(nil)
	}
	res := Result{Base: -1, Last: -1, LeaderEpoch: b.answer.LeaderEpoch}
	if b.answer.Base >= 0 {
		res.Base, res.Last = b.answer.Base, b.answer.Base
	}
	return ended{b: b, res: res}
}

func (s *stream) failed(b *recordBatch, res Result, o Outcome, err error) ended {
	return ended{b, res, &AppendError{Topic: s.p.topic.name, Partition: int(s.n), Outcome: o, Err: err}}
}

// refuseQueue ends what was not sent.
func (s *stream) refuseQueue(err error) (done []ended) {
	s.p.mu.Lock()
	queue := s.queue
	s.queue, s.queued, s.wakeAt = nil, 0, 1
	s.p.mu.Unlock()
	for _, b := range queue {
		done = append(done, s.failed(b, noResult, NotAppended, err))
	}
	return done
}

// abandon ends everything when the Producer is closed.
func (s *stream) abandon() (done []ended) {
	for _, b := range s.sent {
		done = append(done, s.failed(b, noResult, Unknown, ErrClosed))
	}
	s.sent = nil
	return append(done, s.refuseQueue(ErrClosed)...)
}
