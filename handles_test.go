package tidemark

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/coordination/memory"
	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/record"
	"github.com/tidemark-log/tidemark/storage"
	"github.com/tidemark-log/tidemark/storage/memstore"
	"github.com/tidemark-log/tidemark/transport"
)

func at(second int) time.Time { return time.UnixMilli(int64(second) * 1000) }

// AfterTime begins at the first record that is not older, in order of offsets, and
// goes on with all that follow.
func TestAfterTime(t *testing.T) {
	inSolo(t, func(t *testing.T, s *solo) {
		p := s.topic("t", TopicConfig{})
		// Batches of times that go back and forth.
		for _, batch := range [][]int{{10, 12, 11}, {9, 20}, {15}, {30, 31}, {5}} {
			var recs []Record
			for _, second := range batch {
				recs = append(recs, Record{Timestamp: at(second), Value: fmt.Append(nil, second)})
			}
			_, err := p.Append(t.Context(), recs...)
			require.NoError(t, err)
		}
		all := []string{"10", "12", "11", "9", "20", "15", "30", "31", "5"}
		for _, c := range []struct {
			at    time.Time
			first int64
		}{
			{time.Time{}, 0}, {at(1), 0}, {at(10), 0}, {at(10).Add(500 * time.Microsecond), 0}, {at(10).Add(time.Millisecond), 1},
			{at(12), 1}, {at(13), 4}, {at(20), 4}, {at(21), 6}, {at(31), 7}, {at(32), 9}, {time.Unix(1<<40, 0), 9},
		} {
			found, err := p.Find(t.Context(), AfterTime(c.at))
			require.NoError(t, err)
			require.Equal(t, c.first, found, "%v", c.at)
			var got []string
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			for rec, err := range p.Records(ctx, AfterTime(c.at)) {
				if err != nil {
					require.ErrorIs(t, err, context.DeadlineExceeded)
					break
				}
				require.Equal(t, int(rec.Offset), int(c.first)+len(got))
				got = append(got, string(rec.Value))
			}
			cancel()
			require.Equal(t, all[c.first:], append([]string{}, got...), "%v", c.at)
		}
		for pos, want := range map[Position]int64{Earliest(): 0, Latest(): 9, At(4): 4, At(77): 77} {
			found, err := p.Find(t.Context(), pos)
			require.NoError(t, err)
			require.Equal(t, want, found)
		}
	})
}

// While no record is new enough, AfterTime waits, and passes over what is older.
func TestAfterTimeWaits(t *testing.T) {
	inSolo(t, func(t *testing.T, s *solo) {
		p := s.topic("t", TopicConfig{})
		add := func(second int) {
			_, err := p.Append(t.Context(), Record{Timestamp: at(second)}, Record{Timestamp: at(second - 1)})
			require.NoError(t, err)
		}
		add(10)
		got := make(chan int64, 10)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() {
			defer close(got)
			for rec, err := range p.Records(ctx, AfterTime(at(50))) {
				if err != nil {
					return
				}
				got <- rec.Offset
			}
		}()
		pause(20 * time.Second) // several waits at the leader
		add(20)
		synctest.Wait()
		require.Empty(t, got)
		add(50)
		add(3)
		synctest.Wait()
		require.Len(t, got, 4)
		for want := int64(4); want < 8; want++ {
			require.Equal(t, want, <-got)
		}
		cancel()
		_, open := <-got
		require.False(t, open)
	})
}

// Against a plain search, over batches of any size and order of times; and what is
// read to find the place is not decoded where the header says that it is older.
func TestAfterTimeAgainstASearch(t *testing.T) {
	inSolo(t, func(t *testing.T, s *solo) {
		p := s.topic("t", TopicConfig{})
		rng := rand.New(rand.NewPCG(1, 2))
		var times []int
		for range 60 {
			var recs []Record
			for range 1 + rng.IntN(5) {
				times = append(times, 1+rng.IntN(100))
				recs = append(recs, Record{Timestamp: at(times[len(times)-1]), Value: make([]byte, rng.IntN(60<<10))})
			}
			_, err := p.AppendWith(t.Context(), AppendOptions{Compression: Compression(rng.IntN(5))}, recs...)
			require.NoError(t, err)
		}
		for second := range 103 {
			want := int64(len(times))
			for i, at := range times {
				if at >= second {
					want = int64(i)
					break
				}
			}
			found, err := p.Find(t.Context(), AfterTime(at(second)))
			require.NoError(t, err)
			require.Equal(t, want, found, "at %d of %v", second, times)
		}
	})
}

// A reader that began at the log's start follows it when it moves before anything
// was given out; later it does not skip silently (R43).
func TestReaderFollowsTheStartAtFirst(t *testing.T) {
	inSolo(t, func(t *testing.T, s *solo) {
		p := s.topic("t", TopicConfig{})
		for i := range 10 {
			_, err := p.Append(t.Context(), Record{Timestamp: at(i)})
			require.NoError(t, err)
		}
		trim := func(start int64) {
			id := protocol.PartitionID{Topic: s.id("t"), Partition: 0}
			require.True(t, s.broker.loops[s.broker.loopOf(id)].do(func(_ time.Duration, sh *shard) {
				r := sh.replicas[id]
				r.start = start
				r.emit(storage.Op{Kind: storage.Trim, Offset: start, HW: r.hw, Epochs: r.epochList()}, pendingOp{end: r.end, led: noEpoch})
			}))
		}
		c, _, err := p.open(t.Context(), Earliest())
		require.NoError(t, err)
		late, _, err := p.open(t.Context(), AfterTime(at(1)))
		require.NoError(t, err)
		trim(4)
		batches, err := c.read(t.Context(), readWaitMs)
		require.NoError(t, err)
		var first int64 = -1
		for rec, err := range c.records(batches[0]) {
			require.NoError(t, err)
			first = rec.Offset
		}
		require.EqualValues(t, 4, first)
		trim(8)
		_, err = c.read(t.Context(), readWaitMs)
		require.ErrorIs(t, err, ErrOffsetOutOfRange)
		batches, err = late.read(t.Context(), readWaitMs)
		require.NoError(t, err)
		for rec := range late.records(batches[0]) {
			require.EqualValues(t, 8, rec.Offset)
		}
	})
}

func (s *solo) id(topic string) protocol.UUID {
	t, ok, _, _ := s.broker.view.topic(topic)
	require.True(s.t, ok)
	return t.ID
}

// A topic's own limit applies where it is lower than the broker's, to every way of appending.
func TestTopicLimitsRecords(t *testing.T) {
	inSolo(t, func(t *testing.T, s *solo) {
		p := s.topic("small", TopicConfig{MaxRecordBytes: 100})
		require.ErrorIs(t, s.broker.Controller().CreateTopic(t.Context(), "large", TopicConfig{MaxRecordBytes: 64 << 20, ReplicationFactor: 1}),
			ErrInvalidTopic, "it could not be used up")
		rec := Record{Key: make([]byte, 40), Value: make([]byte, 50), Headers: []Header{{Key: "0123456789"}}}
		_, err := p.Append(t.Context(), rec)
		require.NoError(t, err)
		producer := s.broker.Topic("small").Producer(ProducerOptions{})
		defer producer.Close(t.Context())
		_, err = producer.Append(t.Context(), rec)
		require.NoError(t, err)
		rec.Value = append(rec.Value, 0)
		_, err = p.Append(t.Context(), Record{}, rec)
		require.ErrorIs(t, err, ErrRecordTooLarge)
		require.EqualError(t, err, "tidemark: append to small/0: record is too large: record 1 has 101 bytes, the limit is 100 (records: not appended)")
		_, err = producer.Append(t.Context(), rec)
		require.ErrorIs(t, err, ErrRecordTooLarge)
		require.Equal(t, NotAppended, OutcomeOf(err))
	})
}

// Compressed records are stored packed, count as packed, and read back as they were.
func TestCompression(t *testing.T) {
	inSolo(t, func(t *testing.T, s *solo) {
		p := s.topic("t", TopicConfig{})
		value := make([]byte, 1<<20) // together far above what a batch may have
		codecs := []Compression{NoCompression, Gzip, Snappy, LZ4, Zstd}
		for _, c := range codecs[1:] {
			_, err := p.AppendWith(t.Context(), AppendOptions{Compression: c}, Record{Value: value}, Record{Value: value}, Record{Value: value})
			require.NoError(t, err, c)
			producer := s.broker.Topic("t").Producer(ProducerOptions{Compression: c})
			_, err = producer.Append(t.Context(), Record{Value: value})
			require.NoError(t, err, c)
			require.NoError(t, producer.Close(t.Context()))
		}
		_, err := p.AppendWith(t.Context(), AppendOptions{}, Record{Value: value}, Record{Value: value})
		require.ErrorIs(t, err, ErrBatchTooLarge)
		noise := make([]byte, 1<<20)
		rng := rand.New(rand.NewPCG(3, 4))
		for i := range noise {
			noise[i] = byte(rng.Uint32())
		}
		_, err = p.AppendWith(t.Context(), AppendOptions{Compression: Zstd}, Record{Value: noise}, Record{Value: noise})
		require.ErrorIs(t, err, ErrBatchTooLarge, "the packed batch counts")
		require.ErrorContains(t, err, "the limit is", "and is refused before it is sent")
		_, err = p.AppendWith(t.Context(), AppendOptions{Compression: 99}, Record{})
		require.ErrorIs(t, err, ErrInvalidCompression)
		require.Equal(t, NotAppended, OutcomeOf(err))
		wrong := s.broker.Topic("t").Producer(ProducerOptions{Compression: -1})
		defer wrong.Close(t.Context())
		_, err = wrong.Append(t.Context(), Record{})
		require.ErrorIs(t, err, ErrInvalidCompression)

		rep, err := s.broker.Replica(t.Context(), "t", 0)
		require.NoError(t, err)
		var seen []Compression
		for batch, err := range rep.Batches(t.Context(), 0) {
			require.NoError(t, err)
			info, err := record.Peek(batch)
			require.NoError(t, err)
			seen = append(seen, info.Compression)
			require.Less(t, info.Size, 1<<20)
		}
		require.Equal(t, []Compression{Gzip, Gzip, Snappy, Snappy, LZ4, LZ4, Zstd, Zstd}, seen)
		n := 0
		for rec, err := range p.Records(t.Context(), Earliest()) {
			require.NoError(t, err)
			require.Equal(t, value, rec.Value)
			if n++; n == 16 {
				break
			}
		}
	})
}

// show gives the bench's brokers another image of the topic "t"; nil: it is gone.
func (s *streamBench) show(topic *protocol.Topic) {
	for _, b := range s.b {
		m := newMember()
		u := protocol.Update{Full: true}
		if topic != nil {
			u.Topics = []protocol.Topic{*topic}
			for n := range topic.Config.Partitions {
				u.States = append(u.States, protocol.PartitionUpdate{
					ID:    protocol.PartitionID{Topic: topic.ID, Partition: n},
					State: protocol.PartitionState{Leader: 1, LeaderEpoch: 1, PartitionEpoch: 1, ISR: []int32{1}, Replicas: []int32{1}},
				})
			}
		}
		_, _, completed := m.onUpdate(1, &u)
		b.view.apply(m, &u, completed)
	}
}

// A topic may grow while a Producer is open: from then on keys are spread over all
// partitions, and the new ones are appended to like the others.
func TestProducerFollowsAGrowingTopic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStreamBench(t, ProducerOptions{}, 1)
		key := []byte("a") // of partition 0 of 1, and of another of 4
		for PartitionFor(key, 4) == 0 {
			key[0]++
		}
		where := PartitionFor(key, 4)
		add := func(want int) {
			n, err := s.p.appendAsync(t.Context(), Record{Key: key, Value: []byte("0;")}, nil)
			require.NoError(t, err)
			require.Equal(t, want, n)
			sent := s.sent(1)
			require.Len(t, sent, 1)
			require.EqualValues(t, want, sent[0].ID.Partition)
			s.answer(sent[0], protocol.OK, Appended, 0)
		}
		add(0)
		s.show(&protocol.Topic{ID: s.id.Topic, Name: "t", Config: TopicConfig{Partitions: 4}})
		add(where)
		for range 8 {
			_, err := s.p.appendAsync(t.Context(), Record{Value: []byte("0;")}, nil)
			require.NoError(t, err)
		}
		require.Len(t, s.p.streams, 4, "records without a key go to every partition")
		s.sent(1)
	})
}

// A partition that one broker does not know of yet is looked for at the others.
func TestNewPartitionOnABrokerThatLags(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStreamBench(t, ProducerOptions{}, 2)
		old := s.b[0].view
		s.show(&protocol.Topic{ID: s.id.Topic, Name: "t", Config: TopicConfig{Partitions: 2}})
		s.b[0].view = old
		s.lead(1, 1) // one partition, at both
		go func() {
			pause(unknownGrace / 2)
			s.show(&protocol.Topic{ID: s.id.Topic, Name: "t", Config: TopicConfig{Partitions: 2}})
		}()
		r, err := s.p.topic.client.locate(t.Context(), "t", 1, protocol.UUID{}, 0)
		require.NoError(t, err)
		require.EqualValues(t, 1, r.id.Partition)
		_, err = s.p.topic.client.locate(t.Context(), "t", 2, protocol.UUID{}, 0)
		require.ErrorIs(t, err, ErrUnknownPartition)
		began := time.Now()
		_, err = s.p.topic.client.locate(t.Context(), "t", -1, protocol.UUID{}, 0)
		require.ErrorIs(t, err, ErrUnknownPartition)
		require.Zero(t, time.Since(began))
	})
}

// What was appended to a topic that is gone, or was created again, ends soon and
// says so; the new topic gets none of it.
func TestProducerOfATopicThatIsGone(t *testing.T) {
	for what, c := range map[string]struct {
		topic *protocol.Topic
		want  error
	}{
		"deleted":       {nil, ErrUnknownTopic},
		"created again": {&protocol.Topic{ID: protocol.UUID{9}, Name: "t", Config: TopicConfig{Partitions: 1}}, ErrTopicRecreated},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStreamBench(t, ProducerOptions{}, 1)
				s.lead(protocol.NoLeader, 1)
				s.add(3, 10)
				require.Empty(t, s.sent(1))
				s.show(c.topic)
				for range 20 {
					require.Empty(t, s.sent(1))
					pause(retryPause)
				}
				require.Equal(t, upTo(3), s.numbers())
				for _, e := range s.ends {
					require.ErrorIs(t, e.err, c.want)
					require.Equal(t, NotAppended, OutcomeOf(e.err))
				}
				_, err := s.p.Append(t.Context(), Record{})
				require.ErrorIs(t, err, c.want)
				require.Empty(t, s.sent(1))
			})
		})
	}
}

// Handles go by the name; one call, or one iteration, stays with the topic that it
// began with (D21).
func TestHandlesOfATopicThatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStreamBench(t, ProducerOptions{}, 1)
		p := s.p.topic.Partition(0)
		var hint *protocol.PartitionState
		began := make(chan appended, 1)
		go func() {
			res, err := p.Append(t.Context(), Record{})
			began <- appended{res, err}
		}()
		synctest.Wait()
		sent := s.b[0].loops[0].inbox.take(nil)
		require.Len(t, sent, 1)
		s.show(&protocol.Topic{ID: protocol.UUID{9}, Name: "t", Config: TopicConfig{Partitions: 1}})
		request := sent[0].payload.Appends[0].Request
		s.b[0].appends.finish(1, request, protocol.AppendAnswer{Request: request, Code: protocol.UnknownPartition, Outcome: NotAppended, State: hint})
		end := <-began
		require.ErrorIs(t, end.err, ErrTopicRecreated)
		require.Equal(t, NotAppended, OutcomeOf(end.err))
		require.Empty(t, s.b[0].loops[0].inbox.take(nil), "nothing went to the new topic")

		s.show(nil)
		start := time.Now()
		_, err := p.Append(t.Context(), Record{})
		require.ErrorIs(t, err, ErrUnknownTopic)
		require.Equal(t, NotAppended, OutcomeOf(err))
		for _, err := range p.Records(t.Context(), Earliest()) {
			require.ErrorIs(t, err, ErrUnknownTopic)
		}
		require.ErrorIs(t, p.Writable(t.Context()), ErrUnknownTopic)
		require.Less(t, time.Since(start), 4*unknownGrace)
	})
}

// What ended an append is the context; why it was not taken until then is said too.
func TestContextErrorsNameTheLastRefusal(t *testing.T) {
	attack(t, 3, nil, func(t *testing.T, r *attackRig) {
		n := r.create("t", 1)
		lead := r.leader(r.client, "t", n)
		for id := int32(1); id <= 3; id++ {
			if id != lead {
				r.kill(id, 0)
			}
		}
		pause(5 * time.Second)
		p := r.client.Topic("t").Producer(ProducerOptions{MaxBufferedBytes: 200})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := p.Append(ctx, Record{Value: make([]byte, 150)})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, ErrNotEnoughReplicas)
		require.Equal(t, Unknown, OutcomeOf(err))
		require.EqualError(t, err, "tidemark: append to t/0: context deadline exceeded (last: fewer in-sync replicas than MinISR) (records: unknown)")

		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err = p.AppendAsync(ctx, Record{Value: make([]byte, 150)}, nil)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, ErrNotEnoughReplicas)
		require.Equal(t, NotAppended, OutcomeOf(err))
		ctx, cancel = context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, p.Close(ctx), context.Canceled)
	})
}

// Partition.Writable says what the leader would do, and why.
func TestWritable(t *testing.T) {
	attack(t, 3, func(c *Config) { c.MaxUncommittedBytes, c.StoreStallLimit = 2<<20, 4*time.Second }, func(t *testing.T, r *attackRig) {
		n := r.create("t", 3)
		why := func(b *Broker) error { return b.Partition("t", n).Writable(r.within(5 * time.Second)) }
		reason := func(want error, text string) {
			t.Helper()
			err := why(r.broker(2))
			require.ErrorIs(t, err, want)
			var typed *NotWritableError
			require.ErrorAs(t, err, &typed)
			require.Equal(t, "t", typed.Topic)
			require.Equal(t, n, typed.Partition)
			require.Contains(t, err.Error(), text)
			require.Equal(t, 1, strings.Count(err.Error(), "tidemark: "), err)
		}
		for _, b := range r.open() {
			require.NoError(t, why(b), "from anywhere")
		}
		require.ErrorIs(t, r.client.Partition("nope", 0).Writable(t.Context()), ErrUnknownTopic)
		require.ErrorIs(t, r.client.Partition("t", 3).Writable(t.Context()), ErrUnknownPartition)

		// The store hangs.
		r.disks[0].Hang()
		go func() { _, _ = r.client.Partition("t", n).Append(r.within(time.Second), Record{}) }()
		pause(2500 * time.Millisecond)
		reason(ErrStoreStalled, "store is stalled (leader 1, in sync")
		r.disks[0].Unhang()
		r.healthy("t", 3)
		require.NoError(t, why(r.broker(2)))

		// Too much is not committed.
		r.disks[1].Hang()
		r.disks[2].Hang()
		for range 2 {
			go func() {
				_, _ = r.client.Partition("t", n).Append(r.within(time.Second), Record{Value: make([]byte, 1<<20-200)})
			}()
		}
		pause(10 * time.Millisecond)
		for range 60 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			_, _ = r.client.Partition("t", n).Append(ctx, Record{})
			cancel()
		}
		reason(ErrOverloaded, "too many uncommitted bytes")
		r.disks[1].Unhang()
		r.disks[2].Unhang()
		r.healthy("t", 3)
		require.NoError(t, why(r.broker(2)))

		// Not enough replicas, then no leader.
		r.kill(3, 0)
		r.node(1).store.failAt.Store(1)
		_, _ = r.client.Partition("t", n).Append(r.within(time.Second), Record{})
		pause(3 * attackSession)
		reason(ErrNotEnoughReplicas, "(leader 2, in sync [2], MinISR 2)")
		require.ErrorIs(t, why(r.broker(1)), ErrUnfit)
		r.node(2).coord.SetUnavailable(true)
		r.broker(2).becomeUnfit(errors.New("for the test"))
		require.ErrorIs(t, why(r.broker(2)), ErrUnfit)
	})
}

// That the coordination store is away does not stop appends where there is a leader.
func TestWritableWithoutCoordination(t *testing.T) {
	attack(t, 3, nil, func(t *testing.T, r *attackRig) {
		n := r.create("t", 3)
		for id := int32(1); id <= 3; id++ {
			r.node(id).coord.SetUnavailable(true)
		}
		pause(attackSession / 2)
		require.ErrorIs(t, r.broker(2).Status().Renewal, coordination.ErrUnavailable)
		pause(3 * attackSession)
		for _, b := range r.open() {
			require.NoError(t, b.Partition("t", n).Writable(r.within(time.Second)))
			require.ErrorIs(t, b.Status().Registration, coordination.ErrUnavailable)
			require.ErrorIs(t, b.Status().NotReady, coordination.ErrUnavailable)
		}
		_, err := r.client.Partition("t", n).Append(r.within(time.Second), Record{})
		require.NoError(t, err)
		for id := int32(1); id <= 3; id++ {
			r.node(id).coord.SetUnavailable(false)
			require.NoError(t, r.broker(id).Ready(r.within(5*time.Second)))
			require.NoError(t, errors.Join(r.broker(id).Status().Registration, r.broker(id).Status().Renewal))
		}
		r.healthy("t", 3)
	})
}

// Without a leader Writable says so at once, with what keeps a new one away; a
// leader that does not answer gets a second.
func TestWritableWithoutALeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStreamBench(t, ProducerOptions{}, 1)
		b, p := s.b[0], s.p.topic.Partition(0)
		s.lead(protocol.NoLeader, 1)
		began := time.Now()
		err := p.Writable(t.Context())
		require.ErrorIs(t, err, ErrNotLeader)
		require.EqualError(t, err, "tidemark: t/0 is not writable: no leader for the partition: none of its in-sync replicas [1] is there, "+
			"and a new leader has to wait: not registered at present (leader -1, in sync [1], MinISR 0)")
		b.attached.Store(true)
		require.ErrorIs(t, p.Writable(t.Context()), ErrNoController)
		b.setRegistrationError(fmt.Errorf("for the test: %w", coordination.ErrUnavailable))
		require.ErrorIs(t, p.Writable(t.Context()), coordination.ErrUnavailable)
		b.setRegistrationError(nil)
		b.controller.Store(1)
		require.EqualError(t, p.Writable(t.Context()), "tidemark: t/0 is not writable: no leader for the partition: "+
			"none of its in-sync replicas [1] is there (leader -1, in sync [1], MinISR 0)")
		require.Zero(t, time.Since(began))

		s.lead(1, 2)
		err = p.Writable(t.Context())
		require.ErrorIs(t, err, ErrDisconnected)
		require.Equal(t, statusWait, time.Since(began))
		ctx, cancel := context.WithTimeout(t.Context(), statusWait/2)
		defer cancel()
		err = p.Writable(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, ErrDisconnected)
	})
}

// An error has the package's name at its front, and nowhere else.
func TestErrorTexts(t *testing.T) {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	deep := because(ErrUnfit, because(ErrStorage, errors.New("disk failed")))
	for _, c := range []struct {
		err  error
		want string
	}{
		{deep, "tidemark: broker is unfit: storage failed: disk failed"},
		{ctxError(ended, nil), "context canceled"},
		{ctxError(ended, deep), "tidemark: context canceled (last: broker is unfit: storage failed: disk failed)"},
		{&AppendError{Topic: "t", Partition: 1, Outcome: Unknown, Err: ctxError(ended, deep)},
			"tidemark: append to t/1: context canceled (last: broker is unfit: storage failed: disk failed) (records: unknown)"},
		{&AppendError{Topic: "t", Partition: -1, Err: ErrInvalidAcks}, "tidemark: append to t: unknown acks level (records: unknown)"},
		{&NotWritableError{Topic: "t", Err: deep, ISR: []int32{1}},
			"tidemark: t/0 is not writable: broker is unfit: storage failed: disk failed (leader 0, in sync [1], MinISR 0)"},
	} {
		require.EqualError(t, c.err, c.want)
	}
	for _, target := range []error{ErrUnfit, ErrStorage, context.Canceled} {
		require.ErrorIs(t, ctxError(ended, deep), target)
	}
}

// Who else has the id is said as far as it is known.
func TestDuplicateBrokerReadsWell(t *testing.T) {
	for address, want := range map[string]string{
		"":           "tidemark: broker id is in use by another process: broker 1, it gave no address",
		"host-a:900": "tidemark: broker id is in use by another process: broker 1, at host-a:900",
	} {
		inSolo(t, func(t *testing.T, s *solo) {
			require.NoError(t, s.broker.Ready(t.Context()))
			r := newRegistrar(s.broker)
			other := marshal(registration{Address: address, Directory: protocol.UUID{7}})
			_, err := s.broker.cfg.Coordination.Do(t.Context(), coordination.Txn{Ops: []coordination.Op{{Key: brokerIDKey(1), Value: other}}})
			require.NoError(t, err)
			err = r.removeOwn(t.Context(), s.store.Node().Directory)
			require.ErrorIs(t, err, ErrDuplicateBroker)
			require.EqualError(t, err, want)
		})
	}
}

// What a Fetch returns is bounded also where it was compressed: it ends with the
// batch that reaches MaxBytes, and the next one goes on behind it.
func TestFetchBoundsWhatItUnpacks(t *testing.T) {
	inSolo(t, func(t *testing.T, s *solo) {
		p := s.topic("t", TopicConfig{})
		const batches, each = 6, 4
		for range batches {
			recs := make([]Record, each)
			for i := range recs {
				recs[i].Value = make([]byte, 100_000)
			}
			_, err := p.AppendWith(t.Context(), AppendOptions{Compression: Zstd}, recs...)
			require.NoError(t, err)
		}
		fetches := 0
		for next := int64(0); next < batches*each; fetches++ {
			got, err := p.Fetch(t.Context(), next, FetchOptions{MaxBytes: 500_000})
			require.NoError(t, err)
			require.NotEmpty(t, got.Records)
			require.LessOrEqual(t, len(got.Records), 2*each)
			require.Equal(t, next, got.Records[0].Offset)
			next += int64(len(got.Records))
		}
		require.Equal(t, batches/2, fetches)
	})
}

// closing is a Transport that says when it was closed.
type closing struct {
	transport.Transport
	start  error
	closed int
}

func (c *closing) Start(h transport.Handler) error { return c.start }
func (c *closing) MaxMessageBytes() int            { return 1 << 20 }
func (c *closing) Close() error                    { c.closed++; return nil }

// Whatever it is that keeps a broker from being opened, its Transport is closed.
func TestOpenThatFailsClosesTheTransport(t *testing.T) {
	store, err := memstore.NewDisk().Open()
	require.NoError(t, err)
	defer store.Close()
	coord := memory.New(memory.Options{}).Connect()
	defer coord.Close()
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for name, open := range map[string]func(tr transport.Transport) error{
		"configuration": func(tr transport.Transport) error { _, err := Open(t.Context(), Config{Transport: tr}); return err },
		"context": func(tr transport.Transport) error {
			_, err := Open(canceled, Config{Store: store, Coordination: coord, Transport: tr})
			return err
		},
		"transport": func(tr transport.Transport) error {
			_, err := Open(t.Context(), Config{Store: store, Coordination: coord, Transport: tr})
			return err
		},
	} {
		tr := &closing{start: errors.New("no port")}
		require.Error(t, open(tr), name)
		require.Equal(t, 1, tr.closed, name)
	}
}
