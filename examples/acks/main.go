// Acks shows what the death of a leader loses and keeps at each level of
// acknowledgement, and why.
//
//	go run ./examples/acks [-v]
//
// For every level (none, leader, all) a record is appended, and the leader dies at
// one of three moments: before its own disk has the record, before a follower has
// it, or once every in-sync replica has it. Each of these nine cases is played on a
// cluster of its own: three brokers wired by hand, with a network that can be cut
// and disks that can hang. Then the leader returns, and the log is read back.
//
// Progress goes to stderr and the table to stdout, whose last line is one JSON
// object: how many records each level acknowledged, and how many of those are lost.
// Exit code 0 when that is what the levels promise, 1 when not, 2 for bad input.
//
// Read it in this order: main.go, play.go (one case), cluster.go (the wiring).
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"text/tabwriter"
	"time"

	"github.com/tidemark-log/tidemark"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

var levels = []tidemark.Acks{tidemark.AcksNone, tidemark.AcksLeader, tidemark.AcksAll}

// tally counts what became of the records of one level.
type tally struct {
	Acked int `json:"acked"`
	Lost  int `json:"lost"` // acknowledged, and not in the log afterwards
}

// promised is what the levels come to, when each record meets each moment once.
var promised = map[string]tally{
	"none":   {Acked: 3, Lost: 2},
	"leader": {Acked: 2, Lost: 1},
	"all":    {Acked: 1, Lost: 0},
}

// run is the program without the process around it. It returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("acks", flag.ContinueOnError)
	flags.SetOutput(stderr)
	verbose := flags.Bool("v", false, "show each step")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	case flags.NArg() > 0:
		fmt.Fprintf(stderr, "acks: unexpected argument %q\n", flags.Arg(0))
		return 2
	}
	say := func(string, ...any) {}
	if *verbose {
		say = func(format string, args ...any) { fmt.Fprintf(stderr, format+"\n", args...) }
	}
	sum, err := table(ctx, stdout, say)
	if err != nil {
		fmt.Fprintln(stderr, "acks:", err)
		return 1
	}
	line, err := json.Marshal(sum)
	if err != nil {
		fmt.Fprintln(stderr, "acks:", err)
		return 1
	}
	fmt.Fprintf(stdout, "%s\n", line)
	for level, want := range promised {
		if sum[level] != want {
			fmt.Fprintf(stderr, "acks: level %s came to %+v, not %+v\n", level, sum[level], want)
			return 1
		}
	}
	return 0
}

// table plays all cases and prints a line for each.
func table(ctx context.Context, stdout io.Writer, say func(string, ...any)) (map[string]tally, error) {
	sum := make(map[string]tally)
	out := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(out, "ACKS\tTHE LEADER DIES\tACKNOWLEDGED\tIN THE LOG AFTERWARDS\tWHY")
	for _, acks := range levels {
		for _, m := range moments {
			say("--- acks=%s, the leader dies %s", acks, m.when)
			caseCtx, cancel := context.WithTimeout(ctx, time.Minute)
			acked, kept, err := play(caseCtx, acks, m, say)
			cancel()
			if err != nil {
				return nil, fmt.Errorf("acks=%s, the leader dies %s: %w", acks, m.when, err)
			}
			t := sum[acks.String()]
			if acked {
				t.Acked++
			}
			if acked && !kept {
				t.Lost++
			}
			sum[acks.String()] = t
			fmt.Fprintf(out, "%s\t%s\t%s\t%s\t%s\n", acks, m.when, yes(acked), verdict(acked, kept), m.why[acks])
		}
	}
	fmt.Fprintln(out, "\nWhat was not acknowledged has an unknown outcome: sent again, it may be in the log twice.")
	return sum, out.Flush()
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func verdict(acked, kept bool) string {
	switch {
	case kept:
		return "yes"
	case acked:
		return "LOST"
	}
	return "no"
}
