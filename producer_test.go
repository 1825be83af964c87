package tidemark

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tidemark-log/tidemark/coordination/memory"
	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/record"
	"github.com/tidemark-log/tidemark/storage/memstore"
	"github.com/tidemark-log/tidemark/transport"
)

// testingT is what a test and a property have in common.
type testingT interface {
	require.TestingT
	Helper()
	Fatalf(format string, args ...any)
}

// streamBench is a Producer without its goroutine, over brokers that were never
// started: the test takes the appends out of their mailboxes and answers them.
type streamBench struct {
	t      testingT
	p      *Producer
	b      []*Broker
	id     protocol.PartitionID
	leader int32
	epoch  int32
	queued int
	ends   []streamEnd // in the order of the callbacks
}

// large is the size of a record that fills a batch.
const large = 64<<10 - 100

type streamEnd struct {
	n   int // number of the record
	res Result
	err error
}

func newStreamBench(t testingT, o ProducerOptions, brokers int) *streamBench {
	s := &streamBench{t: t, id: protocol.PartitionID{Topic: protocol.UUID{1}}}
	for id := range int32(brokers) {
		store, err := memstore.NewDisk(memstore.Manual()).Open()
		require.NoError(t, err)
		b := newBroker(Config{
			ID: id + 1, Store: store, Coordination: memory.New(memory.Options{Manual: true}).Connect(), Loops: 1,
			MaxRecordBytes: 64 << 10, MaxBatchBytes: 64 << 10,
		}.withDefaults())
		s.b = append(s.b, b)
	}
	s.lead(1, 0)
	client := NewClient(func() []*Broker { return s.b }, ClientOptions{})
	s.p = newProducerWithoutGoroutine(client.Topic("t"), o)
	return s
}

// newProducerWithoutGoroutine ends the goroutine of a new Producer before it did anything.
func newProducerWithoutGoroutine(t *Topic, o ProducerOptions) *Producer {
	p := newProducer(t, o)
	p.cancel()
	<-p.stopped
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

// lead shows all brokers who leads the partition.
func (s *streamBench) lead(leader, epoch int32) {
	s.leader, s.epoch = leader, epoch
	for _, b := range s.b {
		m := newMember()
		u := protocol.Update{Full: true, Topics: []protocol.Topic{{ID: s.id.Topic, Name: "t", Config: TopicConfig{Partitions: 1}}}, States: []protocol.PartitionUpdate{
			{ID: s.id, State: protocol.PartitionState{Leader: leader, LeaderEpoch: epoch, PartitionEpoch: epoch, ISR: []int32{1}, Replicas: []int32{1}}},
		}}
		_, _, completed := m.onUpdate(1, &u)
		b.view.apply(m, &u, completed)
	}
}

// add queues records with their numbers as values.
func (s *streamBench) add(records, bytes int) {
	for _, b := range s.b {
		b.attached.Store(true) // so that the Producer asks it again
	}
	for range records {
		n := s.queued
		value := make([]byte, bytes)
		copy(value, fmt.Sprintf("%d;", n))
		require.NoError(s.t, s.p.AppendAsync(context.Background(), Record{Value: value}, func(res Result, err error) {
			s.ends = append(s.ends, streamEnd{n, res, err})
		}))
		s.queued++
	}
}

func numberOf(s testingT, value []byte) (n int) {
	_, err := fmt.Sscanf(string(value), "%d;", &n)
	require.NoError(s, err)
	return n
}

// sent takes the appends that reached a broker.
func (s *streamBench) sent(broker int32) []protocol.Append {
	s.p.pump()
	var all []protocol.Append
	for _, ev := range s.b[broker-1].loops[0].inbox.take(nil) {
		if ev.payload != nil {
			all = append(all, ev.payload.Appends...)
		}
	}
	return all
}

// waited has the pause after a refusal be over.
func (s *streamBench) waited() {
	for _, st := range s.p.streams {
		st.notBefore = time.Time{}
	}
}

// answer answers an append, and lets the Producer act upon it.
func (s *streamBench) answer(a protocol.Append, code protocol.Code, outcome Outcome, base int64) {
	s.b[s.leader-1].appends.finish(s.leader, a.Request, protocol.AppendAnswer{
		Request: a.Request, Code: code, Outcome: outcome, Base: base, Last: base, LeaderEpoch: a.LeaderEpoch,
	})
	s.react()
}

func (s *streamBench) react() {
	for _, b := range s.p.inbox.take(nil) {
		if b != nil {
			b.answered = true
			s.p.end(b.stream.settle())
		}
	}
}

func (s *streamBench) numbers() (n []int) {
	for _, e := range s.ends {
		n = append(n, e.n)
	}
	return n
}

func upTo(n int) (all []int) {
	for i := range n {
		all = append(all, i)
	}
	return all
}

func values(t testingT, batch []byte) (n []int) {
	for rec, err := range record.All(batch) {
		require.NoError(t, err)
		n = append(n, numberOf(t, rec.Value))
	}
	return n
}

// Small records are gathered while a batch is under way, large ones fill the pipeline.
func TestProducerGathersAndPipelines(t *testing.T) {
	s := newStreamBench(t, ProducerOptions{}, 1)
	s.add(1, 10)
	first := s.sent(1)
	require.Len(t, first, 1)
	s.add(5, 10)
	require.Empty(t, s.sent(1), "less is better gathered")
	s.answer(first[0], protocol.OK, Appended, 0)
	second := s.sent(1)
	require.Len(t, second, 1)
	require.Equal(t, []int{1, 2, 3, 4, 5}, values(t, second[0].Batch))
	s.answer(second[0], protocol.OK, Appended, 1)
	require.Equal(t, upTo(6), s.numbers())
	for i, e := range s.ends {
		require.NoError(t, e.err)
		require.Equal(t, Result{Base: int64(i), Last: int64(i)}, e.res)
	}

	s.add(40, large/2) // two to a batch
	under := s.sent(1)
	require.Len(t, under, batchesInFlight)
	for i, a := range under {
		require.Equal(t, under[0].Stream, a.Stream)
		require.NotZero(t, a.Stream.ID)
		require.LessOrEqual(t, len(a.Batch), 64<<10)
		s.answer(a, protocol.OK, Appended, int64(6+i))
	}
	require.Len(t, s.sent(1), batchesInFlight)
}

// Answers may come in any order: the ends do not.
func TestProducerEndsInOrder(t *testing.T) {
	s := newStreamBench(t, ProducerOptions{}, 1)
	s.add(4, large)
	a := s.sent(1)
	require.Len(t, a, 4)
	s.answer(a[2], protocol.OK, Appended, 2)
	s.answer(a[1], protocol.OK, Appended, 1)
	require.Empty(t, s.ends)
	s.answer(a[0], protocol.OK, Appended, 0)
	require.Equal(t, upTo(3), s.numbers())
	s.answer(a[3], protocol.OK, Appended, 3)
	require.Equal(t, upTo(4), s.numbers())
}

// D22: what was refused because the leader moved is sent again, in its order, in a
// new generation, and only once everything of the old one is decided.
func TestProducerSendsRefusedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStreamBench(t, ProducerOptions{}, 2)
		s.add(5, large)
		a := s.sent(1)
		require.Len(t, a, 4)
		s.answer(a[1], protocol.StreamRefused, NotAppended, -1)
		s.answer(a[0], protocol.NotLeader, NotAppended, -1)
		require.Empty(t, s.sent(1), "two are not decided")
		s.answer(a[2], protocol.StreamRefused, NotAppended, -1)
		s.answer(a[3], protocol.StreamRefused, NotAppended, -1)
		require.Empty(t, s.ends)
		s.lead(2, 1)
		require.Empty(t, s.sent(2), "not at once")
		time.Sleep(retryPause)
		again := s.sent(2)
		require.Len(t, again, 4)
		for i, b := range again {
			require.Equal(t, []int{i}, values(t, b.Batch))
			require.Equal(t, int32(1), b.LeaderEpoch)
			require.Equal(t, a[0].Stream.ID, b.Stream.ID)
			require.Greater(t, b.Stream.Generation, a[0].Stream.Generation)
			require.Equal(t, again[0].Stream, b.Stream)
			s.answer(b, protocol.OK, Appended, int64(i))
		}
		s.answer(s.sent(2)[0], protocol.OK, Appended, 4)
		require.Equal(t, upTo(5), s.numbers())
	})
}

// A batch for another leader epoch waits until nothing of the last one is under way.
func TestProducerWaitsForTheOldEpoch(t *testing.T) {
	s := newStreamBench(t, ProducerOptions{}, 2)
	s.add(1, large)
	a := s.sent(1)
	s.lead(2, 1)
	s.add(1, large)
	require.Empty(t, s.sent(2))
	s.leader = 1
	s.answer(a[0], protocol.OK, Appended, 0)
	s.leader = 2
	require.Len(t, s.sent(2), 1)
}

// Two ways to one leader, over a link and straight to it: what goes the second way
// waits for what went the first.
func TestProducerWaitsForTheOldWay(t *testing.T) {
	s := newStreamBench(t, ProducerOptions{}, 2)
	all := s.b
	s.lead(2, 1)
	s.b = all[:1] // the leader, broker 2, is not at hand yet
	l := newLink(linkConfig{self: 1, peer: 2, selfEpoch: 1, peerEpoch: 2, sessionTimeout: time.Hour, maxMessage: 4 << 20, window: 16 << 20}, 1, 1)
	l.goUp(1, protocol.Version, &linkOut{})
	all[0].links.peers[2] = &peerLink{link: l}
	all[0].cfg.Transport = blackHole{}
	s.add(2, large)
	s.p.pump()
	sent := s.p.streams[0].sent
	require.Len(t, sent, 2)
	s.b = all
	s.add(1, large)
	require.Empty(t, s.sent(2))
	first := all[0].appends.last - 1
	for i := range sent {
		all[0].appends.finish(2, first+uint64(i), protocol.AppendAnswer{Outcome: Appended, Base: int64(i), Last: int64(i), LeaderEpoch: 1})
	}
	s.react()
	require.Equal(t, upTo(2), s.numbers())
	require.Len(t, s.sent(2), 1)
}

type blackHole struct{}

func (blackHole) Start(transport.Handler) error                { return nil }
func (blackHole) Send(transport.Peer, *protocol.Message) error { return nil }
func (blackHole) MaxMessageBytes() int                         { return 4 << 20 }
func (blackHole) Close() error                                 { return nil }

// What is refused for longer than RetryFor ends, in order, and stops its partition.
func TestProducerGivesUp(t *testing.T) {
	for name, code := range map[string]protocol.Code{"no leader": protocol.OK, "refused": protocol.NotEnoughReplicas} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const limit = 3 * time.Second
				s := newStreamBench(t, ProducerOptions{RetryFor: limit}, 1)
				if code == protocol.OK {
					s.lead(protocol.NoLeader, 1)
				}
				s.add(3, large)
				began := time.Now()
				for len(s.ends) == 0 && time.Since(began) < 2*limit {
					for _, a := range s.sent(1) {
						s.answer(a, code, NotAppended, -1)
					}
					time.Sleep(retryPause)
				}
				require.GreaterOrEqual(t, time.Since(began), limit)
				require.LessOrEqual(t, time.Since(began), limit+10*retryPause)
				require.Equal(t, upTo(3), s.numbers())
				want := ErrNotLeader
				if code != protocol.OK {
					want = ErrNotEnoughReplicas
				}
				for _, e := range s.ends {
					require.ErrorIs(t, e.err, want)
					require.Equal(t, NotAppended, OutcomeOf(e.err))
				}
				require.ErrorIs(t, s.p.AppendAsync(t.Context(), Record{}, nil), ErrResume)
				require.NoError(t, s.p.Resume(0))
				s.lead(1, 2)
				s.add(1, 10)
				time.Sleep(retryPause)
				s.answer(s.sent(1)[0], protocol.OK, Appended, 0)
				require.NoError(t, s.ends[3].err)
			})
		})
	}
}

// A refusal that another leader would repeat ends the batch; those behind it, refused
// for its sake, are sent again.
func TestProducerFinalRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for code, want := range map[protocol.Code]error{protocol.TooLarge: ErrBatchTooLarge, protocol.Corrupt: ErrInvalidRecord} {
			s := newStreamBench(t, ProducerOptions{}, 1)
			s.add(2, large)
			a := s.sent(1)
			s.answer(a[0], code, NotAppended, -1)
			s.answer(a[1], protocol.StreamRefused, NotAppended, -1)
			require.Equal(t, []int{0}, s.numbers())
			require.ErrorIs(t, s.ends[0].err, want)
			require.Equal(t, NotAppended, OutcomeOf(s.ends[0].err))
			time.Sleep(retryPause)
			again := s.sent(1)
			require.Len(t, again, 1)
			require.Greater(t, again[0].Stream.Generation, a[1].Stream.Generation)
			s.answer(again[0], protocol.OK, Appended, 0)
			require.Equal(t, upTo(2), s.numbers())
			require.NoError(t, s.ends[1].err)
		}
	})
}

// D22: after an unknown outcome everything behind it ends in order: sent ones as they
// were decided, the rest as not appended; and nothing is taken before Resume.
func TestProducerHaltsAfterUnknown(t *testing.T) {
	s := newStreamBench(t, ProducerOptions{}, 1)
	s.add(7, large)
	a := s.sent(1)
	require.Len(t, a, 4)
	s.answer(a[0], protocol.Canceled, Unknown, -1)
	require.Equal(t, []int{0}, s.numbers())
	require.ErrorIs(t, s.p.AppendAsync(t.Context(), Record{}, nil), ErrResume)
	require.ErrorIs(t, s.p.Resume(0), ErrResume, "three are under way")
	s.answer(a[2], protocol.NotLeader, NotAppended, -1)
	s.answer(a[1], protocol.OK, Appended, 9)
	require.Empty(t, s.sent(1))
	require.ErrorIs(t, s.p.Resume(0), ErrResume)
	s.answer(a[3], protocol.NotLeader, Unknown, -1)
	require.Equal(t, upTo(7), s.numbers())
	for i, want := range []struct {
		outcome Outcome
		err     error
	}{{Unknown, ErrDisconnected}, {Appended, nil}, {NotAppended, ErrResume}, {Unknown, ErrNotLeader}, {NotAppended, ErrResume}, {NotAppended, ErrResume}, {NotAppended, ErrResume}} {
		require.ErrorIs(t, s.ends[i].err, want.err, "record %d", i)
		require.Equal(t, want.outcome, OutcomeOf(s.ends[i].err), "record %d", i)
	}
	require.ErrorIs(t, s.p.AppendAsync(t.Context(), Record{}, nil), ErrResume)
	require.NoError(t, s.p.Resume(3), "a partition that never halted")
	require.NoError(t, s.p.Resume(0))
	s.add(1, 10)
	b := s.sent(1)
	require.Len(t, b, 1)
	require.Greater(t, b[0].Stream.Generation, a[3].Stream.Generation)
	s.answer(b[0], protocol.OK, Appended, 10)
	require.Equal(t, upTo(8), s.numbers())
}

// A refused batch with an unknown one behind it is not sent again.
func TestProducerHaltsBehindRefused(t *testing.T) {
	s := newStreamBench(t, ProducerOptions{}, 1)
	s.add(3, large)
	a := s.sent(1)
	s.answer(a[0], protocol.NotLeader, NotAppended, -1)
	s.answer(a[1], protocol.Canceled, Unknown, -1)
	require.Empty(t, s.ends, "the first is not decided for good")
	s.answer(a[2], protocol.StreamRefused, NotAppended, -1)
	require.Equal(t, upTo(3), s.numbers())
	require.Equal(t, NotAppended, OutcomeOf(s.ends[0].err))
	require.Equal(t, Unknown, OutcomeOf(s.ends[1].err))
	require.Equal(t, NotAppended, OutcomeOf(s.ends[2].err))
	require.NoError(t, s.p.Resume(0))
}

// A Producer that is closed early ends everything: what was sent as unknown, the
// rest as not appended.
func TestProducerCutOff(t *testing.T) {
	s := newStreamBench(t, ProducerOptions{}, 1)
	s.add(6, large)
	a := s.sent(1)
	s.answer(a[0], protocol.OK, Appended, 0)
	s.p.cutOff()
	require.Equal(t, upTo(6), s.numbers())
	require.NoError(t, s.ends[0].err)
	for _, e := range s.ends[1:] {
		require.ErrorIs(t, e.err, ErrClosed)
		want := NotAppended
		if e.n < 4 {
			want = Unknown
		}
		require.Equal(t, want, OutcomeOf(e.err), "record %d", e.n)
	}
	require.Zero(t, underWay(s.p))
	require.True(t, s.p.space.TryAcquire(s.p.opts.MaxBufferedBytes), "room was not given back")
}

// modelLog is a leader, and its successors, as a producer's stream meets them.
type modelLog struct {
	s         *streamBench
	log       []int // records, by number
	streams   refusedStreams
	flying    []protocol.Append // on their way to the leader, in order
	accepted  []modelAppend     // stored and not answered
	answers   []func()          // on their way back
	epoch     int32
	now       time.Duration
	committed int // of the log: never lost
}

type modelAppend struct {
	a   protocol.Append
	end int
}

// take lets the leader decide about the next append.
func (m *modelLog) take(refuse protocol.Code) {
	if len(m.flying) == 0 {
		return
	}
	a := m.flying[0]
	m.flying = m.flying[1:]
	code := refuse
	switch {
	case a.LeaderEpoch < m.epoch:
		code = protocol.FencedEpoch
	case m.streams.refuses(m.now, a.Stream):
		code = protocol.StreamRefused
	}
	if code != protocol.OK {
		m.streams.refuse(m.now, a.Stream)
		m.answers = append(m.answers, func() { m.s.answer(a, code, NotAppended, -1) })
		return
	}
	m.log = append(m.log, values(m.s.t, a.Batch)...)
	m.accepted = append(m.accepted, modelAppend{a, len(m.log)})
}

func (m *modelLog) commit() {
	if len(m.accepted) == 0 {
		return
	}
	x := m.accepted[0]
	m.accepted = m.accepted[1:]
	m.committed = x.end
	base := int64(x.end - len(values(m.s.t, x.a.Batch)))
	m.answers = append(m.answers, func() { m.s.answer(x.a, protocol.OK, Appended, base) })
}

// move ends the leadership: what was not committed may survive or not, and nobody will tell.
func (m *modelLog) move(keep int) {
	m.epoch++
	m.log = m.log[:m.committed+keep]
	m.committed = len(m.log)
	m.streams = refusedStreams{}
	for _, x := range m.accepted {
		m.answers = append(m.answers, func() { m.s.answer(x.a, protocol.NotLeader, Unknown, -1) })
	}
	m.accepted = nil
}

// Whatever leaders do: every record ends once, in order; what was acknowledged is in
// the log once, in order; what was said not to be appended is not.
func TestProducerAgainstAModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newStreamBench(t, ProducerOptions{MaxBufferedBytes: 1 << 40, RetryFor: 1 << 60}, 1)
		m := &modelLog{s: s}
		resumes := 0
		for range rapid.IntRange(10, 200).Draw(t, "steps") {
			switch rapid.IntRange(0, 11).Draw(t, "step") {
			case 0, 1:
				if st := s.p.streams[0]; st != nil && st.halted {
					if s.p.Resume(0) == nil {
						resumes++
					}
					break
				}
				s.add(rapid.IntRange(1, 3).Draw(t, "records"), rapid.SampledFrom([]int{10, 7_000, 20_000, large}).Draw(t, "bytes"))
			case 2, 3:
				s.waited()
				m.flying = append(m.flying, s.sent(1)...)
			case 4, 5, 6:
				m.take(protocol.OK)
			case 7:
				m.take(rapid.SampledFrom([]protocol.Code{protocol.NotLeader, protocol.NotEnoughReplicas, protocol.Overloaded, protocol.TooLarge}).Draw(t, "refusal"))
			case 8:
				m.commit()
			case 9, 10:
				if len(m.answers) > 0 {
					i := rapid.IntRange(0, len(m.answers)-1).Draw(t, "answer")
					f := m.answers[i]
					m.answers = slices.Delete(m.answers, i, i+1)
					f()
				}
			case 11:
				if rapid.Bool().Draw(t, "leader moves") {
					m.move(rapid.IntRange(0, len(m.log)-m.committed).Draw(t, "kept"))
				}
				if rapid.Bool().Draw(t, "and is known") {
					s.lead(1, m.epoch)
				}
			}
		}
		m.finish()
		m.check(t)
	})
}

// finish lets everything end.
func (m *modelLog) finish() {
	m.s.lead(1, m.epoch)
	for range 1000 {
		m.s.waited()
		m.flying = append(m.flying, m.s.sent(1)...)
		for len(m.flying) > 0 {
			m.take(protocol.OK)
		}
		for len(m.accepted) > 0 {
			m.commit()
		}
		for len(m.answers) > 0 {
			f := m.answers[0]
			m.answers = m.answers[1:]
			f()
		}
		if underWay(m.s.p) == 0 {
			return
		}
	}
	m.s.t.Fatalf("%d batches of %d records did not end", underWay(m.s.p), m.s.queued)
}

func (m *modelLog) check(t testingT) {
	s := m.s
	require.Equal(t, upTo(s.queued), s.numbers(), "ends, each once and in order")
	at := make(map[int]int)
	for i, n := range m.log {
		if _, twice := at[n]; twice {
			t.Fatalf("record %d twice in %v", n, m.log)
		}
		at[n] = i
	}
	last := -1
	for _, e := range s.ends {
		i, there := at[e.n]
		switch OutcomeOf(e.err) {
		case Appended:
			if !there || int64(i) != e.res.Base {
				t.Fatalf("record %d acknowledged at %d, log %v", e.n, e.res.Base, m.log)
			}
			if i < last {
				t.Fatalf("record %d at %d, after one at %d", e.n, i, last)
			}
			last = i
		case NotAppended:
			if there {
				t.Fatalf("record %d was not appended, and is at %d", e.n, i)
			}
		}
	}
}

// A leader that refused one append of a generation refuses the rest of it.
func TestProducerRefusedStreams(t *testing.T) {
	var r refusedStreams
	st := func(id uint64, generation uint32) protocol.Stream {
		return protocol.Stream{ID: id, Generation: generation}
	}
	require.False(t, r.refuses(0, st(1, 0)))
	r.refuse(0, st(1, 3))
	require.True(t, r.refuses(1, st(1, 3)))
	require.True(t, r.refuses(1, st(1, 2)), "an earlier generation comes late")
	require.False(t, r.refuses(1, st(2, 3)), "another stream")
	require.False(t, r.refuses(1, st(1, 4)))
	r.refuse(0, protocol.Stream{})
	require.False(t, r.refuses(0, protocol.Stream{}), "not part of a stream")

	// Two streams that share a slot: the second has to rise above the first, once.
	other := st(1+streamSlots, 0)
	require.True(t, r.refuses(1, other))
	other.Generation = r.refuse(1, other) + 1
	require.False(t, r.refuses(1, other))
	require.False(t, r.refuses(streamMemory+2, st(1, 0)), "what is old enough is forgotten")
}

func TestProducerRefusesWhatCannotBeStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, c := range map[string]struct {
			options ProducerOptions
			rec     Record
			err     error
		}{
			"too large":         {rec: Record{Value: make([]byte, 64<<10+1)}, err: ErrRecordTooLarge},
			"acks":              {options: ProducerOptions{Acks: 7}, err: ErrInvalidAcks},
			"partitioner above": {options: ProducerOptions{Partitioner: func(Record, int) int { return 1 }}, err: ErrUnknownPartition},
			"partitioner below": {options: ProducerOptions{Partitioner: func(Record, int) int { return -2 }}, err: ErrUnknownPartition},
			"timestamp":         {rec: Record{Timestamp: time.Date(300_000_000, 1, 1, 0, 0, 0, 0, time.UTC)}, err: ErrInvalidRecord},
		} {
			s := newStreamBench(t, c.options, 1)
			err := s.p.AppendAsync(t.Context(), c.rec, func(Result, error) { t.Errorf("%s: called back", name) })
			require.ErrorIs(t, err, c.err, name)
			require.Equal(t, NotAppended, OutcomeOf(err), name)
			require.Empty(t, s.sent(1), name)
			require.True(t, s.p.space.TryAcquire(s.p.opts.MaxBufferedBytes), name)
		}
		s := newStreamBench(t, ProducerOptions{}, 1)
		missing := newProducerWithoutGoroutine(s.p.topic.client.Topic("missing"), ProducerOptions{})
		require.ErrorIs(t, missing.AppendAsync(t.Context(), Record{}, nil), ErrUnknownTopic)
		s.b[0].cancel()
		require.ErrorIs(t, s.p.AppendAsync(t.Context(), Record{}, nil), ErrClosed)
	})
}

// The bytes are copied: what the caller does with them afterwards does not matter.
func TestProducerCopies(t *testing.T) {
	s := newStreamBench(t, ProducerOptions{}, 1)
	rec := Record{Key: []byte("k"), Value: []byte("v"), Headers: []Header{{Key: "h", Value: []byte("x")}}}
	require.NoError(t, s.p.AppendAsync(t.Context(), rec, nil))
	rec.Key[0], rec.Value[0], rec.Headers[0].Value[0], rec.Headers[0].Key = '-', '-', '-', "-"
	for got, err := range record.All(s.sent(1)[0].Batch) {
		require.NoError(t, err)
		require.Equal(t, "k", string(got.Key))
		require.Equal(t, "v", string(got.Value))
		require.Equal(t, []Header{{Key: "h", Value: []byte("x")}}, got.Headers)
	}
}

// PartitionFor agrees with Kafka's clients: these are their results.
func TestPartitionFor(t *testing.T) {
	for key, want := range map[string]int32{ // of the test of their hash
		"21":                         -973932308,
		"foobar":                     -790332482,
		"a-little-bit-long-string":   -985981536,
		"a-little-bit-longer-string": -1486304829,
		"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
		"abc": 479470107,
	} {
		require.Equal(t, want, int32(murmur2([]byte(key))), key)
		require.Equal(t, int(want&0x7fffffff)%12, PartitionFor([]byte(key), 12), key)
	}
	require.Equal(t, PartitionFor(nil, 7), PartitionFor([]byte{}, 7))
}

func TestOutcomeOf(t *testing.T) {
	require.Equal(t, Appended, OutcomeOf(nil))
	require.Equal(t, Unknown, OutcomeOf(errors.New("anything")))
	err := &AppendError{Topic: "t", Partition: 3, Outcome: NotAppended, Err: fmt.Errorf("%w: more", ErrClosed)}
	require.Equal(t, NotAppended, OutcomeOf(fmt.Errorf("wrapped: %w", err)))
	require.ErrorIs(t, err, ErrClosed)
	require.Equal(t, "tidemark: append to t/3: closed: more (records: not appended)", err.Error())
}

// underWay is how many batches of a Producer have not ended.
func underWay(p *Producer) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for s := p.since; s != nil; s = s.before {
		n += s.open
	}
	return n
}

// Flush waits for what was appended before it, and not for what comes after.
func TestFlushWaitsForWhatWasBefore(t *testing.T) {
	p := newProducer(&Topic{client: NewClient(func() []*Broker { return nil }, ClientOptions{})}, ProducerOptions{})
	defer func() { require.NoError(t, p.Close(t.Context())) }()
	begin := func() *recordBatch {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.since.open++
		require.NoError(t, p.space.Acquire(t.Context(), 1))
		return &recordBatch{spans: []*flushSpan{p.since}, room: 1}
	}
	require.NoError(t, p.Flush(t.Context()), "nothing is under way")
	first := begin()
	flushed := make(chan error, 2)
	flush := func() {
		p.mu.Lock()
		before := p.since
		p.mu.Unlock()
		go func() { flushed <- p.Flush(t.Context()) }()
		for sealed := false; !sealed; runtime.Gosched() {
			p.mu.Lock()
			sealed = before.sealed
			p.mu.Unlock()
		}
	}
	flush()
	second := begin()
	select {
	case <-flushed:
		t.Fatal("the first append has not ended")
	default:
	}
	p.end([]ended{{b: first}})
	require.NoError(t, <-flushed, "the second append came after the Flush")
	flush()
	third := begin()
	p.end([]ended{{b: third}})
	select {
	case <-flushed:
		t.Fatal("the second append has not ended")
	default:
	}
	p.end([]ended{{b: second}})
	require.NoError(t, <-flushed)
	require.Zero(t, underWay(p))
}

// Records that are appended while others flush share batches all the same.
func TestFlushCutsNoBatches(t *testing.T) {
	s := newStreamBench(t, ProducerOptions{}, 1)
	s.add(1, 10)
	first := s.sent(1)
	flushed := make(chan error, 50)
	for range cap(flushed) {
		s.add(1, 10)
		s.p.mu.Lock()
		before := s.p.since
		s.p.mu.Unlock()
		go func() { flushed <- s.p.Flush(t.Context()) }()
		for begun := false; !begun; runtime.Gosched() {
			s.p.mu.Lock()
			begun = before.sealed
			s.p.mu.Unlock()
		}
	}
	s.answer(first[0], protocol.OK, Appended, 0)
	rest := s.sent(1)
	require.Len(t, rest, 1)
	require.Len(t, values(t, rest[0].Batch), cap(flushed))
	require.Empty(t, flushed)
	s.answer(rest[0], protocol.OK, Appended, 1)
	for range cap(flushed) {
		require.NoError(t, <-flushed)
	}
	require.Zero(t, underWay(s.p))
}

// A batch is no larger than any broker at hand takes: another one may come to lead.
func TestBatchesFitEveryBroker(t *testing.T) {
	s := newStreamBench(t, ProducerOptions{}, 2)
	s.b[0].cfg.MaxBatchBytes = 4 << 20
	s.lead(2, 5)
	s.add(20, 50_000)
	for _, a := range s.sent(2) {
		require.LessOrEqual(t, len(a.Batch), s.b[1].cfg.MaxBatchBytes)
	}
}

// An append costs no allocation of its own: what there is is per batch.
func TestProducerAllocates(t *testing.T) {
	s := newStreamBench(t, ProducerOptions{}, 1)
	s.b[0].cfg.MaxBatchBytes = 1 << 20
	rec := Record{Key: []byte("key"), Value: make([]byte, 100), Timestamp: time.UnixMilli(1)}
	done := func(Result, error) {}
	s.b[0].attached.Store(true)
	const each = 1000
	perRun := testing.AllocsPerRun(20, func() {
		for range each {
			if err := s.p.AppendAsync(t.Context(), rec, done); err != nil {
				t.Fatal(err)
			}
		}
		s.sent(1)
	})
	require.Less(t, perRun/each, 0.1)
}
