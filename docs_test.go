package tidemark_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/internal/scenarios"
)

// How far the lists of docs/scenarios.md go.
const (
	lastScenario = 148
	lastReport   = 70
)

func scenarioRows(t *testing.T) []scenarios.Row {
	doc, err := os.ReadFile("docs/scenarios.md")
	require.NoError(t, err)
	rows, err := scenarios.Parse(string(doc))
	require.NoError(t, err)
	require.NotEmpty(t, rows)
	return rows
}

// Every scenario and every report has a row, exactly one.
func TestScenariosAreListed(t *testing.T) {
	for _, fault := range scenarios.Complete(scenarioRows(t), lastScenario, lastReport) {
		t.Error(fault)
	}
}

// Every test that a row names is there and skips nothing, and every script and every
// test that is named after a scenario or a report is named by its row. That they ran is
// for internal/scenarios/ran to say, which looks at what a whole run of the tests said.
func TestScenarioTestsExist(t *testing.T) {
	named := make(map[string]bool)
	functions := make(map[string]map[string]bool) // by directory: what is there, and whether it skips
	for _, row := range scenarioRows(t) {
		for _, test := range row.Tests {
			if functions[test.Dir] == nil {
				functions[test.Dir] = testsIn(t, test.Dir)
			}
			skips, ok := functions[test.Dir][test.Function()]
			if !ok {
				t.Errorf("line %d: there is no %s", row.Line, test)
			}
			if skips {
				t.Errorf("line %d: %s may skip", row.Line, test)
			}
			if script, ok := strings.CutPrefix(test.String(), "TestScripts/"); ok {
				require.FileExists(t, filepath.Join("testdata", "scenarios", script+".txt"))
			}
			for _, id := range row.IDs {
				named[id+" "+test.Dir+" "+test.Function()] = true
				named[id+" "+test.Name] = true
			}
		}
	}
	scripts, err := filepath.Glob("testdata/scenarios/*.txt")
	require.NoError(t, err)
	for _, path := range scripts {
		script := strings.TrimSuffix(filepath.Base(path), ".txt")
		if !named[rowOf(script)+" TestScripts/"+script] {
			t.Errorf("the row of %s does not name %s", rowOf(script), path)
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(functions)) {
		for name := range functions[dir] {
			if id := idOf(name); id != "" && !named[id+" "+dir+" "+name] {
				t.Errorf("the row of %s does not name %s in %s", id, name, dir)
			}
		}
	}
}

var (
	scriptName = regexp.MustCompile(`^S-0*([0-9]+)`)
	testName   = regexp.MustCompile(`^Test(?:S([0-9]{3})|(R[0-9]{2}))`)
)

// rowOf is the id that a script is about: S-001 is about S-1.
func rowOf(script string) string {
	if m := scriptName.FindStringSubmatch(script); m != nil {
		return "S-" + m[1]
	}
	return script
}

// idOf is the id that a test is named after; "" if after none.
func idOf(test string) string {
	m := testName.FindStringSubmatch(test)
	switch {
	case m == nil:
		return ""
	case m[1] != "":
		return "S-" + strings.TrimLeft(m[1], "0")
	}
	return m[2]
}

// testsIn lists the test functions of a directory, and whether they call Skip.
func testsIn(t *testing.T, dir string) map[string]bool {
	found := make(map[string]bool)
	paths, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	require.NoError(t, err)
	for _, path := range paths {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && f.Body != nil {
				found[f.Name.Name] = skips(f)
			}
		}
	}
	return found
}

func skips(f *ast.FuncDecl) (skips bool) {
	ast.Inspect(f.Body, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok && slices.Contains([]string{"Skip", "Skipf", "SkipNow"}, s.Sel.Name) {
			skips = true
		}
		return true
	})
	return skips
}
