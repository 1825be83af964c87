// Command bench measures appends to Tidemark beside other replicated logs, in turn, on
// the same records, and Tidemark alone where it is large. See README.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/pprof"
	"slices"
	"strings"
	"time"

	"github.com/tidemark-log/tidemark/bench/peers"
	"github.com/tidemark-log/tidemark/bench/scale"
)

// options are the flags.
type options struct {
	workloads  []workload
	large      []scale.Workload
	scale      float64
	peers      []string
	rounds     int
	duration   time.Duration
	warmUp     time.Duration
	json       string
	dir        string
	cpuProfile string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if started, err := scale.Child(ctx, os.Stdin, os.Stdout); started {
		exit(err, stop)
		return
	}
	o, err := parse(os.Args[1:], os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err == nil {
		err = profiled(o.cpuProfile, func() error { return run(ctx, o, os.Stdout, os.Stderr) })
	}
	exit(err, stop)
}

// exit ends the process if there is an error.
func exit(err error, stop func()) {
	if err != nil {
		stop()
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func parse(args []string, out io.Writer) (options, error) {
	var o options
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.SetOutput(out)
	wanted := f.String("workloads", "appends", "which to run: names with commas in between, or appends (W1 to W7, W13), or large (the others)")
	who := f.String("peers", strings.Join(slices.Concat(ours, others), ","), "which to run, where the workload has them")
	f.Float64Var(&o.scale, "scale", 1, "size of the large workloads; at 1, the bounds mean something")
	f.IntVar(&o.rounds, "rounds", 3, "how often each peer has its turn; medians count")
	f.DurationVar(&o.duration, "duration", 4*time.Second, "how long a round is measured")
	f.DurationVar(&o.warmUp, "warmup", time.Second, "how long a round runs before it is measured")
	f.StringVar(&o.json, "json", "", "`file` to write every round to")
	f.StringVar(&o.dir, "dir", os.TempDir(), "`directory` on the disk to measure; what is written is removed")
	f.StringVar(&o.cpuProfile, "cpuprofile", "", "`file` to write a CPU profile to")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 || o.rounds < 1 || o.duration <= 0 || o.warmUp < 0 {
		return o, fmt.Errorf("bench: rounds and duration must be above 0, and nothing may follow the flags")
	}
	if err := o.choose(*wanted); err != nil {
		return o, err
	}
	o.peers = strings.Split(*who, ",")
	for _, name := range o.peers {
		if !slices.Contains(peers.Known(), name) {
			return o, fmt.Errorf("bench: peer %q is none of %v", name, peers.Known())
		}
	}
	return o, nil
}

// choose finds the workloads by name.
func (o *options) choose(wanted string) error {
	large := scale.Workloads()
	for _, name := range strings.Split(wanted, ",") {
		i := slices.IndexFunc(workloads, func(w workload) bool { return w.name == name })
		j := slices.IndexFunc(large, func(w scale.Workload) bool { return w.Name == name })
		switch {
		case name == "appends":
			o.workloads = append(o.workloads, workloads...)
		case name == "large":
			o.large = append(o.large, large...)
		case i >= 0:
			o.workloads = append(o.workloads, workloads[i])
		case j >= 0:
			o.large = append(o.large, large[j])
		default:
			return fmt.Errorf("bench: there is no workload %q", name)
		}
	}
	return nil
}

// profiled runs f with a CPU profile, where one is wanted.
func profiled(file string, f func() error) error {
	if file == "" {
		return f()
	}
	out, err := os.Create(file)
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	if err := pprof.StartCPUProfile(out); err != nil {
		return errors.Join(fmt.Errorf("bench: %w", err), out.Close())
	}
	err = f()
	pprof.StopCPUProfile()
	return errors.Join(err, out.Close())
}

// run runs all workloads, and prints each one's table when it is done.
func run(ctx context.Context, o options, out, progress io.Writer) error {
	all := make(results)
	for i := range o.workloads {
		if err := compare(ctx, o, &o.workloads[i], all, out, progress); err != nil {
			return err
		}
	}
	large, err := runLarge(ctx, o, out, progress)
	if err != nil {
		return err
	}
	if o.json == "" {
		return nil
	}
	return write(o.json, newReport(all, o.workloads, large))
}

// runLarge runs the workloads of package scale.
func runLarge(ctx context.Context, o options, out, progress io.Writer) (all []scale.Result, err error) {
	say := func(format string, args ...any) { fmt.Fprintf(progress, format+"\n", args...) }
	for _, w := range o.large {
		r, err := w.Run(ctx, scale.Options{Dir: o.dir, Scale: o.scale, Rounds: o.rounds, Say: say})
		if err != nil {
			return all, err
		}
		all = append(all, r)
		fmt.Fprintf(out, "\n%s: %s\n", w.Name, w.What)
		for _, f := range r.Figures {
			fmt.Fprintf(out, "  %s\n", f)
		}
		for _, p := range r.Points {
			for _, f := range p.Figures {
				fmt.Fprintf(out, "  %s %g: %s\n", p.Against, p.X, f)
			}
		}
	}
	return all, nil
}
