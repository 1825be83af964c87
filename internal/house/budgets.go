package house

import (
	"go/ast"
)

// Budgets of the files that are not tests.
const (
	MaxFileLines        = 600
	MaxFunctionLines    = 70 // from "func" to the closing brace
	MaxInterfaceMethods = 8  // with those that embedding brings in from the same package
)

// Budgets checks the size of files, functions and interfaces, in all modules.
func Budgets(t *Tree) []Violation {
	var out []Violation
	interfaces := namedInterfaces(t)
	for _, f := range t.Files {
		if f.Test() {
			continue
		}
		if f.Lines > MaxFileLines {
			out = append(out, f.violation(f.AST, "file has %d lines, more than %d", f.Lines, MaxFileLines))
		}
		ast.Inspect(f.AST, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				if lines := f.span(n); lines > MaxFunctionLines {
					out = append(out, f.violation(n, "function %s has %d lines, more than %d", n.Name.Name, lines, MaxFunctionLines))
					return false // its literals are reported with it
				}
			case *ast.FuncLit:
				if lines := f.span(n); lines > MaxFunctionLines {
					out = append(out, f.violation(n, "function literal has %d lines, more than %d", lines, MaxFunctionLines))
				}
			case *ast.InterfaceType:
				set := map[string]bool{}
				collect(n, packageOf(f), interfaces, set, map[*ast.InterfaceType]bool{})
				if len(set) > MaxInterfaceMethods {
					out = append(out, f.violation(n, "interface has %d methods, more than %d", len(set), MaxInterfaceMethods))
				}
			}
			return true
		})
	}
	return sorted(out)
}

// span counts the lines of a function. Comments before it do not count.
func (f *File) span(n ast.Node) int {
	first := n.Pos()
	if d, ok := n.(*ast.FuncDecl); ok {
		first = d.Type.Pos()
	}
	return f.fset.Position(n.End()).Line - f.fset.Position(first).Line + 1
}

type packageKey struct{ dir, name string }

type typeKey struct {
	pkg  packageKey
	name string
}

func packageOf(f *File) packageKey { return packageKey{f.Dir, f.AST.Name.Name} }

func namedInterfaces(t *Tree) map[typeKey]*ast.InterfaceType {
	named := map[typeKey]*ast.InterfaceType{}
	for _, f := range t.Files {
		if f.Test() {
			continue
		}
		ast.Inspect(f.AST, func(n ast.Node) bool {
			if spec, ok := n.(*ast.TypeSpec); ok {
				if it, ok := spec.Type.(*ast.InterfaceType); ok {
					named[typeKey{packageOf(f), spec.Name.Name}] = it
				}
			}
			return true
		})
	}
	return named
}

// collect adds the method names of it to set, following embedded interfaces of
// its own package.
func collect(it *ast.InterfaceType, pkg packageKey, named map[typeKey]*ast.InterfaceType, set map[string]bool, seen map[*ast.InterfaceType]bool) {
	if seen[it] {
		return
	}
	seen[it] = true
	for _, field := range it.Methods.List {
		for _, name := range field.Names {
			set[name.Name] = true
		}
		if len(field.Names) > 0 {
			continue
		}
		switch e := embedded(field.Type).(type) {
		case *ast.Ident:
			if inner := named[typeKey{pkg, e.Name}]; inner != nil {
				collect(inner, pkg, named, set, seen)
			}
		case *ast.InterfaceType:
			collect(e, pkg, named, set, seen)
		}
	}
}

// embedded strips parentheses and type arguments.
func embedded(e ast.Expr) ast.Expr {
	for {
		switch x := e.(type) {
		case *ast.ParenExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.IndexListExpr:
			e = x.X
		default:
			return e
		}
	}
}
