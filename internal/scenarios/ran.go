package scenarios

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Run is what `go test -json` said, gathered over one or more runs.
type Run struct {
	module string
	ended  map[Test]string   // "pass", "skip", "fail"
	cached map[string]bool   // by directory
	failed []string          // packages
	output map[Test][]string // of tests that have not passed
	said   []string          // what is worth showing, in order
}

// NewRun begins to gather what tests of a module did.
func NewRun(module string) *Run {
	return &Run{module: module, ended: make(map[Test]string), cached: make(map[string]bool), output: make(map[Test][]string)}
}

type event struct {
	Action, Package, ImportPath, Test, Output string
}

// Read takes the output of one `go test -json`.
func (r *Run) Read(from io.Reader) error {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		if len(lines.Bytes()) == 0 {
			continue
		}
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return fmt.Errorf("not the output of go test -json: %w: %.100q", err, lines.Text())
		}
		r.take(e)
	}
	return lines.Err()
}

func (r *Run) take(e event) {
	dir := "."
	if e.Package != r.module {
		dir = strings.TrimPrefix(e.Package, r.module+"/")
	}
	t := Test{dir, e.Test}
	switch e.Action {
	case "pass", "skip", "fail":
		if e.Action == "fail" {
			r.said = append(r.said, r.output[t]...)
		}
		delete(r.output, t)
		if e.Action == "fail" && e.Test == "" {
			r.unfinished(dir)
		}
		if e.Test != "" {
			r.end(t, e.Action)
		} else if e.Action == "fail" {
			r.failed = append(r.failed, e.Package)
		}
	case "build-fail":
		r.failed = append(r.failed, e.ImportPath)
	case "build-output":
		r.said = append(r.said, e.Output)
	case "output":
		switch {
		case e.Test != "":
			r.output[t] = append(r.output[t], e.Output)
		case e.Output != "PASS\n":
			r.said = append(r.said, e.Output)
		}
		if e.Test == "" && strings.Contains(e.Output, "\t(cached)") {
			r.cached[dir] = true
		}
	}
}

// unfinished takes up what tests said that never ended, as when a package panics.
func (r *Run) unfinished(dir string) {
	var tests []Test
	for t := range r.output {
		if t.Dir == dir {
			tests = append(tests, t)
		}
	}
	slices.SortFunc(tests, func(a, b Test) int { return strings.Compare(a.Name, b.Name) })
	for _, t := range tests {
		r.said = append(r.said, r.output[t]...)
		delete(r.output, t)
	}
}

// Said is what `go test` would have printed: a line for each package, and what the
// tests that failed said.
func (r *Run) Said() string { return strings.Join(r.said, "") }

// end keeps the worst of what a test did in several runs.
func (r *Run) end(t Test, how string) {
	rank := map[string]int{"": 0, "pass": 1, "skip": 2, "fail": 3}
	if rank[how] > rank[r.ended[t]] {
		r.ended[t] = how
	}
}

// Check says which of the tests that rows name did not run to their end in this
// run, were skipped, or failed; and which packages failed.
func (r *Run) Check(rows []Row) (faults []error) {
	for _, p := range r.failed {
		faults = append(faults, fmt.Errorf("package %s failed", p))
	}
	for _, row := range rows {
		for _, t := range row.Tests {
			ids := strings.Join(row.IDs, ", ")
			switch how := r.ended[t]; {
			case how == "":
				faults = append(faults, fmt.Errorf("%s: %s did not run", ids, t))
			case how == "skip":
				faults = append(faults, fmt.Errorf("%s: %s was skipped", ids, t))
			case how == "fail":
				faults = append(faults, fmt.Errorf("%s: %s failed", ids, t))
			case r.skippedWithin(t):
				faults = append(faults, fmt.Errorf("%s: a part of %s was skipped", ids, t))
			case r.cached[t.Dir]:
				faults = append(faults, fmt.Errorf("%s: %s ran earlier, not now: use -count=1", ids, t))
			}
		}
	}
	return faults
}

// skippedWithin reports whether a subtest was skipped.
func (r *Run) skippedWithin(t Test) bool {
	for sub, how := range r.ended {
		if how == "skip" && sub.Dir == t.Dir && strings.HasPrefix(sub.Name, t.Name+"/") {
			return true
		}
	}
	return false
}
