package embedded_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tidemark-log/tidemark/coordination/etcd/embedded"
)

// TestFullDisk: a full disk ends the member, not the process that it is in. Where etcd
// meets it while it holds its database's lock, it never lets go of that: then Close says
// so, in bounded time.
func TestFullDisk(t *testing.T) {
	left := nothingLeft(t)
	all := configs(t, 3)
	dir := filepath.Dir(all[0].Dir)
	small := filepath.Join(dir, "small")
	require.NoError(t, os.Mkdir(small, 0o700))
	if err := syscall.Mount("tmpfs", small, "tmpfs", 0, "size=140m"); err != nil {
		t.Skipf("cannot make a small file system: %v", err)
	}
	defer func() { require.NoError(t, syscall.Unmount(small, syscall.MNT_DETACH)) }()
	all[0].Dir = filepath.Join(small, "m0")
	members := startAll(t, all)
	filler := filepath.Join(small, "filler")
	fill(t, filler)
	withClient(t, members[1], func(ctx context.Context, c *clientv3.Client) {
		value := string(make([]byte, 1<<20))
		for i := 0; members[0].Err() == nil; i++ {
			require.NoError(t, ctx.Err(), "the full disk does not show")
			// The leader may be the one that fails.
			callCtx, cancel := context.WithTimeout(ctx, 3*time.Second)
			_, err := c.Put(callCtx, fmt.Sprint("k", i%8), value)
			cancel()
			if err != nil {
				t.Log(err)
			}
		}
		t.Log(members[0].Err())
		require.ErrorIs(t, members[0].Err(), embedded.ErrFailed)
		require.Eventually(t, func() bool {
			callCtx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			_, err := c.Put(callCtx, "after", "")
			return err == nil
		}, 15*time.Second, 10*time.Millisecond, "the others go on")
	})
	begun := time.Now()
	err := members[0].Close()
	t.Logf("closed in %v: %v", time.Since(begun), err)
	closeAll(t, members[1:])
	if err != nil {
		require.ErrorIs(t, err, embedded.ErrAbandoned)
		require.Less(t, time.Since(begun), 30*time.Second)
		return // its directory is locked for as long as this process lives
	}
	defer left()
	require.NoError(t, os.Remove(filler))
	closeAll(t, startAll(t, all)) // with some space it is one of them again
}

// fill writes a file until nothing more fits.
func fill(t testing.TB, name string) {
	f, err := os.Create(name)
	require.NoError(t, err)
	defer f.Close()
	for size := 1 << 20; size > 0; size /= 2 {
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, size))
		}
	}
	require.ErrorIs(t, err, syscall.ENOSPC)
}

// TestDamagedDirectory: a member that cannot read its log does not start, and says why.
func TestDamagedDirectory(t *testing.T) {
	c := configs(t, 1)[0]
	closeAll(t, startAll(t, []embedded.Config{c}))
	logs, err := filepath.Glob(filepath.Join(c.Dir, "member", "wal", "*.wal"))
	require.NoError(t, err)
	require.Len(t, logs, 1)
	f, err := os.OpenFile(logs[0], os.O_RDWR, 0)
	require.NoError(t, err)
	_, err = f.WriteAt(make([]byte, 200), 100)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	begun := time.Now()
	_, err = embedded.Start(ctx, c)
	require.Error(t, err)
	require.NotErrorIs(t, err, context.DeadlineExceeded)
	t.Logf("after %v: %v", time.Since(begun), err)
}

// TestLostDirectory: a member that has lost its directory is not taken for itself.
func TestLostDirectory(t *testing.T) {
	defer nothingLeft(t)()
	all := configs(t, 3)
	members := startAll(t, all)
	require.NoError(t, members[0].Close())
	require.NoError(t, os.RemoveAll(all[0].Dir))
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	_, err := embedded.Start(ctx, all[0])
	require.ErrorContains(t, err, "already been bootstrapped: its directory is lost")

	// The way back.
	withClient(t, members[1], func(ctx context.Context, c *clientv3.Client) {
		list, err := c.MemberList(ctx)
		require.NoError(t, err)
		for _, m := range list.Members {
			if m.Name == all[0].Name {
				change(t, func() error { _, err := c.MemberRemove(ctx, m.ID); return err })
			}
		}
		change(t, func() error { _, err := c.MemberAdd(ctx, []string{"http://" + all[0].Peer}); return err })
	})
	all[0].Existing = true
	require.NoError(t, os.RemoveAll(all[0].Dir))
	members[0], err = embedded.Start(ctx, all[0])
	require.NoError(t, err)
	closeAll(t, members)
}

// change changes the membership, which etcd refuses until the others have been there
// for some seconds.
func change(t testing.TB, f func() error) {
	t.Helper()
	require.Eventually(t, func() bool { return f() == nil }, 15*time.Second, 100*time.Millisecond)
}

// TestRemovedMember: one that is taken out of the cluster stops by itself.
func TestRemovedMember(t *testing.T) {
	defer nothingLeft(t)()
	members := startAll(t, configs(t, 3))
	withClient(t, members[1], func(ctx context.Context, c *clientv3.Client) {
		list, err := c.MemberList(ctx)
		require.NoError(t, err)
		for _, m := range list.Members {
			if m.Name == "m0" {
				change(t, func() error { _, err := c.MemberRemove(ctx, m.ID); return err })
			}
		}
	})
	<-members[0].Failed()
	require.ErrorIs(t, members[0].Err(), embedded.ErrFailed)
	closeAll(t, members)
}

func TestConfig(t *testing.T) {
	_, err := embedded.Start(context.Background(), embedded.Config{Election: time.Millisecond, PeerTLS: &embedded.TLS{}})
	for _, what := range []string{"Name", "Dir", "Client", "Peer", "Cluster", "Election", "PeerTLS"} {
		require.ErrorContains(t, err, what)
	}
	c := configs(t, 1)[0]
	c.Client, c.Peer, c.Cluster = "host.example:0", ":2380", map[string]string{c.Name: "host.example:2380"}
	_, err = embedded.Start(context.Background(), c)
	require.EqualError(t, err, `embedded: Client is listened on: its host must be an IP address or "localhost", not "host.example"`+"\n"+
		`embedded: Peer is listened on: its host must be an IP address or "localhost", not ""`)
}
