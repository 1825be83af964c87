// Customtransport runs Tidemark over a transport of the host's own: here POST
// requests of net/http, in less than 80 lines (transport.go).
//
//	go run ./examples/customtransport [-records 300]
//
// Three brokers are wired by hand, each behind an HTTP server on a free port of the
// loopback interface. Records are appended, among them one that is many times larger
// than the transport's messages; a broker's server is taken away and comes back;
// everything is read back. The last line on stdout is one JSON object. Exit code 0
// when nothing is lost and all replicas are in sync in the end.
//
// A transport of your own should pass the suite of package transporttest:
// transport_test.go shows how little that takes.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"time"

	"github.com/tidemark-log/tidemark"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// report is the result of a run.
type report struct {
	Acked  int `json:"acked"`
	Lost   int `json:"lost"`
	InSync int `json:"in_sync"` // replicas, after the broker's server came back
}

// run is the program without the process around it. It returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("customtransport", flag.ContinueOnError)
	flags.SetOutput(stderr)
	records := flags.Int("records", 300, "how many records are appended")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	case flags.NArg() > 0 || *records < 3:
		fmt.Fprintln(stderr, "customtransport: -records must be at least 3, and nothing else is expected")
		return 2
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	rep, err := play(ctx, *records, log.New(stderr, "", 0))
	if err != nil {
		fmt.Fprintln(stderr, "customtransport:", err)
		return 1
	}
	line, err := json.Marshal(rep)
	if err != nil {
		fmt.Fprintln(stderr, "customtransport:", err)
		return 1
	}
	if _, err := fmt.Fprintf(stdout, "%s\n", line); err != nil || rep.Lost > 0 || rep.InSync != brokers {
		return 1
	}
	return 0
}

// play appends, takes a server away in the second third, and reads everything back.
func play(ctx context.Context, records int, say *log.Logger) (rep report, err error) {
	c, err := open(ctx)
	if err != nil {
		return rep, err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	p := c.client.Partition(topic, 0)
	status, err := p.Status(ctx)
	if err != nil {
		return rep, err
	}
	follower := status.Replicas[len(status.Replicas)-1]
	acked := make(map[int64]string)
	for i := range records {
		switch i {
		case records / 3:
			say.Printf("record %d: the server of broker %d is gone; the append waits until it has left the in-sync replicas", i, follower)
			c.nodes[follower].server.Close()
		case 2 * records / 3:
			say.Printf("record %d: the server of broker %d is back", i, follower)
			if err := c.serve(follower); err != nil {
				return rep, err
			}
		}
		value := fmt.Sprint("record ", i)
		if i == records/2 {
			value = string(make([]byte, 1<<19))
		}
		res, err := p.Append(ctx, tidemark.Record{Value: []byte(value)})
		if err != nil {
			return rep, fmt.Errorf("record %d: %w", i, err)
		}
		acked[res.Base] = value
	}
	rep.Acked = len(acked)
	say.Printf("waiting until all %d replicas are in sync", brokers)
	if rep.InSync, err = c.waitInSync(ctx); err != nil {
		return rep, err
	}
	rep.Lost, err = missing(ctx, p, acked)
	return rep, err
}

// missing reads the partition up to its high watermark and counts what is not there.
func missing(ctx context.Context, p *tidemark.Partition, acked map[int64]string) (int, error) {
	ends, err := p.Offsets(ctx)
	if err != nil {
		return 0, err
	}
	lost := len(acked)
	if ends.LogStart == ends.HighWatermark {
		return lost, nil // nothing to read, and Records would wait for more
	}
	for rec, err := range p.Records(ctx, tidemark.Earliest()) {
		if err != nil {
			return lost, err
		}
		if value, ok := acked[rec.Offset]; ok && value == string(rec.Value) {
			lost--
		}
		if rec.Offset+1 >= ends.HighWatermark {
			break
		}
	}
	return lost, nil
}
