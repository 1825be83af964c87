package tidemark_test

import (
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/internal/house"
)

// TestHouse holds the architecture: the rules are in internal/house, each with
// a test that plants violations of it.
func TestHouse(t *testing.T) {
	tree, err := house.Load(os.DirFS("."))
	require.NoError(t, err)

	rules := []struct {
		name  string
		check func(*house.Tree) []house.Violation
	}{
		{"budgets", house.Budgets},
		{"arrows", house.Arrows},
		{"purity", house.Purity},
		{"sleeps", house.Sleeps},
		{"conduct", house.Conduct},
	}
	for _, r := range rules {
		t.Run(r.name, func(t *testing.T) {
			for _, v := range r.check(tree) {
				t.Error(v)
			}
		})
	}

	// A rule that looks at nothing holds for ever.
	t.Run("reach", func(t *testing.T) {
		has := func(want func(*house.File) bool) bool { return slices.ContainsFunc(tree.Files, want) }
		require.True(t, has(func(f *house.File) bool { return f.Path == "house_test.go" }))
		require.True(t, has(func(f *house.File) bool { return f.Dir == "transport/inproc" && f.Module == "." }))
		for _, name := range []string{"replica.go", "isr.go", "hw.go", "epoch.go", "election.go", "metadata.go", "link.go"} {
			require.True(t, has(func(f *house.File) bool { return f.Path == name && f.Pure() }), "%s is gone, or not held to be pure", name)
		}
	})
}
