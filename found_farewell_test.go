package tidemark

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/record"
	"github.com/tidemark-log/tidemark/transport"
)

// appendOnce sends one append to the leader, once.
func appendOnce(from *Broker, n int) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	rt, err := from.Client.locate(ctx, "t", int32(n), protocol.UUID{}, 0)
	if err != nil {
		return err
	}
	done := make(chan protocol.AppendAnswer, 1)
	batch, _ := record.Encode(nil, []Record{{Value: []byte("x")}}, time.Now())
	if !rt.append(protocol.Append{LeaderEpoch: rt.epoch, Acks: protocol.AcksAll, Batch: batch}, nil, func(a protocol.AppendAnswer) { done <- a }) {
		return ErrNotLeader
	}
	if a := <-done; a.Code != protocol.OK {
		return &AppendError{Outcome: a.Outcome, Err: codeError(a.Code)}
	}
	return nil
}

// A role ends in the very turn in which the broker finds that nothing waits: its answers
// are not with the links yet, and the farewell must not answer for them (EL-10).
func TestFarewellFollowsTheAnswers(t *testing.T) {
	attack(t, 3, func(c *Config) { c.Loops = 2 }, func(t *testing.T, r *attackRig) {
		const partitions = 24
		r.create("t", partitions)
		b := r.broker(1)
		n := -1
		var id protocol.PartitionID
		for i := range partitions {
			_, topic, no := r.client.lookTopic("t", 0)
			require.Nil(t, no)
			p := protocol.PartitionID{Topic: topic.ID, Partition: int32(i)}
			if r.leader(r.client, "t", i) == 1 && b.loopOf(p) == 0 {
				n, id = i, p
			}
		}
		require.GreaterOrEqual(t, n, 0)
		r.disks[1].Hang()
		r.disks[2].Hang()
		got := make(chan error, 1)
		go func() {
			got <- appendOnce(r.broker(2), n)
		}()
		pause(20 * time.Millisecond) // it is in the leader's log, and not committed
		block := func(l int) chan struct{} {
			c := make(chan struct{})
			b.loops[l].inbox.put(loopEvent{step: func(time.Duration, *shard) { <-c }})
			return c
		}
		one := block(1) // the first pass waits here
		synctest.Wait()
		decided := make(chan bool, 1)
		go func() { _, d := b.stopAppends(t.Context()); decided <- d }()
		synctest.Wait()
		zero := block(0)
		synctest.Wait()
		b.loops[0].inbox.put(loopEvent{step: func(_ time.Duration, s *shard) { s.replicas[id].endRole(protocol.NotLeader) }})
		close(one) // the second pass's step goes behind that
		synctest.Wait()
		late := block(0) // the turn takes its time
		close(zero)
		synctest.Wait()
		select {
		case d := <-decided:
			if d {
				b.sayFarewell(r.within(time.Second))
			}
		default:
		}
		pause(50 * time.Millisecond)
		close(late)
		r.disks[1].Unhang()
		r.disks[2].Unhang()
		err := <-got
		end := make(chan int64, 1)
		b.loops[0].do(func(_ time.Duration, s *shard) { end <- s.replicas[id].end })
		require.Positive(t, <-end)
		require.NotEqual(t, NotAppended, OutcomeOf(err), "it is in the log")
	})
}

// A call is held up between the number of its request and its way, for as long as a
// restart takes. What the farewell of one life has answered the next one must not take.
func TestFarewellOfAnEarlierLife(t *testing.T) {
	attack(t, 3, nil, func(t *testing.T, r *attackRig) {
		require.NoError(t, r.client.Controller().EnsureTopic(r.within(20*time.Second), "t", TopicConfig{Partitions: 3, ReplicationFactor: 1, MinISR: 1}))
		n := -1
		for i := range 3 {
			if r.leader(r.client, "t", i) == 1 {
				n = i
			}
		}
		b := r.broker(2)
		rt, err := b.Client.locate(r.within(time.Second), "t", int32(n), protocol.UUID{}, 0)
		require.NoError(t, err)
		batch, _ := record.Encode(nil, []Record{{Value: []byte("x")}}, time.Now())
		answers := make(chan protocol.AppendAnswer, 1)
		// as Partition.AppendWith and route.append do
		a := protocol.Append{LeaderEpoch: -1, Acks: protocol.AcksAll, Batch: batch, ID: rt.id}
		life := b.links.life(rt.leader)
		a.Request = b.appends.add(rt.leader, func(a protocol.AppendAnswer) { answers <- a })
		r.shutdown(1)
		r.start(1)
		eventually(t, r, 5*attackSession, "it leads again", func() bool { return r.leader(b.Client, "t", n) == 1 && b.links.isUp(1) })
		b.sendWith(rt.leader, &protocol.Payload{Appends: []protocol.Append{a}}, sendOptions{bulk: true, epoch: life, client: true})
		pause(50 * time.Millisecond)
		got := <-answers
		res, err := b.Partition("t", n).Fetch(r.within(time.Second), 0, FetchOptions{})
		require.NoError(t, err)
		require.Equal(t, protocol.NotAppended, got.Outcome)
		require.Empty(t, res.Records)
	})
}

// blockedEnd is a transport that blocks in Send.
type blockedEnd struct {
	transport.Transport
	on   *atomic.Bool
	free chan struct{}
}

func (e *blockedEnd) Send(to transport.Peer, m *protocol.Message) error {
	if e.on.Load() {
		<-e.free
	}
	return e.Transport.Send(to, m)
}

// A loop that hangs in what it sends does not hold up Shutdown beyond its context and
// what Close takes.
func TestShutdownWithHungTransport(t *testing.T) {
	var on atomic.Bool
	var free chan struct{}
	attack(t, 3, func(c *Config) {
		if free == nil {
			free = make(chan struct{})
		}
		if c.ID == 1 {
			c.Transport = &blockedEnd{c.Transport, &on, free}
		}
	}, func(t *testing.T, r *attackRig) {
		n := r.create("t", 3)
		b := r.broker(1)
		on.Store(true)
		go func() { _ = appendOnce(r.broker(2), n) }() // its answer, or what goes to the followers, is what hangs
		pause(10 * time.Millisecond)
		ended := make(chan error, 1)
		began := time.Now()
		go func() { ended <- b.Shutdown(r.within(2 * time.Second)) }()
		require.ErrorIs(t, <-ended, ErrAbandoned)
		require.Less(t, time.Since(began), 2*time.Second+closeLimit+time.Second)
		on.Store(false)
		close(free)
		n1 := r.take(1) // what the rig would close has not returned
		require.NoError(t, errors.Join(n1.store.Store.Close(), n1.coord.Close()))
	})
}

// Whoever has heard a farewell sends that life no append any more: nobody would say what
// became of it. Everything else goes on until the link ends.
func TestNoAppendAfterFarewell(t *testing.T) {
	attack(t, 2, nil, func(t *testing.T, r *attackRig) {
		r.create("t", 1)
		send := func(bulk bool) bool {
			return r.broker(2).links.send(1, &protocol.Payload{}, sendOptions{bulk: bulk})
		}
		require.True(t, send(true))
		r.broker(1).sayFarewell(r.within(time.Second))
		require.False(t, send(true))
		require.True(t, send(false))
	})
}
