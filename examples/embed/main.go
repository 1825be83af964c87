// Embed is a small HTTP service that keeps its events in a broker of its own: one
// process, one directory, nothing to install beside it.
//
//	go run ./examples/embed -dir DIR [-listen 127.0.0.1:8080]
//	curl -d 'door opened' localhost:8080/events      # {"offset":0}
//	curl 'localhost:8080/events?from=0'              # follows the log, one JSON object a line
//	curl localhost:8080/healthz                      # can an event be written now, and if not, why
//
// SIGINT or SIGTERM shuts it down: it takes no more requests, finishes those under
// way, then closes the broker, then what the broker stands on.
//
//	go run ./examples/embed -demo
//
// runs the service and its clients, shuts it down in the middle of their requests,
// opens it again, and checks that every event that was answered is there once. The
// last line on stdout is one JSON object; exit code 0 when all is well.
//
// Read it in this order: main.go, node.go (the broker), service.go (HTTP), demo.go.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run is the program without the process around it: it ends when ctx does. It
// returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("embed", flag.ContinueOnError)
	flags.SetOutput(stderr)
	dir := flags.String("dir", "", "the `DIR` that keeps the events (with -demo: default a temporary one)")
	listen := flags.String("listen", "127.0.0.1:8080", "the `ADDRESS` to serve on")
	demonstrate := flags.Bool("demo", false, "run the service and its clients, and check what they see")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	case flags.NArg() > 0:
		fmt.Fprintf(stderr, "embed: unexpected argument %q\n", flags.Arg(0))
		return 2
	case *dir == "" && !*demonstrate:
		fmt.Fprintln(stderr, "embed: -dir is required")
		return 2
	}
	log := slog.New(slog.NewTextHandler(stderr, nil))
	var err error
	if *demonstrate {
		err = demo(ctx, *dir, stdout, log)
	} else {
		err = serveAt(ctx, *dir, *listen, log)
	}
	if err != nil {
		fmt.Fprintln(stderr, "embed:", err)
		return 1
	}
	return 0
}

func serveAt(ctx context.Context, dir, address string, log *slog.Logger) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	return serve(ctx, dir, listener, log)
}
