package house

import (
	"fmt"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

// plant is a small repository. Its go.mod is added unless it has one.
type plant map[string]string

// load puts the files, each without its package clause unless it has one, into a tree.
func (p plant) load(t *testing.T) *Tree {
	t.Helper()
	root := fstest.MapFS{"go.mod": {Data: []byte("module example.org/m\n\ngo 1.25.0\n")}}
	for name, src := range p {
		if strings.HasSuffix(name, ".go") && !strings.HasPrefix(src, "package ") {
			src = "package p; " + src
		}
		root[name] = &fstest.MapFile{Data: []byte(src)}
	}
	tree, err := Load(root)
	require.NoError(t, err)
	return tree
}

type planted struct {
	name  string
	files plant
	want  []string // "path:line: rule", where the rule may be the beginning of one
}

func check(t *testing.T, rule func(*Tree) []Violation, tests []planted) {
	t.Helper()
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			got := rule(tc.files.load(t))
			require.Len(t, got, len(tc.want), "%v", got)
			for i, v := range got {
				require.True(t, strings.HasPrefix(v.String(), tc.want[i]), "got %q, want %q", v, tc.want[i])
			}
		})
	}
}

func lines(n int) string { return strings.Repeat("\n", n) }

func methods(from, n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "M%d(); ", from+i)
	}
	return b.String()
}

func TestBudgetsBite(t *testing.T) {
	check(t, Budgets, []planted{
		{"file at its limit", plant{"a.go": lines(600)}, nil},
		{"file above", plant{"a/b.go": lines(601)}, []string{"a/b.go:1: file has 601 lines"}},
		{"last line without an end", plant{"a.go": lines(600) + "// x"}, []string{"a.go:1: file has 601 lines"}},
		{"tests are free", plant{"a_test.go": lines(2000) + "func F() {" + lines(100) + "}"}, nil},
		{"testdata and hidden names are free", plant{
			"a/testdata/b.go": lines(601), "_a/b.go": lines(601), ".a/b.go": lines(601), "_b.go": lines(601)}, nil},
		{"every module counts", plant{"bench/go.mod": "module b", "bench/x/a.go": lines(601)}, []string{"bench/x/a.go:1: file"}},
		{"function at its limit", plant{"a.go": lines(9) + "// doc" + lines(1) + "func F() {" + lines(69) + "}"}, nil},
		{"function above", plant{"a.go": lines(2) + "func F() {" + lines(70) + "}"}, []string{"a.go:3: function F has 71 lines"}},
		{"method above", plant{"a.go": "type T int" + lines(2) + "func (T) F(\n) {" + lines(69) + "}"}, []string{"a.go:3: function F has 71"}},
		{"comments before do not count", plant{"a.go": lines(1) + strings.Repeat("// x\n", 60) + "func F() {" + lines(69) + "}"}, nil},
		{"literal above", plant{"a.go": "var F = func() {" + lines(70) + "}"}, []string{"a.go:1: function literal has 71"}},
		{"interface at its limit", plant{"a.go": "type I interface {" + methods(0, 8) + "}"}, nil},
		{"interface above", plant{"a.go": "type I interface {" + methods(0, 9) + "}"}, []string{"a.go:1: interface has 9 methods"}},
		{"interface without a name", plant{"a.go": "func F(interface {" + methods(0, 9) + "}) {}"}, []string{"a.go:1: interface has 9"}},
		{"embedding from another file", plant{
			"a/a.go": "type I interface {J; K[int]; " + methods(0, 3) + "}",
			"a/b.go": "type J interface {L; " + methods(3, 3) + "}; type K[T any] interface {" + methods(6, 2) + "}",
			"a/c.go": "type L interface {" + methods(8, 1) + "}",
		}, []string{"a/a.go:1: interface has 9"}},
		{"the same method twice is one", plant{"a.go": "type I interface {J; " + methods(0, 8) + "}; type J interface {" + methods(0, 8) + "}"}, nil},
		{"another package's methods do not count", plant{
			"a/a.go": "type I interface {J; " + methods(0, 8) + "}", "b/b.go": "type J interface {" + methods(8, 8) + "}"}, nil},
		{"constraints have no methods", plant{"a.go": "type I interface {~int | ~string; comparable; error; " + methods(0, 8) + "}"}, nil},
	})
}

// TestArrowsBite has one line for each pair of parts, allowed or not.
func TestArrowsBite(t *testing.T) {
	const m = "example.org/m"
	pairs := []struct {
		dir, imports string
		ok           bool
	}{
		{"record", "bytes", true},
		{"record", "github.com/klauspost/compress/zstd", true},
		{"record", m + "/protocol", false},
		{"record", m + "/internal/x", false},
		{"protocol", m + "/record", true},
		{"protocol", m + "/record/x", false},
		{"protocol", m + "/transport", false},
		{"transport", m + "/protocol", true},
		{"transport", m + "/record", false},
		{"storage", m + "/coordination", false},
		{"coordination", m, false},
		{"coordination", m + "/coordination/memory", false},
		{"transport/tcp", m + "/transport", true},
		{"transport/tcp", m + "/storage", true},
		{"transport/tcp", m + "/record", true},
		{"transport/tcp", m + "/transport/tcp/internal/frame", true},
		{"transport/tcp", m + "/transport/inproc", false},
		{"transport/tcp", m + "/transport/tcpx", false},
		{"transport/tcp", m + "/transport/internal/queue", true},
		{"transport/tcp", m + "/storage/internal/queue", false},
		{"transport/internal/queue", m + "/transport", true},
		{"transport/internal/queue", m + "/transport/tcp", false},
		{"transport", m + "/transport/internal/queue", false},
		{"transport/tcp/internal/frame", m + "/transport/tcp", true},
		{"transport/tcp", m + "/storage/memstore", false},
		{"transport/tcp", m, false},
		{"storage/memstore", m + "/local", false},
		{"storage/memstore", m + "/internal/x", false},
		{"storage/pebblestore", m + "/internal/pebblefs", true},
		{"coordination/pebblecoord", m + "/internal/pebblefs", true},
		{"transport/tcp", m + "/internal/pebblefs", false},
		{".", m + "/internal/pebblefs", false},
		{"internal/pebblefs", pebble + "/v2/vfs", true},
		{"internal/pebblefs", m + "/storage", false},
		{"coordination/memory", m + "/examples/x", false},
		{".", m + "/transport", true},
		{".", m + "/protocol", true},
		{".", m + "/record", true},
		{".", m + "/transport/inproc", false},
		{".", m + "/local", false},
		{".", m + "/internal/house", false},
		{".", "golang.org/x/sync/errgroup", true},
		{".", "golang.org/x/syncopate", false},
		{".", "log/slog", true},
		{".", "github.com/stretchr/testify/require", false},
		{".", "net", false},
		{".", "net/http", false},
		{".", "os", true},
		{".", "os/signal", false},
		{".", pebble + "/v2", false},
		{"local", m, true},
		{"local", m + "/storage/pebblestore", true},
		{"local", pebble + "/v2/vfs", true},
		{"local", m + "/examples/quickstart", false},
		{"examples/quickstart", m + "/local", true},
		{"examples/quickstart", "net/http", true},
		{"examples/quickstart", m + "/examples/other", false},
		{"storage/pebblestore", pebble + "/v2", true},
		{"storage/pebblestore/internal/fs", pebble + "/v2/vfs", true},
		{"coordination/pebblecoord", pebble, true},
		{"storage/memstore", pebble + "/v2", false},
		{"storage", pebble + "/v2", false},
		{"record", pebble + "/v2", false},
		{"transport/tcp", pebble + "/v2/vfs", false},
		{"internal/house", "go/ast", true},
		{"internal/house", m + "/record", false},
		{"somewhere/else", "bytes", false},
	}
	for _, p := range pairs {
		src := fmt.Sprintf("package p\nimport _ %q\n", p.imports)
		got := Arrows(plant{p.dir + "/a.go": src}.clean().load(t))
		require.Equal(t, p.ok, len(got) == 0, "%s -> %s: %v", p.dir, p.imports, got)
		require.Empty(t, Arrows(plant{p.dir + "/a_test.go": src}.clean().load(t)), "tests import what they need")
		own := plant{"go.mod": "module " + m, "bench/go.mod": "module " + m + "/bench", "bench/" + p.dir + "/a.go": src}
		require.Empty(t, Arrows(own.clean().load(t)), "another module has its own arrows")
	}
}

// clean turns "./a.go" into "a.go" and the like.
func (p plant) clean() plant {
	out := plant{}
	for name, src := range p {
		out[strings.ReplaceAll(strings.TrimPrefix(name, "./"), "/./", "/")] = src
	}
	return out
}

func TestPurityBites(t *testing.T) {
	impure := map[string]string{
		"import _ `sync`":                                              "the protocol core imports sync",
		"import _ `sync/atomic`":                                       "the protocol core imports sync/atomic",
		"import _ `context`":                                           "the protocol core imports context",
		"import _ `os`":                                                "the protocol core imports os",
		"import _ `net`":                                               "the protocol core imports net",
		"import _ `io`":                                                "the protocol core imports io",
		"import _ `log`":                                               "the protocol core imports log",
		"import _ `log/slog`":                                          "the protocol core imports log/slog",
		"import _ `math/rand`":                                         "the protocol core imports math/rand",
		"import _ `math/rand/v2`":                                      "the protocol core imports math/rand/v2",
		"import _ `crypto/rand`":                                       "the protocol core imports crypto/rand",
		"import _ `runtime`":                                           "the protocol core imports runtime",
		"import `time`; var x = time.Now()":                            "the protocol core uses time.Now",
		"import `time`; var now = time.Now":                            "the protocol core uses time.Now",
		"import t `time`; func f(x t.Time) { t.Since(x) }":             "the protocol core uses time.Since",
		"import `time`; func f(x time.Time) { time.Until(x) }":         "the protocol core uses time.Until",
		"import `time`; func f() { time.Sleep(1) }":                    "the protocol core uses time.Sleep",
		"import `time`; func f() { time.After(1) }":                    "the protocol core uses time.After",
		"import `time`; func f() { time.Tick(1) }":                     "the protocol core uses time.Tick",
		"import `time`; func f() { time.NewTimer(1) }":                 "the protocol core uses time.NewTimer",
		"import `time`; func f() { time.NewTicker(1) }":                "the protocol core uses time.NewTicker",
		"import `time`; func f() { time.AfterFunc(1, nil) }":           "the protocol core uses time.AfterFunc",
		"func f() { go f() }":                                          "the protocol core starts a goroutine",
		"type c chan int":                                              "the protocol core has a channel",
		"func f() { g() <- 1 }":                                        "the protocol core sends on a channel",
		"func f() { <-g() }":                                           "the protocol core receives from a channel",
		"func f() { select {} }":                                       "the protocol core selects",
		"type s struct { done <-chan int }":                            "the protocol core has a channel",
		"import `time`; type s struct { d time.Duration; t time.Time}": "",
		"import (`fmt`; `slices`; `math/bits`); var _ = time.Second":   "",
		"func f(time clock) { time.Now() }":                            "",
		"// time.Now() <- go select\nvar x = `go func`":                "",
	}
	pure := []string{"replica.go", "replica_lag.go", "leader_fetch.go", "follower.go", "isr.go", "hw.go", "epoch.go", "election.go",
		"metadata.go", "metadata_orders.go", "member.go", "link.go", "link_hello.go", "shard.go", "tail.go", "events.go"}
	free := []string{"loop.go", "broker.go", "isr_test.go", "replica_test.go", "local/replica.go", "hwx.go", "myreplica.go"}
	for src, want := range impure {
		for _, name := range pure {
			got := Purity(plant{name: src}.load(t))
			if want == "" {
				require.Empty(t, got, "%s: %s", name, src)
				continue
			}
			require.Len(t, got, 1, "%s: %s", name, src)
			require.Equal(t, name+":1: "+want, got[0].String(), src)
		}
		for _, name := range free {
			require.Empty(t, Purity(plant{name: src}.load(t)), "%s: %s", name, src)
		}
	}
}

func TestSleepsBite(t *testing.T) {
	const imports = "import (`time`; `testing`; `testing/synctest`)\n"
	check(t, Sleeps, []planted{
		{"in a test", plant{"a_test.go": imports + "func f() { time.Sleep(1) }"}, []string{"a_test.go:2: a test uses time.Sleep"}},
		{"as a value", plant{"a_test.go": imports + "var f = time.Sleep"}, []string{"a_test.go:2: a test uses"}},
		{"under another name", plant{"a_test.go": "import clock `time`\nfunc f() { clock.Sleep(1) }"}, []string{"a_test.go:2: a test uses"}},
		{"in a bubble", plant{"a_test.go": imports +
			"func f() { synctest.Test(t, func(t *testing.T) { go func() { time.Sleep(1) }() }) }"}, nil},
		{"beside a bubble", plant{"a_test.go": imports +
			"func f() { synctest.Test(t, func(t *testing.T) {})\n time.Sleep(1) }"}, []string{"a_test.go:3: a test uses"}},
		{"in an argument that is no literal", plant{"a_test.go": imports +
			"func f() { synctest.Test(t, g(time.Sleep)) }"}, []string{"a_test.go:2: a test uses"}},
		{"in another package's Test", plant{"a_test.go": "import (`time`; `x/synctest`)\n" +
			"func f() { synctest.Test(t, func() { time.Sleep(1) }) }"}, []string{"a_test.go:2: a test uses"}},
		{"in a conformance suite", plant{"a/atest/suite.go": imports + "func F() { time.Sleep(1) }"}, []string{"a/atest/suite.go:2: a test uses"}},
		{"in another module", plant{"chaos/go.mod": "module c", "chaos/a_test.go": imports + "func f() { time.Sleep(1) }"},
			[]string{"chaos/a_test.go:2: a test uses"}},
		{"not a test", plant{"a.go": "import `time`; func f() { time.Sleep(1) }"}, nil},
		{"in words only", plant{"a_test.go": "// time.Sleep(1)\nvar s = `time.Sleep(1)`"}, nil},
	})
}

func TestConductBites(t *testing.T) {
	check(t, Conduct, []planted{
		{"init", plant{"a.go": "func init() {}"}, []string{"a.go:1: init function"}},
		{"init in a command", plant{"a.go": "package main; func init() {}"}, []string{"a.go:1: init function"}},
		{"init in a test", plant{"a_test.go": "func init() {}"}, []string{"a_test.go:1: init function"}},
		{"a method is no init", plant{"a.go": "func (t T) init() {}"}, nil},
		{"exit", plant{"a.go": "import `os`; func f() { os.Exit(1) }"}, []string{"a.go:1: os.Exit outside a command"}},
		{"exit as a value", plant{"a.go": "import `os`; var exit = os.Exit"}, []string{"a.go:1: os.Exit"}},
		{"exit in a test", plant{"a_test.go": "import `os`; func f() { os.Exit(1) }"}, []string{"a_test.go:1: os.Exit"}},
		{"exit through syscall", plant{"a.go": "import `syscall`; func f() { syscall.Exit(1) }"}, []string{"a.go:1: syscall.Exit"}},
		{"fatal", plant{"a.go": "import `log`; func f() { log.Fatalf(``) }"}, []string{"a.go:1: log.Fatalf"}},
		{"standard logger", plant{"a.go": "import `log`; func f() { log.Println() }"}, []string{"a.go:1: log.Println"}},
		{"signals", plant{"a.go": "import `os/signal`; func f() { signal.Notify(c) }"}, []string{"a.go:1: signal.Notify"}},
		{"signal context", plant{"a.go": "import `os/signal`; func f() { signal.NotifyContext(c) }"}, []string{"a.go:1: signal.NotifyContext"}},
		{"print", plant{"a.go": "import `fmt`; func f() { fmt.Printf(``) }"}, []string{"a.go:1: fmt.Printf"}},
		{"print in a test", plant{"a_test.go": "import `fmt`; func TestF() { fmt.Println() }"}, []string{"a_test.go:1: fmt.Println"}},
		{"print beside an Example", plant{"example_test.go": "import `fmt`; func f() { fmt.Println() }"}, nil},
		{"print in an Example", plant{"a_test.go": "import `fmt`; func ExampleF() { fmt.Println() }"}, nil},
		{"Example that is no test", plant{"a.go": "import `fmt`; func ExampleF() { fmt.Println() }"}, []string{"a.go:1: fmt.Println"}},
		{"builtin", plant{"a.go": "func f() { println(1); print(2) }"}, []string{"a.go:1: println", "a.go:1: print"}},
		{"stdout", plant{"a.go": "import `os`; var w = os.Stdout"}, []string{"a.go:1: os.Stdout"}},
		{"stderr", plant{"a.go": "import `os`; var w = os.Stderr"}, []string{"a.go:1: os.Stderr"}},
		{"stdout in a test", plant{"a_test.go": "import `os`; var w = os.Stdout"}, nil},
		{"a package variable", plant{"a.go": "import `os`; var x, y = 1, func() { os.Exit(1) }"}, []string{"a.go:1: os.Exit"}},
		{"import without a name", plant{"a.go": "import . `fmt`\nfunc f() { Println() }"}, []string{"a.go:1: import of fmt without its name"}},
		{"a command is free", plant{"cmd/a.go": "package main; import (`os`; `fmt`; `log`; `os/signal`)\n" +
			"func main() { fmt.Println(); log.Fatal(); signal.Notify(c); os.Exit(1) }"}, nil},
		{"a test binary that is a process", plant{"main_test.go": "import (`os`; `fmt`); func TestMain(m *testing.M) { fmt.Println(); os.Exit(m.Run()) }"}, nil},
		{"harmless", plant{"a.go": "import (`fmt`; `os`; `log/slog`); func f() { fmt.Sprint(); os.Open(``); slog.New(nil) }"}, nil},
	})
}

func TestLoadRefusesWhatItCannotRead(t *testing.T) {
	_, err := Load(fstest.MapFS{"a.go": {Data: []byte("package p")}})
	require.Error(t, err, "no go.mod")
	_, err = Load(fstest.MapFS{"go.mod": {Data: []byte("go 1.25.0\n")}})
	require.Error(t, err, "no module line")
	_, err = Load(fstest.MapFS{"go.mod": {Data: []byte("module m")}, "a.go": {Data: []byte("package")}})
	require.Error(t, err, "a file that does not parse")
}
