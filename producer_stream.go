package tidemark

import (
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
	incoming []*queuedRecord
	refusal  error // why nothing is taken at present; nil: it is, or nothing was sent
	active   bool  // in the Producer's list of streams with something to send
	halted   bool  // an outcome was unknown: nothing is taken until Resume
	drained  bool  // halted, and everything from before has ended

	// Of the Producer's goroutine alone.
	queue      []*queuedRecord // not sent, in order
	queued     int64           // their bytes
	sent       []*sentBatch    // in order
	generation uint32
	sentGen    uint32    // of the batches under way
	sentRoute  route     // the way that they went
	session    uint64    // and the link session that they went in
	tries      int       // that led to nothing: the next one goes by another broker
	notBefore  time.Time // after a refusal, when to try again
	refusing   time.Time // since when nothing was taken; zero: it is taken
	missing    time.Time // since when the topic or the partition is not found; zero: it is
}

// sentBatch is a batch under way, or answered and waiting for those before it.
type sentBatch struct {
	stream   *stream
	records  []*queuedRecord
	route    route
	answer   protocol.AppendAnswer
	answered bool
}

func (b *sentBatch) refused() bool {
	return b.answer.Code != protocol.OK && b.answer.Outcome == NotAppended
}

func (b *sentBatch) unknown() bool {
	return b.answer.Code != protocol.OK && b.answer.Outcome == Unknown
}

// ended is a record's end.
type ended struct {
	q   *queuedRecord
	res Result
	err error
}

// collect takes what was appended meanwhile. The Producer's lock is held.
func (s *stream) collect() {
	for _, q := range s.incoming {
		s.queued += q.bytes
	}
	s.queue = append(s.queue, s.incoming...)
	clear(s.incoming)
	s.incoming = s.incoming[:0]
}

// send sends what may be sent. blocked means that it has to be tried again.
func (s *stream) send() (done []ended, blocked bool) {
	for len(s.queue) > 0 && len(s.sent) < batchesInFlight {
		if len(s.sent) > 0 && (s.queued < pipelineBytes || s.sentGen != s.generation) {
			return nil, false // the answer to what is under way brings us back
		}
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
		b := s.next(&r.via.cfg)
		b.route = r
		s.sentRoute, s.sentGen = r, s.generation
		s.sent = append(s.sent, b)
		a := protocol.Append{
			LeaderEpoch: r.epoch, Acks: s.p.opts.Acks, Stream: protocol.Stream{ID: s.id, Generation: s.generation},
			Batch: b.encode(s.p.opts.Compression),
		}
		s.missing = time.Time{}
		if !r.append(a, &s.session, func(a protocol.AppendAnswer) { b.answer = a; s.p.inbox.put(b) }) {
			s.sent = s.sent[:len(s.sent)-1]
			s.requeue([]*sentBatch{b})
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

// next takes records for one batch off the queue.
func (s *stream) next(cfg *Config) *sentBatch {
	size, n := record.HeaderSize, 0
	for n < len(s.queue) {
		add := record.MaxRecordSize(&s.queue[n].rec)
		if n > 0 && size+add > cfg.MaxBatchBytes {
			break
		}
		size += add
		s.queued -= s.queue[n].bytes
		n++
	}
	b := &sentBatch{stream: s, records: slices.Clone(s.queue[:n])}
	s.queue = dropFront(s.queue, n)
	return b
}

// encode makes a fresh copy of the batch: a leader stamps what it takes.
func (b *sentBatch) encode(c Compression) []byte {
	recs := make([]Record, len(b.records))
	for i, q := range b.records {
		recs[i] = q.rec
	}
	now := time.Now()
	room := 0 // not known for a compressed batch
	if c == NoCompression {
		room = record.EncodedSize(recs, now)
	}
	// What can be wrong with a record was found before it was queued.
	out, _ := record.EncodeCompressed(make([]byte, 0, room), recs, now, c)
	return out
}

// settle ends the batches at the front that are decided.
func (s *stream) settle() (done []ended) {
	for len(s.sent) > 0 && s.sent[0].answered {
		b := s.sent[0]
		if b.refused() && !s.stopped() && passing(b.answer.Code) {
			// It is sent again, and everything behind it that was refused for its sake,
			// once all of that is decided.
			if slices.ContainsFunc(s.sent, func(b *sentBatch) bool { return !b.answered }) {
				return done
			}
			if !slices.ContainsFunc(s.sent, (*sentBatch).unknown) {
				return append(done, s.sendAgain()...)
			}
			s.halt()
		}
		s.sent = s.sent[1:]
		done = append(done, s.endBatch(b)...)
	}
	if len(s.sent) == 0 && s.stopped() {
		done = append(done, s.refuseQueue(ErrResume)...)
		s.p.mu.Lock()
		s.drained = s.halted
		s.p.mu.Unlock()
	}
	return done
}

// passing reports whether a refusal may be over by the time of another attempt.
func passing(c protocol.Code) bool {
	return elsewhere(c) || c == protocol.NotEnoughReplicas || c == protocol.Overloaded
}

func (s *stream) endBatch(b *sentBatch) []ended {
	a := &b.answer
	switch {
	case a.Code == protocol.OK:
		return s.acked(b)
	case b.refused() && s.stopped():
		return s.failed(b.records, noResult, NotAppended, ErrResume)
	}
	s.nextGeneration(b)
	if b.unknown() {
		s.halt()
	}
	why := codeError(a.Code)
	if b.unknown() {
		why = lostLeader(s.p.topic.client, a.Code)
	}
	return s.failed(b.records, Result{a.Base, a.Last, a.LeaderEpoch}, a.Outcome, why)
}

// nextGeneration follows a refusal: the leader refuses the rest of the generation.
func (s *stream) nextGeneration(b *sentBatch) {
	s.generation = max(s.generation, s.sentGen, b.answer.Generation) + 1
}

// halt stops the stream: what is not sent is refused, and so is what comes.
func (s *stream) halt() {
	s.p.mu.Lock()
	s.halted, s.drained = true, false
	s.refusing, s.refusal = time.Time{}, nil
	s.collect()
	s.p.mu.Unlock()
}

func (s *stream) stopped() bool {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	return s.halted
}

// sendAgain puts refused batches back in their place.
func (s *stream) sendAgain() (done []ended) {
	var again []*sentBatch
	for _, b := range s.sent {
		if b.refused() {
			again = append(again, b)
			s.nextGeneration(b)
			b.route.via.view.learn(b.route.id, b.answer.State)
		} else {
			done = append(done, s.endBatch(b)...)
		}
	}
	s.sent = nil
	s.notBefore = time.Now().Add(retryPause / 4)
	s.tries++
	why := codeError(again[0].answer.Code)
	s.requeue(again)
	return append(done, s.giveUp(why)...)
}

func (s *stream) requeue(batches []*sentBatch) {
	var front []*queuedRecord
	for _, b := range batches {
		front = append(front, b.records...)
		for _, q := range b.records {
			s.queued += q.bytes
		}
	}
	s.queue = append(front, s.queue...)
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	if !s.active {
		s.active = true
		s.p.active = append(s.p.active, s)
	}
}

// setRefusal notes why nothing is taken.
func (s *stream) setRefusal(why error) {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	s.refusal = why
}

func (s *stream) acked(b *sentBatch) []ended {
	if !s.refusing.IsZero() {
		s.refusing = time.Time{}
		s.setRefusal(nil)
	}
	done := make([]ended, len(b.records))
	for i, q := range b.records {
		res := Result{Base: -1, Last: -1, LeaderEpoch: b.answer.LeaderEpoch}
		if b.answer.Base >= 0 {
			res.Base, res.Last = b.answer.Base+int64(i), b.answer.Base+int64(i)
		}
		done[i] = ended{q: q, res: res}
	}
	return done
}

func (s *stream) failed(records []*queuedRecord, res Result, o Outcome, err error) []ended {
	done := make([]ended, len(records))
	for i, q := range records {
		done[i] = ended{q: q, res: res, err: &AppendError{Topic: s.p.topic.name, Partition: int(s.n), Outcome: o, Err: err}}
	}
	return done
}

// refuseQueue ends what was not sent.
func (s *stream) refuseQueue(err error) []ended {
	done := s.failed(s.queue, noResult, NotAppended, err)
	s.queue, s.queued = nil, 0
	return done
}

// abandon ends everything when the Producer is closed.
func (s *stream) abandon() (done []ended) {
	for _, b := range s.sent {
		done = append(done, s.failed(b.records, noResult, Unknown, ErrClosed)...)
	}
	s.sent = nil
	return append(done, s.refuseQueue(ErrClosed)...)
}
