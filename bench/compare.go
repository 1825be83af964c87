package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/tidemark-log/tidemark/bench/load"
	"github.com/tidemark-log/tidemark/bench/meter"
	"github.com/tidemark-log/tidemark/bench/peers"
)

// openLimit is how long a peer may take until it is ready for appends.
const openLimit = 2 * time.Minute

// compare gives each of a workload's peers its turn in every round, so that a neighbour's
// load falls on all of them, adds the rounds to all, and prints the table.
func compare(ctx context.Context, o options, w *workload, all results, out, progress io.Writer) error {
	var names []string
	for _, name := range o.peers {
		if slices.Contains(ours, name) || slices.Contains(w.peers, name) {
			names = append(names, name)
		}
	}
	all[w.name] = make(map[string][]meter.Round)
	for n := range o.rounds {
		for _, name := range names {
			round, err := turn(ctx, o, w, name)
			if err != nil {
				return fmt.Errorf("bench: %s, round %d: %w", w.name, n+1, err)
			}
			fmt.Fprintf(progress, "%s round %d %s: %.0f records/s, %.1f MB/s, p50 %v\n", w.name, n+1, name,
				round.RecordRate(), round.MBRate(), round.Latency.P50)
			all[w.name][name] = append(all[w.name][name], round)
		}
	}
	return all.print(out, w, names)
}

// turn is one round of one peer, on an empty directory.
func turn(ctx context.Context, o options, w *workload, name string) (round meter.Round, err error) {
	dir, err := os.MkdirTemp(o.dir, "tidemark-bench-")
	if err != nil {
		return round, fmt.Errorf("bench: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	runtime.GC() // what the one before has left
	plan := w.plan
	plan.WarmUp, plan.Duration = o.warmUp, o.duration
	opening, cancel := context.WithTimeout(ctx, openLimit)
	defer cancel()
	p, err := peers.Open(opening, name, peers.Config{
		Dir: dir, Partitions: plan.Partitions, InFlight: max(plan.InFlight, plan.Callers), ValueBytes: plan.ValueBytes,
		Background: w.background, Compression: w.compression,
	})
	if err != nil {
		return round, err
	}
	round, err = load.Run(ctx, p, plan)
	if err != nil {
		err = fmt.Errorf("%s: %w", name, err)
	}
	return round, errors.Join(err, p.Close())
}
