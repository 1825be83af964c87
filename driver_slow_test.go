package tidemark

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/transport"
)

// readMeter counts what a transport carries to one broker as answers to its reads.
type readMeter struct {
	transport.Transport
	to    int32
	bytes *atomic.Int64
}

func (m *readMeter) Send(to transport.Peer, msg *protocol.Message) error {
	if to.ID == m.to && len(msg.ReadAnswers) > 0 {
		m.bytes.Add(int64(msg.Size()))
	}
	return m.Transport.Send(to, msg)
}

// A reader that takes a record now and then is not ahead by more than one answer, what it
// reads late comes from the disk, the others neither wait for it nor are slowed, and it
// gets everything in order.
func TestDriverSlowReader(t *testing.T) {
	const records, size, ahead = 400, 20_000, 1<<20 + 64<<10
	const slow int32 = 2 // no leader: its reads go over a link
	var carried atomic.Int64
	attack(t, 3, func(c *Config) {
		c.MemoryBudget = 4 << 20 // the log is larger than what is kept in memory
		c.Transport = &readMeter{Transport: c.Transport, to: slow, bytes: &carried}
	}, func(t *testing.T, r *attackRig) {
		r.create("t", 1)
		require.EqualValues(t, 1, r.leader(r.client, "t", 0))
		ctx := r.within(time.Minute)
		l := newLedger(r, "t", 1)
		var work sync.WaitGroup
		var behind atomic.Int64 // of the slow reader, when the fast one was done
		var read atomic.Int64

		work.Go(func() {
			defer func() { read.Store(records) }()
			next, taken := int64(0), int64(0)
			for rec, err := range r.broker(slow).Partition("t", 0).Records(ctx, Earliest()) {
				if err != nil || rec.Offset != next {
					t.Errorf("record %d: got %d, %v", next, rec.Offset, err)
					return
				}
				if taken += size; carried.Load() > taken+ahead {
					t.Errorf("%d bytes came, and %d were taken", carried.Load(), taken)
				}
				l.mu.Lock()
				want := l.acked[0][next]
				l.mu.Unlock()
				if want != "" && want != string(rec.Value) { // it may not have been answered yet
					t.Errorf("record %d is %.10s, want %.10s", next, rec.Value, want)
				}
				next++
				read.Store(next)
				if next == records {
					return
				}
				pause(50 * time.Millisecond)
			}
		})
		work.Go(func() { // the fast one
			next := int64(0)
			for rec, err := range r.client.Partition("t", 0).Records(ctx, Earliest()) {
				if err != nil || rec.Offset != next {
					t.Errorf("fast record %d: got %d, %v", next, rec.Offset, err)
					return
				}
				if late := time.Since(rec.Timestamp); late > 100*time.Millisecond {
					t.Errorf("the fast reader got record %d after %v", next, late)
				}
				if next++; next == records {
					behind.Store(records - read.Load())
					return
				}
			}
		})
		for i := range records {
			began := time.Now()
			require.NoError(t, l.append(ctx, r.client, 0, fmt.Sprint("v", i), size))
			require.Less(t, time.Since(began), 100*time.Millisecond)
		}
		work.Wait()
		require.Greater(t, behind.Load(), int64(records/2), "it was not slow")
		require.Less(t, carried.Load(), int64(records*(size+1000)), "read twice")
		l.holds()
	})
}

// A broker that nothing reaches, lost on its way or refused for want of room, holds up
// nobody: it leaves the ISR, its leaderships move, what waits for it is bounded; and it
// takes part again once it hears.
func TestDriverDeafBroker(t *testing.T) {
	for _, how := range []string{"lost", "refused"} {
		for _, role := range []string{"controller", "other"} {
			t.Run(how+", "+role, func(t *testing.T) {
				var net deafNet
				net.busy.Store(how == "refused")
				attack(t, 3, net.join, func(t *testing.T, r *attackRig) {
					r.create("t", 3)
					st, err := r.client.Controller().Status()
					require.NoError(t, err)
					deaf := st.Broker
					if role == "other" {
						deaf = 1 + deaf%3
					}
					becomeDeaf(t, r, &net, deaf)
				})
			})
		}
	}
}

func becomeDeaf(t *testing.T, r *attackRig, net *deafNet, deaf int32) {
	l := newLedger(r, "t", 3)
	hearing := []*Client{r.broker(1 + deaf%3).Client, r.broker(1 + (deaf+1)%3).Client}
	all := append(slices.Clone(hearing), r.client)
	end := l.load(9, 2_000, func(worker int) *Client { return all[worker%3] })
	defer end()
	pause(500 * time.Millisecond)
	led := 0
	for r.leader(hearing[0], "t", led) != deaf {
		led++
	}
	net.deaf.Store(deaf)
	stop := make(chan struct{})
	var watch, bulk sync.WaitGroup
	peak := 0
	watch.Go(func() { peak = holdBounds(r, deaf, stop) })
	for i := range 60 { // more than is sent ahead to one broker
		bulk.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 900*time.Millisecond)
			defer cancel()
			_ = l.append(ctx, hearing[0], led, fmt.Sprint("bulk", i), 400_000)
		})
	}
	bulk.Wait()
	without := func(want int) func() bool {
		return func() bool {
			for n := range 3 {
				s, err := hearing[0].Partition("t", n).Status(r.within(time.Second))
				if err != nil || s.Leader == deaf && want == 2 || len(s.ISR) != want {
					return false
				}
			}
			return true
		}
	}
	eventually(t, r, 10*time.Second, "it leads nothing and is in no ISR", without(2))
	at := progress(l)
	eventually(t, r, 2*attackSession, "all partitions go on", func() bool {
		now := progress(l)
		return now[0] > at[0]+20 && now[1] > at[1]+20 && now[2] > at[2]+20
	})
	pause(5 * time.Second)
	close(stop)
	watch.Wait()
	require.Greater(t, peak, firstWindow/2, "the bound was not met")
	require.Less(t, net.offered.Load(), int64(2*linkWindow), "bytes for who takes none")
	net.deaf.Store(0)
	eventually(t, r, 20*time.Second, "in sync again", without(3))
	end()
	for n := range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		if s, err := hearing[0].Partition("t", n).Status(ctx); err == nil && s.Replicas[0] == deaf {
			require.NoError(t, r.client.Controller().ElectPreferred(ctx, "t", n))
			require.Equal(t, deaf, r.leader(hearing[0], "t", n))
			require.NoError(t, l.append(ctx, hearing[0], n, "back", 10))
		}
		cancel()
	}
	l.holds()
}

// progress is how many records of each partition were acknowledged so far.
func progress(l *ledger) (n [3]int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range n {
		n[i] = len(l.acked[i])
	}
	return n
}

// holdBounds looks at what waits for the deaf broker at the others, and returns the most
// bytes that it saw.
func holdBounds(r *attackRig, deaf int32, stop chan struct{}) (peak int) {
	for {
		select {
		case <-stop:
			return peak
		case <-time.After(20 * time.Millisecond):
		}
		for _, b := range r.open() {
			p := b.links.get(deaf)
			if b.ID() == deaf || p == nil {
				continue
			}
			p.mu.Lock()
			waiting, inFlight := len(p.outbox), p.link.inFlight
			p.mu.Unlock()
			peak = max(peak, inFlight)
			if waiting > 100 || inFlight > linkWindow+1<<20 {
				r.t.Errorf("broker %d has %d messages and %d bytes for the deaf one", b.ID(), waiting, inFlight)
			}
		}
	}
}
