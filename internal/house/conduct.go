package house

import (
	"go/ast"
	"path"
	"strings"
)

// Sleeps finds time.Sleep in tests outside a testing/synctest bubble: any use
// that is not in a function literal passed to synctest.Test. A file is a test
// if its name says so, or if it imports testing (a conformance suite).
func Sleeps(t *Tree) []Violation {
	var out []Violation
	for _, f := range t.Files {
		if !f.Test() && !f.importsPath("testing") {
			continue
		}
		bubbles := f.bubbles()
		ast.Inspect(f.AST, func(n ast.Node) bool {
			if lit, ok := n.(*ast.FuncLit); ok && bubbles[lit] {
				return false
			}
			if pkg, name, ok := f.selector(n); ok && pkg == "time" && name == "Sleep" {
				out = append(out, f.violation(n, "a test uses time.Sleep outside a synctest bubble"))
			}
			return true
		})
	}
	return sorted(out)
}

func (f *File) importsPath(p string) bool {
	for _, spec := range f.AST.Imports {
		if importPath(spec) == p {
			return true
		}
	}
	return false
}

// bubbles are the function literals passed to synctest.Test.
func (f *File) bubbles() map[*ast.FuncLit]bool {
	found := map[*ast.FuncLit]bool{}
	ast.Inspect(f.AST, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		if pkg, name, ok := f.selector(call.Fun); !ok || pkg != "testing/synctest" || name != "Test" {
			return true
		}
		for _, arg := range call.Args {
			if lit, ok := arg.(*ast.FuncLit); ok {
				found[lit] = true
			}
		}
		return true
	})
	return found
}

// Conduct finds what a library must not do to its host: init functions
// (anywhere), and outside of commands ending the process, handling signals, and
// writing to stdout or stderr. An Example may print, and so may what it calls in
// example_test.go; a test may look at the process's files; main_test.go, where a test
// binary is made a process of its own, is a command. Imports into the file's own scope
// (".") are refused everywhere, because they would hide names from all of these checks.
func Conduct(t *Tree) []Violation {
	var out []Violation
	for _, f := range t.Files {
		for _, spec := range f.AST.Imports {
			if localName(spec) == "." {
				out = append(out, f.violation(spec, "import of %s without its name", importPath(spec)))
			}
		}
		for _, d := range f.AST.Decls {
			fn, isFunc := d.(*ast.FuncDecl)
			if isFunc && fn.Recv == nil && fn.Name.Name == "init" {
				out = append(out, f.violation(fn, "init function"))
			}
			if f.AST.Name.Name == "main" || path.Base(f.Path) == "main_test.go" {
				continue
			}
			example := isFunc && f.Test() && fn.Recv == nil && (strings.HasPrefix(fn.Name.Name, "Example") || f.examples())
			out = append(out, f.misconduct(d, example)...)
		}
	}
	return sorted(out)
}

// examples reports whether the file is there for Examples and what they share.
func (f *File) examples() bool { return path.Base(f.Path) == "example_test.go" }

func (f *File) misconduct(d ast.Decl, example bool) []Violation {
	var out []Violation
	ast.Inspect(d, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			if id, ok := call.Fun.(*ast.Ident); ok && id.Obj == nil && (id.Name == "print" || id.Name == "println") {
				out = append(out, f.violation(n, "%s writes to stderr", id.Name))
			}
		}
		pkg, name, ok := f.selector(n)
		if !ok {
			return true
		}
		switch {
		case pkg == "os" && name == "Exit", pkg == "syscall" && name == "Exit":
			out = append(out, f.violation(n, "%s.%s outside a command", pkg, name))
		case pkg == "os/signal":
			out = append(out, f.violation(n, "signal.%s outside a command", name))
		case pkg == "log" && (strings.HasPrefix(name, "Fatal") || strings.HasPrefix(name, "Panic") || strings.HasPrefix(name, "Print")):
			out = append(out, f.violation(n, "log.%s outside a command", name))
		case pkg == "fmt" && strings.HasPrefix(name, "Print") && !example,
			pkg == "os" && (name == "Stdout" || name == "Stderr") && !f.Test():
			out = append(out, f.violation(n, "%s.%s outside a command or an Example", pkg, name))
		}
		return true
	})
	return out
}
