package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// writers append lines, one writer for each partition, which waits for each line
// before it sends the next. So there is an order to check afterwards.
type writers struct {
	clients []*client
	lines   [][]string    // by partition
	half    chan struct{} // closed when half of partition 0 is acknowledged

	mu     sync.Mutex
	acked  []int           // by partition: so many lines, in order
	last   []time.Time     // when the last one was
	pauses []time.Duration // the longest time without one
	strike *strike         // once a broker was killed
}

// strike is the killing of the leader of partition 0.
type strike struct {
	epoch    int32 // of its leadership
	at       time.Time
	failover time.Duration // until a line of partition 0 was acknowledged by another leader; 0: none was yet
	over     chan struct{} // closed then
}

func newWriters(clients []*client, lines [][]string) *writers {
	n := len(lines)
	return &writers{
		clients: clients, lines: lines, half: make(chan struct{}),
		acked: make([]int, n), last: make([]time.Time, n), pauses: make([]time.Duration, n),
	}
}

// run appends all lines, each until it is acknowledged.
func (w *writers) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for n := range w.lines {
		g.Go(func() error {
			for i, text := range w.lines[n] {
				if err := w.append(ctx, n, text); err != nil {
					return fmt.Errorf("partition %d, line %d: %w", n, i, err)
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// append sends a line until it is acknowledged: by way of one broker and, when that
// does not work, of the next. When it was not refused for certain it may be in the log
// twice afterwards: we prefer that to a line that is not there.
func (w *writers) append(ctx context.Context, n int, text string) error {
	for try := n; ; try++ {
		a, err := w.clients[try%len(w.clients)].append(ctx, n, text)
		if err == nil {
			w.acknowledged(n, a)
			return nil
		}
		if waitErr := pause(ctx); waitErr != nil {
			return errors.Join(waitErr, err)
		}
	}
}

func (w *writers) acknowledged(n int, a ack) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	if w.acked[n] > 0 {
		w.pauses[n] = max(w.pauses[n], now.Sub(w.last[n]))
	}
	w.last[n] = now
	w.acked[n]++
	if n == 0 && w.acked[n] == len(w.lines[n])/2 {
		close(w.half)
	}
	// What the dead leader had taken before does not count; its epoch gives it away.
	if s := w.strike; n == 0 && s != nil && s.failover == 0 && a.Epoch > s.epoch {
		s.failover = now.Sub(s.at)
		close(s.over)
	}
}

// struck has the failover measured from now on.
func (w *writers) struck(epoch int32) *strike {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.strike = &strike{epoch: epoch, at: time.Now(), over: make(chan struct{})}
	return w.strike
}

// total is how many lines are acknowledged.
func (w *writers) total() (sum int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range w.acked {
		sum += n
	}
	return sum
}
