// Package cluster runs brokers as processes of their own, each behind proxies, with a
// coordination store, and does to them what a fault is made of.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/tidemark-log/tidemark/chaos/internal/node"
	"github.com/tidemark-log/tidemark/chaos/internal/proxy"
)

// Options describe a cluster. All are required, but for TLS, EarlyAck and Say.
type Options struct {
	Brokers, Partitions    int
	ReplicationFactor      int
	MinISR                 int
	SessionTimeout, MaxLag time.Duration
	Coordination           string // one of node.Kinds
	TLS                    bool
	EarlyAck               time.Duration // a planted bug, see package node
	Say                    func(format string, args ...any)
}

// Cluster is a set of brokers. Faults are made by one goroutine; the rest may be used
// by any.
type Cluster struct {
	o       Options
	dir     string
	spawner *spawner
	net     *network
	store   store
	brokers map[int32]*broker
	running sync.WaitGroup
}

// Start starts a cluster in a directory that is empty, and returns once the topic is
// there and all replicas are in sync.
func Start(ctx context.Context, dir string, o Options) (*Cluster, error) {
	if o.Say == nil {
		o.Say = func(string, ...any) {}
	}
	c := &Cluster{o: o, dir: dir, brokers: make(map[int32]*broker), spawner: newSpawner()}
	if err := c.start(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (c *Cluster) say(format string, args ...any) { c.o.Say(format, args...) }

func (c *Cluster) start(ctx context.Context) (err error) {
	if c.net, err = newNetwork(c.o.Brokers); err != nil {
		return err
	}
	store, err := newStore(c)
	if err != nil {
		return err
	}
	c.store = store
	address, err := c.store.start(ctx)
	if err != nil {
		return fmt.Errorf("coordination store: %w", err)
	}
	c.net.pointCoordination(address)
	if err := c.certify(); err != nil {
		return err
	}
	for id := int32(1); id <= int32(c.o.Brokers); id++ {
		b, err := newBroker(c, id)
		if err != nil {
			return err
		}
		c.brokers[id] = b
	}
	for _, b := range c.brokers {
		c.running.Go(b.supervise)
		b.up()
	}
	return c.found(ctx)
}

// found makes the topic.
func (c *Cluster) found(ctx context.Context) error {
	args := node.TopicArgs{Partitions: c.o.Partitions, ReplicationFactor: c.o.ReplicationFactor, MinISR: c.o.MinISR, Timeout: 5 * time.Second}
	err := errors.New("no broker was reached")
	for ctx.Err() == nil {
		if l := c.brokers[1].current(); l != nil {
			if err = l.admin.Call(ctx, "EnsureTopic", args, &node.None{}); err == nil {
				return c.AwaitInSync(ctx)
			}
		}
		if !pause(ctx, 50*time.Millisecond) {
			break
		}
	}
	return fmt.Errorf("could not make the topic: %w (%w)", err, context.Cause(ctx))
}

// nodeConfig is what a broker's process is told.
func (c *Cluster) nodeConfig(id int32, disk node.Disk) node.Config {
	cfg := node.Config{
		ID: id, Dir: c.brokers[id].dir(), Cluster: clusterName, SessionTimeout: c.o.SessionTimeout, MaxLag: c.o.MaxLag,
		Peers:        c.net.from(id),
		Coordination: node.Coordination{Kind: c.o.Coordination, Address: c.net.coord[id].Addr()},
		Disk:         disk, EarlyAck: c.o.EarlyAck,
	}
	if c.o.TLS {
		cfg.Certificates = c.certificates()
	}
	return cfg
}

// clusterName is for the transport.
const clusterName = "chaos"

func (c *Cluster) certificates() string { return filepath.Join(c.dir, "certificates") }

// IDs are the brokers' ids, in order.
func (c *Cluster) IDs() []int32 {
	var ids []int32
	for id := range c.brokers {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// StoreDir is the directory of a broker's log store.
func (c *Cluster) StoreDir(id int32) string { return filepath.Join(c.brokers[id].dir(), "store") }

// Life is a broker's present process; nil while it is not up.
func (c *Cluster) Life(id int32) *Life { return c.brokers[id].current() }

// Kill ends a broker's process with SIGKILL. It stays down until Up.
func (c *Cluster) Kill(id int32) { c.brokers[id].kill() }

// KillAll is Kill of all brokers at once.
func (c *Cluster) KillAll() {
	var all sync.WaitGroup
	for _, b := range c.brokers {
		all.Go(b.kill)
	}
	all.Wait()
}

// Stop ends a broker's process gracefully. It stays down until Up.
func (c *Cluster) Stop(id int32) error { return c.brokers[id].stop() }

// Up has a broker's process started. It does not wait for it.
func (c *Cluster) Up(id int32) { c.brokers[id].up() }

// Pause makes a broker's process stand still until Resume.
func (c *Cluster) Pause(id int32) { c.brokers[id].signal(syscall.SIGSTOP) }

// Resume ends Pause.
func (c *Cluster) Resume(id int32) { c.brokers[id].signal(syscall.SIGCONT) }

// SetDisk breaks a broker's disk, or mends it.
func (c *Cluster) SetDisk(id int32, d node.Disk) error { return c.brokers[id].setDisk(d) }

// Impose puts a fault on the way from one broker to another, until lift is called.
func (c *Cluster) Impose(w Way, f proxy.Fault) (lift func()) { return c.net.ways[w].Impose(f) }

// ImposeCoordination puts a fault on a broker's way to the coordination store.
func (c *Cluster) ImposeCoordination(id int32, f proxy.Fault) (lift func()) {
	return c.net.coord[id].Impose(f)
}

// StoreDown ends the coordination store without warning, until StoreUp.
func (c *Cluster) StoreDown() error { return c.store.down() }

// StoreUp runs it again on what it had.
func (c *Cluster) StoreUp(ctx context.Context) error {
	address, err := c.store.up(ctx)
	if err == nil {
		c.net.pointCoordination(address)
	}
	return err
}

// StorePause makes the coordination store stand still, until StoreResume.
func (c *Cluster) StorePause() error { return c.store.pause() }

// StoreResume ends StorePause.
func (c *Cluster) StoreResume() error { return c.store.resume() }

// Exits are how the brokers' processes ended so far.
func (c *Cluster) Exits() (all []Exit) {
	for _, id := range c.IDs() {
		b := c.brokers[id]
		b.mu.Lock()
		all = append(all, b.exits...)
		b.mu.Unlock()
	}
	return all
}

// BadExits are those that no fault explains.
func (c *Cluster) BadExits() (bad []Exit) {
	for _, e := range c.Exits() {
		if e.bad() {
			bad = append(bad, e)
		}
	}
	return bad
}

// StopAll ends all brokers' processes gracefully, all at once.
func (c *Cluster) StopAll() error {
	errs := make([]error, c.o.Brokers+1)
	var all sync.WaitGroup
	for id, b := range c.brokers {
		all.Go(func() { errs[id] = b.stop() })
	}
	all.Wait()
	return errors.Join(errs...)
}

// Close ends everything that runs, at once.
func (c *Cluster) Close() error {
	var errs []error
	for _, b := range c.brokers {
		b.end()
	}
	c.running.Wait()
	for _, b := range c.brokers {
		errs = append(errs, b.log.Close())
	}
	if c.store != nil {
		errs = append(errs, c.store.stop())
	}
	if c.net != nil {
		errs = append(errs, c.net.close())
	}
	c.spawner.close()
	return errors.Join(errs...)
}

// pause waits; false when ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
