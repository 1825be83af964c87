package tidemark_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark"
	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/coordination/memory"
	"github.com/tidemark-log/tidemark/local"
	"github.com/tidemark-log/tidemark/record"
	"github.com/tidemark-log/tidemark/storage/memstore"
	"github.com/tidemark-log/tidemark/transport/inproc"
)

// Time limits of the clusters here. They pass in virtual time.
const (
	missionSession = time.Second
	missionLag     = 2 * time.Second
)

// world is a cluster in a bubble of virtual time, on disks in memory that lose
// what was not synced when a broker is killed.
type world struct {
	*local.Cluster
	t   *testing.T
	ctx context.Context
}

func inWorld(t *testing.T, o local.Options, f func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		o.InMemory, o.MemoryBudget, o.SessionTimeout, o.MaxLag = true, 24<<20, missionSession, missionLag
		c, err := local.Open(ctx, "cluster", o)
		require.NoError(t, err)
		defer func() { require.NoError(t, c.Close()) }()
		f(&world{c, t, ctx})
	})
}

// topic makes a topic and returns its first partition.
func (w *world) topic(name string, cfg tidemark.TopicConfig) *tidemark.Partition {
	require.NoError(w.t, w.Controller().CreateTopic(w.ctx, name, cfg))
	return w.Partition(name, 0)
}

var threeReplicas = tidemark.TopicConfig{Partitions: 1, ReplicationFactor: 3, MinISR: 2}

// until waits, in virtual time, for at most a minute.
func (w *world) until(what string, ok func() bool) {
	w.t.Helper()
	for range 6000 {
		if ok() {
			return
		}
		<-time.After(10 * time.Millisecond)
	}
	w.t.Fatalf("not within a minute: %s", what)
}

func (w *world) append(p *tidemark.Partition, acks tidemark.Acks, value string) tidemark.Result {
	w.t.Helper()
	res, err := p.AppendWith(w.ctx, tidemark.AppendOptions{Acks: acks}, tidemark.Record{Value: []byte(value)})
	require.NoError(w.t, err)
	return res
}

// appendAgain appends until it is acknowledged, as an application does that does not
// mind duplicates.
func (w *world) appendAgain(p *tidemark.Partition, value string) {
	w.t.Helper()
	for {
		_, err := p.Append(w.ctx, tidemark.Record{Value: []byte(value)})
		if err == nil {
			return
		}
		require.NoError(w.t, w.ctx.Err())
		<-time.After(10 * time.Millisecond)
	}
}

func (w *world) status(p *tidemark.Partition) tidemark.PartitionStatus {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, 200*time.Millisecond)
	defer cancel()
	s, err := p.Status(ctx)
	require.NoError(w.t, err)
	require.ElementsMatch(w.t, s.Replicas, append(slices.Clone(s.ISR), s.OSR...), "AR = ISR + OSR")
	return s
}

// healthy waits until all replicas are in sync and there is a leader.
func (w *world) healthy(p *tidemark.Partition) tidemark.PartitionStatus {
	w.t.Helper()
	w.until("all in sync", func() bool {
		s := w.status(p)
		return s.Leader >= 0 && len(s.OSR) == 0 && s.Ends != nil
	})
	return w.status(p)
}

func (w *world) replica(id int32, p *tidemark.Partition) *tidemark.Replica {
	w.t.Helper()
	r, err := w.Broker(id).Replica(w.ctx, p.Topic(), p.Number())
	require.NoError(w.t, err)
	return r
}

// follower is a replica that neither leads nor is the Controller.
func (w *world) follower(p *tidemark.Partition) int32 {
	w.t.Helper()
	c, err := w.Controller().Status()
	require.NoError(w.t, err)
	s := w.status(p)
	for _, id := range s.Replicas {
		if id != s.Leader && id != c.Broker {
			return id
		}
	}
	w.t.Fatal("there is none")
	return -1
}

func (w *world) kill(ids ...int32) {
	w.t.Helper()
	for _, id := range ids {
		require.NoError(w.t, w.Kill(id))
	}
}

func (w *world) restart(ids ...int32) {
	w.t.Helper()
	for _, id := range ids {
		require.NoError(w.t, w.Restart(w.ctx, id))
	}
}

// read returns the committed values of a partition.
func (w *world) read(p *tidemark.Partition) (values []string) {
	w.t.Helper()
	ends, err := p.Offsets(w.ctx) // waits until the high watermark is that of this epoch
	require.NoError(w.t, err)
	for next := int64(0); next < ends.HighWatermark; {
		f, err := p.Fetch(w.ctx, next, tidemark.FetchOptions{MaxWait: time.Second})
		require.NoError(w.t, err)
		require.NotEmpty(w.t, f.Records)
		for _, rec := range f.Records {
			require.Equal(w.t, next, rec.Offset)
			next++
			values = append(values, string(rec.Value))
		}
	}
	return values
}

// log is what one copy has on its disk.
func (w *world) log(id int32, p *tidemark.Partition) (all []byte) {
	w.t.Helper()
	for b, err := range w.replica(id, p).Batches(w.ctx, 0) {
		require.NoError(w.t, err)
		all = append(all, b...)
	}
	return all
}

// equalLogs waits until all copies are in sync and committed to the end, and compares their bytes.
func (w *world) equalLogs(p *tidemark.Partition) {
	w.t.Helper()
	s := w.healthy(p)
	w.until("high watermark at the end everywhere", func() bool {
		end := w.replica(s.Leader, p).LogEnd
		return !slices.ContainsFunc(s.Replicas, func(id int32) bool {
			r := w.replica(id, p)
			return r.HighWatermark != end || r.StoredEnd != end || r.LogEnd != end
		})
	})
	want := w.log(s.Leader, p)
	require.NotEmpty(w.t, want)
	for _, id := range s.Replicas {
		require.True(w.t, bytes.Equal(want, w.log(id, p)), "broker %d differs", id)
	}
}

func numbered(n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf("v%d", i))
	}
	return all
}

func TestM01OrderedImmutableLog(t *testing.T) {
	inWorld(t, local.Options{}, func(w *world) {
		p := w.topic("t", threeReplicas)
		for i := range 5 {
			res := w.append(p, tidemark.AcksAll, fmt.Sprint("v", i))
			require.Equal(t, tidemark.Result{Base: int64(i), Last: int64(i)}, res)
		}
		var batch []tidemark.Record
		for i := 5; i < 12; i++ {
			batch = append(batch, tidemark.Record{Key: []byte("k"), Value: fmt.Append(nil, "v", i), Headers: []tidemark.Header{{Key: "h"}}})
		}
		res, err := p.Append(w.ctx, batch...)
		require.NoError(t, err)
		require.Equal(t, tidemark.Result{Base: 5, Last: 11}, res)
		require.Equal(t, numbered(12), w.read(p))

		from := make(map[int64]string)
		for rec, err := range p.Records(w.ctx, tidemark.At(7)) {
			require.NoError(t, err)
			from[rec.Offset] = string(rec.Value)
			rec.Value[0] = '!' // the caller's; the log is not touched
			if rec.Offset == 11 {
				break
			}
		}
		require.Equal(t, map[int64]string{7: "v7", 8: "v8", 9: "v9", 10: "v10", 11: "v11"}, from)
		require.Equal(t, numbered(12), w.read(p), "what was written stays as it is")
		before := w.log(1, p)
		w.append(p, tidemark.AcksAll, "v12")
		require.True(t, bytes.HasPrefix(w.log(1, p), before), "the log only grows")
	})
}

func TestM02CommittedDataOutlivesAllButOneHolder(t *testing.T) {
	inWorld(t, local.Options{}, func(w *world) {
		p := w.topic("t", threeReplicas)
		w.append(p, tidemark.AcksAll, "v0")
		first := w.status(p).Leader
		w.kill(first)
		w.appendAgain(p, "v1") // the ISR still has MinISR members
		w.until("the dead one is out", func() bool { return len(w.status(p).ISR) == 2 })
		second := w.status(p).Leader
		require.NotEqual(t, first, second)
		w.kill(second)
		w.until("the last one leads", func() bool { s := w.status(p); return s.Leader >= 0 && s.Leader != second && len(s.ISR) == 1 })
		require.Equal(t, "v0", w.read(p)[0])
		require.Equal(t, "v1", w.read(p)[len(w.read(p))-1])
		_, err := p.Append(w.ctx, tidemark.Record{})
		require.ErrorIs(t, err, tidemark.ErrNotEnoughReplicas)
		w.restart(first, second)
		w.healthy(p)
		w.appendAgain(p, "v2")
		w.equalLogs(p)

		one := w.topic("one", tidemark.TopicConfig{Partitions: 1, ReplicationFactor: 1, MinISR: 1})
		w.append(one, tidemark.AcksAll, "v0")
		s := w.status(one)
		require.Len(t, s.Replicas, 1)
		w.kill(s.Leader)
		w.restart(s.Leader)
		require.Equal(t, []string{"v0"}, w.read(one))
	})
}

// M3 and M8: with one member cut off, the others have the record and nobody sees it.
func TestM03TwoEndsAndWhatReadersSee(t *testing.T) {
	inWorld(t, local.Options{}, func(w *world) {
		p := w.topic("t", threeReplicas)
		w.append(p, tidemark.AcksAll, "v0")
		w.equalLogs(p)
		lead, cut := w.status(p).Leader, w.follower(p)
		other := 6 - lead - cut
		w.Network().Cut(lead, cut)
		res := w.append(p, tidemark.AcksLeader, "v1")
		require.Equal(t, int64(1), res.Base)
		w.until("the other follower has it", func() bool { return w.replica(other, p).StoredEnd == 2 })
		for id, want := range map[int32][3]int64{lead: {2, 2, 1}, other: {2, 2, 1}, cut: {1, 1, 1}} {
			r := w.replica(id, p)
			require.Equal(t, want, [3]int64{r.LogEnd, r.StoredEnd, r.HighWatermark}, "broker %d", id)
		}
		ends, err := p.Offsets(w.ctx)
		require.NoError(t, err)
		require.Equal(t, tidemark.Offsets{HighWatermark: 1, LogEnd: 2}, ends)
		f, err := p.Fetch(w.ctx, 1, tidemark.FetchOptions{MaxWait: missionLag / 4})
		require.NoError(t, err)
		require.Empty(t, f.Records, "above the high watermark")
		require.Len(t, w.status(p).ISR, 3)
		w.Network().Heal(lead, cut)
		w.equalLogs(p)
		require.Equal(t, numbered(2), w.read(p))
	})
}

func TestM05OneLeaderServesAndFollowersPull(t *testing.T) {
	inWorld(t, local.Options{}, func(w *world) {
		require.NoError(t, w.Controller().CreateTopic(w.ctx, "t", tidemark.TopicConfig{Partitions: 3, ReplicationFactor: 3, MinISR: 2}))
		for n := range 3 {
			// From whichever broker the handle is, the leader serves it.
			for i, b := range w.Brokers() {
				at := b.Partition("t", n)
				res, err := at.Append(w.ctx, tidemark.Record{Value: fmt.Append(nil, "v", i)})
				require.NoError(t, err)
				require.Equal(t, int64(i), res.Base)
				f, err := at.Fetch(w.ctx, res.Base, tidemark.FetchOptions{MaxWait: time.Second})
				require.NoError(t, err)
				require.Len(t, f.Records, 1)
			}
			p := w.Partition("t", n)
			s := w.status(p)
			for _, id := range s.Replicas {
				r := w.replica(id, p)
				want := "follower"
				if id == s.Leader {
					want = "leader"
				}
				require.Equal(t, want, r.Role)
				require.Equal(t, s.Leader, r.Leader)
				require.Equal(t, s.LeaderEpoch, r.LeaderEpoch)
			}
			w.equalLogs(p)
		}
	})
}

func TestM06LaggingFollowersLeaveAndReturn(t *testing.T) {
	t.Run("cut off while records come", func(t *testing.T) {
		inWorld(t, local.Options{}, func(w *world) {
			p := w.topic("t", threeReplicas)
			w.append(p, tidemark.AcksAll, "v0")
			w.equalLogs(p)
			cut := w.follower(p)
			w.Network().Cut(w.status(p).Leader, cut)
			began := time.Now()
			w.append(p, tidemark.AcksLeader, "v1")
			for time.Since(began) < missionLag {
				require.Len(t, w.status(p).ISR, 3, "after %v", time.Since(began))
				w.append(p, tidemark.AcksLeader, "more") // it is time that counts, not records
				<-time.After(missionLag / 8)
			}
			w.until("out", func() bool { return len(w.status(p).ISR) == 2 })
			require.LessOrEqual(t, time.Since(began), missionLag*3/2)
			require.Equal(t, []int32{cut}, w.status(p).OSR)
			w.append(p, tidemark.AcksAll, "without it")
			require.Less(t, w.replica(cut, p).LogEnd, w.replica(w.status(p).Leader, p).LogEnd)
			w.Network().HealAll()
			w.equalLogs(p)
		})
	})
	t.Run("cut off and nothing to miss", func(t *testing.T) {
		inWorld(t, local.Options{}, func(w *world) {
			p := w.topic("t", threeReplicas)
			w.append(p, tidemark.AcksAll, "v0")
			w.equalLogs(p)
			s := w.status(p)
			w.Network().Cut(s.Leader, w.follower(p))
			<-time.After(3 * missionLag)
			require.Equal(t, s.ISR, w.status(p).ISR, "who has everything does not lag (IS-6)")
		})
	})
	t.Run("dead, and nothing to miss", func(t *testing.T) {
		inWorld(t, local.Options{}, func(w *world) {
			p := w.topic("t", threeReplicas)
			dead := w.follower(p)
			began := time.Now()
			w.kill(dead)
			w.until("out", func() bool { return len(w.status(p).ISR) == 2 })
			require.LessOrEqual(t, time.Since(began), 2*missionSession)
			w.append(p, tidemark.AcksAll, "v0")
			w.restart(dead)
			require.Contains(t, w.status(p).OSR, dead, "who returns starts outside")
			w.equalLogs(p)
		})
	})
}

func TestM07AcksLevels(t *testing.T) {
	// lone appends while the leader is cut off from everybody, kills it at once, and
	// returns the committed values after the failover and the old leader's return.
	lone := func(t *testing.T, acks tidemark.Acks) (values []string, outcome tidemark.Outcome) {
		inWorld(t, local.Options{}, func(w *world) {
			p := w.topic("t", threeReplicas)
			w.append(p, tidemark.AcksAll, "v0")
			w.equalLogs(p)
			lead := w.status(p).Leader
			w.Network().Isolate(lead)
			ctx, cancel := context.WithTimeout(w.ctx, missionSession/4)
			defer cancel()
			res, err := w.Broker(lead).Partition("t", 0).AppendWith(ctx, tidemark.AppendOptions{Acks: acks}, tidemark.Record{Value: []byte("lone")})
			outcome = tidemark.OutcomeOf(err)
			if acks == tidemark.AcksNone {
				require.Equal(t, tidemark.Result{Base: -1, Last: -1}, res)
			}
			w.kill(lead)
			w.until("another leads", func() bool { s := w.status(p); return s.Leader >= 0 && s.Leader != lead })
			w.appendAgain(p, "after")
			w.restart(lead)
			w.equalLogs(p)
			values = w.read(p)
		})
		return values, outcome
	}
	t.Run("all: not acknowledged before every member has it", func(t *testing.T) {
		values, outcome := lone(t, tidemark.AcksAll)
		require.Equal(t, tidemark.Unknown, outcome)
		require.Equal(t, []string{"v0", "after"}, values)
	})
	t.Run("leader: acknowledged, and lost with the leader", func(t *testing.T) {
		values, outcome := lone(t, tidemark.AcksLeader)
		require.Equal(t, tidemark.Appended, outcome)
		require.Equal(t, []string{"v0", "after"}, values, "no follower had it")
	})
	t.Run("none: acknowledged before anything is stored", func(t *testing.T) {
		values, outcome := lone(t, tidemark.AcksNone)
		require.Equal(t, tidemark.Appended, outcome)
		require.Equal(t, []string{"v0", "after"}, values)
	})
	t.Run("leader: it is on the leader's disk", func(t *testing.T) {
		inWorld(t, local.Options{Brokers: 1}, func(w *world) {
			p := w.topic("t", tidemark.TopicConfig{ReplicationFactor: 1})
			for i := range 20 {
				w.append(p, tidemark.AcksLeader, fmt.Sprint("v", i))
			}
			w.kill(1) // a power cut
			w.restart(1)
			require.Equal(t, numbered(20), w.read(p))
		})
	})
	t.Run("leader: survives if a follower had it", func(t *testing.T) {
		inWorld(t, local.Options{}, func(w *world) {
			p := w.topic("t", threeReplicas)
			lead := w.status(p).Leader
			w.append(p, tidemark.AcksLeader, "v0")
			w.until("a follower has it", func() bool { return w.replica(w.follower(p), p).StoredEnd == 1 })
			w.until("and it is committed", func() bool { return len(w.read(p)) == 1 })
			w.kill(lead)
			w.until("another leads", func() bool { s := w.status(p); return s.Leader >= 0 && s.Leader != lead })
			require.Equal(t, numbered(1), w.read(p))
		})
	})
	t.Run("all: on the disk of every member", func(t *testing.T) {
		inWorld(t, local.Options{}, func(w *world) {
			p := w.topic("t", threeReplicas)
			for i := range 20 {
				w.append(p, tidemark.AcksAll, fmt.Sprint("v", i))
			}
			w.kill(1, 2, 3) // a power cut of everything, at once
			w.restart(1, 2, 3)
			for _, id := range []int32{1, 2, 3} {
				require.NoError(t, w.Broker(id).Ready(w.ctx))
			}
			w.healthy(p)
			require.Equal(t, numbered(20), w.read(p))
			w.equalLogs(p)
		})
	})
	t.Run("all: never lost while members die in turn", func(t *testing.T) {
		inWorld(t, local.Options{}, func(w *world) {
			p := w.topic("t", threeReplicas)
			var acked []string
			for round := range 6 {
				value := fmt.Sprint("v", round)
				w.appendAgain(p, value)
				acked = append(acked, value)
				lead := w.status(p).Leader
				w.kill(lead)
				w.until("another leads", func() bool { s := w.status(p); return s.Leader >= 0 && s.Leader != lead })
				require.Subset(t, w.read(p), acked)
				w.restart(lead)
				w.healthy(p)
			}
			w.equalLogs(p)
		})
	})
}

// Whatever a reader saw stays, through the deaths of leaders.
func TestM08ReadersNeverSeeWhatIsLost(t *testing.T) {
	inWorld(t, local.Options{}, func(w *world) {
		p := w.topic("t", threeReplicas)
		ctx, stop := context.WithCancel(w.ctx)
		seen := make(chan []string, 1)
		go func() {
			var values []string
			for rec, err := range p.Records(ctx, tidemark.Earliest()) {
				if err != nil {
					break
				}
				values = append(values, string(rec.Value))
			}
			seen <- values
		}()
		n := 0
		for range 4 {
			for range 10 {
				acks := []tidemark.Acks{tidemark.AcksAll, tidemark.AcksLeader, tidemark.AcksNone}[n%3]
				_, _ = p.AppendWith(w.ctx, tidemark.AppendOptions{Acks: acks}, tidemark.Record{Value: fmt.Append(nil, "v", n)})
				n++
			}
			lead := w.status(p).Leader
			w.kill(lead)
			w.until("another leads", func() bool { s := w.status(p); return s.Leader >= 0 && s.Leader != lead })
			w.restart(lead)
			w.healthy(p)
		}
		w.appendAgain(p, "last")
		w.equalLogs(p)
		all := w.read(p)
		<-time.After(time.Second)
		stop()
		require.Equal(t, all, <-seen)
	})
}

func TestM09FollowerReturnsAndReconciles(t *testing.T) {
	inWorld(t, local.Options{}, func(w *world) {
		p := w.topic("t", threeReplicas)
		w.append(p, tidemark.AcksAll, "v0")
		w.equalLogs(p)
		old := w.status(p).Leader
		w.Network().Isolate(old)
		for range 5 { // what nobody else will have
			_, err := w.Broker(old).Partition("t", 0).AppendWith(w.ctx, tidemark.AppendOptions{Acks: tidemark.AcksLeader}, tidemark.Record{Value: []byte("lone")})
			require.NoError(t, err)
		}
		w.kill(old)
		w.until("out", func() bool { s := w.status(p); return s.Leader >= 0 && s.Leader != old && len(s.ISR) == 2 })
		for i := 1; i < 4; i++ {
			w.append(p, tidemark.AcksAll, fmt.Sprint("v", i))
		}
		w.restart(old)
		w.equalLogs(p)
		require.Equal(t, numbered(4), w.read(p))
		require.Equal(t, uint64(1), w.Broker(old).Status().Truncations)
		r := w.replica(old, p)
		require.Equal(t, "follower", r.Role)
		require.Equal(t, int64(4), r.HighWatermark)
	})
}

func TestM10LogsAreEqualAfterFailovers(t *testing.T) {
	inWorld(t, local.Options{}, func(w *world) {
		p := w.topic("t", threeReplicas)
		ctx, stop := context.WithCancel(w.ctx)
		defer stop()
		done := make(chan []string)
		for g := range 3 {
			go func() {
				var acked []string
				for i := 0; ctx.Err() == nil; i++ {
					value := fmt.Sprintf("%d-%d", g, i)
					if _, err := p.AppendWith(ctx, tidemark.AppendOptions{}, tidemark.Record{Value: []byte(value)}); err == nil {
						acked = append(acked, value)
					}
					<-time.After(7 * time.Millisecond)
				}
				done <- acked
			}()
		}
		for range 5 {
			<-time.After(200 * time.Millisecond)
			lead := w.healthy(p).Leader
			w.kill(lead)
			w.until("another leads", func() bool { s := w.status(p); return s.Leader >= 0 && s.Leader != lead })
			<-time.After(100 * time.Millisecond)
			w.restart(lead)
		}
		w.healthy(p)
		stop()
		var acked []string
		for range 3 {
			acked = append(acked, <-done...)
		}
		w.equalLogs(p)
		all := w.read(p)
		require.NotEmpty(t, acked)
		require.Subset(t, all, acked)
		require.Greater(t, w.status(p).LeaderEpoch, int32(4))
		t.Logf("%d acknowledged, %d in the log", len(acked), len(all))
	})
}

// hosts are brokers that a host program opened itself, on a coordination store
// whose keys the test can see.
type hosts struct {
	t       *testing.T
	ctx     context.Context
	coord   *memory.Store
	reader  coordination.Store
	network *inproc.Network
	brokers []*tidemark.Broker
	clients []*memory.Client
}

func inHosts(t *testing.T, n int, f func(h *hosts)) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		h := &hosts{t: t, ctx: ctx, coord: memory.New(memory.Options{}), network: inproc.New(inproc.Options{})}
		h.reader = h.coord.Connect()
		defer h.coord.Close()
		for id := range int32(n) {
			store, err := memstore.NewDisk().Open()
			require.NoError(t, err)
			defer store.Close()
			client := h.coord.Connect()
			b, err := tidemark.Open(ctx, tidemark.Config{
				ID: id + 1, Store: store, Coordination: client, Transport: h.network.Transport(id + 1),
				SessionTimeout: missionSession, MaxLag: missionLag, MemoryBudget: 8 << 20,
			})
			require.NoError(t, err)
			defer b.Close()
			h.brokers, h.clients = append(h.brokers, b), append(h.clients, client)
		}
		for _, b := range h.brokers {
			require.NoError(t, b.Ready(ctx))
		}
		f(h)
	})
}

func (h *hosts) until(what string, ok func() bool) { (&world{t: h.t}).until(what, ok) }

func (h *hosts) key(key string) (kv coordination.KV, value map[string]any) {
	kv, ok, err := h.reader.Get(h.ctx, key)
	require.NoError(h.t, err)
	if ok {
		require.NoError(h.t, json.Unmarshal(kv.Value, &value), key)
	}
	return kv, value
}

func TestM11ClusterStateIsInTheCoordinationStore(t *testing.T) {
	inHosts(t, 3, func(h *hosts) {
		require.NoError(t, h.brokers[1].Controller().CreateTopic(h.ctx, "t", tidemark.TopicConfig{Partitions: 2, ReplicationFactor: 2, MinISR: 1}))
		for n := range 2 {
			_, state := h.key(fmt.Sprintf("/brokers/topics/t/partitions/%d/state", n))
			s, err := h.brokers[0].Partition("t", n).Status(h.ctx)
			require.NoError(t, err)
			require.Equal(t, float64(s.Leader), state["leader"])
			require.Equal(t, float64(0), state["leader_epoch"])
			require.Equal(t, float64(1), state["controller_epoch"])
			require.Equal(t, float64(1), state["version"])
			require.Len(t, state["isr"], 2)
		}
		_, topic := h.key("/brokers/topics/t")
		require.Len(t, topic["assignment"], 2)
		_, term := h.key("/controller_epoch")
		require.Equal(t, float64(1), term["epoch"])
		kv, controller := h.key("/controller")
		require.NotEmpty(t, kv.Session)
		status, err := h.brokers[2].Controller().Status()
		require.NoError(t, err)
		require.Equal(t, float64(status.Broker), controller["broker"])
		for id := 1; id <= 3; id++ {
			kv, _ := h.key(fmt.Sprint("/brokers/ids/", id))
			require.NotEmpty(t, kv.Session, "ephemeral")
			require.Equal(t, kv.Revision, h.brokers[id-1].Status().BrokerEpoch)
		}

		// A broker that is gone loses its key with its session.
		h.network.Isolate(3)
		h.clients[2].Fence()
		h.until("the key is gone", func() bool { kv, _ := h.key("/brokers/ids/3"); return kv.Key == "" })
		last, _ := h.key("/brokers/last/3")
		require.NotEmpty(t, last.Key, "what it was stays known")
	})
}

// Data flows on while the coordination store is away; changes of metadata wait.
func TestM11DataFlowsOnWhileTheStoreIsAway(t *testing.T) {
	inHosts(t, 3, func(h *hosts) {
		require.NoError(t, h.brokers[0].Controller().CreateTopic(h.ctx, "t", threeReplicas))
		p := h.brokers[0].Partition("t", 0)
		h.coord.SetUnavailable(true)
		for i := range 20 {
			res, err := p.Append(h.ctx, tidemark.Record{Value: []byte("x")})
			require.NoError(t, err)
			require.Equal(t, int64(i), res.Base)
			<-time.After(missionSession / 2)
		}
		ctx, cancel := context.WithTimeout(h.ctx, time.Second)
		defer cancel()
		require.ErrorIs(t, h.brokers[1].Controller().CreateTopic(ctx, "u", threeReplicas), context.DeadlineExceeded)
		h.coord.SetUnavailable(false)
		require.NoError(t, h.brokers[1].Controller().CreateTopic(h.ctx, "v", threeReplicas))
		_, err := p.Append(h.ctx, tidemark.Record{Value: []byte("x")})
		require.NoError(t, err)
	})
}

func TestM12ControllerFailsOver(t *testing.T) {
	inWorld(t, local.Options{Brokers: 4}, func(w *world) {
		p := w.topic("t", threeReplicas)
		was := tidemark.ControllerStatus{}
		for round := range 4 {
			now, err := w.Controller().Status()
			require.NoError(t, err)
			require.Greater(t, now.Epoch, was.Epoch)
			require.NotEqual(t, now.Broker, was.Broker)
			was = now
			w.kill(now.Broker)
			// Work that waits for whoever is next.
			require.NoError(t, w.Controller().CreateTopic(w.ctx, fmt.Sprint("u", round), threeReplicas))
			w.appendAgain(w.Partition(fmt.Sprint("u", round), 0), "x")
			w.appendAgain(p, "x")
			for _, b := range w.Brokers() {
				s, err := b.Controller().Status()
				require.NoError(t, err)
				require.Greater(t, s.Epoch, was.Epoch)
				require.NotEqual(t, was.Broker, s.Broker)
			}
			w.restart(now.Broker)
			require.NoError(t, w.Broker(now.Broker).Ready(w.ctx))
			w.healthy(p)
		}
		w.equalLogs(p)
		topics, err := w.Controller().Topics(w.ctx)
		require.NoError(t, err)
		require.Equal(t, []string{"t", "u0", "u1", "u2", "u3"}, topics)
	})
}

func TestM13LeaderIsALiveMemberInOrder(t *testing.T) {
	inWorld(t, local.Options{}, func(w *world) {
		p := w.topic("t", tidemark.TopicConfig{Partitions: 1, ReplicationFactor: 2, MinISR: 1})
		s := w.status(p)
		a, b := s.Replicas[0], s.Replicas[1]
		require.Equal(t, a, s.Leader)
		w.append(p, tidemark.AcksAll, "v0")
		w.kill(a)
		w.until("the next in order leads", func() bool { return w.status(p).Leader == b })
		w.append(p, tidemark.AcksAll, "v1") // which a lacks
		w.kill(b)
		w.until("nobody leads", func() bool { return w.status(p).Leader == -1 })
		s = w.status(p)
		require.Equal(t, []int32{b}, s.ISR)
		require.ErrorIs(t, p.Writable(w.ctx), tidemark.ErrNotLeader)
		w.restart(a)
		require.NoError(t, w.Broker(a).Ready(w.ctx))
		<-time.After(5 * missionSession)
		require.Equal(t, int32(-1), w.status(p).Leader, "a is alive and may lack what was committed")
		ctx, cancel := context.WithTimeout(w.ctx, time.Second)
		defer cancel()
		_, err := p.Append(ctx, tidemark.Record{})
		require.ErrorIs(t, err, tidemark.ErrNotLeader)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, tidemark.NotAppended, tidemark.OutcomeOf(err))
		w.restart(b)
		w.until("b leads again", func() bool { return w.status(p).Leader == b })
		require.Greater(t, w.status(p).LeaderEpoch, s.LeaderEpoch)
		require.NoError(t, p.Writable(w.ctx))
		w.equalLogs(p)
		require.Equal(t, numbered(2), w.read(p))
	})
}

func TestM14ManyPartitionsFailOverTogether(t *testing.T) {
	const partitions = 300
	inWorld(t, local.Options{}, func(w *world) {
		require.NoError(t, w.Controller().CreateTopic(w.ctx, "t", tidemark.TopicConfig{Partitions: partitions, ReplicationFactor: 3, MinISR: 1}))
		victim := w.follower(w.Partition("t", 0))
		w.kill(victim)
		began := time.Now()
		for n := range partitions {
			p := w.Partition("t", n)
			w.until("led by another", func() bool { s := w.status(p); return s.Leader >= 0 && s.Leader != victim })
		}
		require.LessOrEqual(t, time.Since(began), 2*missionSession)
		for n := 0; n < partitions; n += 17 {
			w.append(w.Partition("t", n), tidemark.AcksAll, "x")
		}
	})
}

func TestM15LeadersAndReplicasAreSpreadEvenly(t *testing.T) {
	inWorld(t, local.Options{Brokers: 5}, func(w *world) {
		leaders, replicas := make(map[int32]int), make(map[int32]int)
		count := func(name string, partitions int) {
			perTopic := make(map[int32]int)
			for n := range partitions {
				s := w.status(w.Partition(name, n))
				require.Equal(t, s.Replicas[0], s.Leader, "the preferred replica leads")
				leaders[s.Leader]++
				perTopic[s.Leader]++
				for _, id := range s.Replicas {
					replicas[id]++
				}
			}
			if partitions%5 == 0 {
				for id := range int32(5) {
					require.Equal(t, partitions/5, perTopic[id+1])
				}
			}
		}
		require.NoError(t, w.Controller().CreateTopic(w.ctx, "wide", tidemark.TopicConfig{Partitions: 10, ReplicationFactor: 3, MinISR: 2}))
		count("wide", 10)
		for i := range 15 {
			name := fmt.Sprint("narrow", i)
			require.NoError(t, w.Controller().CreateTopic(w.ctx, name, threeReplicas))
			count(name, 1)
		}
		for id := range int32(5) {
			require.Equal(t, 5, leaders[id+1], "leaders %v", leaders)
			require.InDelta(t, 15, replicas[id+1], 1, "replicas %v", replicas)
		}
	})
}

// A smaller ISR is recorded before it is used: while the coordination store is away,
// nobody leaves, and what the missing member lacks is not committed.
func TestM17SmallerISRIsRecordedBeforeItIsUsed(t *testing.T) {
	inHosts(t, 3, func(h *hosts) {
		require.NoError(t, h.brokers[0].Controller().CreateTopic(h.ctx, "t", threeReplicas))
		p := h.brokers[0].Partition("t", 0)
		_, err := p.Append(h.ctx, tidemark.Record{Value: []byte("v0")})
		require.NoError(t, err)
		w := &world{t: t, ctx: h.ctx}
		s := w.status(p)
		c, err := h.brokers[0].Controller().Status()
		require.NoError(t, err)
		i := slices.IndexFunc(s.Replicas, func(id int32) bool { return id != s.Leader && id != c.Broker })
		h.coord.SetUnavailable(true)
		h.network.Cut(s.Leader, s.Replicas[i])
		ended := make(chan error, 1)
		go func() {
			_, err := p.Append(h.ctx, tidemark.Record{Value: []byte("v1")})
			ended <- err
		}()
		<-time.After(3 * missionLag)
		require.Empty(t, ended, "acknowledged without a recorded ISR")
		ends, err := p.Offsets(h.ctx)
		require.NoError(t, err)
		require.Equal(t, int64(1), ends.HighWatermark)
		require.Len(t, w.status(p).ISR, 3)

		h.coord.SetUnavailable(false)
		require.NoError(t, <-ended)
		_, state := h.key("/brokers/topics/t/partitions/0/state")
		require.Len(t, state["isr"], 2)
		require.Greater(t, state["partition_epoch"], float64(0))
		require.Equal(t, float64(s.LeaderEpoch), state["leader_epoch"], "no election for a shrink (ST-2)")
	})
}

func TestB1SafeByDefault(t *testing.T) {
	inWorld(t, local.Options{}, func(w *world) {
		require.NoError(t, w.Controller().CreateTopic(w.ctx, "t", tidemark.TopicConfig{}))
		cfg, err := w.Topic("t").Config(w.ctx)
		require.NoError(t, err)
		require.Equal(t, tidemark.TopicConfig{Partitions: 1, ReplicationFactor: 3, MinISR: 2}, cfg)
		require.Equal(t, tidemark.AcksAll, tidemark.AppendOptions{}.Acks)
		p := w.Partition("t", 0)
		var acked []string
		for i := range 30 {
			value := fmt.Sprint("v", i)
			w.appendAgain(p, value)
			acked = append(acked, value)
			if i%10 == 9 {
				w.kill(1, 2, 3) // everything that was not synced is gone
				w.restart(2, 3, 1)
				w.healthy(p)
			}
		}
		require.Subset(t, w.read(p), acked)

		// Unclean election is off: see TestM13LeaderIsALiveMemberInOrder.
	})
}

func TestB5StatusIsTruthful(t *testing.T) {
	inWorld(t, local.Options{}, func(w *world) {
		p := w.topic("t", threeReplicas)
		require.NoError(t, p.Writable(w.ctx))
		w.append(p, tidemark.AcksAll, "v0")
		w.equalLogs(p)
		s := w.status(p)
		require.Equal(t, tidemark.PartitionStatus{
			Leader: s.Leader, PartitionEpoch: s.PartitionEpoch, Replicas: s.Replicas, ISR: s.ISR, MinISR: 2, Ends: &tidemark.Offsets{HighWatermark: 1, LogEnd: 1},
		}, s)
		for _, b := range w.Brokers() {
			st := b.Status()
			require.Equal(t, b.ID(), st.Broker)
			require.NoError(t, errors.Join(st.Unfit, st.Registration))
			w.until("linked", func() bool {
				links := b.Status().Links
				return len(links) == 2 && links[0].Up && links[1].Up
			})
			require.Positive(t, st.BrokerEpoch)
			require.Equal(t, int32(1), st.ControllerEpoch)
		}
		require.Equal(t, uint64(1), w.Broker(s.Leader).Status().Elections)

		// A member that is cut off: its lag grows, and it is seen to go.
		cut := w.follower(p)
		w.Network().Cut(s.Leader, cut)
		w.append(p, tidemark.AcksLeader, "v1")
		<-time.After(missionLag / 2)
		r := w.replica(s.Leader, p)
		require.GreaterOrEqual(t, r.Lags[cut], missionLag/2)
		require.Less(t, r.Lags[cut], missionLag)
		require.Zero(t, r.Lags[6-s.Leader-cut])
		w.until("out", func() bool { return len(w.status(p).OSR) == 1 })
		// Whoever is asked for the status may know it before the leader does.
		w.until("counted", func() bool { return w.Broker(s.Leader).Status().Shrinks == 1 })
		require.NoError(t, p.Writable(w.ctx), "MinISR is kept")

		// Under MinISR, and without a leader, it says why.
		w.Network().HealAll()
		w.equalLogs(p)
		w.until("counted", func() bool { return w.Broker(s.Leader).Status().Expansions == 1 })
		w.kill(cut, 6-s.Leader-cut)
		w.until("under MinISR", func() bool { return len(w.status(p).ISR) == 1 })
		err := p.Writable(w.ctx)
		require.ErrorIs(t, err, tidemark.ErrNotEnoughReplicas)
		require.ErrorContains(t, err, fmt.Sprint(s.Leader))
		require.ErrorContains(t, err, "MinISR 2")
	})
}

// The stored bytes are Kafka record batches of version 2, read here by hand.
func TestB9RecordsAreKafkaBatches(t *testing.T) {
	inWorld(t, local.Options{}, func(w *world) {
		p := w.topic("t", threeReplicas)
		w.append(p, tidemark.AcksAll, "first")
		at := time.Now().Truncate(time.Millisecond).UTC()
		_, err := p.Append(w.ctx, tidemark.Record{Timestamp: at, Key: []byte("k"), Value: []byte("second"), Headers: []tidemark.Header{{Key: "h", Value: []byte("x")}}},
			tidemark.Record{Timestamp: at, Value: []byte("third")})
		require.NoError(t, err)
		w.equalLogs(p)
		var batches [][]byte
		for b, err := range w.replica(2, p).Batches(w.ctx, 0) {
			require.NoError(t, err)
			batches = append(batches, b)
		}
		require.Len(t, batches, 2)
		b := batches[1]
		be := binary.BigEndian
		require.Equal(t, uint64(1), be.Uint64(b[0:]), "base offset")
		require.Equal(t, uint32(len(b)-12), be.Uint32(b[8:]), "length of the rest")
		require.Equal(t, uint32(0), be.Uint32(b[12:]), "leader epoch")
		require.Equal(t, byte(2), b[16], "magic")
		require.Equal(t, crc32.Checksum(b[21:], crc32.MakeTable(crc32.Castagnoli)), be.Uint32(b[17:]), "checksum")
		require.Equal(t, uint16(0), be.Uint16(b[21:]), "attributes")
		require.Equal(t, uint32(1), be.Uint32(b[23:]), "last offset delta")
		require.Equal(t, uint64(at.UnixMilli()), be.Uint64(b[27:]), "first timestamp")
		require.Equal(t, uint64(at.UnixMilli()), be.Uint64(b[35:]), "max timestamp")
		require.Equal(t, ^uint64(0), be.Uint64(b[43:]), "producer id")
		require.Equal(t, uint32(2), be.Uint32(b[57:]), "count")
		// length, attributes, timestamp delta, offset delta, key, value, headers: zigzag varints
		require.Equal(t, strings.Join([]string{"\x22\x00\x00\x00", "\x02k", "\x0csecond", "\x02\x02h\x02x", "\x16\x00\x00\x02", "\x01", "\x0athird", "\x00"}, ""), string(b[61:]))
		for _, b := range batches {
			_, err := record.Check(b)
			require.NoError(t, err)
		}
	})
}
