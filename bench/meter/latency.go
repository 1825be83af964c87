package meter

import (
	"math"
	"slices"
	"sync"
	"time"
)

// Latencies keeps every single latency, so that percentiles are exact. Its methods
// may be called from any goroutine.
type Latencies struct {
	mu  sync.Mutex
	all []int64 // nanoseconds
}

// Add takes one latency.
func (l *Latencies) Add(d time.Duration) {
	l.mu.Lock()
	l.all = append(l.all, int64(d))
	l.mu.Unlock()
}

// Percentiles sorts what was added so far.
func (l *Latencies) Percentiles() Percentiles {
	l.mu.Lock()
	sorted := slices.Clone(l.all)
	l.mu.Unlock()
	slices.Sort(sorted)
	return Percentiles{
		Count: len(sorted),
		P50:   rank(sorted, 0.5),
		P99:   rank(sorted, 0.99),
		P999:  rank(sorted, 0.999),
		Max:   rank(sorted, 1),
	}
}

// Percentiles are those of Count latencies; zero without any.
type Percentiles struct {
	Count int           `json:"count"`
	P50   time.Duration `json:"p50_ns"`
	P99   time.Duration `json:"p99_ns"`
	P999  time.Duration `json:"p999_ns"`
	Max   time.Duration `json:"max_ns"`
}

// rank is the smallest value that at least that part of all values do not exceed.
func rank(sorted []int64, part float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	n := int(math.Ceil(part * float64(len(sorted))))
	return time.Duration(sorted[max(n, 1)-1])
}
