package workload

import (
	"context"
	"slices"
	"sync"
	"time"
)

// timeline has the times at which a partition acknowledged something.
type timeline struct {
	mu      sync.Mutex
	at      []time.Duration // rising
	changed chan struct{}   // closed with the next one
}

func (t *timeline) note(now func() time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.at = append(t.at, now())
	close(t.changed)
	t.changed = make(chan struct{})
}

// after returns the first acknowledgement after a time; false: there was none yet.
func (t *timeline) after(from time.Duration) (at time.Duration, ok bool, changed <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	i, _ := slices.BinarySearch(t.at, from+1)
	if i == len(t.at) {
		return 0, false, t.changed
	}
	return t.at[i], true, nil
}

// longestGap returns the longest time without an acknowledgement that has something in
// common with what lies between the two times.
func (t *timeline) longestGap(from, to time.Duration) (longest time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	i, _ := slices.BinarySearch(t.at, from)
	last := time.Duration(0)
	if i > 0 {
		last = t.at[i-1]
	}
	for ; i < len(t.at) && last < to; i++ {
		longest = max(longest, t.at[i]-last)
		last = t.at[i]
	}
	if last < to {
		longest = max(longest, to-last)
	}
	return longest
}

// Partitions is how many partitions there are.
func (l *Load) Partitions() int { return len(l.acks) }

// AwaitAck waits until a partition has acknowledged something after a time, and returns
// when that was; false when ctx ended first.
func (l *Load) AwaitAck(ctx context.Context, partition int, from time.Duration) (time.Duration, bool) {
	for {
		at, ok, changed := l.acks[partition].after(from)
		if ok {
			return at, true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return 0, false
		}
	}
}

// LongestGap is the longest time without an acknowledgement from a partition that has
// something in common with what lies between the two times.
func (l *Load) LongestGap(partition int, from, to time.Duration) time.Duration {
	return l.acks[partition].longestGap(from, to)
}
