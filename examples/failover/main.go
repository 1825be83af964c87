// Failover shows what each replica does while brokers die and return: a table,
// redrawn in place on a terminal, with the role, epoch and ends of every copy.
//
//	go run ./examples/failover [-rounds 3] [-pause 1s]
//
// Three brokers share a topic of three partitions, each written to by one goroutine
// that waits for every record (acks=all). In each round the broker that leads
// partition 0 is killed, the rest go on, and it returns and catches up.
//
// The table goes to stdout; where that is no terminal, it is printed once per step
// instead of redrawn. The last line on stdout is one JSON object, see summary. Exit
// code 0 when no acknowledged record is lost or out of order and all copies are equal.
//
// Read it in this order: main.go, rounds.go, load.go, screen.go.
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
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr, isTerminal(os.Stdout)))
}

// isTerminal is right for what matters here: files and pipes are none.
func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

type options struct {
	rounds int
	pause  time.Duration
}

// summary is the result of a run.
type summary struct {
	Rounds        int     `json:"rounds"`
	Acked         int     `json:"acked"`        // records
	Lost          int     `json:"lost"`         // acked and not in the log
	OutOfOrder    int     `json:"out_of_order"` // records behind a later one of their partition
	Duplicated    int     `json:"duplicated"`   // sent again after an unknown outcome, and there twice
	ReplicasEqual bool    `json:"replicas_equal"`
	FailoverMs    []int64 `json:"failover_ms"` // of each round: from the kill to the next acknowledged record of partition 0
}

func (s *summary) good() bool {
	return s.Lost == 0 && s.OutOfOrder == 0 && s.ReplicasEqual && s.Acked > 0
}

// run is the program without the process around it. It returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer, redraw bool) int {
	var o options
	flags := flag.NewFlagSet("failover", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.IntVar(&o.rounds, "rounds", 3, "how many times a leader is killed")
	flags.DurationVar(&o.pause, "pause", time.Second, "how long each state is shown")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	case flags.NArg() > 0 || o.rounds < 1 || o.pause < 0:
		fmt.Fprintln(stderr, "failover: -rounds must be at least 1, -pause not negative, and nothing else is expected")
		return 2
	}
	sum, err := play(ctx, o, &screen{out: stdout, redraw: redraw})
	if err != nil {
		fmt.Fprintln(stderr, "failover:", err)
		return 1
	}
	line, err := json.Marshal(sum)
	if err != nil {
		fmt.Fprintln(stderr, "failover:", err)
		return 1
	}
	if _, err := fmt.Fprintf(stdout, "%s\n", line); err != nil || !sum.good() {
		return 1
	}
	return 0
}
