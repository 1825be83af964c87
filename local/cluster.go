// Package local is Tidemark with batteries included: a whole cluster of brokers
// in this process, on Pebble, with an in-process transport and an embedded
// coordination store. It is the embedded default, and a test kit for hosts: Kill
// and Restart show what an application goes through when a broker dies.
package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/sync/errgroup"

	"github.com/tidemark-log/tidemark"
	"github.com/tidemark-log/tidemark/coordination/pebblecoord"
	"github.com/tidemark-log/tidemark/storage/pebblestore"
	"github.com/tidemark-log/tidemark/transport/inproc"
)

// Options describes a Cluster. Zero fields mean the documented defaults.
type Options struct {
	// Brokers is how many brokers the cluster has, with ids from 1. Default 3. A
	// directory may be opened with more brokers than before, never with fewer.
	Brokers int
	// SessionTimeout is how long a dead broker goes unnoticed. Default 1 s.
	SessionTimeout time.Duration
	// MaxLag is how long a replica may miss records before it leaves the ISR. Default 2 s.
	MaxLag time.Duration
	// MemoryBudget bounds caches, memtables and what is in flight, in bytes, over
	// all brokers. Default 512 MiB.
	MemoryBudget int64
	// MaxRecordBytes bounds one record. Default 1 MiB.
	MaxRecordBytes int
	// InMemory keeps everything in memory and ignores the directory. Kill then
	// loses whatever was not synced, as a power cut does.
	InMemory bool
	// Logger receives what an operator should know. Default: silent.
	Logger *slog.Logger
	// Observer returns what is told what happens at a broker; nil: nothing is. It is
	// called whenever a broker is opened. Default: none has one.
	Observer func(broker int32) *tidemark.Observer

	disk func(broker int32, fs vfs.FS) vfs.FS // tests put faults in between
}

func (o Options) withDefaults() Options {
	if o.Brokers == 0 {
		o.Brokers = 3
	}
	if o.SessionTimeout == 0 {
		o.SessionTimeout = time.Second
	}
	if o.MaxLag == 0 {
		o.MaxLag = 2 * time.Second
	}
	if o.MemoryBudget == 0 {
		o.MemoryBudget = 512 << 20
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// ErrUnknownBroker is returned for a broker id that the cluster does not have.
var ErrUnknownBroker = errors.New("local: no such broker")

// ErrRunning is returned by Restart for a broker that was not killed. One that was
// closed by its own Close has to be killed first.
var ErrRunning = errors.New("local: broker was not killed")

// Cluster is a set of brokers in this process. Its handles go straight to the
// leader of a partition, and keep working while any broker is up. All methods may
// be called from any goroutine.
type Cluster struct {
	*tidemark.Client

	dir     string
	o       Options
	network *inproc.Network
	coord   *pebblecoord.Store
	open    atomic.Pointer[[]*tidemark.Broker] // those that are up

	mu     sync.Mutex // serialises Kill, Restart and Close
	nodes  map[int32]*node
	ended  bool        // everything is closed,
	err    error       // with this
	closed atomic.Bool // or will be
}

// node is one broker and what it stands on.
type node struct {
	broker *tidemark.Broker // nil: killed
	store  *pebblestore.Store
	client *pebblecoord.Client
	mem    *vfs.MemFS // in memory: the broker's disk
}

// Open opens the cluster in dir, making it when dir does not exist or is empty,
// and returns once every broker is ready; replicas may still be catching up, as
// PartitionStatus.ISR shows. A directory that holds something else
// is refused before anything is written (ErrForeign), one that is open already
// too (ErrInUse). ctx bounds Open alone.
func Open(ctx context.Context, dir string, o Options) (*Cluster, error) {
	o = o.withDefaults()
	if dir == "" && !o.InMemory {
		return nil, fmt.Errorf("%w: dir is empty; Options.InMemory makes a cluster in memory", tidemark.ErrInvalidConfig)
	}
	if o.Brokers < 1 {
		return nil, fmt.Errorf("%w: Brokers must be at least 1, not %d", tidemark.ErrInvalidConfig, o.Brokers)
	}
	c := &Cluster{dir: dir, o: o, network: inproc.New(inproc.Options{}), nodes: make(map[int32]*node)}
	c.open.Store(&[]*tidemark.Broker{})
	c.Client = tidemark.NewClient(func() []*tidemark.Broker { return *c.open.Load() },
		tidemark.ClientOptions{DefaultReplicationFactor: min(3, o.Brokers), Closed: c.closed.Load})
	if err := c.start(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context) error {
	fs := vfs.FS(vfs.Default)
	if c.o.InMemory {
		fs = vfs.NewMem()
	}
	dir, err := claim(fs, c.dir, c.o.Brokers)
	if err != nil {
		return err
	}
	c.dir = dir
	coord, err := pebblecoord.Open(filepath.Join(c.dir, "coordination"), pebblecoord.Options{FS: fs, Logger: c.o.Logger})
	if err != nil {
		return translate(err)
	}
	c.coord = coord
	if err := enlarge(fs, c.dir, c.o.Brokers); err != nil {
		return err
	}
	for id := int32(1); id <= int32(c.o.Brokers); id++ {
		n := &node{}
		if c.o.InMemory {
			n.mem = vfs.NewCrashableMem()
		}
		c.nodes[id] = n
		if err := c.openNode(ctx, id, n); err != nil {
			return err
		}
	}
	for id := int32(1); id <= int32(c.o.Brokers); id++ {
		if err := c.nodes[id].broker.Ready(ctx); err != nil {
			return fmt.Errorf("local: broker %d is not ready: %w", id, err)
		}
	}
	return nil
}

// openNode opens one broker on its directory.
func (c *Cluster) openNode(ctx context.Context, id int32, n *node) error {
	share := c.o.MemoryBudget / int64(c.o.Brokers)
	o := pebblestore.Options{CacheBytes: share / 16, MemtableBytes: min(64<<20, share/8), Logger: c.o.Logger.With("broker", id)}
	if n.mem != nil {
		o.FS = n.mem
	}
	if c.o.disk != nil {
		o.FS = c.o.disk(id, o.FS)
	}
	store, err := pebblestore.Open(filepath.Join(c.dir, fmt.Sprintf("broker-%d", id)), o)
	if err != nil {
		return translate(err)
	}
	client := c.coord.Connect()
	var observer *tidemark.Observer
	if c.o.Observer != nil {
		observer = c.o.Observer(id)
	}
	broker, err := tidemark.Open(ctx, tidemark.Config{
		ID: id, Address: fmt.Sprintf("inproc:%d", id),
		Store: store, Coordination: client, Transport: c.network.Transport(id),
		MaxRecordBytes: c.o.MaxRecordBytes, SessionTimeout: c.o.SessionTimeout, MaxLag: c.o.MaxLag, MemoryBudget: share / 2,
		Logger: c.o.Logger, Observer: observer,
		Loops: max(1, min(8, runtime.GOMAXPROCS(0)/c.o.Brokers)), // all brokers share the processors
	})
	if err != nil {
		return errors.Join(err, client.Close(), store.Close())
	}
	n.store, n.client, n.broker = store, client, broker
	c.publish()
	return nil
}

// publish makes the set of brokers that are up visible to the handles.
func (c *Cluster) publish() {
	var up []*tidemark.Broker
	for id := int32(1); id <= int32(c.o.Brokers); id++ {
		if n := c.nodes[id]; n != nil && n.broker != nil {
			up = append(up, n.broker)
		}
	}
	c.open.Store(&up)
}

// Broker returns the broker with that id, or nil while it is killed or unknown.
func (c *Cluster) Broker(id int32) *tidemark.Broker {
	for _, b := range c.Brokers() {
		if b.ID() == id {
			return b
		}
	}
	return nil
}

// Brokers returns the brokers that are up, by id.
func (c *Cluster) Brokers() []*tidemark.Broker {
	return slices.Clone(*c.open.Load())
}

// Network is the transport between the brokers, for faults.
func (c *Cluster) Network() *inproc.Network { return c.network }

// Kill ends a broker without warning, as kill -9 does: from one moment to the
// next nothing more reaches its disk or the other brokers, and its session is left
// to expire. Appends that it had under way end as Unknown, with ErrDisconnected.
// Killing it again does nothing. With InMemory, what was
// not synced is lost. A disk that hangs holds Kill up for 10 s, after which it returns
// an error that wraps pebblestore.ErrAbandoned; the broker is dead then like any
// other, and Restart does not wait for what hangs.
func (c *Cluster) Kill(id int32) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.nodes[id]
	if n == nil {
		return fmt.Errorf("%w: %d", ErrUnknownBroker, id)
	}
	if n.broker == nil {
		return nil
	}
	c.network.Isolate(id)
	n.client.Fence()
	fenceErr := n.store.Fence()
	broker := n.broker
	n.broker = nil
	c.publish()
	closeErr := broker.Close()
	if n.mem != nil {
		n.mem = n.mem.CrashClone(vfs.CrashCloneCfg{RNG: rand.New(rand.NewPCG(0, 0))})
	}
	return errors.Join(fenceErr, closeErr)
}

// Restart opens a killed broker again on what its disk has. It does not wait until
// the broker is ready.
func (c *Cluster) Restart(ctx context.Context, id int32) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.nodes[id]
	switch {
	case n == nil:
		return fmt.Errorf("%w: %d", ErrUnknownBroker, id)
	case c.closed.Load():
		return tidemark.ErrClosed
	case n.broker != nil:
		return fmt.Errorf("%w: %d", ErrRunning, id)
	}
	c.network.Rejoin(id)
	return c.openNode(ctx, id, n)
}

// Shutdown takes no more calls, which end with tidemark.ErrClosed, waits until the
// appends and commands that were sent are decided or ctx ends, and closes the
// cluster. Every broker goes on until all are done, for they need each other. What
// a Producer has not sent yet is not waited for: Close Producers first.
func (c *Cluster) Shutdown(ctx context.Context) error {
	var g errgroup.Group
	for _, b := range c.Brokers() {
		g.Go(func() error { return b.Drain(ctx) })
	}
	return errors.Join(g.Wait(), c.Close())
}

// Close closes all brokers at once, then what they stand on. Appends under way end
// as Unknown. It may be called again, from any goroutine, and returns in bounded time.
func (c *Cluster) Close() error {
	c.closed.Store(true) // calls that wait for a broker end
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return c.err
	}
	c.ended = true
	var g errgroup.Group
	errs := make([]error, len(c.nodes)+1)
	i := 0
	for _, n := range c.nodes {
		at := i
		i++
		if n.broker == nil {
			continue
		}
		g.Go(func() error {
			errs[at] = errors.Join(n.broker.Close(), n.client.Close(), n.store.Close())
			n.broker = nil
			return nil
		})
	}
	_ = g.Wait()
	c.open.Store(&[]*tidemark.Broker{})
	if c.coord != nil {
		errs[i] = c.coord.Close()
	}
	c.err = errors.Join(errs...)
	return c.err
}
