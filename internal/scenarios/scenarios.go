// Package scenarios reads the tables of docs/scenarios.md, so that tests can hold
// that they are complete and that every test they name ran.
package scenarios

import (
	"fmt"
	"regexp"
	"strings"
)

// Row is one line of a table: a scenario or a report, and what tests it.
type Row struct {
	IDs     []string // as a rule one
	Line    int
	Tests   []Test
	Planned string // what of it is still to come; "" if nothing is
	NotHere string // why it does not apply; "" if it does
}

// Test is a test or a subtest by the directory of its package ("." for the root).
type Test struct {
	Dir, Name string
}

func (t Test) String() string {
	if t.Dir == "." {
		return t.Name
	}
	return t.Dir + "." + t.Name
}

// Function is the name of the top-level function.
func (t Test) Function() string {
	name, _, _ := strings.Cut(t.Name, "/")
	return name
}

var (
	idPattern   = regexp.MustCompile(`^(S-[1-9][0-9]*|R[0-9]{2})$`)
	testPattern = regexp.MustCompile(`^(?:([a-z][a-z0-9/]*)\.)?((?:Test|Fuzz|Example)[A-Za-z0-9_]+(?:/[^,;|]+)?)$`)
)

// Parse reads all tables whose header names the columns "id" and "test".
//
// A cell of the column "test" has names of tests, separated by commas, with the
// directory of their package before a dot unless it is the root; or "planned: what",
// or "not here: why"; or names, a semicolon, and one of these.
func Parse(doc string) ([]Row, error) {
	var rows []Row
	idAt, testAt := -1, -1
	for i, line := range strings.Split(doc, "\n") {
		cells := split(line)
		if cells == nil {
			idAt, testAt = -1, -1 // the table is over
			continue
		}
		if idAt < 0 {
			idAt, testAt = index(cells, "id"), index(cells, "test")
			continue
		}
		if testAt < 0 || strings.HasPrefix(cells[0], "--") {
			continue
		}
		if testAt >= len(cells) {
			return nil, fmt.Errorf("line %d: no column \"test\"", i+1)
		}
		row := Row{Line: i + 1, IDs: strings.Split(cells[idAt], ", ")}
		for _, id := range row.IDs {
			if !idPattern.MatchString(id) {
				return nil, fmt.Errorf("line %d: %q is no id", i+1, id)
			}
		}
		if err := row.read(cells[testAt]); err != nil {
			return nil, fmt.Errorf("line %d: %w", i+1, err)
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// split returns the cells of a table's line; nil if it is none.
func split(line string) (cells []string) {
	line = strings.TrimSpace(line)
	if len(line) < 2 || line[0] != '|' || line[len(line)-1] != '|' {
		return nil
	}
	const hidden = "\x00"
	line = strings.ReplaceAll(line[1:len(line)-1], `\|`, hidden)
	for _, c := range strings.Split(line, "|") {
		cells = append(cells, strings.TrimSpace(strings.ReplaceAll(c, hidden, "|")))
	}
	return cells
}

func index(cells []string, name string) int {
	for i, c := range cells {
		if c == name {
			return i
		}
	}
	return -1
}

func (r *Row) read(cell string) error {
	rest := cell
	for _, status := range []struct {
		word string
		into *string
	}{{"planned: ", &r.Planned}, {"not here: ", &r.NotHere}} {
		if before, why, ok := strings.Cut(rest, status.word); ok {
			rest, *status.into = strings.TrimSuffix(strings.TrimSpace(before), ";"), strings.TrimSpace(why)
			break
		}
	}
	if rest == "" {
		if r.Planned+r.NotHere == "" {
			return fmt.Errorf("neither a test nor a reason: %q", cell)
		}
		return nil
	}
	for _, name := range strings.Split(rest, ", ") {
		m := testPattern.FindStringSubmatch(name)
		if m == nil {
			return fmt.Errorf("%q is no test", name)
		}
		t := Test{Dir: m[1], Name: m[2]}
		if t.Dir == "" {
			t.Dir = "."
		}
		r.Tests = append(r.Tests, t)
	}
	return nil
}

// Complete says which ids are missing, there twice, or beyond the last: S-1 to
// S-lastScenario and R01 to R-lastReport are each there once in a complete list.
func Complete(rows []Row, lastScenario, lastReport int) (faults []error) {
	seen := make(map[string]int)
	for _, r := range rows {
		for _, id := range r.IDs {
			if first, ok := seen[id]; ok {
				faults = append(faults, fmt.Errorf("line %d: %s is there a second time, first in line %d", r.Line, id, first))
			}
			seen[id] = r.Line
		}
	}
	expect := func(id string) {
		if _, ok := seen[id]; !ok {
			faults = append(faults, fmt.Errorf("%s has no row", id))
		}
		delete(seen, id)
	}
	for n := 1; n <= lastScenario; n++ {
		expect(fmt.Sprintf("S-%d", n))
	}
	for n := 1; n <= lastReport; n++ {
		expect(fmt.Sprintf("R%02d", n))
	}
	for _, r := range rows {
		for _, id := range r.IDs {
			if _, ok := seen[id]; ok {
				faults = append(faults, fmt.Errorf("line %d: %s is beyond the last one", r.Line, id))
			}
		}
	}
	return faults
}
