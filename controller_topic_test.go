package tidemark

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/coordination/memory"
	"github.com/tidemark-log/tidemark/protocol"
)

// until waits, in virtual time.
func (r *attackRig) until(what string, ok func() bool) {
	r.t.Helper()
	for range 3000 {
		if ok() {
			return
		}
		pause(10 * time.Millisecond)
	}
	r.t.Fatalf("not in time: %s", what)
}

// admin is the handle, and a context that ends what does not end by itself.
func (r *attackRig) admin() (context.Context, *Controller) {
	ctx, cancel := context.WithTimeout(r.t.Context(), 2*time.Minute)
	r.t.Cleanup(cancel)
	return ctx, r.client.Controller()
}

// storeKeys are the keys below a prefix of the coordination store.
func (r *attackRig) storeKeys(prefix string) (names []string) {
	kvs, _, err := r.coord.Connect().List(r.t.Context(), prefix)
	require.NoError(r.t, err)
	for _, kv := range kvs {
		names = append(names, kv.Key)
	}
	return names
}

// logs counts a broker's logs of a topic.
func (r *attackRig) logs(id int32, topic protocol.UUID) (n int) {
	logs, err := r.node(id).store.Logs()
	require.NoError(r.t, err)
	for log := range logs {
		if log.Topic == topic {
			n++
		}
	}
	return n
}

func (r *attackRig) controllerID() int32 {
	var id int32
	r.until("a controller", func() bool {
		s, err := r.client.Controller().Status()
		id = s.Broker
		return err == nil && id >= 0 && r.node(id) != nil
	})
	return id
}

func (r *attackRig) appendTo(topic string, n int) {
	r.t.Helper()
	r.until("append", func() bool {
		ctx, cancel := context.WithTimeout(r.t.Context(), time.Second)
		defer cancel()
		_, err := r.client.Partition(topic, n).Append(ctx, Record{Value: []byte("v")})
		return err == nil
	})
}

func TestControllerAlterTopic(t *testing.T) {
	attack(t, 3, nil, func(t *testing.T, r *attackRig) {
		ctx, c := r.admin()
		require.NoError(t, c.CreateTopic(ctx, "t", TopicConfig{Partitions: 3, ReplicationFactor: 3, MinISR: 2}))
		p := r.client.Partition("t", 1)
		cfg, err := c.AlterTopic(ctx, "t", func(c *TopicConfig) { c.MinISR = 3 })
		require.NoError(t, err)
		require.Equal(t, TopicConfig{Partitions: 3, ReplicationFactor: 3, MinISR: 3}, cfg)
		now, err := r.client.Topic("t").Config(ctx)
		require.NoError(t, err)
		require.Equal(t, cfg, now)
		r.until("in force", func() bool { s, err := p.Status(ctx); return err == nil && s.MinISR == 3 })

		_, topic, err := r.client.topicOf(ctx, "t", 0)
		require.NoError(t, err)
		for _, b := range r.open() {
			for _, l := range b.loops {
				r.until("every loop knows", func() (ok bool) {
					l.do(func(_ time.Duration, s *shard) { ok = s.topics[topic.ID] == topic })
					return ok
				})
			}
		}

		// Two in sync are not enough any more, and then they are again.
		down := 1 + r.controllerID()%3
		r.kill(down, 0)
		r.until("it is out", func() bool { s, err := p.Status(ctx); return err == nil && len(s.ISR) == 2 && s.Ends != nil })
		_, err = p.Append(ctx, Record{})
		require.ErrorIs(t, err, ErrNotEnoughReplicas)
		_, err = c.AlterTopic(ctx, "t", func(c *TopicConfig) { c.MinISR = 2 })
		require.NoError(t, err)
		r.appendTo("t", 1)

		for name, change := range map[string]func(*TopicConfig){
			"AddPartitions": func(c *TopicConfig) { c.Partitions = 9 }, "yet": func(c *TopicConfig) { c.ReplicationFactor = 2 },
			"for good": func(c *TopicConfig) { c.Background = true }, "min ISR": func(c *TopicConfig) { c.MinISR = 0 },
			"negative": func(c *TopicConfig) { c.MaxRecordBytes = -1 },
		} {
			_, err := c.AlterTopic(ctx, "t", change)
			require.ErrorIs(t, err, ErrInvalidTopic)
			require.ErrorContains(t, err, name)
		}
		_, err = c.AlterTopic(ctx, "u", func(*TopicConfig) {})
		require.ErrorIs(t, err, ErrUnknownTopic)

		// EnsureTopic compares what is asked for with what the topic is now, and says what differs.
		wanted := TopicConfig{Partitions: 3, ReplicationFactor: 3, MinISR: 2}
		require.NoError(t, c.EnsureTopic(ctx, "t", wanted))
		_, err = c.AlterTopic(ctx, "t", func(c *TopicConfig) { c.MaxRecordBytes, c.MaxUncommittedBytes = 1000, 5000 })
		require.NoError(t, err)
		require.NoError(t, c.EnsureTopic(ctx, "t", wanted), "limits are not asked for")
		require.NoError(t, c.EnsureTopic(ctx, "t", TopicConfig{}))
		wanted.MaxRecordBytes = 999
		err = c.EnsureTopic(ctx, "t", wanted)
		require.ErrorIs(t, err, ErrTopicMismatch)
		require.ErrorContains(t, err, "max record bytes 1000, max uncommitted bytes 5000")
		_, err = c.AlterTopic(ctx, "t", func(c *TopicConfig) { c.MaxRecordBytes, c.MaxUncommittedBytes = 2<<20, 0 })
		require.ErrorContains(t, err, "above the brokers' 1048576")
		wanted.Background, wanted.UncleanElection = true, true
		require.ErrorContains(t, c.EnsureTopic(ctx, "t", wanted), "unclean election, background")
		for _, bad := range []TopicConfig{{MaxRecordBytes: -1}, {MaxUncommittedBytes: -1}, {MaxRecordBytes: 2, MaxUncommittedBytes: 1}} {
			require.ErrorIs(t, c.CreateTopic(ctx, "bad", bad), ErrInvalidTopic)
		}
	})
}

// Everybody's change is in the end, whoever meets whom, and whichever Controllers
// fall on the way.
func TestControllerAlterTopicTogether(t *testing.T) {
	attack(t, 3, nil, func(t *testing.T, r *attackRig) {
		ctx, c := r.admin()
		require.NoError(t, c.CreateTopic(ctx, "t", TopicConfig{}))
		var all sync.WaitGroup
		const each = 5
		for i, change := range []func(c *TopicConfig, n int){
			func(c *TopicConfig, n int) { c.MaxRecordBytes = int32(n) },
			func(c *TopicConfig, n int) { c.MaxUncommittedBytes = int64(2<<20 + n) },
			func(c *TopicConfig, n int) { c.UncleanElection = n%2 == 1 },
		} {
			all.Go(func() {
				for n := 1; n <= each; n++ {
					pause(time.Duration(r.dice.roll(300*(i+1))) * time.Millisecond)
					_, err := c.AlterTopic(ctx, "t", func(c *TopicConfig) { change(c, n) })
					if err != nil {
						t.Errorf("change %d, %d: %v", i, n, err)
					}
				}
			})
		}
		for range 2 {
			pause(500 * time.Millisecond)
			id := r.controllerID()
			r.kill(id, 0)
			pause(3 * time.Second)
			r.start(id)
		}
		all.Wait()
		cfg, err := r.client.Topic("t").Config(ctx)
		require.NoError(t, err)
		require.Equal(t, TopicConfig{
			Partitions: 1, ReplicationFactor: 3, MinISR: 2, MaxRecordBytes: each, MaxUncommittedBytes: 2<<20 + each, UncleanElection: true,
		}, cfg)
	})
}

func TestControllerAddPartitions(t *testing.T) {
	attack(t, 3, nil, func(t *testing.T, r *attackRig) {
		ctx, c := r.admin()
		require.NoError(t, c.CreateTopic(ctx, "t", TopicConfig{Partitions: 2}))
		r.appendTo("t", 1)
		_, err := r.client.Partition("t", 4).Append(ctx, Record{})
		require.ErrorIs(t, err, ErrUnknownPartition)
		require.NoError(t, c.AddPartitions(ctx, "t", 5))
		n, err := r.client.Topic("t").Partitions(ctx)
		require.NoError(t, err)
		require.Equal(t, 5, n)
		for n := range 5 {
			_, err := r.client.Partition("t", n).Append(ctx, Record{})
			require.NoError(t, err, "its leader has accepted")
		}
		require.NoError(t, c.AddPartitions(ctx, "t", 5))
		for _, total := range []int{4, 0, -1, maxPartitions + 1} {
			require.ErrorIs(t, c.AddPartitions(ctx, "t", total), ErrInvalidTopic)
		}
		require.ErrorIs(t, c.AddPartitions(ctx, "u", 5), ErrUnknownTopic)

		// A Producer spreads what it gets from then on.
		p := r.client.Topic("t").Producer(ProducerOptions{})
		require.NoError(t, c.AddPartitions(ctx, "t", 8))
		for i := range 200 {
			require.NoError(t, p.AppendAsync(ctx, Record{Key: fmt.Append(nil, i)}, ignored))
		}
		require.NoError(t, p.Close(ctx))
		for n := range 8 {
			ends, err := r.client.Partition("t", n).Offsets(ctx)
			require.NoError(t, err)
			require.Greater(t, ends.LogEnd, int64(5), "partition %d", n)
		}
	})
}

func ignored(Result, error) {}

func TestControllerDeleteTopic(t *testing.T) {
	attack(t, 3, nil, func(t *testing.T, r *attackRig) {
		ctx, c := r.admin()
		require.NoError(t, c.CreateTopic(ctx, "t", TopicConfig{Partitions: 4}))
		require.NoError(t, c.CreateTopic(ctx, "kept", TopicConfig{}))
		for n := range 4 {
			r.appendTo("t", n)
		}
		r.appendTo("kept", 0)
		_, topic, err := r.client.topicOf(ctx, "t", 0)
		require.NoError(t, err)
		_, kept, err := r.client.topicOf(ctx, "kept", 0)
		require.NoError(t, err)
		require.Equal(t, 4, r.logs(1, topic.ID))
		away := 1 + r.controllerID()%3
		r.kill(away, 0)

		ended := make(chan error, 1)
		go func() {
			for _, err := range r.client.Partition("t", 0).Records(ctx, At(1)) {
				ended <- err
				return
			}
		}()
		pause(100 * time.Millisecond)
		require.NoError(t, c.DeleteTopic(ctx, "t"))
		names, err := c.Topics(ctx)
		require.NoError(t, err)
		require.Equal(t, []string{"kept"}, names)
		require.ErrorIs(t, c.DeleteTopic(ctx, "t"), ErrUnknownTopic)
		_, err = r.client.Partition("t", 0).Append(ctx, Record{})
		require.ErrorIs(t, err, ErrUnknownTopic)
		require.Error(t, <-ended)
		for id := range int32(3) {
			if id++; id != away {
				r.until("logs are gone", func() bool { return r.logs(id, topic.ID) == 0 })
				require.Equal(t, 1, r.logs(id, kept.ID))
			}
		}
		r.until("state keys are gone", func() bool { return len(r.storeKeys(topicsPrefix+"t/")) == 0 })
		require.Equal(t, []string{deletedKey(topic.ID)}, r.storeKeys(deletedPrefix), "one broker does not know")

		// The name is free. The old logs are deleted by whoever comes back, the new ones not.
		require.NoError(t, c.CreateTopic(ctx, "t", TopicConfig{Partitions: 1, MinISR: 1}))
		r.appendTo("t", 0)
		_, again, err := r.client.topicOf(ctx, "t", 0)
		require.NoError(t, err)
		require.NotEqual(t, topic.ID, again.ID)
		r.start(away)
		r.until("it has heard", func() bool { return r.logs(away, topic.ID) == 0 && r.logs(away, again.ID) == 1 })
		r.until("nothing is left", func() bool { return len(r.storeKeys(deletedPrefix)) == 0 })
		ends, err := r.client.Partition("t", 0).Offsets(ctx)
		require.NoError(t, err)
		require.Equal(t, int64(1), ends.LogEnd)
		require.Equal(t, 1, r.logs(away, kept.ID))
	})
}

// A handle that began with a topic does not go on with another one of its name.
func TestControllerRecreateTopic(t *testing.T) {
	attack(t, 3, nil, func(t *testing.T, r *attackRig) {
		ctx, c := r.admin()
		require.NoError(t, c.CreateTopic(ctx, "t", TopicConfig{}))
		r.appendTo("t", 0)
		ended, begun := make(chan error, 1), make(chan bool)
		go func() {
			for _, err := range r.client.Partition("t", 0).Records(ctx, Earliest()) {
				if err == nil {
					close(begun)
					continue
				}
				ended <- err
				return
			}
		}()
		<-begun
		for range 5 {
			require.NoError(t, c.DeleteTopic(ctx, "t"))
			require.NoError(t, c.CreateTopic(ctx, "t", TopicConfig{}))
		}
		require.ErrorIs(t, <-ended, ErrTopicRecreated)
		r.appendTo("t", 0)
		r.until("nothing is left", func() bool { return len(r.storeKeys(deletedPrefix)) == 0 })
		require.Len(t, r.storeKeys(topicsPrefix), 2)
	})
}

// A topic that is deleted while Controllers fall one after the other.
func TestControllerDeleteTopicThroughFailovers(t *testing.T) {
	attack(t, 3, nil, func(t *testing.T, r *attackRig) {
		ctx, c := r.admin()
		for round := range 4 {
			name := fmt.Sprint("t", round)
			require.NoError(t, c.CreateTopic(ctx, name, TopicConfig{Partitions: 3}))
			id := r.controllerID()
			done := make(chan error, 1)
			go func() { done <- c.DeleteTopic(ctx, name) }()
			pause(time.Duration(r.dice.roll(3000)) * time.Microsecond)
			r.coord.LoseReplies(round)
			r.kill(id, 0)
			require.NoError(t, <-done)
			r.start(id)
			r.until("nothing is left", func() bool { return len(r.storeKeys(deletedPrefix))+len(r.storeKeys(topicsPrefix)) == 0 })
		}
	})
}

// D6 and D21: a state key has the topic's name. What it says about another topic of
// that name must not reach the replicas of this one.
func TestLookupOfARecreatedTopic(t *testing.T) {
	attack(t, 1, nil, func(t *testing.T, r *attackRig) {
		ctx, c := r.admin()
		require.NoError(t, c.CreateTopic(ctx, "t", TopicConfig{MinISR: 1}))
		b := r.broker(1)
		_, topic, err := r.client.topicOf(ctx, "t", 0)
		require.NoError(t, err)
		id := protocol.PartitionID{Topic: topic.ID}
		store := r.coord.Connect()
		kv, _, err := store.Get(ctx, partitionKey("t", 0))
		require.NoError(t, err)
		var s protocol.PartitionState
		mustUnmarshal(t, kv.Value, &s)
		put := func(key string, v any) {
			_, err := store.Do(ctx, coordination.Txn{Ops: []coordination.Op{{Key: key, Value: marshal(v)}}})
			require.NoError(t, err)
		}
		lookup := func() int32 {
			b.control.post(func(time.Duration) { b.control.lookup(id) })
			pause(100 * time.Millisecond)
			rep, err := b.Replica(ctx, "t", 0)
			require.NoError(t, err)
			return rep.PartitionEpoch
		}
		s.PartitionEpoch += 5
		put(partitionKey("t", 0), s)
		require.Equal(t, s.PartitionEpoch, lookup())
		other := topic
		other.ID[0]++
		put(topicKey("t"), topicRecord{Topic: other})
		s.PartitionEpoch += 5
		put(partitionKey("t", 0), s)
		require.Equal(t, s.PartitionEpoch-5, lookup())
	})
}

func TestControllerFeatures(t *testing.T) {
	attack(t, 3, nil, func(t *testing.T, r *attackRig) {
		ctx, c := r.admin()
		for id := range int32(3) {
			require.NoError(t, r.broker(id+1).Ready(ctx))
		}
		f, err := c.Features(ctx)
		require.NoError(t, err)
		require.Equal(t, Features{Level: 1, Min: minLevel, Max: maxLevel}, f)
		require.NoError(t, c.RaiseLevel(ctx, 1))
		err = c.RaiseLevel(ctx, 2)
		require.ErrorIs(t, err, ErrUnsupportedLevel)
		require.ErrorContains(t, err, "broker 3 supports level 1")
		require.ErrorIs(t, c.RaiseLevel(ctx, 0), ErrUnsupportedLevel)

		// A later version raises it: these brokers cannot go on.
		set := func(value string) {
			_, err := r.coord.Connect().Do(ctx, coordination.Txn{Ops: []coordination.Op{{Key: featuresKey, Value: []byte(value)}}})
			require.NoError(t, err)
		}
		set("{")
		r.until("it is seen", func() bool { _, err := c.Features(ctx); return err != nil })
		require.NoError(t, r.broker(2).Ready(ctx))
		set(`{"level":2}`)
		r.until("unfit", func() bool { return r.broker(2).unfitReason() != nil })
		require.ErrorIs(t, r.broker(2).Ready(ctx), ErrUnsupportedLevel)
		require.ErrorIs(t, r.broker(2).Ready(ctx), ErrUnfit)
		r.kill(2, 0)
		r.start(2)
		require.ErrorIs(t, r.broker(2).Ready(ctx), ErrUnsupportedLevel)
		require.ErrorIs(t, r.broker(2).Ready(ctx), ErrUnfit)
	})
}

// A call returns when the broker at hand knows the topic that was made, not when it
// knows one of that name.
func TestSeenIsTheSameTopic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := joiner(t, memory.New(memory.Options{Manual: true}).Connect(), 1, levelRange{1, 1}).b
		old, made := topicNamed("t", 1, 1, 1, 1), topicNamed("t", 2, 1, 1, 1)
		made.Version = 3
		m, seq := newMember(), uint64(0)
		show := func(u protocol.Update) {
			seq++
			u.Seq = seq
			_, taken, completed := m.onUpdate(1, &u)
			require.True(t, taken)
			b.view.apply(m, &u, completed)
		}
		var seen atomic.Bool
		show(protocol.Update{Full: true, Topics: []protocol.Topic{old}})
		go func() {
			assert.NoError(t, b.Controller().seen(t.Context(), &made))
			seen.Store(true)
		}()
		for _, u := range []protocol.Update{
			{}, {Deleted: []protocol.UUID{old.ID}}, {Topics: []protocol.Topic{topicNamed("t", 2, 1, 1, 1)}},
		} {
			show(u)
			pause(100 * time.Millisecond)
			require.False(t, seen.Load())
		}
		show(protocol.Update{Topics: []protocol.Topic{made}})
		synctest.Wait()
		require.True(t, seen.Load())

		// It may have been deleted again before this broker heard of it.
		show(protocol.Update{Deleted: []protocol.UUID{made.ID}})
		began := time.Now()
		require.NoError(t, b.Controller().seen(t.Context(), &made))
		require.Equal(t, seenWait, time.Since(began))
	})
}
