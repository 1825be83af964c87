// Package scale measures what grows: reading what is stored, many partitions, much data,
// and what comes after a broker or the whole process died. It measures Tidemark alone.
//
// Read it in this order: this file, values.go and ledger.go (what is appended, and the
// proof that it is there), drive.go and rig.go, then a file for each workload.
package scale

import (
	"context"
	"fmt"
	"time"
)

// Options say how large the workloads are, and where they run.
type Options struct {
	// Dir is where each workload makes a directory of its own, and removes it. Required.
	Dir string
	// Scale multiplies bytes, partitions and times. Default 1, the full size, at which
	// alone the bounds mean something.
	Scale float64
	// Rounds is how often failovers and comparisons are repeated; medians count. Default 3.
	Rounds int
	// Say is told what is under way. Default: nobody.
	Say func(format string, args ...any)

	session time.Duration // of W9's brokers; tests do not wait as long as the default
}

func (o Options) withDefaults() Options {
	if o.Scale == 0 {
		o.Scale = 1
	}
	if o.Rounds == 0 {
		o.Rounds = 3
	}
	if o.Say == nil {
		o.Say = func(string, ...any) {}
	}
	return o
}

func (o Options) validate() error {
	switch {
	case o.Dir == "":
		return fmt.Errorf("bench: scale: Dir is required")
	case o.Scale < 0 || o.Scale > 10:
		return fmt.Errorf("bench: scale: Scale is %g, not above 0 and at most 10", o.Scale)
	case o.Rounds < 1:
		return fmt.Errorf("bench: scale: Rounds is %d", o.Rounds)
	}
	return nil
}

// bytes is n at the full size, and 1 MiB at least.
func (o *Options) bytes(n int64) int64 { return max(int64(float64(n)*o.Scale), 1<<20) }

// partitions is n at the full size, and 3 at least: one for each broker to lead.
func (o *Options) partitions(n int) int { return max(int(float64(n)*o.Scale), 3) }

// span is d at the full size, and 300 ms at least.
func (o *Options) span(d time.Duration) time.Duration {
	return max(time.Duration(float64(d)*o.Scale), 300*time.Millisecond)
}

// Workload is one measurement.
type Workload struct {
	Name string // "W8" and so on
	What string // in a line
	run  func(context.Context, Options) (Result, error)
}

// Run measures. An error means that nothing was measured, or that a record which was
// acknowledged is not there.
func (w Workload) Run(ctx context.Context, o Options) (Result, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return Result{}, err
	}
	began := time.Now()
	r, err := w.run(ctx, o)
	r.Workload, r.Scale, r.Took = w.Name, o.Scale, time.Since(began)
	if err != nil {
		return r, fmt.Errorf("bench: %s: %w", w.Name, err)
	}
	return r, nil
}

// Workloads are all there are, in the order in which they run.
func Workloads() []Workload {
	return []Workload{
		{"W8", "read back after a reopen; tailing readers; from append to reader", readers},
		{"W9", "10,000 partitions, a broker dies", failovers},
		{"W10", "10,000 idle partitions", idle},
		{"W11", "8 GiB over 1,000 partitions: bytes written per byte appended", amplification},
		{"W12", "kill -9 with 10 GiB stored, then reopen", reopening},
		{"growth", "cost against partitions, record size and replicas", growth},
	}
}
