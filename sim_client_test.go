package tidemark

import (
	"fmt"
	"time"

	"github.com/tidemark-log/tidemark/protocol"
)

// simAppend is one record that a client wants appended, and all its attempts.
type simAppend struct {
	value    string
	acks     Acks
	producer *simProducer // nil: of none
	number   int          // in the producer's order
	retries  int          // how often it may be sent again
	leader   int32        // whom the last attempt went to

	under   int  // attempts under way
	again   bool // sent again after an attempt that may have succeeded
	unknown bool // an attempt may have succeeded
	acked   bool
	offset  int64
}

// refused reports whether it is certain that the record is in no log.
func (a *simAppend) refused() bool { return a.under == 0 && !a.unknown && !a.acked }

// send makes an attempt through a broker, to the leader that it knows of, and goes
// on as a client of its kind does: with a retry, or not.
func (w *simWorld) send(via *simBroker, id protocol.PartitionID, a *simAppend) {
	s, ok, _ := via.broker.view.state(id)
	if !ok || s.Leader == protocol.NoLeader {
		return
	}
	w.attempt(via, id, a, &s, protocol.Append{LeaderEpoch: -1}, nil, func(ans protocol.AppendAnswer) {
		if a.retries > 0 && ans.Code != protocol.OK && via.broker != nil && (elsewhere(ans.Code) || ans.Outcome == Unknown) {
			a.retries--
			if ans.State != nil {
				via.broker.view.learn(id, ans.State)
			}
			via.later = append(via.later, func() { w.send(via, id, a) })
		}
	})
	via.run()
}

// attempt sends an append once; false when it could not be sent.
func (w *simWorld) attempt(via *simBroker, id protocol.PartitionID, a *simAppend, s *protocol.PartitionState, msg protocol.Append, session *uint64, then func(protocol.AppendAnswer)) bool {
	at := time.Unix(1_700_000_000, 0).Add(w.now + w.wall)
	batch, err := encodeBatch(&via.broker.cfg, &TopicConfig{}, NoCompression, []Record{{Value: []byte(a.value), Timestamp: at}})
	w.must(err)
	before := w.check.appends[a.value]
	w.check.appends[a.value] = a
	a.again = a.again || a.unknown || before != nil && before != a
	a.under++
	a.leader = s.Leader
	msg.Acks, msg.Batch = a.acks, batch
	r := route{via: via.broker, leader: s.Leader, epoch: s.LeaderEpoch, id: id}
	if !r.append(msg, session, func(ans protocol.AppendAnswer) {
		w.check.answered(id, a, &ans)
		then(ans)
	}) {
		a.under--
		return false
	}
	return true
}

// read reads what is committed from an offset on.
func (w *simWorld) read(via *simBroker, id protocol.PartitionID, from int64, wait time.Duration) {
	s, ok, _ := via.broker.view.state(id)
	if !ok || s.Leader == protocol.NoLeader {
		return
	}
	r := route{via: via.broker, leader: s.Leader, epoch: s.LeaderEpoch, id: id}
	q := protocol.Read{From: from, MaxBytes: 1 << 20, MaxWaitMs: int32(wait.Milliseconds())}
	r.read(q, func(ans protocol.ReadAnswer) { w.check.wasRead(s.Leader, id, from, &ans) })
	via.run()
}

// simProducer sends records of one partition in order, several at a time, in the
// way of a Producer (D22): behind a refusal everything is sent again, in another
// generation; behind an unknown outcome nothing is sent that was waiting.
type simProducer struct {
	w          *simWorld
	via        *simBroker
	broker     *Broker // the process it lives in
	id         protocol.PartitionID
	stream     uint64
	generation uint32
	sent       []*simAppend // in order, answered or not
	answers    map[*simAppend]protocol.AppendAnswer
	queue      []*simAppend // to be sent again, in order
	acked      []*simAppend
	count      int
	session    uint64
	epoch      int32
}

func (w *simWorld) newProducer(via *simBroker, id protocol.PartitionID) *simProducer {
	return &simProducer{
		w: w, via: via, broker: via.broker, id: id, stream: w.ids.Uint64() | 1, generation: 1, answers: make(map[*simAppend]protocol.AppendAnswer),
	}
}

// produce sends what is to be sent again, or n new records.
func (p *simProducer) produce(n int) {
	if p.via.broker != p.broker || p.via.paused {
		return // its process is gone, or stands still
	}
	s, ok, _ := p.broker.view.state(p.id)
	if !ok || s.Leader == protocol.NoLeader || len(p.sent) > 0 && s.LeaderEpoch != p.epoch || len(p.sent) > 8 {
		return
	}
	if len(p.sent) == 0 {
		p.session, p.epoch = 0, s.LeaderEpoch
	}
	for range n {
		if len(p.queue) == 0 {
			p.w.values++
			p.count++
			p.queue = append(p.queue, &simAppend{value: fmt.Sprintf("p%d", p.w.values), acks: AcksAll, producer: p, number: p.count})
		}
		a := p.queue[0]
		p.queue = p.queue[1:]
		msg := protocol.Append{LeaderEpoch: s.LeaderEpoch, Stream: protocol.Stream{ID: p.stream, Generation: p.generation}}
		p.sent = append(p.sent, a)
		if !p.w.attempt(p.via, p.id, a, &s, msg, &p.session, func(ans protocol.AppendAnswer) { p.answered(a, ans) }) {
			p.sent, p.queue = p.sent[:len(p.sent)-1], append([]*simAppend{a}, p.queue...)
			break
		}
	}
	p.via.run()
}

func (p *simProducer) answered(a *simAppend, ans protocol.AppendAnswer) {
	p.answers[a] = ans
	if ans.State != nil {
		p.broker.view.learn(p.id, ans.State)
	}
	if len(p.answers) < len(p.sent) {
		return
	}
	// Everything is decided: what was refused is sent again in its order, unless an
	// outcome is unknown; then the application goes on with other records.
	var refused []*simAppend
	unknown := false
	for _, a := range p.sent {
		ans := p.answers[a]
		p.generation = max(p.generation, ans.Generation)
		unknown = unknown || ans.Code != protocol.OK && ans.Outcome == Unknown
		if ans.Code != protocol.OK && ans.Outcome == NotAppended {
			refused = append(refused, a)
		}
	}
	if len(refused) > 0 || unknown {
		p.generation++
	}
	if p.queue = append(refused, p.queue...); unknown {
		p.queue = nil
	}
	p.sent = nil
	clear(p.answers)
}
