package pebblecoord_test

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/coordination/pebblecoord"
)

// contents of the files of a store, by path.
func contents(t *testing.T, fs vfs.FS) map[string]string {
	all := make(map[string]string)
	for _, dir := range []string{"data", "data/db"} {
		names, err := fs.List(dir)
		require.NoError(t, err)
		for _, name := range names {
			path := fs.PathJoin(dir, name)
			if path == "data/db" {
				continue
			}
			f, err := fs.Open(path)
			require.NoError(t, err)
			b, err := io.ReadAll(f)
			require.NoError(t, err)
			require.NoError(t, f.Close())
			all[path] = string(b)
		}
	}
	return all
}

func flip(t *testing.T, fs vfs.FS, path string, at int, was byte) {
	f, err := fs.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
	require.NoError(t, err)
	_, err = f.WriteAt([]byte{was ^ 0xff}, int64(at))
	require.NoError(t, err)
	require.NoError(t, f.Close())
}

// newestWAL returns the path and the length of the log that is being written.
func newestWAL(t *testing.T, fs vfs.FS) (path string, size int) {
	names, err := fs.List("data/db")
	require.NoError(t, err)
	newest := ""
	for _, name := range names {
		if strings.HasSuffix(name, ".log") {
			newest = max(newest, name)
		}
	}
	path = fs.PathJoin("data/db", newest)
	info, err := fs.Stat(path)
	require.NoError(t, err)
	return path, int(info.Size())
}

// TestFlippedByte damages a store at each place of each of its files. It opens as it
// was, or it says that it is damaged, again and again, and leaves everything as it is.
// Only what a crash may have cut short, the last write, may be missing instead.
func TestFlippedByte(t *testing.T) {
	for _, size := range []int{1, 3 << 10, 400 << 10} {
		mem := vfs.NewCrashableMem()
		j := newJournal()
		value := strings.Repeat("x", size)
		require.NoError(t, live(t, mem, j, value))
		s := open(t, mem, "data")
		c := s.Connect()
		for n := range 12 {
			_, err := j.do(ctx, c, put(fmt.Sprintf("late/%d", n), value, ""))
			require.NoError(t, err)
		}
		before := j.copy()
		wal, covered := newestWAL(t, mem)
		last := put("last", value, "")
		_, err := j.do(ctx, c, last)
		require.NoError(t, err)
		before.open[&attempt{ops: last.Ops}] = true
		if now, _ := newestWAL(t, mem); now != wal {
			wal, covered = now, 0
		}
		small := size < 400<<10
		crashed := mem.CrashClone(vfs.CrashCloneCfg{})
		require.NoError(t, s.Close())
		t.Run(fmt.Sprint(size, " crashed"), func(t *testing.T) {
			flipEach(t, crashed, small, func(path string, at int) *journal {
				if path == wal && at >= covered {
					return before
				}
				return j
			})
		})
		t.Run(fmt.Sprint(size, " closed"), func(t *testing.T) {
			flipEach(t, mem, small, func(string, int) *journal { return j })
		})
	}
}

// flipEach looks at the manifests only where files are large, unless asked for more: there
// each place takes long.
func flipEach(t *testing.T, mem *vfs.MemFS, small bool, journal func(path string, at int) *journal) {
	refused := make(map[string]int)
	for path, b := range contents(t, mem) {
		step := 1 + len(b)/60
		switch {
		case small && *matrix:
			step = 1 + len(b)/10_000
		case !small && !*matrix:
			if step = 1 + len(b)/12; !strings.Contains(path, "MANIFEST") {
				continue
			}
		}
		if testing.Short() {
			step *= 4
		}
		for at := 0; at < len(b); at += step {
			fs := mem.CrashClone(vfs.CrashCloneCfg{})
			flip(t, fs, path, at, b[at])
			damaged := contents(t, fs)
			err := journal(path, at).check(fs)
			if err == nil {
				continue
			}
			refused[path]++
			switch {
			case strings.HasSuffix(path, "TIDEMARK-COORDINATION"):
				require.ErrorIs(t, err, pebblecoord.ErrFormat, "byte %d of %s", at, path)
			case strings.Contains(path, "OPTIONS"): // may be those of another program, too
			default:
				require.ErrorIs(t, err, pebblecoord.ErrDamaged, "byte %d of %s", at, path)
			}
			require.Equal(t, damaged, contents(t, fs), "byte %d of %s", at, path)
			_, again := pebblecoord.Open("data", pebblecoord.Options{FS: fs})
			require.EqualError(t, again, err.Error(), "byte %d of %s", at, path)
		}
	}
	kinds := []string{"MANIFEST"}
	if small {
		kinds = append(kinds, "COORDINATION", ".log", ".sst")
	}
	for _, kind := range kinds {
		n := 0
		for path, times := range refused {
			if strings.Contains(path, kind) {
				n += times
			}
		}
		require.Positive(t, n, kind)
	}
}

// TestLostDatabase: a store whose database is gone, or the file that names its
// manifest, is not a new one.
func TestLostDatabase(t *testing.T) {
	for _, lost := range []string{"db", "db/marker.manifest"} {
		mem := vfs.NewMem()
		require.NoError(t, live(t, mem, newJournal(), ""))
		for path := range contents(t, mem) {
			if strings.HasPrefix(path, "data/"+lost) {
				require.NoError(t, mem.Remove(path))
			}
		}
		if lost == "db" {
			require.NoError(t, mem.Remove("data/db"))
		}
		for range 2 {
			s, err := pebblecoord.Open("data", pebblecoord.Options{FS: mem})
			if err == nil {
				require.NoError(t, s.Close())
			}
			require.ErrorIs(t, err, pebblecoord.ErrDamaged, lost)
		}
	}
}
