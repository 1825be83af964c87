// Command ran reads docs/scenarios.md and what `go test -json -count=1 ./...` said,
// prints what `go test` would have printed, and fails if a test that the document
// names did not run or was skipped, or if anything failed.
//
//	go test -json -count=1 ./... >test.json
//	go run ./internal/scenarios/ran docs/scenarios.md test.json...
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/tidemark-log/tidemark/internal/scenarios"
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: ran docs/scenarios.md test.json...")
		os.Exit(2)
	}
	tests, err := check(os.Args[1], os.Args[2:])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Printf("%d tests named in %s ran, none was skipped\n", tests, os.Args[1])
}

func check(doc string, logs []string) (tests int, err error) {
	text, err := os.ReadFile(doc)
	if err != nil {
		return 0, err
	}
	rows, err := scenarios.Parse(string(text))
	if err != nil {
		return 0, fmt.Errorf("%s: %w", doc, err)
	}
	module, err := moduleOf(filepath.Join(filepath.Dir(doc), ".."))
	if err != nil {
		return 0, err
	}
	run := scenarios.NewRun(module)
	for _, log := range logs {
		if err := read(run, log); err != nil {
			return 0, fmt.Errorf("%s: %w", log, err)
		}
	}
	fmt.Print(run.Said())
	named := make(map[scenarios.Test]bool)
	for _, r := range rows {
		for _, t := range r.Tests {
			named[t] = true
		}
	}
	return len(named), errors.Join(run.Check(rows)...)
}

func read(run *scenarios.Run, log string) error {
	f, err := os.Open(log)
	if err != nil {
		return err
	}
	defer f.Close()
	return run.Read(f)
}

// moduleOf is the path of the module in a directory.
func moduleOf(dir string) (string, error) {
	data, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil {
		return "", err
	}
	for _, line := range strings.Split(string(data), "\n") {
		if path, ok := strings.CutPrefix(line, "module "); ok {
			return strings.TrimSpace(path), nil
		}
	}
	return "", fmt.Errorf("%s: no module line", dir)
}
