// Package nemesis makes faults, one or some at a time, as drawn from a seed, and measures
// how long each keeps partitions from acknowledging appends.
package nemesis

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidemark-log/tidemark/chaos/internal/cluster"
	"github.com/tidemark-log/tidemark/chaos/internal/workload"
)

// Options describe a nemesis. All are required, but for Kinds and Only.
type Options struct {
	Seed           uint64
	SessionTimeout time.Duration
	// Bound is how long a partition may be without acknowledgements: from the beginning
	// of a fault that leaves enough brokers, else from its end.
	Bound time.Duration
	// SyncBound is how long it may take after a fault until all replicas are in sync.
	SyncBound time.Duration
	Kinds     []string // empty: all
	Only      bool     // the kinds were asked for by name: one at a time
	Press     int      // appends per partition to keep in flight at a process that stands still
	Say       func(format string, args ...any)
}

// Nemesis makes faults.
type Nemesis struct {
	o    Options
	c    *cluster.Cluster
	load *workload.Load
	ids  []int32
	from []kindOf
	rng  *rand.Rand

	inFlight atomic.Int64 // of pauses
	report   Report
}

// Report is what was done, and what it led to.
type Report struct {
	Faults      map[string]int           // by kind
	Unavailable map[string]time.Duration // by kind, by two of them, or "several": the longest time without an acknowledgement
	Recovery    map[string]time.Duration // likewise, from the end of the fault
	Resync      time.Duration            // the longest time from the end of a fault until all replicas were in sync
	InFlight    int64                    // appends at processes that stood still when they went on
	Late        []string                 // what was later than a bound
}

// New makes a nemesis. It fails for a kind that there is none of.
func New(c *cluster.Cluster, l *workload.Load, o Options) (*Nemesis, error) {
	from, err := find(o.Kinds)
	if err != nil {
		return nil, err
	}
	return &Nemesis{
		o: o, c: c, load: l, ids: c.IDs(), from: from, rng: rand.New(rand.NewPCG(o.Seed, 1)),
		report: Report{Faults: make(map[string]int), Unavailable: make(map[string]time.Duration), Recovery: make(map[string]time.Duration)},
	}, nil
}

func (n *Nemesis) say(format string, args ...any) { n.o.Say(format, args...) }

// Run makes faults until ctx ends; the one that is under way then is ended early. It
// returns an error when something failed that is no fault.
func (n *Nemesis) Run(ctx context.Context) (Report, error) {
	if len(n.from) == 0 {
		began := n.load.Now()
		<-ctx.Done()
		n.measure(None, began, true)
		return n.report, nil
	}
	var err error
	for err == nil && ctx.Err() == nil {
		sleep(ctx, time.Duration((0.25+n.rng.Float64())*float64(time.Second)))
		if ctx.Err() == nil {
			err = n.round(ctx)
		}
	}
	n.report.InFlight = n.inFlight.Load()
	return n.report, err
}

// round is a fault, or some of which each begins before or soon after the one before it
// has ended, and what comes of them.
func (n *Nemesis) round(ctx context.Context) error {
	plans := n.gather()
	v := n.c.View(ctx)
	n.say("leaders %v, controller %d", v.Leaders, v.Controller())
	began := n.load.Now()
	errs := make([]error, len(plans))
	var all sync.WaitGroup
	for i, p := range plans {
		n.report.Faults[p.name]++
		all.Go(func() { errs[i] = p.inflict(n, ctx, p) })
		if i+1 < len(plans) {
			sleep(ctx, p.next)
		}
	}
	all.Wait()
	name := nameOf(plans)
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	n.measure(name, began, len(plans) == 1 && plans[0].quorum)
	return nil
}

// gather draws the faults of a round: one, in a quarter of the rounds two, and in a tenth up to four.
func (n *Nemesis) gather() (plans []plan) {
	count, dice := 1, n.rng.IntN(100)
	switch {
	case n.o.Only:
	case dice < 10:
		count = 3 + n.rng.IntN(2)
	case dice < 35:
		count = 2
	}
	for len(plans) < count {
		p := n.draw(n.from)
		if count > 1 && !p.overlap {
			if len(plans) == 0 {
				return []plan{p}
			}
			continue
		}
		plans = append(plans, p)
	}
	return plans
}

// nameOf is what the round is called in the report.
func nameOf(plans []plan) string {
	switch len(plans) {
	case 1:
		return plans[0].name
	case 2:
		return plans[0].name + "+" + plans[1].name
	}
	return "several"
}

// measure waits for the cluster to recover from a fault that has just ended, and says
// when it does so too late.
func (n *Nemesis) measure(name string, began time.Duration, quorum bool) {
	ended := n.load.Now()
	ctx, cancel := context.WithTimeout(context.Background(), max(n.o.Bound, n.o.SyncBound))
	defer cancel()
	var gaps []time.Duration
	recovery := time.Duration(0)
	for p := range n.load.Partitions() {
		at, ok := n.load.AwaitAck(ctx, p, ended)
		if !ok {
			at = n.load.Now()
			n.late("%s: partition %d acknowledged nothing for %v after the fault", name, p, round(at-ended))
		} else if at-ended > n.o.Bound {
			n.late("%s: partition %d acknowledged nothing for %v after the fault, more than %v", name, p, round(at-ended), n.o.Bound)
		}
		gap := n.load.LongestGap(p, began, at)
		if quorum && gap > n.o.Bound {
			n.late("%s: partition %d acknowledged nothing for %v, more than %v", name, p, round(gap), n.o.Bound)
		}
		gaps, recovery = append(gaps, round(gap)), max(recovery, at-ended)
		n.report.Unavailable[name] = max(n.report.Unavailable[name], gap)
		n.report.Recovery[name] = max(n.report.Recovery[name], recovery)
	}
	if err := n.c.AwaitISR(ctx); err != nil {
		n.late("%s: %v after the fault: %v", name, round(n.load.Now()-ended), err)
		return
	}
	n.report.Resync = max(n.report.Resync, n.load.Now()-ended)
	n.say("%s: recovered %v after its end, in sync after %v; partitions stood still for %v", name, round(recovery), round(n.load.Now()-ended), gaps)
}

func (n *Nemesis) late(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	n.say("TOO LATE: %s", text)
	n.report.Late = append(n.report.Late, text)
}
