// Package house holds the rules of this repository's architecture as checks
// over its source: budgets, import arrows, purity of the protocol core, and
// conduct (no sleeping tests, no init, nothing on stdout). The test at the root
// runs them all. No rule has a list of exceptions.
package house

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"sort"
	"strconv"
	"strings"
)

// File is one Go source file of the repository.
type File struct {
	Path   string // from the repository's root, with slashes
	Dir    string // path.Dir of Path; "." at the root
	Module string // directory of the go.mod it belongs to; "." for the main one
	Lines  int
	AST    *ast.File

	fset    *token.FileSet
	imports map[string]string // local name -> import path
}

// Test tells whether the file is compiled for tests only.
func (f *File) Test() bool { return strings.HasSuffix(f.Path, "_test.go") }

// Tree is all the Go source of the repository.
type Tree struct {
	ModulePath string // of the main module
	Files      []*File
}

// Violation is one place where the source breaks a rule.
type Violation struct {
	Path string
	Line int
	Rule string // what is wrong, in a sentence
}

func (v Violation) String() string { return fmt.Sprintf("%s:%d: %s", v.Path, v.Line, v.Rule) }

// Load parses every .go file under root, in all modules. Like the go command it
// passes by testdata, vendor, and names that begin with "." or "_".
func Load(root fs.FS) (*Tree, error) {
	mod, err := fs.ReadFile(root, "go.mod")
	if err != nil {
		return nil, err
	}
	t := &Tree{ModulePath: modulePath(string(mod))}
	if t.ModulePath == "" {
		return nil, fmt.Errorf("house: go.mod has no module line")
	}
	modules := map[string]string{}
	err = fs.WalkDir(root, ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		hidden := p != "." && (strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_"))
		if d.IsDir() {
			if hidden || name == "testdata" || name == "vendor" {
				return fs.SkipDir
			}
			modules[p] = modules[path.Dir(p)]
			if _, err := fs.Stat(root, path.Join(p, "go.mod")); err == nil {
				modules[p] = p
			}
			return nil
		}
		if hidden || path.Ext(name) != ".go" {
			return nil
		}
		f, err := parse(root, p)
		if err != nil {
			return err
		}
		f.Module = modules[f.Dir]
		t.Files = append(t.Files, f)
		return nil
	})
	return t, err
}

func modulePath(mod string) string {
	for line := range strings.Lines(mod) {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(line), "module "); ok {
			return strings.Trim(strings.TrimSpace(rest), `"`)
		}
	}
	return ""
}

func parse(root fs.FS, p string) (*File, error) {
	src, err := fs.ReadFile(root, p)
	if err != nil {
		return nil, err
	}
	f := &File{Path: p, Dir: path.Dir(p), fset: token.NewFileSet(), imports: map[string]string{}}
	f.AST, err = parser.ParseFile(f.fset, p, src, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	f.Lines = strings.Count(string(src), "\n")
	if len(src) > 0 && src[len(src)-1] != '\n' {
		f.Lines++
	}
	for _, spec := range f.AST.Imports {
		f.imports[localName(spec)] = importPath(spec)
	}
	return f, nil
}

func importPath(spec *ast.ImportSpec) string {
	p, err := strconv.Unquote(spec.Path.Value)
	if err != nil {
		return spec.Path.Value
	}
	return p
}

// localName is the name under which a file sees an import. Without an explicit
// one it is the last element of the path that is not a major version.
func localName(spec *ast.ImportSpec) string {
	if spec.Name != nil {
		return spec.Name.Name
	}
	p := importPath(spec)
	base := path.Base(p)
	if strings.HasPrefix(base, "v") && strings.Trim(base[1:], "0123456789") == "" && base != "v" {
		base = path.Base(path.Dir(p))
	}
	return base
}

// selector resolves n as a reference to a name of an imported package.
func (f *File) selector(n ast.Node) (pkg, name string, ok bool) {
	sel, ok := n.(*ast.SelectorExpr)
	if !ok {
		return "", "", false
	}
	id, ok := sel.X.(*ast.Ident)
	if !ok || id.Obj != nil { // declared in this file: a variable, not a package
		return "", "", false
	}
	pkg, ok = f.imports[id.Name]
	return pkg, sel.Sel.Name, ok
}

func (f *File) violation(n ast.Node, format string, args ...any) Violation {
	return Violation{Path: f.Path, Line: f.fset.Position(n.Pos()).Line, Rule: fmt.Sprintf(format, args...)}
}

// within tells whether p is dir or below it.
func within(p, dir string) bool {
	return p == dir || strings.HasPrefix(p, dir+"/")
}

func sorted(vs []Violation) []Violation {
	sort.SliceStable(vs, func(i, j int) bool {
		if vs[i].Path != vs[j].Path {
			return vs[i].Path < vs[j].Path
		}
		return vs[i].Line < vs[j].Line
	})
	return vs
}
