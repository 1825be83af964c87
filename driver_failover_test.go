package tidemark

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// loseSession ends a broker's session at the store, if it has one. It registers again at
// once.
func (r *attackRig) loseSession(id int32) bool {
	kv, ok, err := r.node(id).coord.Get(r.t.Context(), brokerIDKey(id))
	require.NoError(r.t, err)
	return ok && r.coord.ExpireSession(kv.Session)
}

// The leader changes under a thousand appends: each returns, with the truth, and what a
// Producer was acknowledged keeps its order. A failure names its seed.
func TestDriverLeaderChangesUnderAppends(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, r *attackRig, leader int32){
		"crash": func(_ *testing.T, r *attackRig, leader int32) { r.kill(leader, r.dice.roll(3)) },
		"session expires": func(_ *testing.T, r *attackRig, leader int32) {
			require.True(r.t, r.loseSession(leader))
		},
		"cut off from the store": func(t *testing.T, r *attackRig, leader int32) {
			r.disks[leader-1].Hang() // else all are done before its session is over
			r.node(leader).coord.SetUnavailable(true)
			other := r.broker(1 + leader%3).Client
			eventually(t, r, 2*attackSession, "another one leads", func() bool { return r.leader(other, "t", 0) != leader })
			r.disks[leader-1].Unhang()
			pause(time.Duration(r.dice.roll(1000)) * time.Millisecond) // it still believes that it leads (7.5)
			r.node(leader).coord.SetUnavailable(false)
		},
		"by order": func(t *testing.T, r *attackRig, _ int32) {
			require.NoError(t, r.client.Controller().ElectPreferred(r.within(10*time.Second), "t", 0))
		},
	} {
		for seed := range max(2, *driverSeeds/15) {
			t.Run(fmt.Sprintf("%s, seed %d", name, seed), func(t *testing.T) {
				attack(t, 3, nil, func(t *testing.T, r *attackRig) {
					r.dice.rng = rand.New(rand.NewPCG(uint64(seed), 2))
					changeLeader(t, r, change, name == "by order")
				})
			})
		}
	}
}

func changeLeader(t *testing.T, r *attackRig, change func(*testing.T, *attackRig, int32), moved bool) {
	r.create("t", 1)
	leader := r.leader(r.client, "t", 0)
	if moved { // away from the preferred one, so that it can be ordered back
		r.kill(leader, 0)
		pause(2 * attackSession)
		r.start(leader)
		r.healthy("t", 1)
		require.NotEqual(t, leader, r.leader(r.client, "t", 0))
		leader = r.leader(r.client, "t", 0)
	}
	before, err := r.client.Partition("t", 0).Offsets(r.within(time.Second))
	require.NoError(t, err)

	const appenders, times, producers, each = 1200, 4, 3, 200
	l := newLedger(r, "t", 1)
	var inFlight atomic.Int64
	var work sync.WaitGroup
	handles := []*Client{r.client, r.broker(1).Client, r.broker(2).Client, r.broker(3).Client}
	ctx := r.within(30 * time.Second)
	for i := range appenders {
		work.Go(func() {
			for k := range times {
				limit := []time.Duration{time.Minute, 400 * time.Millisecond, 40 * time.Millisecond}[i%3]
				ctx, cancel := context.WithTimeout(ctx, limit)
				inFlight.Add(1)
				_ = l.append(ctx, handles[i%len(handles)], 0, fmt.Sprintf("a%d-%d", i, k), 200)
				inFlight.Add(-1)
				cancel()
			}
		})
	}
	for i := range producers {
		work.Go(func() {
			p := handles[i].Topic("t").Producer(ProducerOptions{})
			l.produce(p, fmt.Sprint("p", i), 0, each, 8_000)
			require.NoError(t, errors.Join(p.Flush(ctx), p.Close(ctx)))
		})
	}
	pause(time.Duration(r.dice.roll(25_000)) * time.Microsecond)
	require.Greater(t, inFlight.Load(), int64(1000))
	began := time.Now()
	change(t, r, leader)
	work.Wait()
	require.Less(t, time.Since(began), 10*attackSession)
	acked, refused, unknown := l.counts()
	require.Equal(t, appenders*times+producers*each, acked+refused+unknown, "%d acknowledged, %d refused, %d unknown", acked, refused, unknown)
	require.Greater(t, min(acked, unknown), 500)

	// The next one works, under a later epoch.
	require.NoError(t, l.append(ctx, handles[1+leader%3], 0, "after", 10))
	after, err := handles[1+leader%3].Partition("t", 0).Offsets(ctx)
	require.NoError(t, err)
	require.Greater(t, after.LeaderEpoch, before.LeaderEpoch)
	if r.node(leader) == nil {
		r.start(leader)
	}
	l.holds()
}

// The leader changes again and again under producers that have several batches under way,
// and in between it refuses some for want of room: no record overtakes another one, none
// is there twice, and nothing is taken behind one whose outcome is unknown (D22).
func TestDriverProducersThroughManyChanges(t *testing.T) {
	attack(t, 3, func(c *Config) {
		c.MaxRecordBytes, c.MaxBatchBytes, c.MaxUncommittedBytes = 16<<10, 32<<10, 100<<10
	}, func(t *testing.T, r *attackRig) {
		r.create("t", 1)
		l := newLedger(r, "t", 1)
		ctx := r.within(time.Minute)
		var work sync.WaitGroup
		for i, c := range []*Client{r.client, r.broker(1).Client, r.broker(2).Client, r.broker(3).Client} {
			work.Go(func() {
				p := c.Topic("t").Producer(ProducerOptions{})
				l.produce(p, fmt.Sprint("p", i), 0, 3000, 8_000)
				require.NoError(t, errors.Join(p.Flush(ctx), p.Close(ctx)))
			})
		}
		changes := 0
		for range 30 {
			pause(time.Duration(r.dice.roll(80)) * time.Millisecond)
			if id := r.leader(r.client, "t", 0); id > 0 && r.loseSession(id) {
				changes++
			}
		}
		work.Wait()
		require.Greater(t, changes, 5)
		acked, refused, unknown := l.counts()
		require.Greater(t, acked, 200)
		require.Positive(t, min(refused, unknown))
		l.holds()
	})
}

// A leader whose session is lost, at once or with the connection to the coordination
// store, ends what it has under way with the truth, registers again in a new life, is in
// sync again, and can lead again (D15).
func TestDriverSessionLostAndRegained(t *testing.T) {
	for name, lose := range map[string]func(r *attackRig, id int32) (regain func()){ // nil: at once
		"expires": func(r *attackRig, id int32) func() {
			require.True(r.t, r.loseSession(id))
			return nil
		},
		"cut off": func(r *attackRig, id int32) func() {
			r.node(id).coord.SetUnavailable(true)
			return func() { r.node(id).coord.SetUnavailable(false) }
		},
		"cut off, with the broker's links": func(r *attackRig, id int32) func() {
			r.node(id).coord.SetUnavailable(true)
			r.net.hosts.Lock()
			end := r.net.at[id]
			delete(r.net.at, id)
			r.net.hosts.Unlock()
			return func() {
				r.net.hosts.Lock()
				r.net.at[id] = end
				r.net.hosts.Unlock()
				r.node(id).coord.SetUnavailable(false)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			attack(t, 3, nil, func(t *testing.T, r *attackRig) {
				r.create("t", 3)
				l := newLedger(r, "t", 3)
				handles := []*Client{r.client, r.broker(1).Client, r.broker(2).Client, r.broker(3).Client}
				end := l.load(8, 100, func(worker int) *Client { return handles[worker%4] })
				defer end()
				for round := range 4 {
					pause(time.Duration(200+r.dice.roll(300)) * time.Millisecond)
					loseAndRegain(t, r, l, int32(1+round%3), lose)
				}
				end()
				acked, _, _ := l.counts()
				require.Greater(t, acked, 300)
				l.holds()
			})
		})
	}
}

// loseAndRegain takes the session of a broker that leads a partition, and sees it lead
// that again.
func loseAndRegain(t *testing.T, r *attackRig, l *ledger, id int32, lose func(*attackRig, int32) func()) {
	b, other := r.broker(id), r.broker(1+id%3)
	n := 0
	for r.leader(other.Client, "t", n) != id {
		n++
	}
	was := b.Status().BrokerEpoch
	rep, err := b.Replica(r.within(time.Second), "t", n)
	require.NoError(t, err)
	regain := lose(r, id)
	eventually(t, r, 3*attackSession, "a new leadership", func() bool {
		now, err := other.Replica(r.within(time.Second), "t", n)
		require.NoError(t, err)
		return now.LeaderEpoch > rep.LeaderEpoch && (now.Leader != id || regain == nil)
	})
	acked, _, _ := l.counts()
	eventually(t, r, attackSession, "appends go on", func() bool {
		now, _, _ := l.counts()
		return now > acked+20
	})
	if regain != nil {
		regain()
	}
	eventually(t, r, 3*attackSession, "registered again", func() bool { s := b.Status(); return s.Registered && s.BrokerEpoch > was })
	require.NoError(t, b.Ready(r.within(3*attackSession)))
	eventually(t, r, 5*attackSession, "in sync again", func() bool {
		s, err := other.Partition("t", n).Status(r.within(time.Second))
		return err == nil && len(s.ISR) == 3
	})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := r.client.Controller().ElectPreferred(ctx, "t", n); !errors.Is(err, ErrElectionNotNeeded) {
		require.NoError(t, err)
	}
	require.Equal(t, id, r.leader(other.Client, "t", n))
	require.NoError(t, l.append(ctx, other.Client, n, fmt.Sprintf("back%d-%d", id, b.Status().BrokerEpoch), 10))
	rep, err = b.Replica(ctx, "t", n)
	require.NoError(t, err)
	require.Equal(t, "leader", rep.Role)
}

func eventually(t *testing.T, r *attackRig, limit time.Duration, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !is(); pause(limit / 200) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", limit, what)
		}
	}
}
