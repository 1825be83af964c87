package tidemark

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// shutdown stops a broker as a host does that means to start it again.
func (r *attackRig) shutdown(id int32) {
	n := r.node(id)
	require.NoError(r.t, n.broker.Shutdown(r.within(time.Minute)))
	r.take(id)
	require.NoError(r.t, errors.Join(n.store.Store.Close(), n.coord.Close()))
}

// EL-10, S-91: all brokers are stopped and started again, one after the other, under
// load from each of the others. Nobody is left in doubt about an append, and nobody
// waits long.
func TestRollingRestart(t *testing.T) {
	for name, c := range map[string]struct {
		loops int
		way   time.Duration
	}{"one loop": {1, 0}, "several loops": {3, 0}, "far away": {2, 10 * time.Millisecond}} {
		t.Run(name, func(t *testing.T) {
			attack(t, 3, func(cfg *Config) { cfg.Loops = c.loops }, func(t *testing.T, r *attackRig) {
				const partitions, workers = 6, 24
				r.net.way.Store(int64(c.way))
				r.create("t", partitions)
				l := newLedger(r, "t", partitions)
				stop := make(chan struct{})
				var work sync.WaitGroup
				var longest time.Duration
				var mu sync.Mutex
				for w := range workers {
					work.Go(func() {
						for i := 0; ; i++ {
							select {
							case <-stop:
								return
							default:
							}
							b := r.broker(1 + int32(w+i)%3) // over links, whoever leads
							if b == nil {
								pause(time.Millisecond)
								continue
							}
							began := time.Now()
							err := l.append(r.within(time.Minute), b.Client, (w+i)%partitions, fmt.Sprintf("w%d-%d", w, i), 100)
							mu.Lock()
							longest = max(longest, time.Since(began))
							mu.Unlock()
							if err != nil && !errors.Is(err, ErrClosed) {
								t.Errorf("%v: %v", OutcomeOf(err), err)
							}
						}
					})
				}
				var once sync.Once
				end := func() { once.Do(func() { close(stop); work.Wait() }) }
				defer end()
				for id := int32(1); id <= 3; id++ {
					pause(100 * time.Millisecond)
					began := time.Now()
					r.shutdown(id)
					require.Less(t, time.Since(began), attackSession/2, "the shutdown of broker %d", id)
					r.start(id)
					eventually(t, r, 5*attackSession, "in sync again", func() bool {
						for n := range partitions {
							s, err := r.broker(1+id%3).Partition("t", n).Status(r.within(time.Second))
							if err != nil || len(s.ISR) < 3 {
								return false
							}
						}
						return true
					})
				}
				end()
				acked, _, unknown := l.counts()
				t.Logf("%d acknowledged, the longest after %v", acked, longest)
				require.Zero(t, unknown)
				require.Less(t, longest, attackSession/2)
				l.holds()
			})
		})
	}
}

// What it leads moves before the broker goes; where nobody else may lead it stays, and
// nobody waits for that.
func TestShutdownHandsOver(t *testing.T) {
	attack(t, 3, nil, func(t *testing.T, r *attackRig) {
		n := r.create("t", 3)
		require.NoError(t, r.client.Controller().EnsureTopic(r.within(time.Second), "alone", TopicConfig{Partitions: 3, ReplicationFactor: 1, MinISR: 1}))
		b := r.broker(1)
		b.handOver(r.within(time.Minute))
		other := r.broker(2).Client
		eventually(t, r, time.Second, "another one leads", func() bool { return r.leader(other, "t", n) != 1 })
		status, err := other.Partition("t", n).Status(r.within(time.Second))
		require.NoError(t, err)
		require.Contains(t, status.ISR, int32(1), "it follows still")
		led := false
		for n := range 3 {
			led = led || r.leader(other, "alone", n) == 1
		}
		require.True(t, led)
		r.shutdown(1)
	})
}

// Whatever cannot be done in time is left out: the broker stops all the same.
func TestShutdownWithoutHelp(t *testing.T) {
	for name, spoil := range map[string]func(r *attackRig){
		"no peer":              func(r *attackRig) { r.kill(2, 0); r.kill(3, 0) },
		"no coordination":      func(r *attackRig) { r.node(1).coord.SetUnavailable(true) },
		"a disk that hangs":    func(r *attackRig) { r.disks[0].Hang() },
		"all of them together": func(r *attackRig) { r.kill(2, 0); r.kill(3, 0); r.node(1).coord.SetUnavailable(true) },
	} {
		t.Run(name, func(t *testing.T) {
			attack(t, 3, nil, func(t *testing.T, r *attackRig) {
				r.create("t", 3)
				b := r.broker(1)
				spoil(r)
				began := time.Now()
				err := b.Shutdown(r.within(10 * time.Second))
				require.Less(t, time.Since(began), 4*attackSession, "%v", err)
				r.disks[0].Unhang()
			})
		})
	}
}
