package embedded_test

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/tidemark-log/tidemark/coordination/etcd/embedded"
)

// freeAddress is an address that nobody listened on a moment ago.
func freeAddress(t testing.TB) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

// configs are those of a new cluster.
func configs(t testing.TB, members int) []embedded.Config {
	dir, cluster := t.TempDir(), make(map[string]string)
	var all []embedded.Config
	for i := range members {
		name := fmt.Sprint("m", i)
		cluster[name] = freeAddress(t)
		all = append(all, embedded.Config{
			Name: name, Dir: filepath.Join(dir, name), Client: freeAddress(t), Peer: cluster[name], Cluster: cluster,
		})
	}
	return all
}

func startAll(t testing.TB, configs []embedded.Config) []*embedded.Member {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	members, errs := make([]*embedded.Member, len(configs)), make([]error, len(configs))
	var wg sync.WaitGroup
	for i, c := range configs {
		wg.Go(func() { members[i], errs[i] = embedded.Start(ctx, c) })
	}
	wg.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	return members
}

func closeAll(t testing.TB, members []*embedded.Member) {
	var wg sync.WaitGroup
	errs := make([]error, len(members))
	for i, m := range members {
		wg.Go(func() { errs[i] = m.Close() })
	}
	wg.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
}

// nothingLeft returns a check that all goroutines begun from now on have ended. Those of
// etcd's that wait for another member's connection take up to five seconds.
func nothingLeft(t testing.TB) func() {
	before := goleak.IgnoreCurrent()
	return func() {
		if t.Failed() {
			return // it may have left members behind
		}
		var err error
		for end := time.Now().Add(15 * time.Second); time.Now().Before(end); <-time.After(100 * time.Millisecond) {
			if err = goleak.Find(before); err == nil {
				return
			}
		}
		require.NoError(t, err)
	}
}

// withClient gives f a client of a member.
func withClient(t testing.TB, m *embedded.Member, f func(ctx context.Context, c *clientv3.Client)) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	c, err := clientv3.New(clientv3.Config{Endpoints: m.Endpoints(), Logger: zap.NewNop()})
	require.NoError(t, err)
	defer c.Close()
	f(ctx, c)
}

// TestOpenAndCloseAgainAndAgain: a host may have several members, and start and stop
// them as it likes.
func TestOpenAndCloseAgainAndAgain(t *testing.T) {
	defer nothingLeft(t)()
	all := configs(t, 3)
	for round := range 10 {
		begun := time.Now()
		members := startAll(t, all)
		started := time.Now()
		withClient(t, members[round%3], func(ctx context.Context, c *clientv3.Client) {
			got, err := c.Get(ctx, "round")
			require.NoError(t, err)
			if round > 0 {
				require.Equal(t, fmt.Sprint(round-1), string(got.Kvs[0].Value))
			}
			_, err = c.Put(ctx, "round", fmt.Sprint(round))
			require.NoError(t, err)
		})
		closing := time.Now()
		closeAll(t, members)
		require.NoError(t, members[0].Err())
		t.Logf("started in %v, closed in %v", started.Sub(begun), time.Since(closing))
	}
}

func TestStartWithoutAMajority(t *testing.T) {
	defer nothingLeft(t)()
	all := configs(t, 3)
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	_, err := embedded.Start(ctx, all[0])
	require.ErrorIs(t, err, context.DeadlineExceeded)
	// It left nothing behind that is in the way.
	closeAll(t, startAll(t, all))
}
