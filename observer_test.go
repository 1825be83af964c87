package tidemark

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/protocol"
)

// watcher keeps what an Observer is told, as text.
type watcher struct {
	mu   sync.Mutex
	said []string
}

func (w *watcher) say(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.said = append(w.said, fmt.Sprintf(format, args...))
}

func (w *watcher) all() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string(nil), w.said...)
}

// saw waits, in virtual time, until something was said.
func (w *watcher) saw(t *testing.T, what string) {
	t.Helper()
	for range 3000 {
		for _, s := range w.all() {
			if s == what {
				return
			}
		}
		pause(10 * time.Millisecond)
	}
	t.Fatalf("nobody said %q, but %q", what, w.all())
}

func (w *watcher) observer() *Observer {
	return &Observer{
		Leadership: func(e LeadershipEvent) {
			w.say("leader %s/%d epoch %d: %v %v", e.Topic, e.Partition, e.LeaderEpoch, e.Leading, e.ISR)
		},
		ISR: func(e ISREvent) {
			w.say("isr %s/%d epoch %d: %v to %v", e.Topic, e.Partition, e.LeaderEpoch, e.Old, e.New)
		},
		Truncated: func(e TruncationEvent) {
			w.say("truncated %s/%d epoch %d: %d to %d %v", e.Topic, e.Partition, e.LeaderEpoch, e.From, e.To, e.Reset)
		},
		Lost: func(e LossEvent) {
			w.say("lost %s/%d epoch %d: %d to %d", e.Topic, e.Partition, e.LeaderEpoch, e.From, e.To)
		},
		UncleanElection: func(e UncleanElectionEvent) {
			w.say("unclean %s/%d epoch %d: %d", e.Topic, e.Partition, e.LeaderEpoch, e.Leader)
		},
		Damaged:      func(e DamageEvent) { w.say("damaged %s/%d", e.Topic, e.Partition) },
		Store:        func(e StoreEvent) { w.say("store %v %v", e.State, e.Err != nil) },
		Link:         func(e LinkEvent) { w.say("link %d %v", e.Broker, e.Up) },
		Registration: func(e RegistrationEvent) { w.say("registered %v %v", e.Registered, e.Err) },
		Controller:   func(e ControllerEvent) { w.say("controller %v %d %v", e.Acting, e.ControllerEpoch, e.Err) },
		Unfit:        func(reason error) { w.say("unfit: %v", reason) },
	}
}

// attackWatched is a cluster whose brokers all have a watcher.
func attackWatched(t *testing.T, tweak func(*Config), f func(t *testing.T, r *attackRig, w map[int32]*watcher)) {
	watchers := map[int32]*watcher{1: {}, 2: {}, 3: {}}
	attack(t, 3, func(c *Config) {
		c.Observer = watchers[c.ID].observer()
		if tweak != nil {
			tweak(c)
		}
	}, func(t *testing.T, r *attackRig) { f(t, r, watchers) })
}

// Whatever a cluster goes through is told, by the broker that it happens to.
func TestObserverIsToldWhatHappens(t *testing.T) {
	attackWatched(t, nil, func(t *testing.T, r *attackRig, w map[int32]*watcher) {
		n := r.create("t", 3)
		lead := r.leader(r.client, "t", n)
		require.EqualValues(t, 1, lead)
		w[1].saw(t, "registered true <nil>")
		w[1].saw(t, "link 2 true")
		w[1].saw(t, "link 3 true")
		state, _, _ := r.broker(1).view.state(r.partition("t", n))
		w[1].saw(t, fmt.Sprintf("leader t/%d epoch %d: true %v", n, state.LeaderEpoch, state.Replicas))

		// A follower that dies leaves the ISR, and comes back into it.
		before := state.ISR
		r.kill(3, 0)
		w[1].saw(t, "link 3 false")
		w[2].saw(t, "link 3 false")
		var without []int32
		for _, id := range before {
			if id != 3 {
				without = append(without, id)
			}
		}
		w[1].saw(t, fmt.Sprintf("isr t/%d epoch %d: %v to %v", n, state.LeaderEpoch, before, without))
		r.start(3)
		r.healthy("t", 3)
		w[1].saw(t, fmt.Sprintf("isr t/%d epoch %d: %v to %v", n, state.LeaderEpoch, without, append(without, 3)))

		// A session that ends takes the leadership along.
		r.node(1).coord.SetUnavailable(true)
		w[1].saw(t, "registered false coordination: session expired")
		r.node(1).coord.SetUnavailable(false)
		w[1].saw(t, fmt.Sprintf("leader t/%d epoch %d: false []", n, state.LeaderEpoch))
		r.healthy("t", 3)
	})
}

// partition is the id of a topic's partition, as the first broker knows it.
func (r *attackRig) partition(topic string, n int) protocol.PartitionID {
	t, ok, _, _ := r.open()[0].view.topic(topic)
	require.True(r.t, ok)
	return protocol.PartitionID{Topic: t.ID, Partition: int32(n)}
}

// A broker that ceases to be the Controller says so, and why.
func TestObserverIsToldOfTheController(t *testing.T) {
	attackWatched(t, nil, func(t *testing.T, r *attackRig, w map[int32]*watcher) {
		r.create("t", 1)
		status, err := r.client.Controller().Status()
		require.NoError(t, err)
		w[status.Broker].saw(t, fmt.Sprintf("controller true %d <nil>", status.Epoch))
		r.node(status.Broker).coord.SetUnavailable(true)
		w[status.Broker].saw(t, fmt.Sprintf("controller false %d coordination: session expired", status.Epoch))
		r.node(status.Broker).coord.SetUnavailable(false)
		r.healthy("t", 1)
	})
}

// A store that hangs is told of before the broker is unfit, and again once it goes
// on; one that hangs for long, or fails, makes it unfit for good.
func TestObserverIsToldOfTheStore(t *testing.T) {
	attackWatched(t, func(c *Config) { c.StoreStallLimit = 4 * time.Second }, func(t *testing.T, r *attackRig, w map[int32]*watcher) {
		n := r.create("t", 3)
		r.disks[0].Hang()
		go func() { _, _ = r.client.Partition("t", n).Append(r.within(10*time.Second), Record{}) }()
		w[1].saw(t, "store stalled false")
		require.Equal(t, StoreStalled, r.broker(1).Status().Store)
		require.NoError(t, r.broker(1).Status().Unfit)
		r.disks[0].Unhang()
		w[1].saw(t, "store ok false")
		require.NoError(t, r.broker(1).Ready(r.within(time.Second)))

		r.node(1).store.failAt.Store(1)
		go func() { _, _ = r.client.Partition("t", n).Append(r.within(10*time.Second), Record{}) }()
		w[1].saw(t, "store failed true")
		w[1].saw(t, "unfit: tidemark: storage failed: disk failed")
		w[1].saw(t, "registered false tidemark: storage failed: disk failed")
		s := r.broker(1).Status()
		require.Equal(t, StoreFailed, s.Store)
		require.ErrorIs(t, s.Unfit, ErrStorage)
		require.ErrorIs(t, s.NotReady, ErrUnfit)
		require.Zero(t, s.Leading)
		require.EqualError(t, s.NotReady, "tidemark: broker is unfit: storage failed: disk failed")
	})
}

// noted brings a note to the broker's Observer.
func TestObserverNotes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &watcher{}
		b := newBroker(Config{Loops: 1, Observer: w.observer(), Logger: slog.New(slog.DiscardHandler)}.withDefaults())
		go b.observer.run()
		defer b.observer.close()
		b.view.names[protocol.UUID{1}] = "t"
		id := protocol.PartitionID{Topic: protocol.UUID{1}, Partition: 2}
		for _, n := range []note{
			{id: id, kind: noteTruncated, epoch: 3, from: 9, to: 7},
			{id: id, kind: noteReset, epoch: 3, from: 9, to: 20},
			{id: id, kind: noteLost, epoch: 4, from: 8, to: 5},
			{id: id, kind: noteUnclean, epoch: 4, leader: 2},
			{id: id, kind: noteDamaged, epoch: 4, err: errors.New("x")},
		} {
			b.noted(n)
		}
		synctest.Wait()
		require.Equal(t, []string{
			"truncated t/2 epoch 3: 9 to 7 false", "truncated t/2 epoch 3: 9 to 20 true",
			"lost t/2 epoch 4: 8 to 5", "unclean t/2 epoch 4: 2", "damaged t/2",
		}, w.all())
		require.Equal(t, counters{truncations: 1, resets: 1, losses: 1, unclean: 1, damaged: 1}, b.counts)
	})
}

// gate is an Observer's function that waits until it is let through.
func gate(w *watcher) (o *Observer, entered, open chan struct{}) {
	entered, open = make(chan struct{}), make(chan struct{})
	var once sync.Once
	o = w.observer()
	damaged := o.Damaged
	o.Damaged = func(e DamageEvent) {
		damaged(e)
		once.Do(func() { close(entered) })
		<-open
	}
	return o, entered, open
}

// A slow Observer is told the newest of what a newer event replaces; what nothing
// replaces waits up to a bound, and beyond that is counted.
func TestObserverCoalescesAndDrops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &watcher{}
		o, entered, open := gate(w)
		obs := newObserving(o, 1, slog.New(slog.DiscardHandler))
		go obs.run()
		obs.damaged(DamageEvent{Topic: "t"})
		<-entered
		isr := [][]int32{{1, 2, 3}, {1, 2}, {1}, {1, 3}}
		for round := range 1000 {
			obs.leadership(LeadershipEvent{Topic: "t", Leading: round%2 == 0, LeaderEpoch: int32(round)})
			obs.leadership(LeadershipEvent{Topic: "t", Partition: 1, LeaderEpoch: int32(round)})
			obs.link(LinkEvent{Broker: 2, Up: round%2 == 0})
			obs.link(LinkEvent{Broker: 3, Up: true})
			obs.registration(RegistrationEvent{Registered: true})
		}
		for i := 1; i < len(isr); i++ {
			obs.isr(ISREvent{Topic: "t", Old: isr[i-1], New: isr[i]})
		}
		for i := range int64(observerQueue + 5) {
			obs.truncated(TruncationEvent{Topic: "t", From: i})
		}
		obs.mu.Lock()
		require.Equal(t, 6+observerQueue, obs.queue.Len(), "what waits is bounded")
		obs.mu.Unlock()
		dropped, panics := obs.counts()
		require.EqualValues(t, 5, dropped)
		require.Zero(t, panics)

		close(open)
		synctest.Wait()
		said := w.all()
		require.Equal(t, []string{
			"damaged t/0", "leader t/0 epoch 999: false []", "leader t/1 epoch 999: false []", "link 2 false", "link 3 true",
			"registered true <nil>", "isr t/0 epoch 0: [1 2 3] to [1 3]",
		}, said[:7])
		require.Len(t, said, 7+observerQueue)
		require.Equal(t, "truncated t/0 epoch 0: 0 to 0 false", said[7])
		require.Empty(t, obs.newest)
		obs.close()
		obs.damaged(DamageEvent{Topic: "after"})
		require.Zero(t, obs.queue.Len())
	})
}

// An Observer that never returns holds up nothing, and Close leaves its goroutine only.
func TestObserverThatBlocksForEver(t *testing.T) {
	var stuck chan struct{}
	attack(t, 3, func(c *Config) {
		if stuck == nil {
			stuck = make(chan struct{})
		}
		c.Observer = &Observer{Link: func(LinkEvent) { <-stuck }, Truncated: func(TruncationEvent) {}}
	}, func(t *testing.T, r *attackRig) {
		n := r.create("t", 3)
		_, err := r.client.Partition("t", n).Append(r.within(time.Second), Record{})
		require.NoError(t, err)
		began := time.Now()
		r.kill(1, 0)
		require.Less(t, time.Since(began), time.Second)
		r.close() // checks how long it takes
		close(stuck)
	})
}

// A call may close the broker, and use it.
func TestObserverClosesTheBroker(t *testing.T) {
	calls := 0
	synctest.Test(t, func(t *testing.T) {
		var broker *Broker
		opened, ended := make(chan struct{}), make(chan error, 1)
		r := newSolo(t, &Observer{Registration: func(RegistrationEvent) {
			<-opened
			calls++
			_ = broker.Status()
			err := broker.Close()
			_, replicaErr := broker.Replica(context.Background(), "t", 0)
			if !errors.Is(replicaErr, ErrClosed) {
				err = errors.Join(err, fmt.Errorf("replica: %w", replicaErr))
			}
			ended <- err
		}})
		broker = r.broker
		close(opened)
		require.NoError(t, <-ended)
		require.NoError(t, r.broker.Close())
		r.end()
	})
	require.Equal(t, 1, calls)
}

// A call that panics, or ends its goroutine, is logged and counted; the next is made.
func TestObserverThatPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &watcher{}
		rec := &recorder{}
		o := w.observer()
		o.Damaged = func(e DamageEvent) {
			if e.Partition == 0 {
				panic("oh")
			}
			runtime.Goexit()
		}
		obs := newObserving(o, 1, slog.New(rec))
		go obs.run()
		obs.damaged(DamageEvent{})
		obs.lost(LossEvent{Topic: "first"})
		obs.damaged(DamageEvent{Partition: 1})
		obs.lost(LossEvent{Topic: "second"})
		synctest.Wait()
		require.Equal(t, []string{"lost first/0 epoch 0: 0 to 0", "lost second/0 epoch 0: 0 to 0"}, w.all())
		_, panics := obs.counts()
		require.EqualValues(t, 2, panics)
		lines := rec.all()
		require.Len(t, lines, 2)
		require.Equal(t, slog.LevelError, lines[0].Level)
		require.Equal(t, "observer panicked", lines[0].Message)
		require.Contains(t, attrs(lines[0]), "stack")
		obs.close()
	})
}
