package pebblecoord_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/coordination/pebblecoord"
)

var ctx = context.Background()

func open(t testing.TB, fs vfs.FS, dir string) *pebblecoord.Store {
	t.Helper()
	s, err := pebblecoord.Open(dir, pebblecoord.Options{FS: fs})
	require.NoError(t, err)
	return s
}

func put(key, value, session string) coordination.Txn {
	return coordination.Txn{Ops: []coordination.Op{{Key: key, Value: []byte(value), Session: session}}}
}

func do(t testing.TB, c coordination.Store, txn coordination.Txn) int64 {
	t.Helper()
	res, err := c.Do(ctx, txn)
	require.NoError(t, err)
	require.True(t, res.Applied)
	return res.Revision
}

func TestReopen(t *testing.T) {
	defer goleak.VerifyNone(t)
	fs := vfs.NewMem()
	want := make(map[string]coordination.KV)
	ids := make(map[string]bool)
	last := int64(0)
	for round := range 5 {
		s := open(t, fs, "/some/where")
		c := s.Connect()
		kvs, rev, err := c.List(ctx, "")
		require.NoError(t, err)
		got := make(map[string]coordination.KV)
		for _, kv := range kvs {
			got[kv.Key] = kv
		}
		require.Equal(t, want, got)
		if round > 0 {
			require.Equal(t, last+1, rev, "one transaction dropped the ephemeral keys")
		}
		// What happened before the open cannot be watched.
		ch, err := c.Watch(ctx, "", last)
		require.NoError(t, err)
		if round > 0 {
			require.ErrorIs(t, (<-ch).Err, coordination.ErrCompacted)
		}

		for old := range ids {
			_, err := c.Do(ctx, put("x", "", old))
			require.ErrorIs(t, err, coordination.ErrSessionExpired)
		}
		var sess coordination.Session
		for range 3 {
			sess, err = c.NewSession(ctx, time.Hour)
			require.NoError(t, err)
			require.False(t, ids[sess.ID()], "session id twice")
			ids[sess.ID()] = true
		}
		for i, value := range []string{"", "v", "\x00\xff", fmt.Sprintf("%01000d", round)} {
			key := fmt.Sprintf("k/%d/\x00%d", round, i)
			rev := do(t, c, put(key, value, ""))
			require.Greater(t, rev, last)
			last = rev
			want[key] = coordination.KV{Key: key, Value: []byte(value), Revision: rev}
		}
		do(t, c, put("e/1", "", sess.ID()))
		do(t, c, put("was-persistent", "", ""))
		do(t, c, put("was-persistent", "", sess.ID()))
		do(t, c, put("was-ephemeral", "", sess.ID()))
		rev = do(t, c, put("was-ephemeral", "", ""))
		want["was-ephemeral"] = coordination.KV{Key: "was-ephemeral", Value: []byte{}, Revision: rev}
		do(t, c, coordination.Txn{Ops: []coordination.Op{{Key: "k/0/\x001", Delete: true}, {Key: "e/2", Session: sess.ID()}}})
		last = rev + 1
		delete(want, "k/0/\x001")
		if round == 3 { // sessions that ended before the close leave nothing to drop
			ending := do(t, c, put("end", "", sess.ID()))
			require.NoError(t, sess.Close(ctx))
			sess, err = c.NewSession(ctx, time.Hour)
			require.NoError(t, err)
			last = do(t, c, put("e/3", "", sess.ID()))
			require.Equal(t, ending+2, last)
		}
		require.NoError(t, s.Close())
		require.NoError(t, s.Close())
		_, _, err = c.Get(ctx, "k")
		require.ErrorIs(t, err, coordination.ErrClosed)
		_, _, err = s.Connect().Get(ctx, "k")
		require.ErrorIs(t, err, coordination.ErrClosed)
	}
}

// TestRealDirectory is a round trip on the operating system's file system.
func TestRealDirectory(t *testing.T) {
	base := t.TempDir()
	dir := filepath.Join(base, "a", "b")
	s := open(t, nil, dir)
	rev := do(t, s.Connect(), put("k", "v", ""))
	link := filepath.Join(base, "link")
	require.NoError(t, os.Symlink(dir, link))
	for _, name := range []string{dir, link, dir + "/../b"} {
		_, err := pebblecoord.Open(name, pebblecoord.Options{})
		require.ErrorIs(t, err, pebblecoord.ErrInUse, name)
	}
	require.NoError(t, s.Close())
	s = open(t, nil, link)
	kv, ok, err := s.Connect().Get(ctx, "k")
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, rev, kv.Revision)
	require.NoError(t, s.Close())

	file := filepath.Join(base, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err = pebblecoord.Open(file, pebblecoord.Options{})
	require.Error(t, err)
}

func TestForeignDirectory(t *testing.T) {
	for _, names := range [][]string{{"something"}, {"LOCK", "000002.log"}, {"db"}, {"TIDEMARK-COORDINATION.new", "x"}} {
		mem := vfs.NewMem()
		require.NoError(t, mem.MkdirAll("/d", 0o755))
		for _, name := range names {
			writeFile(t, mem, "/d/"+name, "theirs")
		}
		writes := 0
		fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
			// Closing what was opened for reading is no write, whatever errorfs calls it.
			if op.Kind.ReadOrWrite() == errorfs.OpIsWrite && op.Kind != errorfs.OpFileClose {
				writes++
			}
			return nil
		}))
		_, err := pebblecoord.Open("/d", pebblecoord.Options{FS: fs})
		require.ErrorIs(t, err, pebblecoord.ErrForeign, "%v", names)
		require.Zero(t, writes, "%v", names)
	}
}

func TestFormats(t *testing.T) {
	for _, text := range []string{"", "tidemark coordination store, format 2\n", "tidemark coordination store, format 1\nmore", "x"} {
		fs := vfs.NewMem()
		require.NoError(t, fs.MkdirAll("/d", 0o755))
		writeFile(t, fs, "/d/TIDEMARK-COORDINATION", text)
		_, err := pebblecoord.Open("/d", pebblecoord.Options{FS: fs})
		require.ErrorIs(t, err, pebblecoord.ErrFormat, "%q", text)
		names, err := fs.List("/d")
		require.NoError(t, err)
		require.Equal(t, []string{"TIDEMARK-COORDINATION"}, names)
	}
	// What a crash leaves of the first open is no obstacle.
	fs := vfs.NewMem()
	require.NoError(t, fs.MkdirAll("/d", 0o755))
	writeFile(t, fs, "/d/TIDEMARK-COORDINATION.new", "tide")
	writeFile(t, fs, "/d/LOCK", "")
	s := open(t, fs, "/d")
	_, err := pebblecoord.Open("/d", pebblecoord.Options{FS: fs})
	require.ErrorIs(t, err, pebblecoord.ErrInUse)
	require.NoError(t, s.Close())
}

func writeFile(t *testing.T, fs vfs.FS, name, text string) {
	f, err := fs.Create(name, vfs.WriteCategoryUnspecified)
	require.NoError(t, err)
	_, err = f.Write([]byte(text))
	require.NoError(t, err)
	require.NoError(t, f.Close())
}
