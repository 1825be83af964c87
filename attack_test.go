package tidemark

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/storage"
	"github.com/tidemark-log/tidemark/transport/inproc"
)

// Each test here attacks one promise, on whole brokers where it can. Most of them
// found a fault once.

// Messages of a link are sent in the order of their numbers, however many send: a
// transport that keeps order never shows a gap (D14).
func TestAttackRemoteAppenders(t *testing.T) {
	net := inproc.New(inproc.Options{})
	attack(t, 3, func(c *Config) { c.Transport = net.Transport(c.ID) }, func(t *testing.T, r *attackRig) { remoteAppends(r, 3000, 2) })
}

// A transport needs no order (D14).
func TestAttackRemoteAppendersWithoutOrder(t *testing.T) {
	attack(t, 3, nil, func(t *testing.T, r *attackRig) { remoteAppends(r, 3000, 3) })
}

// The link of an earlier life ends before the next one can be up: else the shards
// hear of the end last, and believe for ever that the broker is away (D14).
func TestAttackRebuildOrder(t *testing.T) {
	w := newSimWorld(t, 1, 2)
	w.createTopic("t", TopicConfig{Partitions: 1, ReplicationFactor: 2, MinISR: 1})
	w.settle(time.Second)
	b1, b2 := w.brokers[1], w.brokers[2]
	links := b2.broker.links
	old := links.get(1)
	b2.loseSession()
	b2.reg = newRegistrar(b2.broker)
	session, epoch, err := b2.reg.register()
	require.NoError(t, err)
	b2.session = session
	b2.broker.epoch.Store(epoch)
	b2.broker.control.onRegistered(session, epoch)
	// Broker 1 hears of the new life first, and says hello.
	w.flights = nil
	b1.notice()
	b1.tick()
	hello := w.flights
	require.NotEmpty(t, hello)

	old.mu.Lock() // somebody is in a step of the old link while broker 2 hears of it
	rebuilt := make(chan struct{})
	go func() { defer close(rebuilt); links.rebuild(epoch, b2.broker.control.registry.live) }()
	early := false // the new link takes messages while the old one has not ended
	for held := 0; !early && held < 10_000; runtime.Gosched() {
		if !links.mu.TryRLock() {
			held++ // nothing gets at the links
			continue
		}
		early = links.peers[1] != nil && links.peers[1] != old
		links.mu.RUnlock()
	}
	greet := func() {
		for _, f := range hello {
			if f.to == 2 {
				links.receive(f.msg)
			}
		}
	}
	if early {
		greet()
	}
	old.mu.Unlock()
	<-rebuilt
	if !early {
		greet()
	}
	b2.notice()
	require.True(t, links.isUp(1))
	require.True(t, b2.broker.loops[0].shard.env.links[1].up, "the shard believes that it is down")
	require.Contains(t, b2.broker.control.links, int32(1))
}

// More producers than the leader has slots for are each refused once, as in a
// failover, and try again every 100 ms: none is refused for long (D22).
func TestAttackRefusedStreamsAll(t *testing.T) {
	var s refusedStreams
	now := time.Duration(1)
	waiting := make(map[uint64]uint32)
	for id := range uint64(1100) {
		waiting[id+1] = s.refuse(now, protocol.Stream{ID: id + 1, Generation: uint32(id % 5)}) + 1
	}
	for range 20 {
		now += 100 * time.Millisecond
		for id, generation := range waiting {
			st := protocol.Stream{ID: id, Generation: generation}
			if s.refuses(now, st) {
				waiting[id] = s.refuse(now, st) + 1
			} else {
				delete(waiting, id)
			}
		}
	}
	require.Empty(t, waiting, "producers that are still refused")
}

// Many producers that come, are refused and go do not shut out one that never was.
func TestAttackRefusedStreamsOneLeft(t *testing.T) {
	var s refusedStreams
	now := time.Duration(1)
	for id := range uint64(1030) {
		s.refuse(now, protocol.Stream{ID: id + 1})
		now += 5 * time.Millisecond
	}
	innocent := protocol.Stream{ID: 5000}
	tries := 0
	for ; s.refuses(now, innocent); tries++ {
		require.Less(t, tries, 10)
		innocent.Generation = s.refuse(now, innocent) + 1
		now += 5 * time.Millisecond
	}
	require.LessOrEqual(t, tries, 1, "one refusal says what is taken")
}

// A handle over several brokers works though the first of them has lost the
// coordination store for good, and still believes that it leads.
func TestAttackStaleFirstBroker(t *testing.T) {
	attack(t, 3, nil, func(t *testing.T, r *attackRig) {
		n := r.create("t", 3)
		require.EqualValues(t, 1, r.leader(r.client, "t", n))
		r.node(1).coord.SetUnavailable(true)
		pause(3 * time.Second)
		for _, c := range []*Client{r.broker(2).Client, r.client} {
			_, err := c.Partition("t", n).Append(r.within(5*time.Second), Record{Value: []byte("x")})
			require.NoError(t, err)
		}
	})
}

// A reader that has seen a leader epoch takes no answer of an older one: a leader
// that was deposed without knowing it has a shorter log, and would fail the reader
// with ErrOffsetOutOfRange, or show it the past.
func TestAttackRecordsThroughDeposedLeader(t *testing.T) {
	attack(t, 3, nil, func(t *testing.T, r *attackRig) {
		n := r.create("t", 3)
		require.EqualValues(t, 1, r.leader(r.client, "t", n))
		client := NewClient(func() []*Broker { // asks broker 2 first, then 1
			all := r.open()
			rank := [...]int{1: 1, 2: 0, 3: 2}
			slices.SortFunc(all, func(a, b *Broker) int { return rank[a.ID()] - rank[b.ID()] })
			return all
		}, ClientOptions{})
		ctx := r.within(25 * time.Second)
		r.node(1).coord.SetUnavailable(true) // its network is sound
		for r.leader(r.broker(2).Client, "t", n) == 1 {
			pause(10 * time.Millisecond)
		}
		p := client.Partition("t", n)
		for range 5 {
			_, err := p.Append(ctx, Record{Value: []byte("x")})
			require.NoError(t, err)
		}
		back := make(chan error, 1)
		want := int64(0)
		for rec, err := range p.Records(ctx, Earliest()) {
			require.NoError(t, err, "after %d records", want)
			require.Equal(t, want, rec.Offset)
			if want++; want == 5 {
				r.kill(2, 0) // 1 and 3 are left, and 3 knows the truth
				go func() {
					pause(3 * time.Second)
					r.start(2)
					pause(3 * time.Second)
					_, err := r.broker(3).Partition("t", n).Append(ctx, Record{Value: []byte("y")})
					back <- err
				}()
			}
			if want == 6 {
				break
			}
		}
		require.NoError(t, <-back)
		require.EqualValues(t, 6, want)
	})
}

// The own handle of a broker that is unfit says so at once; the others work.
func TestAttackUnfitBrokersHandle(t *testing.T) {
	attack(t, 3, nil, func(t *testing.T, r *attackRig) {
		r.create("t", 3)
		r.node(1).store.failAt.Store(1)
		for n := range 3 {
			_, _ = r.client.Partition("t", n).Append(r.within(6*time.Second), Record{})
		}
		pause(2 * time.Second)
		for n := range 3 {
			began := time.Now()
			_, err := r.broker(1).Partition("t", n).Append(r.within(2*time.Second), Record{Value: []byte("x")})
			require.ErrorIs(t, err, ErrUnfit)
			require.Equal(t, NotAppended, OutcomeOf(err))
			_, err = r.broker(1).Partition("t", n).Offsets(r.within(2 * time.Second))
			require.ErrorIs(t, err, ErrUnfit)
			require.Zero(t, time.Since(began))
			for _, c := range []*Client{r.broker(2).Client, r.client} {
				_, err = c.Partition("t", n).Append(r.within(2*time.Second), Record{Value: []byte("x")})
				require.NoError(t, err)
			}
		}
	})
}

// Reads whose callers went away leave nothing behind, at the caller's broker or
// the leader's.
func TestAttackAbandonedFetches(t *testing.T) {
	attack(t, 3, nil, func(t *testing.T, r *attackRig) {
		r.create("t", 1)
		for i := range 200 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			_, err := r.broker(int32(1+i%3)).Partition("t", 0).Fetch(ctx, 0, FetchOptions{MaxWait: time.Hour})
			cancel()
			require.ErrorIs(t, err, context.DeadlineExceeded)
		}
		pause(readWaitMs*time.Millisecond + time.Second)
		for _, b := range r.open() {
			require.Zero(t, b.reads.open(), "reads open at broker %d", b.ID())
			for _, l := range b.loops {
				l.do(func(_ time.Duration, s *shard) {
					for id, x := range s.replicas {
						if len(x.readers) > 0 {
							t.Errorf("%d readers wait at broker %d, %v", len(x.readers), b.ID(), id)
						}
					}
				})
			}
		}
	})
}

// A name that no topic can have is refused by the handle: it could be longer than
// what a link carries.
func TestAttackCreateHugeName(t *testing.T) {
	attack(t, 3, nil, func(t *testing.T, r *attackRig) {
		r.create("t", 1)
		for _, b := range r.open() {
			for _, n := range []int{300, 70_000, 9 << 20} {
				began := time.Now()
				err := b.Controller().CreateTopic(r.within(2*time.Second), strings.Repeat("a", n), TopicConfig{})
				require.ErrorIs(t, err, ErrInvalidTopic)
				require.Zero(t, time.Since(began))
			}
		}
	})
}

// Headers that are empty count nothing against MaxRecordBytes, but are megabytes
// when they are encoded: the record is refused, and does not block those behind it.
func TestAttackManyHeaders(t *testing.T) {
	net := inproc.New(inproc.Options{})
	attack(t, 3, func(c *Config) { c.Transport = net.Transport(c.ID) }, func(t *testing.T, r *attackRig) {
		r.create("t", 1)
		headers := make([]Header, 1_200_000)
		for _, b := range r.open() {
			ctx := r.within(5 * time.Second)
			p := b.Topic("t").Producer(ProducerOptions{RetryFor: 2 * time.Second})
			_, err := p.Append(ctx, Record{Headers: headers})
			require.ErrorIs(t, err, ErrRecordTooLarge)
			require.Equal(t, NotAppended, OutcomeOf(err))
			_, err = b.Partition("t", 0).Append(ctx, Record{Headers: headers})
			require.ErrorIs(t, err, ErrBatchTooLarge)
			require.Equal(t, NotAppended, OutcomeOf(err))
			_, err = p.Append(ctx, Record{Value: []byte("x")})
			require.NoError(t, err)
			require.NoError(t, p.Close(ctx))
		}
	})
}

// Arguments that make no sense are errors, at once, and nothing else happens.
func TestAttackMisuse(t *testing.T) {
	attack(t, 3, nil, func(t *testing.T, r *attackRig) {
		r.create("t", 2)
		for _, c := range misuses() {
			began := time.Now()
			require.ErrorIs(t, c.do(r.within(10*time.Second), r), c.want, c.what)
			require.Less(t, time.Since(began), time.Second, c.what)
		}
	})
}

// Close and Shutdown from many goroutines, with a producer at work: each of its
// records ends once, and later calls fail with ErrClosed.
func TestAttackCloseFromManySides(t *testing.T) {
	attack(t, 3, nil, func(t *testing.T, r *attackRig) {
		r.create("t", 2)
		ctx := r.within(10 * time.Second)
		p := r.client.Topic("t").Producer(ProducerOptions{})
		ended := make(chan error, 1000)
		for range 500 {
			require.NoError(t, p.AppendAsync(ctx, Record{Value: []byte("v")}, func(_ Result, err error) {
				ended <- err
				_ = r.broker(1).Status()
			}))
		}
		var work sync.WaitGroup
		for i := range 16 {
			for _, b := range r.open() {
				work.Go(func() {
					if i%2 == 0 {
						_ = b.Close()
					} else {
						_ = b.Shutdown(r.within(time.Second))
					}
				})
			}
		}
		work.Wait()
		require.NoError(t, p.Close(ctx))
		require.Len(t, ended, 500)
		_, err := r.client.Partition("t", 0).Append(ctx, Record{})
		require.ErrorIs(t, err, ErrClosed)
		_, err = r.broker(1).Partition("t", 0).Offsets(ctx)
		require.ErrorIs(t, err, ErrClosed)
	})
}

// A producer's callback may close the broker.
func TestAttackCloseInCallback(t *testing.T) {
	attack(t, 1, nil, func(t *testing.T, r *attackRig) {
		r.create("t", 1)
		p := r.client.Topic("t").Producer(ProducerOptions{})
		closed := make(chan error, 1)
		require.NoError(t, p.AppendAsync(t.Context(), Record{Value: []byte("x")}, func(Result, error) { closed <- r.broker(1).Close() }))
		require.NoError(t, <-closed)
		require.NoError(t, p.Close(r.within(3*time.Second)))
	})
}

// Nothing acknowledged is lost, doubled or moved by a network that loses, doubles,
// delays, misdelivers and reorders (D14).
func TestAttackRoughNetwork(t *testing.T) {
	attack(t, 3, nil, func(t *testing.T, r *attackRig) {
		r.create("t", 3)
		l := r.load("t", 3, 6)
		for range 2 {
			r.net.rough.Store(true)
			pause(2 * time.Second)
			r.net.rough.Store(false)
			pause(500 * time.Millisecond)
		}
		l.end()
		r.holds("t", l.acked)
	})
}

// Nor by brokers that are killed, one, two or all at once, with what their disks
// had not completed lost in part.
func TestAttackKills(t *testing.T) {
	attack(t, 3, nil, func(t *testing.T, r *attackRig) {
		r.create("t", 3)
		l := r.load("t", 3, 4)
		for i := range 9 {
			r.net.rough.Store(i%4 == 3)
			down := 1 + i%3
			first := r.dice.roll(3)
			for k := range down {
				r.kill(int32(1+(first+k)%3), r.dice.roll(3))
			}
			if i%2 == 0 { // longer than a session, or shorter
				pause(time.Duration(r.dice.roll(1500)) * time.Millisecond)
			}
			for k := down; k > 0; k-- {
				r.start(int32(1 + (first+k-1)%3))
			}
			pause(time.Duration(r.dice.roll(700)) * time.Millisecond)
		}
		r.net.rough.Store(false)
		l.end()
		r.holds("t", l.acked)
	})
}

// A disk that fails at any write makes its broker unfit; the others go on, and a
// clean open brings it back (D16).
func TestAttackStoreFails(t *testing.T) {
	for _, k := range []int64{1, 2, 5, 12, 30} {
		t.Run(fmt.Sprintf("at write %d", k), func(t *testing.T) {
			attack(t, 3, nil, func(t *testing.T, r *attackRig) {
				r.create("t", 3)
				l := r.load("t", 3, 3)
				disk := r.node(1).store
				disk.failAt.Store(disk.writes.Load() + k)
				pause(2500 * time.Millisecond)
				before := l.count()
				pause(300 * time.Millisecond)
				require.Greater(t, l.count(), before, "no progress")
				require.ErrorIs(t, r.broker(1).Ready(t.Context()), ErrUnfit)
				l.end()
				r.kill(1, 1)
				r.start(1)
				r.holds("t", l.acked)
			})
		})
	}
}

// A disk that hangs ends what waits for it, once the limit is over: the append is
// Unknown, another broker leads, and Close does not wait (D16).
func TestAttackStoreHangs(t *testing.T) {
	attack(t, 3, nil, func(t *testing.T, r *attackRig) {
		n := r.create("t", 3)
		require.EqualValues(t, 1, r.leader(r.client, "t", n))
		r.node(1).store.hangAt.Store(1)
		began := time.Now()
		_, err := r.broker(1).Partition("t", n).AppendWith(t.Context(), AppendOptions{Acks: AcksLeader}, Record{Value: []byte("x")})
		require.Equal(t, Unknown, OutcomeOf(err))
		require.Less(t, time.Since(began), 5*time.Second)
		_, err = r.client.Partition("t", n).Append(r.within(10*time.Second), Record{Value: []byte("y")})
		require.NoError(t, err)
		require.Less(t, time.Since(began), 8*time.Second)
	})
}

// A disk that hangs while the broker registers anew makes it unfit as well (D16).
func TestAttackSetNodeHangs(t *testing.T) {
	attack(t, 3, nil, func(t *testing.T, r *attackRig) {
		r.create("t", 3)
		disk, hang := r.node(1).store, make(chan struct{})
		defer close(hang)
		disk.setNode.Store(&hang)
		r.node(1).coord.SetUnavailable(true)
		pause(2500 * time.Millisecond)
		r.node(1).coord.SetUnavailable(false)
		disk.hangAt.Store(1)
		pause(6 * time.Second)
		require.ErrorIs(t, r.broker(1).Ready(r.within(3*time.Second)), ErrUnfit)
		_, err := r.client.Partition("t", 0).Append(r.within(5*time.Second), Record{Value: []byte("x")})
		require.NoError(t, err)
	})
}

// A store that refuses one log costs that replica alone: the broker stays fit.
func TestAttackRefusedOneLog(t *testing.T) {
	attack(t, 3, nil, func(t *testing.T, r *attackRig) {
		led := r.create("t", 3)
		require.EqualValues(t, 1, r.leader(r.client, "t", led))
		ctx := r.within(15 * time.Second)
		rep, err := r.broker(1).Replica(ctx, "t", led)
		require.NoError(t, err)
		r.node(1).store.refuse.Store(&rep.id)
		for n := range 3 {
			err := errors.New("not tried")
			for err != nil {
				_, err = r.client.Partition("t", n).Append(ctx, Record{Value: []byte("x")})
				require.NoError(t, ctx.Err(), "partition %d: %v", n, err)
			}
		}
		rep, err = r.broker(1).Replica(ctx, "t", led)
		require.NoError(t, err)
		require.Equal(t, "failed", rep.Role)
		require.NotEqual(t, int32(1), rep.Leader)
		require.NoError(t, r.broker(1).Ready(ctx))
	})
}

// A log found damaged by a read of old records costs that replica alone, though
// other reads are slow: readers go on at the next leader without a gap.
func TestAttackDamagedColdRead(t *testing.T) {
	attack(t, 3, func(c *Config) { c.MemoryBudget = 1 << 20 }, func(t *testing.T, r *attackRig) {
		led := r.create("t", 3)
		require.EqualValues(t, 1, r.leader(r.client, "t", led))
		ctx := r.within(time.Minute)
		for n := range 3 {
			for range 40 {
				_, err := r.client.Partition("t", n).Append(ctx, Record{Value: make([]byte, 20_000)})
				require.NoError(t, err)
			}
		}
		rep, err := r.broker(1).Replica(ctx, "t", led)
		require.NoError(t, err)
		damaged := func(id storage.LogID) error {
			if id == rep.id {
				return fmt.Errorf("%w: bad", storage.ErrDamaged)
			}
			pause(300 * time.Millisecond)
			return nil
		}
		r.node(1).store.readErr.Store(&damaged)
		for n := range 3 {
			next := int64(0)
			for rec, err := range r.client.Partition("t", n).Records(ctx, Earliest()) {
				require.NoError(t, err)
				require.Equal(t, next, rec.Offset)
				if next++; next == 40 {
					break
				}
			}
		}
		rep, err = r.broker(1).Replica(ctx, "t", led)
		require.NoError(t, err)
		require.NotEqual(t, "leader", rep.Role)
		require.EqualValues(t, 1, r.broker(1).Status().Damaged)
		require.NoError(t, r.broker(1).Ready(ctx))
		r.node(1).store.readErr.Store(nil)
		for n := range 3 {
			_, err := r.client.Partition("t", n).Append(ctx, Record{Value: []byte("x")})
			require.NoError(t, err)
		}
	})
}

// While the coordination store is away nothing changes: appends go on, and nobody
// is elected.
func TestAttackCoordinationOutage(t *testing.T) {
	attack(t, 3, nil, func(t *testing.T, r *attackRig) {
		r.create("t", 3)
		elections := func() (n uint64) {
			for _, b := range r.open() {
				n += b.Status().Elections
			}
			return n
		}
		l := r.load("t", 3, 3)
		pause(300 * time.Millisecond)
		before := elections()
		r.coord.SetUnavailable(true)
		for range 4 {
			acked := l.count()
			pause(time.Second)
			require.Greater(t, l.count(), acked)
		}
		r.coord.SetUnavailable(false)
		pause(2 * time.Second)
		l.end()
		require.Equal(t, before, elections())
		require.Zero(t, l.unknown)
		r.holds("t", l.acked)
	})
}

// A Controller that dies while it creates a topic leaves all of it or none: the
// same command again, by another one, makes it whole.
func TestAttackControllerKilledDuringCreate(t *testing.T) {
	attack(t, 3, nil, func(t *testing.T, r *attackRig) {
		r.create("t", 1)
		for i := range 8 {
			name, done := fmt.Sprint("c", i), make(chan error, 1)
			go func() {
				done <- r.client.Controller().CreateTopic(r.within(8*time.Second), name, TopicConfig{Partitions: 4})
			}()
			pause(time.Duration(r.dice.roll(6000)) * time.Microsecond)
			if st, _ := r.client.Controller().Status(); st.Broker > 0 {
				r.kill(st.Broker, r.dice.roll(3))
				if i%2 == 1 { // or only when its session is over
					pause(2 * attackSession)
				}
				r.start(st.Broker)
			}
			if err := <-done; err != nil && !errors.Is(err, ErrTopicExists) && !errors.Is(err, ErrTooFewBrokers) {
				t.Errorf("%s: %v", name, err)
			}
			r.create(name, 4)
			r.holds(name, make([]map[int64]string, 4))
		}
	})
}
