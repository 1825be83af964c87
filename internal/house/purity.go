package house

import (
	"go/ast"
	"go/token"
	"path"
)

// pureFiles are the files of the root package that hold the protocol: pure
// state machines whose effects depend on their arguments alone.
var pureFiles = []string{
	"replica*.go", "leader*.go", "follower*.go", "isr.go", "hw.go", "epoch.go", "election.go", "metadata*.go",
	"member*.go", "link*.go", "shard*.go", "tail.go", "events.go", "place.go", "planted.go",
}

// impureImports bring in I/O, a lock, a goroutine or chance, with all below them.
var impureImports = []string{
	"sync", "context", "os", "net", "io", "log", "math/rand", "crypto/rand", "runtime", "golang.org/x/sync",
}

// clock is what package time has to do with the clock; durations are pure.
var clock = map[string]bool{
	"Now": true, "Sleep": true, "After": true, "Tick": true, "NewTimer": true, "NewTicker": true,
	"AfterFunc": true, "Since": true, "Until": true,
}

// Pure tells whether the file belongs to the pure protocol core.
func (f *File) Pure() bool {
	if f.Dir != "." || f.Test() {
		return false
	}
	for _, pattern := range pureFiles {
		if ok, _ := path.Match(pattern, f.Path); ok {
			return true
		}
	}
	return false
}

// Purity checks that the protocol core has no I/O, clock, lock, goroutine,
// channel or chance.
func Purity(t *Tree) []Violation {
	var out []Violation
	for _, f := range t.Files {
		if f.Pure() {
			out = append(out, f.impurities()...)
		}
	}
	return sorted(out)
}

func (f *File) impurities() []Violation {
	var out []Violation
	for _, spec := range f.AST.Imports {
		p := importPath(spec)
		for _, x := range impureImports {
			if within(p, x) {
				out = append(out, f.violation(spec, "the protocol core imports %s", p))
			}
		}
	}
	ast.Inspect(f.AST, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			out = append(out, f.violation(n, "the protocol core starts a goroutine"))
		case *ast.ChanType:
			out = append(out, f.violation(n, "the protocol core has a channel"))
		case *ast.SendStmt:
			out = append(out, f.violation(n, "the protocol core sends on a channel"))
		case *ast.SelectStmt:
			out = append(out, f.violation(n, "the protocol core selects"))
		case *ast.UnaryExpr:
			if n.Op == token.ARROW {
				out = append(out, f.violation(n, "the protocol core receives from a channel"))
			}
		case *ast.SelectorExpr:
			if pkg, name, ok := f.selector(n); ok && pkg == "time" && clock[name] {
				out = append(out, f.violation(n, "the protocol core uses time.%s", name))
			}
		}
		return true
	})
	return out
}
