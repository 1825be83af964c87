package tcp

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark"
	"github.com/tidemark-log/tidemark/coordination/memory"
	"github.com/tidemark-log/tidemark/internal/devcert"
	"github.com/tidemark-log/tidemark/storage"
	"github.com/tidemark-log/tidemark/storage/memstore"
)

// cluster is three brokers over TCP.
type cluster struct {
	t       *testing.T
	ca      *devcert.Authority // nil: without TLS
	coord   *memory.Store
	disks   [3]*memstore.Disk
	stores  [3]storage.Store
	links   [3]*Transport
	brokers [3]*tidemark.Broker
	session time.Duration
	maxLag  time.Duration
	proxies [3]*proxy // before the transports; nil: none
	slow    int64     // bytes a second of each proxied connection, if not 0
}

func newCluster(t *testing.T, secure bool) *cluster {
	c := &cluster{t: t, coord: memory.New(memory.Options{}), session: time.Second, maxLag: time.Second}
	t.Cleanup(func() { require.NoError(t, c.coord.Close()) })
	if secure {
		var err error
		c.ca, err = devcert.NewAuthority("orders")
		require.NoError(t, err)
	}
	for id := range c.disks {
		c.disks[id] = memstore.NewDisk()
	}
	return c
}

// all starts all brokers. They are stopped with the test.
func (c *cluster) all(ctx context.Context) {
	for id := range c.brokers {
		c.start(int32(id))
	}
	c.t.Cleanup(func() {
		for id := range c.brokers {
			c.stop(int32(id))
		}
	})
	for _, b := range c.brokers {
		require.NoError(c.t, b.Ready(ctx))
	}
}

func (c *cluster) start(id int32) {
	conf := Config{ID: id, Cluster: "orders", Listen: "127.0.0.1:0", Plaintext: c.ca == nil}
	var err error
	if c.ca != nil {
		conf.TLS, err = c.ca.Config(id)
		require.NoError(c.t, err)
	}
	link, err := New(conf)
	require.NoError(c.t, err)
	store, err := c.disks[id].Open()
	require.NoError(c.t, err)
	address := link.Addr().String()
	if c.slow > 0 {
		p := newProxy(c.t, address)
		p.there.rate.Store(c.slow)
		c.proxies[id], address = p, p.peer(id).Address
	}
	b, err := tidemark.Open(c.t.Context(), tidemark.Config{ID: id, Address: address, Store: store, MaxRecordBytes: 8 << 20,
		Coordination: c.coord.Connect(), Transport: link, SessionTimeout: c.session, MaxLag: c.maxLag})
	require.NoError(c.t, err)
	c.links[id], c.stores[id], c.brokers[id] = link, store, b
}

func (c *cluster) stop(id int32) {
	require.NoError(c.t, c.brokers[id].Close())
	require.NoError(c.t, c.stores[id].Close())
}

// Three brokers over TCP acknowledge what all have, fail over when one's transport
// dies, and take it back, at another address.
func TestCluster(t *testing.T) {
	for _, secure := range []bool{false, true} {
		t.Run(map[bool]string{false: "plain", true: "TLS"}[secure], func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			c := newCluster(t, secure)
			c.all(ctx)
			c.play(ctx)
		})
	}
}

func (c *cluster) play(ctx context.Context) {
	t := c.t
	require.NoError(t, c.brokers[0].Controller().EnsureTopic(ctx, "t", tidemark.TopicConfig{Partitions: 3, ReplicationFactor: 3, MinISR: 2}))
	acked := map[int]map[string]bool{0: {}, 1: {}, 2: {}}
	appendTo := func(b *tidemark.Broker, n int, value string) error {
		_, err := b.Partition("t", n).Append(ctx, tidemark.Record{Value: []byte(value)})
		if err == nil {
			acked[n][value] = true
		}
		return err
	}
	for n := range 3 {
		for i := range 20 {
			require.NoError(t, appendTo(c.brokers[i%3], n, fmt.Sprint("before ", n, " ", i)))
		}
	}
	require.NoError(t, appendTo(c.brokers[0], 0, string(make([]byte, 900<<10))))

	const dead = 1
	require.NoError(t, c.links[dead].Close()) // its broker knows nothing of it
	for n := range 3 {
		for i := 0; ; i++ {
			value := fmt.Sprint("after ", n, " ", i)
			if err := appendTo(c.brokers[2], n, value); err == nil {
				break
			} else if ctx.Err() != nil {
				t.Fatalf("partition %d has no leader that is reached: %v", n, err)
			}
		}
	}
	c.stop(dead)
	c.start(dead)
	require.NoError(t, c.brokers[dead].Ready(ctx))
	for n := range 3 {
		require.Eventually(t, func() bool {
			status, err := c.brokers[0].Partition("t", n).Status(ctx)
			return err == nil && len(status.ISR) == 3
		}, 30*time.Second, 20*time.Millisecond, "partition %d: the broker does not come back", n)
		got := map[string]bool{}
		for offset := int64(0); ; {
			res, err := c.brokers[dead].Partition("t", n).Fetch(ctx, offset, tidemark.FetchOptions{})
			require.NoError(t, err)
			if len(res.Records) == 0 {
				break
			}
			for _, r := range res.Records {
				got[string(r.Value)] = true
				offset = r.Offset + 1
			}
		}
		for value := range acked[n] {
			require.True(t, got[value], "partition %d lost %.40q", n, value)
		}
	}
}

// A batch of 4 MB on a network of 1 MB/s takes longer than SessionTimeout: links hear
// its parts, so that nobody is taken for dead, and what comes behind it comes.
func TestLargeBatchesOnASlowNetwork(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c := newCluster(t, true)
	c.session, c.maxLag, c.slow = 3*time.Second, 20*time.Second, 1<<20
	c.all(ctx)
	require.NoError(t, c.brokers[0].Controller().EnsureTopic(ctx, "t", tidemark.TopicConfig{Partitions: 1, ReplicationFactor: 3, MinISR: 3}))
	p := c.brokers[0].Partition("t", 0)
	before, err := p.Status(ctx)
	require.NoError(t, err)
	began := time.Now()
	value := make([]byte, 4<<20)
	rand.NewChaCha8([32]byte{}).Read(value)
	_, err = p.Append(ctx, tidemark.Record{Value: value})
	require.NoError(t, err)
	require.Greater(t, time.Since(began), c.session, "the network is not slow")
	_, err = p.Append(ctx, tidemark.Record{Value: []byte("small")})
	require.NoError(t, err)
	after, err := p.Status(ctx)
	require.NoError(t, err)
	require.Equal(t, before.LeaderEpoch, after.LeaderEpoch)
	require.Len(t, after.ISR, 3)
	for _, b := range c.brokers {
		for _, l := range b.Status().Links {
			require.EqualValues(t, 1, l.Sessions, "a link from %d to %d was down", b.Status().Broker, l.Broker)
		}
	}
}

// One partition is 8 MiB behind on a network of 1 MB/s, for several sessions. Nobody is
// elected for it, and other partitions of the same brokers go on meanwhile (D14, R68).
func TestBacklogOnASlowNetwork(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c := newCluster(t, true)
	c.session, c.maxLag, c.slow = 2*time.Second, 30*time.Second, 1<<20
	c.all(ctx)
	const others = 3
	admin := c.brokers[0].Controller()
	require.NoError(t, admin.EnsureTopic(ctx, "bulk", tidemark.TopicConfig{Partitions: 1, ReplicationFactor: 3, MinISR: 2}))
	require.NoError(t, admin.EnsureTopic(ctx, "small", tidemark.TopicConfig{Partitions: others, ReplicationFactor: 3, MinISR: 3}))
	bulk := c.brokers[0].Partition("bulk", 0)
	status, err := bulk.Status(ctx)
	require.NoError(t, err)
	leader := c.brokers[status.Leader]
	terms := c.terms(ctx, others)
	began := time.Now()
	for i := range 8 {
		value := make([]byte, 1<<20-1024)
		rand.NewChaCha8([32]byte{byte(i)}).Read(value)
		_, err := leader.Partition("bulk", 0).AppendWith(ctx, tidemark.AppendOptions{Acks: tidemark.AcksLeader}, tidemark.Record{Value: value})
		require.NoError(t, err)
	}
	var longest time.Duration
	appends := 0
	for behind := true; behind; {
		for n := range others {
			at := time.Now()
			_, err := c.brokers[n].Partition("small", n).Append(ctx, tidemark.Record{Value: []byte("small")})
			require.NoError(t, err)
			longest = max(longest, time.Since(at))
			appends++
		}
		ends, err := leader.Partition("bulk", 0).Offsets(ctx)
		require.NoError(t, err)
		behind = ends.HighWatermark < 8
	}
	t.Logf("%v for the backlog; %d appends beside it, the longest of %v", time.Since(began), appends, longest)
	require.Greater(t, time.Since(began), 3*c.session, "the network is not slow")
	require.Less(t, longest, 5*time.Second, "they do not take turns with batches of 1 MiB")
	require.Equal(t, terms, c.terms(ctx, others))
	for _, b := range c.brokers {
		for _, l := range b.Status().Links {
			require.EqualValues(t, 1, l.Sessions, "a link from %d to %d was down", b.Status().Broker, l.Broker)
		}
	}
}

// terms are who leads and who is the Controller, in which epochs.
func (c *cluster) terms(ctx context.Context, others int) (all []string) {
	controller, err := c.brokers[0].Controller().Status()
	require.NoError(c.t, err)
	all = append(all, fmt.Sprint(controller))
	for n := range others + 1 {
		p := c.brokers[0].Partition("small", n)
		if n == others {
			p = c.brokers[0].Partition("bulk", 0)
		}
		s, err := p.Status(ctx)
		require.NoError(c.t, err)
		all = append(all, fmt.Sprint(s.Leader, s.LeaderEpoch, s.ISR))
	}
	return all
}
