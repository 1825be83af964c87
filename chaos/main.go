// Chaos runs a cluster of brokers as processes, makes faults, and checks that nothing
// acknowledged is lost, doubled or out of order, and that all copies are equal.
//
//	cd chaos && go run . -duration 60s -seed 1 -coordination memory
//
// Progress goes to stderr. The last line on stdout is one JSON object, see summary. Exit
// code 0 when everything held, 1 when something did not, 2 for wrong flags.
//
// Read it in this order: options.go, run.go, then internal/cluster (processes and
// proxies), internal/workload, internal/nemesis (faults), history (the checks).
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/tidemark-log/tidemark/chaos/internal/member"
	"github.com/tidemark-log/tidemark/chaos/internal/node"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := command(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// command runs what the first argument names: the harness starts itself again for each
// process of the cluster.
func command(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	if len(args) == 3 && args[1] == "-config" {
		switch args[0] {
		case "broker":
			leaveWith(stdin)
			return runBroker(ctx, args[2], stdout, stderr)
		case "etcd":
			leaveWith(stdin)
			return runMember(ctx, args[2], stdout, stderr)
		}
	}
	o, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	}
	sum, err := run(ctx, o, stderr)
	if err != nil {
		fmt.Fprintln(stderr, "chaos:", err)
		sum.Error = err.Error()
	}
	line, err := json.Marshal(sum)
	if err != nil {
		fmt.Fprintln(stderr, "chaos:", err)
		return 1
	}
	if _, err := fmt.Fprintf(stdout, "%s\n", line); err != nil || !sum.good() {
		return 1
	}
	return 0
}

// leaveWith ends this process when whoever started it is gone.
func leaveWith(stdin io.Reader) {
	go func() {
		_, _ = bufio.NewReader(stdin).ReadByte()
		os.Exit(node.ExitOrphan)
	}()
}

func runBroker(ctx context.Context, path string, stdout, stderr io.Writer) int {
	log := slog.New(slog.NewTextHandler(stderr, nil))
	cfg, err := node.ReadConfig(path)
	if err != nil {
		log.Error("no configuration", "error", err)
		return node.ExitFailed
	}
	return node.Run(ctx, cfg, stdout, log.With("pid", os.Getpid()))
}

func runMember(ctx context.Context, path string, stdout, stderr io.Writer) int {
	log := slog.New(slog.NewTextHandler(stderr, nil))
	cfg, err := member.ReadConfig(path)
	if err != nil {
		log.Error("no configuration", "error", err)
		return 1
	}
	return member.Run(ctx, cfg, stdout, log.With("pid", os.Getpid()))
}
