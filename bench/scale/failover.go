package scale

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/tidemark-log/tidemark"
	"github.com/tidemark-log/tidemark/bench/cluster"
	"github.com/tidemark-log/tidemark/bench/meter"
	"github.com/tidemark-log/tidemark/coordination/memory"
)

const manyPartitions = 10_000

// failovers is W9. One of three brokers dies without a farewell: one that only leads, or
// the one that is the Controller as well.
func failovers(ctx context.Context, o Options) (res Result, err error) {
	for _, kind := range []struct {
		name  string
		etcd  bool
		limit float64
	}{{"in memory", false, 1000}, {"etcd", true, 2000}} {
		var moved, movedWith, controller, ended []time.Duration
		for i := range o.Rounds {
			for _, isController := range []bool{false, true} {
				o.Say("W9: coordination %s, Controller dies: %t, %d of %d", kind.name, isController, i+1, o.Rounds)
				f, err := failOver(ctx, &o, kind.etcd, isController)
				if err != nil {
					return res, err
				}
				o.Say("W9: %d partitions moved in %v, new Controller after %v, session ended after %v, cpu %v", f.partitions, f.moved, f.controller, f.ended, f.cpu)
				ended = append(ended, f.ended)
				if isController {
					movedWith, controller = append(movedWith, f.moved), append(controller, f.controller)
				} else {
					moved = append(moved, f.moved)
				}
			}
		}
		res.Figures = append(res.Figures,
			Figure{"last moved partition takes an append, " + kind.name, millis(meter.Median(moved)), "ms", atMost(kind.limit)},
			Figure{"worst round of it, " + kind.name, millis(worst(moved)), "ms", Bound{}},
			Figure{"new Controller, " + kind.name, millis(meter.Median(controller)), "ms", atMost(1000)},
			Figure{"last moved partition when the Controller died, " + kind.name, millis(meter.Median(movedWith)), "ms", atMost(kind.limit)},
			Figure{"from death to end of session, " + kind.name, millis(meter.Median(ended)), "ms", Bound{}},
		)
	}
	return res, nil
}

// failover is what one death showed. Times but ended count from the session's end.
type failover struct {
	partitions        int
	ended             time.Duration // since the death
	moved, controller time.Duration
	cpu               time.Duration
}

// failOver opens a cluster, has a broker die, and measures.
func failOver(ctx context.Context, o *Options, useEtcd, isController bool) (f failover, err error) {
	dir, err := o.place("w9-metadata", 0)
	if err != nil {
		return f, err
	}
	meta := metadata(inMemory{memory.New(memory.Options{})})
	if useEtcd {
		if meta, err = startQuorum(ctx, dir, 3); err != nil {
			return f, errors.Join(err, os.RemoveAll(dir))
		}
	}
	defer func() { err = errors.Join(err, meta.close(), os.RemoveAll(dir)) }()
	acting := make(chan time.Time, 16)
	r, err := o.open(ctx, "w9", spareBytes, cluster.Options{Coordination: meta.connect, Tweak: func(cfg *tidemark.Config) {
		cfg.SessionTimeout = o.session
		cfg.Observer = &tidemark.Observer{Controller: func(e tidemark.ControllerEvent) {
			if e.Acting {
				acting <- time.Now()
			}
		}}
	}})
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	l := newLedger("w9", o.partitions(manyPartitions), 100)
	if err := r.create(ctx, l, 3); err != nil {
		return f, err
	}
	if _, err := l.drive(ctx, r.Cluster, flow{inFlight: w1InFlight, bytes: int64(l.partitions() * l.size)}); err != nil {
		return f, err
	}
	for len(acting) > 0 {
		<-acting // the first one
	}
	if err := f.measure(ctx, r.Cluster, l, meta, acting, isController); err != nil {
		return f, err
	}
	return f, l.verify(ctx, r.Cluster)
}

// victim is the Controller, or another broker.
func victim(c *cluster.Cluster, isController bool) (int32, error) {
	for _, b := range c.Brokers() {
		if (b.Status().Controller == b.ID()) == isController {
			return b.ID(), nil
		}
	}
	return 0, errors.New("no broker is the Controller")
}

// measure kills a broker, and appends to every partition that it led from the moment
// at which its session has ended.
func (f *failover) measure(ctx context.Context, c *cluster.Cluster, l *ledger, meta metadata, acting <-chan time.Time, isController bool) error {
	dies, err := victim(c, isController)
	if err != nil {
		return err
	}
	led, err := ledBy(ctx, c, l, dies)
	if err != nil {
		return err
	}
	f.partitions = len(led)
	gone, err := watchSession(ctx, meta, dies)
	if err != nil {
		return err
	}
	killed := time.Now()
	if err := errors.Join(c.Kill(dies), meta.died(dies)); err != nil {
		return fmt.Errorf("kill broker %d: %w", dies, err)
	}
	var ended time.Time
	select {
	case ended = <-gone:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	f.ended = ended.Sub(killed)
	began, err := meter.CPU()
	if err != nil {
		return err
	}
	last, err := appendToEach(ctx, c, l, led)
	if err != nil {
		return err
	}
	f.moved = last.Sub(ended)
	now, err := meter.CPU()
	if err != nil {
		return err
	}
	f.cpu = now - began
	if isController {
		select {
		case at := <-acting:
			f.controller = at.Sub(ended)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// ledBy are the partitions that a broker leads.
func ledBy(ctx context.Context, c *cluster.Cluster, l *ledger, broker int32) ([]int, error) {
	var led []int
	for n := range l.partitions() {
		s, err := c.Partition(l.topic, n).Status(ctx)
		if err != nil {
			return nil, err
		}
		if s.Leader == broker {
			led = append(led, n)
		}
	}
	return led, nil
}

// watchSession tells when a broker's registration is gone.
func watchSession(ctx context.Context, meta metadata, broker int32) (<-chan time.Time, error) {
	store, err := meta.watcher(broker)
	if err != nil {
		return nil, err
	}
	key := fmt.Sprintf("/brokers/ids/%d", broker)
	_, revision, err := store.List(ctx, key)
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	changes, err := store.Watch(ctx, key, revision)
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	gone := make(chan time.Time, 1)
	go func() {
		defer store.Close()
		for c := range changes {
			for _, e := range c.Events {
				if e.Key == key && e.Deleted {
					gone <- time.Now()
					return
				}
			}
		}
	}()
	return gone, nil
}

// appendToEach appends a record to each of some partitions, through one Producer, and
// returns when the last of them was acknowledged.
func appendToEach(ctx context.Context, c *cluster.Cluster, l *ledger, partitions []int) (time.Time, error) {
	p := c.Topic(l.topic).Producer(tidemark.ProducerOptions{
		Partitioner: func(rec tidemark.Record, _ int) int { return partitionOf(rec.Value) },
	})
	var last atomic.Int64
	began := time.Now()
	var failed error // of the Producer's goroutine, until it is closed
	for _, n := range partitions {
		err := p.AppendAsync(ctx, l.next(n), func(res tidemark.Result, err error) {
			failed = errors.Join(failed, l.ack(n, res, err))
			last.Store(int64(time.Since(began)))
		})
		if err != nil {
			return began, errors.Join(err, p.Close(ctx))
		}
	}
	err := p.Close(ctx)
	return began.Add(time.Duration(last.Load())), errors.Join(err, failed)
}
