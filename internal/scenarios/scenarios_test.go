package scenarios

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const table = `
# About

| name | test |
|---|---|
| not a table of scenarios | TestNothing |

| id | what | test | change |
|---|---|---|---|
| S-1 | a \| b | TestA, local.TestB/some sub, storage/memstore.TestC | x |
| S-2, S-3 | both | TestD; planned: the rest | |
| R01 | it | not here: nobody does | |

| id | what |
|---|---|
| S-9 | in a table without tests |
`

func TestParse(t *testing.T) {
	rows, err := Parse(table)
	require.NoError(t, err)
	require.Equal(t, []Row{
		{IDs: []string{"S-1"}, Line: 10, Tests: []Test{{".", "TestA"}, {"local", "TestB/some sub"}, {"storage/memstore", "TestC"}}},
		{IDs: []string{"S-2", "S-3"}, Line: 11, Tests: []Test{{".", "TestD"}}, Planned: "the rest"},
		{IDs: []string{"R01"}, Line: 12, NotHere: "nobody does"},
	}, rows)
	require.Equal(t, "TestB", rows[0].Tests[1].Function())
	require.Equal(t, "local.TestB/some sub", rows[0].Tests[1].String())
	require.Equal(t, "TestA", rows[0].Tests[0].String())

	for name, row := range map[string]string{
		"no test and no reason": "| S-1 | what | | x |",
		"neither":               "| S-1 | what | soon | x |",
		"a lower name":          "| S-1 | what | TestA, testB | x |",
		"no id":                 "| M1 | what | TestA | x |",
		"an id in two digits":   "| R1 | what | TestA | x |",
		"cut short":             "| S-1 | what |",
	} {
		_, err := Parse("| id | what | test | change |\n|---|---|---|---|\n" + row + "\n")
		require.ErrorContains(t, err, "line 3", name)
	}
}

func TestComplete(t *testing.T) {
	rows := func(ids ...string) (rows []Row) {
		for i, id := range ids {
			rows = append(rows, Row{IDs: strings.Split(id, ", "), Line: i + 1})
		}
		return rows
	}
	for name, c := range map[string]struct {
		rows []Row
		want []string
	}{
		"complete":    {rows("S-1", "S-2, S-3", "R01", "R02"), nil},
		"missing":     {rows("S-1", "S-3", "R02"), []string{"S-2 has no row", "R01 has no row"}},
		"twice":       {rows("S-1", "S-2, S-3", "R01", "R02", "S-3"), []string{"line 5: S-3 is there a second time, first in line 2"}},
		"twice, once": {rows("S-1", "S-2, S-2", "S-3", "R01", "R02"), []string{"line 2: S-2 is there a second time, first in line 2"}},
		"beyond":      {rows("S-1", "S-2", "S-3", "S-4", "R01", "R02", "R03"), []string{"line 4: S-4 is beyond the last one", "line 7: R03 is beyond the last one"}},
	} {
		var got []string
		for _, err := range Complete(c.rows, 3, 2) {
			got = append(got, err.Error())
		}
		require.Equal(t, c.want, got, name)
	}
}

func TestRun(t *testing.T) {
	ended := func(action, pkg, test string) string {
		return `{"Action":"` + action + `","Package":"` + pkg + `","Test":"` + test + `"}` + "\n"
	}
	const root, local = "example.org/m", "example.org/m/local"
	good := ended("run", root, "TestA") + ended("pass", root, "TestA") + ended("pass", local, "TestB") +
		ended("pass", local, "TestB/some_sub") + ended("pass", root, "") + "\n"
	rows := []Row{{IDs: []string{"S-1"}, Tests: []Test{{".", "TestA"}, {"local", "TestB"}}}, {IDs: []string{"R01"}, NotHere: "x"}}
	for name, c := range map[string]struct {
		log  []string
		want []string
	}{
		"all ran":             {[]string{good}, nil},
		"in two runs":         {[]string{ended("pass", root, "TestA"), ended("pass", local, "TestB")}, nil},
		"did not run":         {[]string{ended("pass", root, "TestA") + ended("run", local, "TestB")}, []string{"S-1: local.TestB did not run"}},
		"ran elsewhere":       {[]string{ended("pass", root, "TestA") + ended("pass", root, "TestB")}, []string{"S-1: local.TestB did not run"}},
		"skipped":             {[]string{good + ended("skip", root, "TestA")}, []string{"S-1: TestA was skipped"}},
		"skipped in one":      {[]string{ended("skip", root, "TestA"), good}, []string{"S-1: TestA was skipped"}},
		"a part was skipped":  {[]string{good + ended("skip", local, "TestB/other")}, []string{"S-1: a part of local.TestB was skipped"}},
		"another was skipped": {[]string{good + ended("skip", local, "TestBB/x") + ended("skip", root, "TestB/x")}, nil},
		"failed":              {[]string{ended("fail", root, "TestA") + ended("fail", root, "") + good}, []string{"package " + root + " failed", "S-1: TestA failed"}},
		"did not build": {[]string{good + `{"ImportPath":"example.org/m/x [example.org/m/x.test]","Action":"build-fail"}`},
			[]string{"package example.org/m/x [example.org/m/x.test] failed"}},
		"cached": {[]string{good + `{"Action":"output","Package":"` + local + `","Output":"ok  \texample.org/m/local\t(cached)\n"}`},
			[]string{"S-1: local.TestB ran earlier, not now: use -count=1"}},
		"said by a test": {[]string{good + `{"Action":"output","Package":"` + local + `","Test":"TestB","Output":"\t(cached)\n"}`}, nil},
	} {
		run := NewRun(root)
		for _, log := range c.log {
			require.NoError(t, run.Read(strings.NewReader(log)), name)
		}
		var got []string
		for _, err := range run.Check(rows) {
			got = append(got, err.Error())
		}
		require.Equal(t, c.want, got, name)
	}
	run := NewRun(root)
	out := func(test, text string) string {
		return `{"Action":"output","Package":"` + root + `","Test":"` + test + `","Output":"` + text + `\n"}` + "\n"
	}
	require.NoError(t, run.Read(strings.NewReader(out("TestA", "quiet")+ended("pass", root, "TestA")+out("TestB", "loud")+ended("fail", root, "TestB")+
		`{"Action":"build-output","Output":"broken\n"}`+"\n"+out("", "PASS")+out("TestC", "panic: x")+ended("fail", root, "")+out("", "ok all"))))
	require.Equal(t, "loud\nbroken\npanic: x\nok all\n", run.Said())
	require.ErrorContains(t, NewRun(root).Read(strings.NewReader("ok example.org/m 1s\n")), "not the output of go test -json")
}
