// Quickstart writes a text file into a replicated log, kills a broker on the way,
// and proves that nothing was lost.
//
//	go run ./examples/quickstart [-in FILE] [-dir DIR] [-partitions 3] [-acks all] [-v]
//
// It opens three brokers on disk, makes a topic with three replicas of every
// partition, and appends each line of the file as one record. Halfway through
// partition 0 it kills that partition's leader without warning and keeps
// appending. Then it restarts the broker, waits until every replica is in sync,
// reads everything back, compares it with the file, and compares the three
// copies of every partition byte for byte.
//
// Progress goes to stderr; the last line on stdout is one JSON object, see summary.
// A second run on the same -dir appends only what is missing, and checks again.
//
// Exit code: 0 when every line was acknowledged, none is lost or out of order and
// the copies are equal; 1 when not; 2 for bad input. With -acks leader or none
// lost lines are counted, but they are no failure: these levels allow them. (When
// a later run on that directory appends them, they are out of order. That is one.)
//
// Read it in the order of the work: input.go, cluster.go, append.go, crash.go,
// verify.go.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/tidemark-log/tidemark"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C does not wait for anything
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// options are what the command line says.
type options struct {
	in         string // "": a file of the Go distribution
	dir        string // "": a temporary directory
	partitions int
	acks       tidemark.Acks
	verbose    bool
}

// badInput is an error that the caller can correct. The program then ends with code 2.
type badInput struct{ error }

func (b badInput) Unwrap() error { return b.error }

// summary is the result of a run.
type summary struct {
	Lines         int   `json:"lines"`          // of the file
	Acked         int   `json:"acked"`          // lines acknowledged now, or found in the log at the start
	Read          int   `json:"read"`           // records read back: one of each line that is there, and the duplicates
	Lost          int   `json:"lost"`           // lines that were acked and are not in the log
	Duplicated    int   `json:"duplicated"`     // records beyond the first one of their line
	OutOfOrder    int   `json:"out_of_order"`   // lines that first occur behind a later line of their partition
	ReplicasEqual bool  `json:"replicas_equal"` // all copies of every partition, byte for byte
	FailoverMs    int64 `json:"failover_ms"`    // from the kill to the next acks=all append to partition 0; 0: no kill
	ElapsedMs     int64 `json:"elapsed_ms"`
}

func (s summary) good(acks tidemark.Acks) bool {
	return s.Acked == s.Lines && s.OutOfOrder == 0 && s.ReplicasEqual && (s.Lost == 0 || acks != tidemark.AcksAll)
}

// run is the program without the process around it. It returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	var sum summary
	if err == nil {
		sum, err = quickstart(ctx, o, stderr)
	}
	var bad badInput
	switch {
	case errors.As(err, &bad):
		fmt.Fprintln(stderr, "quickstart:", err)
		return 2
	case err != nil:
		fmt.Fprintln(stderr, "quickstart:", err)
		return 1
	}
	line, _ := json.Marshal(sum)
	if _, err := fmt.Fprintf(stdout, "%s\n", line); err != nil || !sum.good(o.acks) {
		return 1
	}
	return 0
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	levels := map[string]tidemark.Acks{"all": tidemark.AcksAll, "leader": tidemark.AcksLeader, "none": tidemark.AcksNone}
	flags := flag.NewFlagSet("quickstart", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // run prints the error
	flags.StringVar(&o.in, "in", "", "the text `FILE` to append (default: api/go1.txt of the Go distribution)")
	flags.StringVar(&o.dir, "dir", "", "the `DIR` to keep the cluster in (default: a temporary one)")
	flags.IntVar(&o.partitions, "partitions", 3, "how many partitions the topic has")
	acks := flags.String("acks", "all", "what an append waits for: all, leader or none")
	flags.BoolVar(&o.verbose, "v", false, "show what the brokers log")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		flags.SetOutput(stderr)
		flags.Usage()
		return o, err
	case err != nil:
		return o, badInput{err}
	}
	level, known := levels[*acks]
	o.acks = level
	switch {
	case flags.NArg() > 0:
		return o, badInput{fmt.Errorf("unexpected argument %q", flags.Arg(0))}
	case o.partitions < 1:
		return o, badInput{fmt.Errorf("-partitions must be at least 1, not %d", o.partitions)}
	case !known:
		return o, badInput{fmt.Errorf("-acks must be all, leader or none, not %q", *acks)}
	}
	return o, nil
}

// quickstart does the whole job.
func quickstart(ctx context.Context, o options, stderr io.Writer) (sum summary, err error) {
	began := time.Now()
	in, err := loadInput(ctx, o.in)
	if err != nil {
		return sum, err
	}
	j := &job{o: o, in: in, say: log.New(stderr, "", 0)}
	if o.verbose {
		j.logger = slog.New(slog.NewTextHandler(stderr, nil))
	}
	j.say.Printf("%s: %d lines", in.path, len(in.lines))
	if err := j.open(ctx); err != nil {
		return sum, err
	}
	defer func() { err = errors.Join(err, j.close(err == nil && sum.good(o.acks))) }()

	if err := j.waitInSync(ctx); err != nil {
		return sum, err
	}
	before, err := j.readBack(ctx)
	if err != nil {
		return sum, err
	}
	failover, err := j.appendMissing(ctx, before)
	if err != nil {
		return sum, err
	}
	if err := j.waitInSync(ctx); err != nil {
		return sum, err
	}
	if err := j.printTable(ctx, stderr); err != nil {
		return sum, err
	}
	after, err := j.readBack(ctx)
	if err != nil {
		return sum, err
	}
	equal, err := j.compareReplicas(ctx)
	if err != nil {
		return sum, err
	}
	sum = after.summary(j.acked)
	sum.ReplicasEqual, sum.FailoverMs, sum.ElapsedMs = equal, failover.Milliseconds(), time.Since(began).Milliseconds()
	j.judge(sum)
	return sum, nil
}

// judge says in words what the numbers mean.
func (j *job) judge(s summary) {
	switch {
	case s.Lost > 0 && j.o.acks != tidemark.AcksAll:
		j.say.Printf("%d acknowledged lines are lost: this -acks level allows that", s.Lost)
	case s.Lost > 0:
		j.say.Printf("%d acknowledged lines are LOST", s.Lost)
	}
	if s.OutOfOrder > 0 {
		j.say.Printf("%d lines are OUT OF ORDER (lines that an earlier run lost come late)", s.OutOfOrder)
	}
	if !s.ReplicasEqual {
		j.say.Print("the replicas DIFFER")
	}
	if s.good(j.o.acks) && s.Lost == 0 {
		j.say.Printf("every line is there, in order, on all three brokers; %d are there twice, sent again after an unknown outcome", s.Duplicated)
	}
}
