package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark"
	"github.com/tidemark-log/tidemark/coordination/etcd"
	"github.com/tidemark-log/tidemark/storage/memstore"
	"github.com/tidemark-log/tidemark/transport/inproc"
)

const sessionTimeout = 2 * time.Second

// brokers is a cluster of three in this process, whose way to etcd leads through proxies.
type brokers struct {
	t        *testing.T
	ctx      context.Context
	endpoint string
	network  *inproc.Network
	disks    []*memstore.Disk
	brokers  []*tidemark.Broker
	stores   []*etcd.Store
	proxies  []*proxy
	closers  []func()
}

func startBrokers(t *testing.T, endpoint string) *brokers {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	t.Cleanup(cancel)
	b := &brokers{
		t: t, ctx: ctx, endpoint: endpoint, network: inproc.New(inproc.Options{}), brokers: make([]*tidemark.Broker, 3),
		stores: make([]*etcd.Store, 3), proxies: make([]*proxy, 3), closers: make([]func(), 3),
	}
	for i := range b.brokers {
		b.disks = append(b.disks, memstore.NewDisk())
		b.open(i)
	}
	t.Cleanup(func() {
		for i := range b.brokers {
			b.close(i)
		}
	})
	b.ready()
	return b
}

func (b *brokers) ready() {
	for _, broker := range b.brokers {
		require.NoError(b.t, broker.Ready(b.ctx))
	}
}

// open opens broker i+1, with a way to etcd of its own.
func (b *brokers) open(i int) {
	store, err := b.disks[i].Open()
	require.NoError(b.t, err)
	b.proxies[i] = newProxy(b.t, b.endpoint)
	b.stores[i], err = etcd.Open(b.ctx, etcd.Config{Endpoints: []string{b.proxies[i].address()}})
	require.NoError(b.t, err)
	b.brokers[i], err = tidemark.Open(b.ctx, tidemark.Config{
		ID: int32(i + 1), Store: store, Coordination: b.stores[i], Transport: b.network.Transport(int32(i + 1)),
		SessionTimeout: sessionTimeout, MaxLag: sessionTimeout, MemoryBudget: 8 << 20,
	})
	require.NoError(b.t, err)
	broker, coord, p := b.brokers[i], b.stores[i], b.proxies[i]
	b.closers[i] = func() {
		broker.Close()
		require.NoError(b.t, coord.Close())
		require.NoError(b.t, store.Close())
		p.close()
	}
}

func (b *brokers) close(i int) {
	if b.closers[i] != nil {
		b.closers[i]()
		b.closers[i] = nil
	}
}

func (b *brokers) setDown(down bool) {
	for _, p := range b.proxies {
		p.setCut(down)
	}
}

var threeReplicas = tidemark.TopicConfig{Partitions: 1, ReplicationFactor: 3, MinISR: 2}

// TestDataFlowsOnWhileEtcdIsAway: for less than a session and for longer. Records are
// appended and acknowledged all the time, and changes of metadata wait.
func TestDataFlowsOnWhileEtcdIsAway(t *testing.T) {
	b := startBrokers(t, startProcess(t, oneMember(t)).endpoint())
	require.NoError(t, b.brokers[0].Controller().CreateTopic(b.ctx, "t", threeReplicas))
	p := b.brokers[0].Partition("t", 0)
	next := int64(0)
	appendOne := func() {
		t.Helper()
		ctx, cancel := context.WithTimeout(b.ctx, sessionTimeout)
		defer cancel()
		res, err := p.Append(ctx, tidemark.Record{Value: []byte("x")})
		require.NoError(t, err)
		require.Equal(t, next, res.Base)
		next++
	}
	for _, outage := range []time.Duration{sessionTimeout / 2, 4 * sessionTimeout} {
		b.setDown(true)
		for end := time.Now().Add(outage); time.Now().Before(end); <-time.After(10 * time.Millisecond) {
			appendOne()
		}
		ctx, cancel := context.WithTimeout(b.ctx, sessionTimeout/4)
		require.ErrorIs(t, b.brokers[1].Controller().CreateTopic(ctx, fmt.Sprint("during", outage.Milliseconds()), threeReplicas), context.DeadlineExceeded)
		cancel()
		b.setDown(false)
		up := time.Now()
		for range 100 { // whoever lost a session registers anew meanwhile
			appendOneAgain(b, p, &next)
		}
		require.NoError(t, b.brokers[1].Controller().CreateTopic(b.ctx, fmt.Sprint("after", outage.Milliseconds()), threeReplicas))
		t.Logf("outage of %v; changes of metadata %v after its end", outage, time.Since(up))
		_, err := b.brokers[2].Partition(fmt.Sprint("after", outage.Milliseconds()), 0).Append(b.ctx, tidemark.Record{Value: []byte("x")})
		require.NoError(t, err)
	}
	ends, err := p.Offsets(b.ctx)
	require.NoError(t, err)
	require.Equal(t, next, ends.HighWatermark)
}

// appendOneAgain appends until it is acknowledged.
func appendOneAgain(b *brokers, p *tidemark.Partition, next *int64) {
	for {
		ctx, cancel := context.WithTimeout(b.ctx, 2*sessionTimeout)
		res, err := p.Append(ctx, tidemark.Record{Value: []byte("x")})
		cancel()
		if err == nil {
			*next = res.Last + 1
			return
		}
		require.NoError(b.t, b.ctx.Err(), err)
	}
}

// TestBrokerDiesOverEtcd: a dead leader's successor takes over within the session
// timeout and a second, whether it was the Controller or not.
func TestBrokerDiesOverEtcd(t *testing.T) {
	b := startBrokers(t, startProcess(t, oneMember(t)).endpoint())
	require.NoError(t, b.brokers[0].Controller().CreateTopic(b.ctx, "t", threeReplicas))
	status, err := b.brokers[0].Partition("t", 0).Status(b.ctx)
	require.NoError(t, err)
	dead := int(status.Leader)
	p := b.brokers[dead%3].Partition("t", 0)
	_, err = p.Append(b.ctx, tidemark.Record{Value: []byte("before")})
	require.NoError(t, err)
	controller, err := b.brokers[dead%3].Controller().Status()
	require.NoError(t, err)

	b.network.Isolate(int32(dead))
	b.proxies[dead-1].setCut(true)
	died := time.Now()
	for {
		ctx, cancel := context.WithTimeout(b.ctx, 200*time.Millisecond)
		_, err := p.Append(ctx, tidemark.Record{Value: []byte("after")})
		cancel()
		if err == nil {
			break
		}
		require.NoError(t, b.ctx.Err(), err)
	}
	t.Logf("appends resumed after %v; it was the controller: %v", time.Since(died), int(controller.Broker) == dead)
	require.Less(t, time.Since(died), sessionTimeout+time.Second)
}

// TestBrokersMeetAnOlderBackup: brokers that run while etcd is restored from an older
// backup go on with the data that they have, and take part in nothing under it. One
// that is opened anew refuses it.
func TestBrokersMeetAnOlderBackup(t *testing.T) {
	config := oneMember(t)
	etcdProcess := startProcess(t, config)
	b := startBrokers(t, etcdProcess.endpoint())
	for i := range b.brokers {
		b.close(i)
	}
	etcdProcess.stop()
	backup := t.TempDir()
	require.NoError(t, os.CopyFS(backup, os.DirFS(config.Dir)))
	etcdProcess = startProcess(t, config)
	etcdProcess.endpoint()
	for i := range b.brokers {
		b.open(i)
	}
	b.ready()
	require.NoError(t, b.brokers[0].Controller().CreateTopic(b.ctx, "t", threeReplicas))
	p := b.brokers[0].Partition("t", 0)
	_, err := p.Append(b.ctx, tidemark.Record{Value: []byte("x")})
	require.NoError(t, err)

	etcdProcess.stop()
	require.NoError(t, os.RemoveAll(config.Dir))
	require.NoError(t, os.CopyFS(config.Dir, os.DirFS(backup)))
	etcdProcess = startProcess(t, config)
	etcdProcess.endpoint()
	for _, s := range b.stores {
		require.Eventually(t, func() bool {
			_, _, err := s.Get(b.ctx, "/cluster")
			return errors.Is(err, etcd.ErrRewound)
		}, 10*time.Second, 10*time.Millisecond)
	}
	for end := time.Now().Add(2 * sessionTimeout); time.Now().Before(end); <-time.After(20 * time.Millisecond) {
		_, err := p.Append(b.ctx, tidemark.Record{Value: []byte("x")})
		require.NoError(t, err)
	}
	b.close(2)
	b.open(2)
	ctx, cancel := context.WithTimeout(b.ctx, 10*time.Second)
	defer cancel()
	require.ErrorIs(t, b.brokers[2].Ready(ctx), tidemark.ErrCoordinationBehind)
}
