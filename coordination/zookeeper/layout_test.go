package zookeeper_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/coordination/zookeeper"
	"github.com/tidemark-log/tidemark/protocol"
)

// operator is another client of the same server, as an operator has one.
type operator struct {
	*zk.Conn
	t      testing.TB
	chroot string
}

type silent struct{}

func (silent) Printf(string, ...any) {}

func newOperator(t testing.TB, c zookeeper.Config) *operator {
	t.Helper()
	conn, _, err := zk.Connect(c.Servers, 10*time.Second, zk.WithLogger(silent{}), zk.WithLogInfo(false))
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	return &operator{conn, t, c.Chroot}
}

// data returns a node's data and its owner.
func (o *operator) data(path string) (string, int64) {
	o.t.Helper()
	data, stat, err := o.Get(o.chroot + path)
	require.NoError(o.t, err, path)
	return string(data), stat.EphemeralOwner
}

// tree returns all nodes below the chroot but those of the package itself.
func (o *operator) tree() (paths []string) {
	o.t.Helper()
	var visit func(path string)
	visit = func(path string) {
		names, _, err := o.Children(path)
		require.NoError(o.t, err)
		for _, name := range names {
			if !strings.HasPrefix(name, ".") {
				paths = append(paths, strings.TrimPrefix(path+"/"+name, o.chroot))
				visit(path + "/" + name)
			}
		}
	}
	visit(o.chroot)
	slices.Sort(paths)
	return paths
}

// TestClassicPaths: what an operator finds are the paths and the fields that are known
// from of old, and the ephemeral nodes are ZooKeeper's.
func TestClassicPaths(t *testing.T) {
	s, c := fresh(t)
	o := newOperator(t, c)
	x := session(t, s, 10*time.Second)
	state := protocol.PartitionState{
		Version: 1, Leader: 1, LeaderEpoch: 3, LeaderBrokerEpoch: 17, ControllerEpoch: 2, ISR: []int32{1, 2}, Replicas: []int32{1, 2, 3}, MinISR: 2,
	}
	value, err := json.Marshal(state)
	require.NoError(t, err)
	rev := do(t, s, putFor(x, "/brokers/ids/1", `{"address":"a"}`), putFor(x, "/controller", `{"broker":1}`),
		put("/brokers/topics/t/partitions/0/state", string(value)))

	data, owner := o.data("/brokers/ids/1")
	require.Equal(t, `{"address":"a"}`, data)
	require.Equal(t, x.ID(), fmt.Sprintf("0x%x", uint64(owner)))
	data, owner = o.data("/controller")
	require.Equal(t, `{"broker":1}`, data)
	require.Equal(t, x.ID(), fmt.Sprintf("0x%x", uint64(owner)))
	data, owner = o.data("/brokers/topics/t/partitions/0/state")
	require.Zero(t, owner)
	require.Equal(t, string(value), data)
	for _, field := range []string{`"leader":1`, `"leader_epoch":3`, `"controller_epoch":2`, `"isr":[1,2]`, `"version":1`} {
		require.Contains(t, data, field)
	}
	_, stat, err := o.Get(c.Chroot + "/controller")
	require.NoError(t, err)
	require.Equal(t, rev, stat.Mzxid, "the revision is the zxid")

	require.Equal(t, []string{"/brokers/ids/1", "/brokers/topics/t/partitions/0/state", "/controller"}, keys(t, s, ""), "parents are no keys")
	_, ok, err := s.Get(t.Context(), "/brokers/topics")
	require.NoError(t, err)
	require.False(t, ok)
	require.NoError(t, x.Close(t.Context()))
	require.Equal(t, []string{"/brokers", "/brokers/ids", "/brokers/topics", "/brokers/topics/t", "/brokers/topics/t/partitions",
		"/brokers/topics/t/partitions/0", "/brokers/topics/t/partitions/0/state"}, o.tree())
	sequence, _ := o.data("/.sequence")
	require.JSONEq(t, `{"format":1,"entry":2,"first":1,"bytes":`+fmt.Sprint(logBytes(o))+`}`, sequence)
}

func logBytes(o *operator) (n int) {
	names, _, err := o.Children(o.chroot + "/.log")
	require.NoError(o.t, err)
	for _, name := range names {
		data, _ := o.data("/.log/" + name)
		n += len(data)
	}
	return n
}

// TestParents: a key may have keys below it, come and go without them, and leaves nothing
// behind in the end.
func TestParents(t *testing.T) {
	all := []string{"/a", "/a/b", "/a/b/c", "/a/d", "/x/y/z", "/x", "rel", "rel/e", "/a/"}
	rapid.Check(t, func(rt *rapid.T) {
		s, c := fresh(t)
		o := newOperator(t, c)
		model := make(map[string]string)
		for i := range rapid.IntRange(1, 12).Draw(rt, "steps") {
			var ops []coordination.Op
			for _, key := range rapid.SliceOfNDistinct(rapid.SampledFrom(all), 1, 4, rapid.ID).Draw(rt, "keys") {
				op := put(key, rapid.SampledFrom([]string{"", "v", "\x00"}).Draw(rt, "value")+fmt.Sprint(i))
				if op.Delete = rapid.Bool().Draw(rt, "delete"); op.Delete {
					delete(model, key)
				} else {
					model[key] = string(op.Value)
				}
				ops = append(ops, op)
			}
			do(t, s, ops...)
			compareTree(t, s, o, model)
		}
		require.NoError(t, s.Close())
		o.Close()
	})
}

// compareTree requires that a Store shows the model, and that there is no node but those
// of its keys and above them.
func compareTree(t testing.TB, s coordination.Store, o *operator, model map[string]string) {
	t.Helper()
	kvs, _, err := s.List(t.Context(), "")
	require.NoError(t, err)
	got := make(map[string]string)
	want := []string{}
	for _, kv := range kvs {
		got[kv.Key] = string(kv.Value)
	}
	require.Equal(t, model, got)
	for key := range model {
		if !strings.HasPrefix(key, "/") {
			continue
		}
		key = strings.Replace(key+"|", "/|", "/%|", 1)
		for key = strings.TrimSuffix(key, "|"); key != ""; key = key[:strings.LastIndexByte(key, '/')] {
			if !slices.Contains(want, key) {
				want = append(want, key)
			}
		}
	}
	slices.Sort(want)
	require.Equal(t, want, append([]string{}, o.tree()...))
}

// TestRemovedByHand: an operator may remove an ephemeral node, such as /controller. It shows
// as a deletion, in its order.
func TestRemovedByHand(t *testing.T) {
	s, c := fresh(t)
	o := newOperator(t, c)
	x := session(t, s, 10*time.Second)
	rev := do(t, s, putFor(x, "/controller", "c"), putFor(x, "/b", "b"))
	ch := watch(t, s, "", rev)
	require.NoError(t, o.Delete(c.Chroot+"/controller", -1))
	require.Equal(t, []string{"-/controller"}, told(t, ch, 1))
	require.Equal(t, []string{"/b"}, keys(t, s, ""))

	// Without a watch: whoever lists it, or writes it, tells of it first.
	remove := func() (s *zookeeper.Store, x coordination.Session, rev int64) {
		s, c := fresh(t)
		x = session(t, s, 10*time.Second)
		rev = do(t, s, putFor(x, "/controller", "c"))
		require.NoError(t, newOperator(t, c).Delete(c.Chroot+"/controller", -1))
		_, ok, err := s.Get(t.Context(), "/controller")
		require.NoError(t, err)
		require.False(t, ok)
		return s, x, rev
	}
	s, _, rev = remove()
	kvs, now, err := s.List(t.Context(), "")
	require.NoError(t, err)
	require.Empty(t, kvs)
	do(t, s, put("/x", ""))
	require.Equal(t, []string{"/x="}, told(t, watch(t, s, "", now), 1))
	require.Equal(t, []string{"-/controller", "/x="}, told(t, watch(t, s, "", rev), 2))
	s, x, rev = remove()
	res, err := s.Do(t.Context(), coordination.Txn{
		Guards: []coordination.Guard{{Key: "/controller"}}, Ops: []coordination.Op{putFor(x, "/controller", "again")},
	})
	require.NoError(t, err)
	require.True(t, res.Applied)
	require.Equal(t, []string{"-/controller", "/controller=again"}, told(t, watch(t, s, "", rev), 2))
}

// TestLeaseRemovedByHand: it ends the session, with all its keys.
func TestLeaseRemovedByHand(t *testing.T) {
	s, c := fresh(t)
	o := newOperator(t, c)
	x := session(t, s, 10*time.Second)
	rev := do(t, s, putFor(x, "/a", ""), putFor(x, "/b", ""))
	ch := watch(t, s, "", rev)
	require.NoError(t, o.Delete(c.Chroot+"/.sessions/"+x.ID(), -1))
	require.Equal(t, []string{"-/a", "-/b"}, told(t, ch, 2))
	require.ErrorIs(t, x.Renew(t.Context()), coordination.ErrSessionExpired)
	<-x.Done()
	require.Empty(t, o.tree())
}

// TestGrantedChroot: a user that may write nowhere but in a chroot that was made for it.
func TestGrantedChroot(t *testing.T) {
	addr, chroot := sharedServer(t)
	_, c := fresh(t)
	o := newOperator(t, c)
	_, err := o.Create(chroot, nil, 0, zk.WorldACL(zk.PermAll))
	require.NoError(t, err)
	_, err = o.Create(chroot+"/orders", nil, 0, zk.DigestACL(zk.PermAll, "tide", "mark"))
	require.NoError(t, err)
	_, err = o.SetACL(chroot, zk.WorldACL(zk.PermRead), -1)
	require.NoError(t, err)
	_, err = o.Create(chroot+"/other", nil, 0, zk.WorldACL(zk.PermAll))
	require.Error(t, err)
	s := open(t, zookeeper.Config{Servers: []string{addr}, Chroot: chroot + "/orders", Digest: "tide:mark"})
	do(t, s, put("/k", ""))
	require.Equal(t, []string{"/k"}, keys(t, s, ""))
}

// TestForeignChroot: a chroot that holds something else is left alone.
func TestForeignChroot(t *testing.T) {
	addr, chroot := sharedServer(t)
	_, c := fresh(t) // makes /test
	o := newOperator(t, c)
	_, err := o.Create(chroot, nil, 0, zk.WorldACL(zk.PermAll))
	require.NoError(t, err)
	_, err = o.Create(chroot+"/kafka", nil, 0, zk.WorldACL(zk.PermAll))
	require.NoError(t, err)
	_, err = zookeeper.Open(t.Context(), zookeeper.Config{Servers: []string{addr}, Chroot: chroot})
	require.ErrorIs(t, err, zookeeper.ErrForeign)
	names, _, err := o.Children(chroot)
	require.NoError(t, err)
	require.Equal(t, []string{"kafka"}, names)
}

// TestDigest: with a user nobody else may look, nor write.
func TestDigest(t *testing.T) {
	addr, chroot := sharedServer(t)
	c := zookeeper.Config{Servers: []string{addr}, Chroot: chroot, Digest: "tide:mark"}
	s := open(t, c)
	x := session(t, s, 10*time.Second)
	do(t, s, putFor(x, "/a/b", "1"), put("/c", ""))
	require.Equal(t, []string{"/a/b", "/c"}, keys(t, open(t, c), ""))
	for _, digest := range []string{"", "tide:turn"} {
		c.Digest = digest
		_, err := zookeeper.Open(t.Context(), c)
		require.ErrorIs(t, err, coordination.ErrUnavailable)
		require.ErrorContains(t, err, "not authorized")
	}
}

// TestOpenWithoutServer: a process starts while ZooKeeper is away, and goes on when it comes.
func TestOpenWithoutServer(t *testing.T) {
	addr, chroot := sharedServer(t)
	var there atomic.Bool
	s, err := zookeeper.Open(t.Context(), zookeeper.Config{Servers: []string{addr}, Chroot: chroot,
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			if !there.Load() {
				return nil, errors.New("away")
			}
			return (&net.Dialer{}).DialContext(ctx, network, address)
		}})
	require.NoError(t, err)
	defer s.Close()
	_, _, err = s.Get(t.Context(), "/a")
	require.ErrorIs(t, err, coordination.ErrUnavailable)
	_, err = s.NewSession(t.Context(), 10*time.Second)
	require.ErrorIs(t, err, coordination.ErrUnavailable)
	there.Store(true)
	x := session(t, s, 10*time.Second) // the first call of all that reaches it
	do(t, s, putFor(x, "/a", "1"))
	require.Equal(t, []string{"/a"}, keys(t, s, ""))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = zookeeper.Open(ctx, zookeeper.Config{Servers: []string{addr}, Chroot: chroot})
	require.Error(t, err)
}

func TestConfig(t *testing.T) {
	_, err := zookeeper.Open(t.Context(), zookeeper.Config{
		Servers: []string{"no-port"}, Chroot: "relative", Digest: "nobody", History: -1, MaxRequest: 1, DialTimeout: -1,
	})
	for _, fault := range []string{"no-port", "Chroot", "Digest", "History", "MaxRequest", "timeouts"} {
		require.ErrorContains(t, err, fault)
	}
	_, err = zookeeper.Open(t.Context(), zookeeper.Config{})
	require.ErrorContains(t, err, "Servers")
	for _, chroot := range []string{"/", "/a/", "//a", "/a/.b", "/zookeeper", "/zookeeper/x", "/a%", "/\x01"} {
		_, err = zookeeper.Open(t.Context(), zookeeper.Config{Servers: []string{"localhost:1"}, Chroot: chroot})
		require.ErrorContains(t, err, "Chroot", chroot)
	}
	// One of them is not there.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	addr, chroot := sharedServer(t)
	for range 4 {
		require.NoError(t, open(t, zookeeper.Config{Servers: []string{l.Addr().String(), addr}, Chroot: chroot}).Close())
	}
}
