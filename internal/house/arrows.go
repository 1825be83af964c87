package house

import (
	"path"
	"strings"
)

// arrow says what the packages of one part of the main module may import. The
// first arrow whose packages match applies; a package without one is a violation.
type arrow struct {
	packages string   // pattern of directories, see matches
	module   []string // patterns of directories of this module that it may import
	external string   // which imports from outside: "any", or "core" (see outside)
}

// contracts are the packages that an implementation builds on.
var contracts = []string{"transport", "storage", "coordination", "protocol", "record"}

// implementing is what the implementations of one contract may import: the
// contracts, and the internal packages that they share among them.
func implementing(contract string) []string {
	return append([]string{contract + "/internal/**"}, contracts...)
}

// onPebble is implementing, with what the implementations on Pebble share.
func onPebble(contract string) []string {
	return append([]string{pebbleShared}, implementing(contract)...)
}

// everything is all of the module but the examples, which nothing imports.
var everything = []string{".", "transport/**", "storage/**", "coordination/**", "protocol", "record", "local/**", "internal/**"}

// arrows is the architecture: every arrow points downwards.
var arrows = []arrow{
	{"examples/**", everything, "any"},
	{"local/**", everything, "any"},
	{".", contracts, "core"},
	{"transport", []string{"protocol"}, "any"},
	{"storage", []string{"protocol", "record"}, "any"},
	{"coordination", []string{"protocol"}, "any"},
	{"transport/**", implementing("transport"), "any"},   // and their own trees
	{"storage/**", onPebble("storage"), "any"},           // and their own trees
	{"coordination/**", onPebble("coordination"), "any"}, // and their own trees
	{"protocol", []string{"record"}, "any"},
	{"record", nil, "any"},
	{"internal/**", nil, "any"}, // and their own trees
}

const pebble = "github.com/cockroachdb/pebble"

// pebbleShared is the package that Pebble stores have in common.
const pebbleShared = "internal/pebblefs"

// pebbleUsers are the only packages that may import Pebble.
var pebbleUsers = []string{"local/**", "examples/**", "storage/pebblestore/**", "coordination/pebblecoord/**", pebbleShared}

// coreExternal is what the core may import beside the standard library, and
// coreForbidden what it may not import of the standard library.
var (
	coreExternal  = []string{"golang.org/x/sync"}
	coreForbidden = []string{"net", "os/signal"}
)

// Arrows checks the imports of the main module's files that are not tests.
func Arrows(t *Tree) []Violation {
	var out []Violation
	for _, f := range t.Files {
		if f.Test() || f.Module != "." {
			continue
		}
		rule, ok := arrowOf(f.Dir)
		if !ok {
			out = append(out, f.violation(f.AST, "package %s has no place in the table of arrows", f.Dir))
			continue
		}
		for _, spec := range f.AST.Imports {
			p := importPath(spec)
			if why := rule.refuses(f.Dir, p, t.ModulePath); why != "" {
				out = append(out, f.violation(spec, "package %s imports %s: %s", f.Dir, p, why))
			}
		}
	}
	return sorted(out)
}

func arrowOf(dir string) (arrow, bool) {
	for _, a := range arrows {
		if matches(dir, a.packages) {
			return a, true
		}
	}
	return arrow{}, false
}

// refuses says why a package in dir may not import p; "" if it may.
func (a arrow) refuses(dir, p, module string) string {
	if within(p, module) {
		target := "."
		if p != module {
			target = strings.TrimPrefix(p, module+"/")
		}
		if !anyMatches(target, a.module) && !within(target, ownTree(dir)) {
			return "not one of its arrows"
		}
		return ""
	}
	if within(p, pebble) && !anyMatches(dir, pebbleUsers) {
		return "only packages that wire or implement a Pebble store do"
	}
	if a.external == "core" {
		return outside(p)
	}
	return ""
}

// outside says why the core may not import p from outside of the module.
func outside(p string) string {
	for _, x := range coreForbidden {
		if within(p, x) {
			return "the core has no network and no signals"
		}
	}
	first, _, _ := strings.Cut(p, "/")
	if !strings.Contains(first, ".") {
		return "" // standard library
	}
	for _, x := range coreExternal {
		if within(p, x) {
			return ""
		}
	}
	return "the core uses the standard library and golang.org/x/sync only"
}

// ownTree is the directory below which a package may import freely: the first
// two elements of its path ("transport/tcp"), so that the implementations of
// one contract do not see each other. A contract, the core and a package of the
// first level have none.
func ownTree(dir string) string {
	parts := strings.Split(dir, "/")
	if len(parts) < 2 || parts[0] == "examples" {
		return "\x00" // within nothing
	}
	return path.Join(parts[0], parts[1])
}

// matches compares a directory with a pattern: itself, or "dir/**" for a
// directory and all below it.
func matches(dir, pattern string) bool {
	if tree, ok := strings.CutSuffix(pattern, "/**"); ok {
		return within(dir, tree)
	}
	return dir == pattern
}

func anyMatches(dir string, patterns []string) bool {
	for _, p := range patterns {
		if matches(dir, p) {
			return true
		}
	}
	return false
}
