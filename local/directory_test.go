package local

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/coordination/pebblecoord"
	"github.com/tidemark-log/tidemark/storage"
)

// An Open that is refused changes nothing: the cluster is still what it was.
func TestRefusedOpenChangesNothing(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	base := t.TempDir()
	dir, link := filepath.Join(base, "real"), filepath.Join(base, "link")
	one := Options{Brokers: 1, MemoryBudget: 32 << 20}
	three := Options{Brokers: 3, MemoryBudget: 32 << 20}
	c, err := Open(ctx, dir, one)
	require.NoError(t, err)
	require.NoError(t, os.Symlink(dir, link))
	before, err := os.ReadFile(filepath.Join(dir, markerName))
	require.NoError(t, err)
	require.JSONEq(t, `{"format":1,"brokers":1}`, string(before))
	for _, name := range []string{dir, link, filepath.Join(base, ".", "link")} {
		_, err = Open(ctx, name, three)
		require.ErrorIs(t, err, ErrInUse, name)
	}
	after, err := os.ReadFile(filepath.Join(dir, markerName))
	require.NoError(t, err)
	require.Equal(t, before, after)
	require.NoError(t, c.Close())
	c, err = Open(ctx, link, one)
	require.NoError(t, err)
	require.NoError(t, c.Close())

	// A new directory of which the rest could not be made says nothing of a number.
	dir = filepath.Join(base, "new")
	require.NoError(t, os.Mkdir(dir, 0o700))
	_, err = claim(vfs.Default, dir, 3)
	require.NoError(t, err)
	foreign := filepath.Join(dir, "coordination")
	require.NoError(t, os.WriteFile(foreign, nil, 0o600))
	_, err = Open(ctx, dir, three)
	require.Error(t, err)
	require.NoError(t, os.Remove(foreign))
	c, err = Open(ctx, dir, one)
	require.NoError(t, err)
	require.NoError(t, c.Close())
}

func brokersOf(t *testing.T, fs vfs.FS, dir string) int {
	m, err := readMarker(fs, dir)
	require.NoError(t, err)
	require.NotNil(t, m)
	return m.Brokers
}

// Two that open a new directory at the same time do not undo each other's marker.
func TestLateFounder(t *testing.T) {
	fs := vfs.NewMem()
	_, err := claim(fs, "d", 3)
	require.NoError(t, err)
	require.Zero(t, brokersOf(t, fs, "d"))
	require.NoError(t, enlarge(fs, "d", 3))
	require.Equal(t, 3, brokersOf(t, fs, "d"))
	// This one saw an empty directory before.
	require.ErrorIs(t, found(fs, "d", 1), ErrFewerBrokers)
	require.NoError(t, found(fs, "d", 5))
	require.Equal(t, 3, brokersOf(t, fs, "d"))
	// This one had its claim before the other grew.
	require.ErrorIs(t, enlarge(fs, "d", 2), ErrFewerBrokers)
	require.Equal(t, 3, brokersOf(t, fs, "d"))

	lock, err := fs.Lock("d/" + lockName)
	require.NoError(t, err)
	require.ErrorIs(t, found(fs, "d", 3), ErrInUse)
	_, err = claim(fs, "d", 3)
	require.NoError(t, err, "a cluster that exists is not founded again")
	require.NoError(t, lock.Close())
}

// A power cut at any step of the founding leaves a directory that can be opened; one
// after it leaves the whole of it, with the directories above.
func TestPowerCutWhileFounded(t *testing.T) {
	const dir = "a/b/c"
	mem := vfs.NewCrashableMem()
	rng := rand.New(rand.NewPCG(1, 1))
	steps := 0
	watched := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() != errorfs.OpIsWrite {
			return nil
		}
		steps++
		for _, percent := range []int{0, 30, 70, 100} {
			clone := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng})
			at := fmt.Sprintf("%v %s, %d %%", op.Kind, op.Path, percent)
			_, err := claim(clone, dir, 2)
			require.NoError(t, err, at)
			require.NoError(t, enlarge(clone, dir, 2), at)
			require.Equal(t, 2, brokersOf(t, clone.CrashClone(vfs.CrashCloneCfg{}), dir), at)
		}
		return nil
	}))
	_, err := claim(watched, dir, 1)
	require.NoError(t, err)
	require.Zero(t, brokersOf(t, mem.CrashClone(vfs.CrashCloneCfg{}), dir))
	require.NoError(t, enlarge(watched, dir, 2))
	require.Equal(t, 2, brokersOf(t, mem.CrashClone(vfs.CrashCloneCfg{}), dir))
	require.Greater(t, steps, 15)
}

// What a store in the directory says of itself is said by Open in this package's words.
func TestTranslate(t *testing.T) {
	for want, of := range map[error][]error{
		ErrInUse:   {storage.ErrInUse, pebblecoord.ErrInUse},
		ErrForeign: {storage.ErrForeign, pebblecoord.ErrForeign},
		ErrFormat:  {storage.ErrFormat, pebblecoord.ErrFormat},
		ErrDamaged: {storage.ErrDamaged, pebblecoord.ErrDamaged},
	} {
		for _, err := range of {
			got := translate(fmt.Errorf("x: %w", err))
			require.ErrorIs(t, got, want)
			require.ErrorIs(t, got, err)
		}
	}
	require.NoError(t, translate(nil))
}
