package zookeeper_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tidemark-log/tidemark"
	"github.com/tidemark-log/tidemark/coordination/zookeeper"
	"github.com/tidemark-log/tidemark/coordination/zookeeper/zkserver"
	"github.com/tidemark-log/tidemark/storage/memstore"
	"github.com/tidemark-log/tidemark/transport/inproc"
)

const sessionTimeout = 2 * time.Second

// cluster is three brokers in this process over one ZooKeeper server, each with a Store and a
// network of its own.
type cluster struct {
	t        *testing.T
	server   *zkserver.Server
	brokers  []*tidemark.Broker
	networks []*network
	client   *tidemark.Client
	sent     int
	want     []string        // what was acknowledged
	maybe    map[string]bool // what may be in the log
}

func newCluster(t *testing.T) *cluster {
	leaks := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, leaks) })
	c := &cluster{t: t, maybe: make(map[string]bool), server: zkserver.StartTest(t, zkserver.Options{NoSync: true})}
	links := inproc.New(inproc.Options{})
	for id := range int32(3) {
		n := &network{}
		coord := open(t, zookeeper.Config{Servers: []string{c.server.Addr()}, Dial: n.dial, RequestTimeout: time.Second, DialTimeout: time.Second})
		store, err := memstore.NewDisk().Open()
		require.NoError(t, err)
		b, err := tidemark.Open(t.Context(), tidemark.Config{
			ID: id, Store: store, Coordination: coord, Transport: links.Transport(id),
			SessionTimeout: sessionTimeout, MaxLag: 2 * time.Second, MemoryBudget: 64 << 20, Loops: 1,
		})
		require.NoError(t, err)
		t.Cleanup(func() {
			require.NoError(t, b.Close())
			require.NoError(t, store.Close())
		})
		c.brokers, c.networks = append(c.brokers, b), append(c.networks, n)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for _, b := range c.brokers {
		require.NoError(t, b.Ready(ctx))
	}
	c.client = tidemark.NewClient(func() []*tidemark.Broker { return c.brokers }, tidemark.ClientOptions{})
	require.NoError(t, c.client.Controller().EnsureTopic(ctx, "t", tidemark.TopicConfig{Partitions: 1, ReplicationFactor: 3, MinISR: 2}))
	return c
}

// append appends records, each of which has to be acknowledged within the limit.
func (c *cluster) append(n int, limit time.Duration) {
	c.t.Helper()
	for range n {
		require.NoError(c.t, c.try(limit))
	}
}

// try appends one record.
func (c *cluster) try(limit time.Duration) error {
	c.sent++
	value := fmt.Sprint(c.sent)
	ctx, cancel := context.WithTimeout(c.t.Context(), limit)
	defer cancel()
	_, err := c.client.Partition("t", 0).Append(ctx, tidemark.Record{Value: []byte(value)})
	if err == nil {
		c.want = append(c.want, value)
	} else if tidemark.OutcomeOf(err) == tidemark.Unknown {
		c.maybe[value] = true
	}
	return err
}

// recovers appends until all goes well again. What is under way when a leader loses its
// role may have an unknown outcome.
func (c *cluster) recovers() {
	c.t.Helper()
	eventually(c.t, func() bool { return c.try(time.Second) == nil })
	c.registered()
	eventually(c.t, func() bool {
		for range 100 {
			if c.try(time.Second) != nil {
				return false
			}
		}
		return true
	})
}

// flow appends for some time.
func (c *cluster) flow(d time.Duration) {
	c.t.Helper()
	for begun := time.Now(); time.Since(begun) < d; {
		c.append(10, time.Second)
		<-time.After(10 * time.Millisecond)
	}
}

// leader is who leads, as a broker sees it.
func (c *cluster) leader(b *tidemark.Broker) int32 {
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Second)
	defer cancel()
	status, err := b.Partition("t", 0).Status(ctx)
	if err != nil {
		return -1
	}
	return status.Leader
}

// registered waits until all brokers are.
func (c *cluster) registered() {
	c.t.Helper()
	eventually(c.t, func() bool {
		for _, b := range c.brokers {
			if s := b.Status(); !s.Registered || s.Renewal != nil {
				return false
			}
		}
		return true
	})
}

// holds requires that the log has what was acknowledged, in its order, and nothing that was
// refused.
func (c *cluster) holds() {
	c.t.Helper()
	c.append(1, patience)
	last := c.want[len(c.want)-1]
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	var got []string
	for rec, err := range c.client.Partition("t", 0).Records(ctx, tidemark.Earliest()) {
		require.NoError(c.t, err)
		if value := string(rec.Value); !c.maybe[value] {
			got = append(got, value)
		}
		if string(rec.Value) == last {
			break
		}
	}
	require.Equal(c.t, c.want, got)
}

// TestClusterServerAway: records flow on while ZooKeeper is away, for less than a session and
// for more, and metadata changes again once it is back.
func TestClusterServerAway(t *testing.T) {
	c := newCluster(t)
	c.append(10, patience)
	epochs := func() (epochs [3]int64) {
		for i, b := range c.brokers {
			epochs[i] = b.Status().BrokerEpoch
		}
		return epochs
	}
	before := epochs()
	for _, away := range []time.Duration{sessionTimeout / 2, 2 * sessionTimeout} {
		require.NoError(t, c.server.Kill())
		c.flow(away)
		require.NoError(t, c.server.Restart())
		c.flow(time.Second)
		c.registered()
		require.Equal(t, before, epochs(), "a server that was away has ended no session")
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, c.client.Controller().EnsureTopic(ctx, "later", tidemark.TopicConfig{Partitions: 3, ReplicationFactor: 3}))
	c.holds()
}

// TestClusterServerStandsStill: the same while the server stands still for longer than a
// session. ZooKeeper may then end the sessions; the brokers register again.
func TestClusterServerStandsStill(t *testing.T) {
	c := newCluster(t)
	c.append(10, patience)
	require.NoError(t, c.server.Pause())
	c.flow(3 * sessionTimeout / 2)
	require.NoError(t, c.server.Resume())
	c.recovers()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, c.client.Controller().EnsureTopic(ctx, "later", tidemark.TopicConfig{Partitions: 3, ReplicationFactor: 3}))
	c.holds()
}

// TestClusterFailover: a leader that is cut off from ZooKeeper loses its session and its
// partitions, and comes back as a follower.
func TestClusterFailover(t *testing.T) {
	c := newCluster(t)
	c.append(10, patience)
	for range 2 {
		old := c.leader(c.brokers[0])
		require.GreaterOrEqual(t, old, int32(0))
		begun := time.Now()
		c.networks[old].setCut(true)
		eventually(t, func() bool {
			now := c.leader(c.brokers[(old+1)%3])
			return now >= 0 && now != old
		})
		require.GreaterOrEqual(t, time.Since(begun), sessionTimeout/2, "not before the session is over")
		eventually(t, func() bool { return c.try(time.Second) == nil })
		c.networks[old].setCut(false)
		c.recovers()
		// The next round needs all three of them.
		eventually(t, func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			status, err := c.client.Partition("t", 0).Status(ctx)
			return err == nil && len(status.ISR) == 3
		})
	}
	c.holds()
}
