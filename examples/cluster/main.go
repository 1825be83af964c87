// Cluster is Tidemark with one broker per process, or per host. Each process has a
// broker, its logs on disk, and one member of the etcd that holds the cluster's
// metadata: nothing needs to be installed beside it. Brokers, and members of etcd,
// speak to each other over TCP with mutual TLS.
//
//	go run . -demo
//
// starts three such processes on this machine, appends lines, kills the leader with
// SIGKILL, and shows what happens: see demo.go. The last line on stdout is one JSON
// object, see summary; exit code 0 when all is well.
//
//	go run . -make-certs -certs certs -brokers 1=10.0.0.1,2=10.0.0.2,3=10.0.0.3
//	go run . -id 1 -dir data -certs certs -brokers 1=10.0.0.1,2=10.0.0.2,3=10.0.0.3
//
// is how it runs on three hosts: the README has all steps. SIGINT or SIGTERM shuts a
// broker down; it returns by the same command.
//
// Read it in this order: main.go, places.go (who runs where), node.go (the broker and
// what it stands on), service.go (HTTP), certs.go; then demo.go (the script),
// children.go (processes), writers.go, client.go, verify.go.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C does not wait for anything
	os.Exit(run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// options are what the command line says.
type options struct {
	demo, makeCerts bool

	id      int
	brokers string
	dir     string
	certs   string
	http    string
	session time.Duration
	child   bool

	lines   int
	verbose bool
}

// badInput is an error that the caller can correct. The program then ends with code 2.
type badInput struct{ error }

func (b badInput) Unwrap() error { return b.error }

// run is the program without the process around it: it ends when ctx does. It returns
// the exit code.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	o, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
	case o.demo:
		err = demo(ctx, o, stdout, stderr)
	case o.makeCerts:
		err = makeCerts(o, stdout)
	default:
		err = runBroker(ctx, o, stdin, stderr)
	}
	if err == nil {
		return 0
	}
	fmt.Fprintln(stderr, "cluster:", err)
	if errors.As(err, &badInput{}) {
		return 2
	}
	return 1
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	flags := flag.NewFlagSet("cluster", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // run prints the error
	flags.BoolVar(&o.demo, "demo", false, "start three brokers here, kill one, and show what happens")
	flags.BoolVar(&o.makeCerts, "make-certs", false, "write certificates for all -brokers into -certs, good for a day")
	flags.IntVar(&o.id, "id", 0, "which `BROKER` of the list this is")
	flags.StringVar(&o.brokers, "brokers", "", "the whole cluster, the same everywhere: `ID=HOST[:PORT],...`; a broker has four ports from PORT on, default 7400")
	flags.StringVar(&o.dir, "dir", "", "the `DIR` that keeps this broker's data (with -demo: default a temporary one)")
	flags.StringVar(&o.certs, "certs", "", "the `DIR` with ca.pem, broker-ID.pem and broker-ID-key.pem")
	flags.StringVar(&o.http, "http", "", "the `ADDRESS` to serve HTTP on, for anybody who can reach it (default 127.0.0.1:PORT+3)")
	flags.DurationVar(&o.session, "session", 2*time.Second, "how long a broker may be silent before another leads in its place; the same everywhere")
	flags.BoolVar(&o.child, "child", false, "shut down when stdin ends, as the demo's brokers do when it is gone")
	flags.IntVar(&o.lines, "lines", 3000, "with -demo: how many lines to append")
	flags.BoolVar(&o.verbose, "v", false, "with -demo: show what the brokers log")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		flags.SetOutput(stderr)
		flags.Usage()
		return o, err
	case err != nil:
		return o, badInput{err}
	}
	return o, o.check(flags.Args())
}

func (o options) check(rest []string) error {
	switch {
	case len(rest) > 0:
		return badInput{fmt.Errorf("unexpected argument %q", rest[0])}
	case o.session < 500*time.Millisecond:
		return badInput{errors.New("-session must be at least 500ms")}
	case o.demo && o.lines < 100:
		return badInput{errors.New("-lines must be at least 100")}
	case o.demo:
		return nil
	case o.brokers == "":
		return badInput{errors.New("-brokers is required, or -demo")}
	case o.certs == "":
		return badInput{errors.New("-certs is required")}
	case !o.makeCerts && o.dir == "":
		return badInput{errors.New("-dir is required")}
	}
	return nil
}

// runBroker is this process as one broker of the cluster.
func runBroker(ctx context.Context, o options, stdin io.Reader, stderr io.Writer) error {
	all, err := parsePlaces(o.brokers)
	if err != nil {
		return badInput{fmt.Errorf("-brokers: %w", err)}
	}
	here, err := all.of(o.id)
	if err != nil {
		return badInput{err}
	}
	if o.http == "" {
		o.http = here.http()
	}
	if o.child {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		defer cancel()
		go func() { // it ends with the process at the latest
			_, _ = io.Copy(io.Discard, stdin)
			cancel()
		}()
	}
	log := slog.New(slog.NewTextHandler(stderr, nil))
	return serve(ctx, o.http, nodeConfig{here: here, all: all, dir: o.dir, certs: o.certs, session: o.session}, log)
}
