package etcd_test

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/coordination/etcd"
)

// TestOlderBackup: etcd comes back with the state of some time ago. Whoever has seen
// more does not take part any more, also not when the revisions have caught up.
func TestOlderBackup(t *testing.T) {
	config := oneMember(t)
	p := startProcess(t, config)
	c := etcd.Config{Endpoints: []string{p.endpoint()}}
	s := open(t, c)
	do(t, s, coordination.Op{Key: "k", Value: []byte("1")})
	p.stop()
	backup := t.TempDir()
	require.NoError(t, os.CopyFS(backup, os.DirFS(config.Dir)))

	p = startProcess(t, config)
	p.endpoint()
	sess := session(t, s, time.Minute)
	var last int64
	for range 5 {
		last = do(t, s, coordination.Op{Key: "k", Value: []byte("2")})
	}
	ch, err := s.Watch(ctx, "", last)
	require.NoError(t, err)
	p.stop()
	require.ErrorIs(t, (<-ch).Err, coordination.ErrUnavailable)
	_, _, err = s.Get(ctx, "k")
	require.ErrorIs(t, err, coordination.ErrUnavailable)
	require.NotErrorIs(t, err, etcd.ErrRewound)

	require.NoError(t, os.RemoveAll(config.Dir))
	require.NoError(t, os.CopyFS(config.Dir, os.DirFS(backup)))
	p = startProcess(t, config)
	p.endpoint()
	require.Eventually(t, func() bool {
		_, _, err := s.Get(ctx, "k")
		require.Error(t, err, "it shows what is not so any more")
		return etcdRewound(err)
	}, 10*time.Second, time.Millisecond)
	other := open(t, c) // one that knows nothing may use it
	for range 20 {
		do(t, other, coordination.Op{Key: "k", Value: []byte("3")})
	}
	_, _, err = s.Get(ctx, "k")
	require.True(t, etcdRewound(err))
	_, err = s.Do(ctx, coordination.Txn{Ops: []coordination.Op{{Key: "k"}}})
	require.True(t, etcdRewound(err))
	_, err = s.Watch(ctx, "", last)
	require.True(t, etcdRewound(err))
	require.True(t, etcdRewound(sess.Renew(ctx)))
	kv, _, err := other.Get(ctx, "k")
	require.NoError(t, err)
	require.Equal(t, "3", string(kv.Value))
}

func etcdRewound(err error) bool {
	return errors.Is(err, etcd.ErrRewound) && errors.Is(err, coordination.ErrUnavailable)
}

// TestAnotherEtcd: at the same address is another cluster, whose revisions are higher.
func TestAnotherEtcd(t *testing.T) {
	first, second := oneMember(t), oneMember(t)
	second.Client, second.Token = first.Client, "another"
	p := startProcess(t, first)
	s := open(t, etcd.Config{Endpoints: []string{p.endpoint()}})
	do(t, s, coordination.Op{Key: "k", Value: []byte("1")})
	p.stop()
	p = startProcess(t, second)
	other := open(t, etcd.Config{Endpoints: []string{p.endpoint()}, Prefix: "/other/"})
	for range 20 {
		do(t, other, coordination.Op{Key: "k"})
	}
	require.Eventually(t, func() bool {
		_, _, err := s.Get(ctx, "k")
		require.Error(t, err)
		return etcdRewound(err)
	}, 10*time.Second, time.Millisecond)
}
