package zookeeper_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/coordination/zookeeper"
	"github.com/tidemark-log/tidemark/coordination/zookeeper/zkserver"
)

// own starts a server for one test, and opens a Store on it.
func own(t *testing.T) (*zkserver.Server, *zookeeper.Store, zookeeper.Config) {
	server := zkserver.StartTest(t, zkserver.Options{NoSync: true})
	c := zookeeper.Config{Servers: []string{server.Addr()}, DialTimeout: 3 * time.Second}
	return server, open(t, c), c
}

// back waits until a server that was restarted answers a Store. An attempt to connect that was
// made while it started may have to be given up first.
func back(t *testing.T, s coordination.Store) {
	t.Helper()
	eventually(t, func() bool {
		_, _, err := s.Get(t.Context(), "/k")
		return err == nil
	})
}

// TestRestart: a server that is killed and comes back within a session loses nothing: the
// session goes on, and watches begin again without a gap.
func TestRestart(t *testing.T) {
	server, s, c := own(t)
	x := session(t, s, 10*time.Second)
	rev := do(t, s, putFor(x, "/e", ""), put("/k", "0"))
	ch := watch(t, s, "/k", rev)
	for i := range 3 {
		require.NoError(t, server.Kill())
		ends(t, ch, coordination.ErrUnavailable)
		require.ErrorIs(t, x.Renew(t.Context()), coordination.ErrUnavailable)
		_, err := s.Do(t.Context(), coordination.Txn{Ops: []coordination.Op{put("/k", "lost")}})
		require.ErrorIs(t, err, coordination.ErrUnavailable)
		require.NoError(t, server.Restart())
		back(t, s)
		eventually(t, func() bool { return x.Renew(t.Context()) == nil })
		do(t, open(t, c), put("/k", fmt.Sprintf("%d, by another", i)))
		last := do(t, s, put("/k", fmt.Sprint(i)))
		ch = watch(t, s, "/k", rev)
		require.Equal(t, []string{fmt.Sprintf("/k=%d, by another", i), fmt.Sprintf("/k=%d", i)}, told(t, ch, 2))
		rev = last
		require.Equal(t, []string{"/e", "/k"}, keys(t, s, ""))
	}
}

// TestServerStandsStill: calls wait for a server that stands still, no longer than they
// may; Close does not wait for it.
func TestServerStandsStill(t *testing.T) {
	server, _, c := own(t)
	c.RequestTimeout = time.Second
	s, closed := open(t, c), open(t, c)
	ch := watch(t, s, "", 0)
	require.NoError(t, server.Pause())
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := s.Do(ctx, coordination.Txn{Ops: []coordination.Op{put("/a", "")}})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorIs(t, err, coordination.ErrUnavailable)
	result := make(chan error, 1)
	go func() {
		_, _, err := closed.Get(context.Background(), "/a")
		result <- err
	}()
	begun := time.Now()
	require.NoError(t, closed.Close())
	require.ErrorIs(t, <-result, coordination.ErrClosed)
	require.Less(t, time.Since(begun), 900*time.Millisecond)

	_, err = s.Do(t.Context(), coordination.Txn{Ops: []coordination.Op{put("/b", "")}})
	require.ErrorIs(t, err, coordination.ErrUnavailable, "after RequestTimeout")
	ends(t, ch, coordination.ErrUnavailable)
	require.NoError(t, server.Resume())
	back(t, s)
	do(t, s, put("/c", ""))
}

// TestRestoredBackup: a server that was set back to an older state is noticed by whoever
// has seen a newer one, and not obeyed, as long as it is behind.
func TestRestoredBackup(t *testing.T) {
	server, before, c := own(t)
	do(t, before, put("/k", "old"))
	require.NoError(t, before.Close())
	require.NoError(t, server.Stop())
	backup := filepath.Join(t.TempDir(), "backup")
	require.NoError(t, os.CopyFS(backup, os.DirFS(server.DataDir())))
	require.NoError(t, server.Restart())

	var log bytes.Buffer
	c.Logger = slog.New(slog.NewTextHandler(&log, nil))
	s := open(t, c)
	rev := int64(0)
	for i := range 30 {
		rev = do(t, s, put("/k", fmt.Sprint(i)))
	}
	ch := watch(t, s, "", rev)
	require.NoError(t, server.Stop())
	require.NoError(t, os.RemoveAll(server.DataDir()))
	require.NoError(t, os.CopyFS(server.DataDir(), os.DirFS(backup)))
	require.NoError(t, server.Restart())

	ends(t, ch, coordination.ErrUnavailable)
	_, _, err := s.Get(t.Context(), "/k")
	require.ErrorIs(t, err, coordination.ErrUnavailable)
	require.ErrorContains(t, err, "restored from a backup")
	_, _, err = s.List(t.Context(), "")
	require.ErrorIs(t, err, coordination.ErrUnavailable)
	_, err = s.Do(t.Context(), coordination.Txn{Ops: []coordination.Op{put("/k", "no")}})
	require.ErrorIs(t, err, coordination.ErrUnavailable)
	_, err = s.Watch(t.Context(), "", rev)
	require.ErrorIs(t, err, coordination.ErrUnavailable)
	_, err = s.NewSession(t.Context(), time.Second)
	require.ErrorIs(t, err, coordination.ErrUnavailable)
	require.Contains(t, log.String(), "restored from a backup")

	// Other users of the servers may bring their zxid forward, but not this chroot.
	o := newOperator(t, c)
	for i := range 100 {
		_, err := o.Create(fmt.Sprint("/other", i), nil, 0, zk.WorldACL(zk.PermAll))
		require.NoError(t, err)
	}
	_, _, err = s.Get(t.Context(), "/k")
	require.ErrorIs(t, err, coordination.ErrUnavailable)
	require.ErrorContains(t, err, "restored from a backup")

	// Who has seen nothing goes on from there.
	c.Logger = nil
	new := open(t, c)
	kv, _, err := new.Get(t.Context(), "/k")
	require.NoError(t, err)
	require.Equal(t, "old", string(kv.Value))
	// Once the server has passed what was seen, nothing shows any more.
	for i := range 60 {
		do(t, new, put("/k", fmt.Sprint("new ", i)))
	}
	kv, _, err = s.Get(t.Context(), "/k")
	require.NoError(t, err)
	require.Equal(t, "new 59", string(kv.Value))
}

// TestEmptied: a server that has lost everything is not taken for a new one.
func TestEmptied(t *testing.T) {
	server, s, c := own(t)
	do(t, s, put("/k", ""))
	require.NoError(t, server.Stop())
	require.NoError(t, os.RemoveAll(server.DataDir()))
	require.NoError(t, os.Mkdir(server.DataDir(), 0o755))
	require.NoError(t, server.Restart())
	_, _, err := s.Get(t.Context(), "/k")
	require.ErrorIs(t, err, coordination.ErrUnavailable)
	// Also when it has come further than this Store knew.
	o := newOperator(t, c)
	for range 50 {
		_, err := o.Create("/x", nil, 0, nil)
		require.Error(t, err) // but it counts
	}
	_, _, err = s.Get(t.Context(), "/k")
	require.ErrorIs(t, err, coordination.ErrUnavailable)
	ok, _, err := o.Exists(c.Chroot)
	if err == nil {
		require.False(t, ok, "nothing is made")
	}
}

// TestTooLarge: what the server would not read is refused before it is sent.
func TestTooLarge(t *testing.T) {
	s, _ := fresh(t)
	ch := watch(t, s, "", 0)
	noise := make([]byte, 1_000_000)
	for i := range noise {
		noise[i] = byte(rand.Uint32())
	}
	_, err := s.Do(t.Context(), coordination.Txn{Ops: []coordination.Op{{Key: "/k", Value: noise}}})
	require.ErrorIs(t, err, zookeeper.ErrTooLarge)
	require.NotErrorIs(t, err, coordination.ErrUnavailable)
	do(t, s, put("/k", "small"))
	require.Equal(t, []string{"/k=small"}, told(t, ch, 1), "the connection is as it was")
	// The contract's limit fits, whatever the values are.
	var ops []coordination.Op
	for i := range coordination.MaxTxnOps {
		key := fmt.Sprintf("/brokers/topics/%s/partitions/%d/state", strings.Repeat("t", 200), i)
		size := coordination.MaxTxnBytes/coordination.MaxTxnOps - len(key)
		ops = append(ops, coordination.Op{Key: key, Value: noise[i*size : (i+1)*size]})
	}
	do(t, s, ops...)
	require.Len(t, keys(t, s, "/brokers/"), coordination.MaxTxnOps)
}

// TestGuardsAtOneMoment: the guards of a transaction that writes nothing have all held at one
// moment, too.
func TestGuardsAtOneMoment(t *testing.T) {
	s, c := fresh(t)
	do(t, s, put("/x", ""))
	check := coordination.Txn{Guards: []coordination.Guard{{Key: "/x"}}}
	for i := range 100 { // so that they are looked at apart
		check.Guards = append(check.Guards, coordination.Guard{Key: fmt.Sprint("/never/", i)})
	}
	check.Guards = append(check.Guards, coordination.Guard{Key: "/y"})
	stop := make(chan struct{})
	mover := open(t, c)
	go func() {
		defer close(stop)
		for i := range 300 { // there is always one of the two
			from, to := "/x", "/y"
			if i%2 == 1 {
				from, to = to, from
			}
			if _, err := mover.Do(context.Background(), coordination.Txn{Ops: []coordination.Op{{Key: from, Delete: true}, put(to, "")}}); err != nil {
				return
			}
		}
	}()
	for running := true; running; {
		select {
		case <-stop:
			running = false
		default:
		}
		res, err := s.Do(t.Context(), check)
		require.NoError(t, err)
		require.False(t, res.Applied)
	}
}

// TestLogIsBounded: large transactions shorten the log.
func TestLogIsBounded(t *testing.T) {
	s, c := fresh(t)
	o := newOperator(t, c)
	noise := make([]byte, 350_000)
	for i := range noise {
		noise[i] = byte(rand.Uint32())
	}
	first := do(t, s, put("/first", ""))
	var revs []int64
	for range 60 {
		revs = append(revs, do(t, s, coordination.Op{Key: "/k", Value: noise}))
	}
	for range 5 {
		revs = append(revs, do(t, s, put("/small", "")))
	}
	names, _, err := o.Children(c.Chroot + "/.log")
	require.NoError(t, err)
	bytes := logBytes(o)
	require.LessOrEqual(t, bytes, 16<<20)
	require.Greater(t, bytes, 14<<20)
	sequence, _ := o.data("/.sequence")
	require.Contains(t, sequence, fmt.Sprintf(`"bytes":%d`, bytes))
	require.Contains(t, sequence, fmt.Sprintf(`"first":%d`, 1+1+65-len(names)))
	ends(t, watch(t, s, "", first), coordination.ErrCompacted)
	kept := len(names)
	ch := watch(t, s, "", revs[len(revs)-kept-1])
	for n := 0; n < kept; {
		c := next(t, ch)
		require.NoError(t, c.Err)
		n += len(c.Events)
	}
}
