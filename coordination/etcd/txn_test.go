package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/coordination/etcd"
)

// state is about as long as a partition's.
const state = `{"version":1,"leader":1,"leader_epoch":0,"leader_broker_epoch":123456,"controller_epoch":12,` +
	`"isr":[1,2,3],"partition_epoch":0,"replicas":[1,2,3],"min_isr":2}`

// creation is what it would take to make a topic at once.
func creation(topic string, partitions int) (t coordination.Txn) {
	put := func(key, value string) {
		t.Guards = append(t.Guards, coordination.Guard{Key: key})
		t.Ops = append(t.Ops, coordination.Op{Key: key, Value: []byte(value)})
	}
	put("/brokers/topics/"+topic, "topic")
	for n := range partitions {
		put(fmt.Sprintf("/brokers/topics/%s/partitions/%d/state", topic, n), state)
	}
	return t
}

// TestLargeTransaction: 5,000 keys, whose names are long, at once.
func TestLargeTransaction(t *testing.T) {
	c := one(t)
	c.RequestTimeout = 30 * time.Second
	s := open(t, c)
	long := "t"
	for len(long) < 249 {
		long += "x"
	}
	_, rev, err := s.List(ctx, "")
	require.NoError(t, err)
	ch, err := s.Watch(ctx, "/brokers/topics/", rev)
	require.NoError(t, err)
	txn := creation(long, 5_000)
	begun := time.Now()
	res, err := s.Do(ctx, txn)
	require.NoError(t, err)
	require.True(t, res.Applied)
	t.Logf("made in %v", time.Since(begun))
	begun = time.Now()
	kvs, _, err := s.List(ctx, "")
	require.NoError(t, err)
	t.Logf("listed in %v", time.Since(begun))
	require.Len(t, kvs, len(txn.Ops))
	for _, kv := range kvs {
		require.Equal(t, res.Revision, kv.Revision)
	}
	changes := <-ch
	require.NoError(t, changes.Err)
	require.Len(t, changes.Events, len(txn.Ops), "in one piece")

	res, err = s.Do(ctx, txn)
	require.NoError(t, err)
	require.False(t, res.Applied)
	for i := range txn.Guards { // all that it put goes again, on the last guard's condition
		txn.Guards[i].Revision = changes.Revision
		txn.Ops[i].Delete = true
	}
	txn.Guards[len(txn.Guards)-1].Revision++
	res, err = s.Do(ctx, txn)
	require.NoError(t, err)
	require.False(t, res.Applied)
	require.Equal(t, changes.Revision, res.Revision)
	txn.Guards[len(txn.Guards)-1].Revision--
	res, err = s.Do(ctx, txn)
	require.NoError(t, err)
	require.True(t, res.Applied)
	kvs, _, err = s.List(ctx, "")
	require.NoError(t, err)
	require.Empty(t, kvs)

	_, err = s.Do(ctx, creation("t", 40_000))
	require.ErrorIs(t, err, etcd.ErrTooLarge)
}

// TestManyGuards: each of them counts, wherever in the tree it is.
func TestManyGuards(t *testing.T) {
	s := open(t, one(t))
	for _, n := range []int{119, 120, 121, 1600, 1601, 4000} {
		txn := creation(fmt.Sprint("t", n), n)
		res, err := s.Do(ctx, txn)
		require.NoError(t, err)
		require.True(t, res.Applied)
		for i := range txn.Guards {
			txn.Guards[i].Revision = res.Revision
		}
		for _, wrong := range []int{0, n / 2, n} {
			txn.Guards[wrong].Revision++
			refused, err := s.Do(ctx, txn)
			require.NoError(t, err)
			require.Equal(t, coordination.TxnResult{Revision: res.Revision}, refused, "guard %d of %d", wrong, n)
			txn.Guards[wrong].Revision--
		}
		guards := txn
		guards.Ops = nil
		none, err := s.Do(ctx, guards)
		require.NoError(t, err)
		require.Equal(t, res, none, "guards alone")
		again, err := s.Do(ctx, txn)
		require.NoError(t, err)
		require.True(t, again.Applied)
		require.Equal(t, res.Revision+1, again.Revision)
	}
}

// TestManyPutsOfASession: in a large transaction, too, that a session has ended comes
// before a guard that does not hold.
func TestManyPutsOfASession(t *testing.T) {
	s := open(t, one(t))
	alive, dead := session(t, s, time.Hour), session(t, s, time.Hour)
	require.NoError(t, dead.Close(ctx))
	make := func(sess coordination.Session, guard int64) coordination.Txn {
		txn := creation("t", 300)
		for i := range txn.Ops {
			txn.Ops[i].Session = sess.ID()
		}
		txn.Guards[7].Revision = guard
		return txn
	}
	for _, guard := range []int64{0, 1} {
		_, err := s.Do(ctx, make(dead, guard))
		require.ErrorIs(t, err, coordination.ErrSessionExpired)
	}
	res, err := s.Do(ctx, make(alive, 1))
	require.NoError(t, err)
	require.False(t, res.Applied)
	res, err = s.Do(ctx, make(alive, 0))
	require.NoError(t, err)
	require.True(t, res.Applied)
	require.NoError(t, alive.Close(ctx))
	kvs, _, err := s.List(ctx, "")
	require.NoError(t, err)
	require.Empty(t, kvs)
}

// TestOrdinaryEtcd: one with the default limits.
func TestOrdinaryEtcd(t *testing.T) {
	c := embed.NewConfig()
	at := func(address string) []url.URL { return []url.URL{{Scheme: "http", Host: address}} }
	c.Dir, c.ZapLoggerBuilder = t.TempDir(), embed.NewZapLoggerBuilder(zap.NewNop())
	c.ListenClientUrls, c.ListenPeerUrls = at(freeAddress(t)), at(freeAddress(t))
	c.AdvertiseClientUrls, c.AdvertisePeerUrls = c.ListenClientUrls, c.ListenPeerUrls
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	e, err := embed.StartEtcd(c)
	require.NoError(t, err)
	<-e.Server.ReadyNotify()
	defer e.Close()
	defer e.Server.HardStop()
	s, err := etcd.Open(ctx, etcd.Config{Endpoints: []string{c.ListenClientUrls[0].Host}})
	require.NoError(t, err)
	defer s.Close()
	for _, partitions := range []int{200, 3000} {
		res, err := s.Do(ctx, creation(fmt.Sprint("t", partitions), partitions))
		require.NoError(t, err)
		require.True(t, res.Applied)
	}
	for _, partitions := range []int{8_000, 20_000} {
		_, err = s.Do(ctx, creation("large", partitions))
		require.ErrorIs(t, err, etcd.ErrTooLarge, "%d", partitions)
		require.False(t, errors.Is(err, coordination.ErrUnavailable))
	}
	kvs, _, err := s.List(ctx, "/brokers/topics/large")
	require.NoError(t, err)
	require.Empty(t, kvs)
}

// TestWatchAfterCompaction: what is gone cannot be watched, and a list can be read.
func TestWatchAfterCompaction(t *testing.T) {
	c := one(t)
	s := open(t, c)
	var revs []int64
	for i := range 20 {
		revs = append(revs, do(t, s, coordination.Op{Key: fmt.Sprint("k", i)}))
	}
	client(t, c.Endpoints, func(ctx context.Context, cl *clientv3.Client) {
		_, err := cl.Compact(ctx, revs[10])
		require.NoError(t, err)
	})
	ch, err := s.Watch(ctx, "", revs[8])
	require.NoError(t, err)
	changes := <-ch
	require.ErrorIs(t, changes.Err, coordination.ErrCompacted)
	_, open := <-ch
	require.False(t, open)
	ch, err = s.Watch(ctx, "", revs[10])
	require.NoError(t, err)
	require.Len(t, (<-ch).Events, 9)
	kvs, _, err := s.List(ctx, "")
	require.NoError(t, err)
	require.Len(t, kvs, 20)
}

// TestUnreadWatch: one that nobody reads ends; what it showed before has no gap.
func TestUnreadWatch(t *testing.T) {
	s := open(t, one(t))
	ch, err := s.Watch(ctx, "", 0)
	require.NoError(t, err)
	value := make([]byte, 1<<20)
	var revs []int64
	for range 40 {
		revs = append(revs, do(t, s, coordination.Op{Key: "k", Value: value}))
	}
	n := 0
	for changes := range ch {
		if changes.Err != nil {
			require.ErrorIs(t, changes.Err, coordination.ErrCompacted)
			break
		}
		for _, ev := range changes.Events {
			require.Equal(t, revs[n], ev.Revision)
			n++
		}
		require.NotEqual(t, len(revs), n, "it never ended")
	}
	require.Positive(t, n)
	_, open := <-ch
	require.False(t, open)
}
