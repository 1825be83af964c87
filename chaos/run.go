package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/tidemark-log/tidemark/chaos/history"
	"github.com/tidemark-log/tidemark/chaos/internal/audit"
	"github.com/tidemark-log/tidemark/chaos/internal/cluster"
	"github.com/tidemark-log/tidemark/chaos/internal/nemesis"
	"github.com/tidemark-log/tidemark/chaos/internal/workload"
)

// startTime is for a new cluster to be in sync.
const startTime = 60 * time.Second

// patience is how long it may take until everything is in sync: after a fault, and in
// the end. With a bug planted that may never come.
func (o *options) patience() (afterFault, atEnd time.Duration) {
	if o.earlyAck > 0 {
		return o.bound(), o.bound()
	}
	return max(2*o.bound(), 30*time.Second), 60 * time.Second
}

// say prints progress, with the time since the start.
type say struct {
	mu    sync.Mutex
	out   io.Writer
	began time.Time
}

func (s *say) printf(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(s.out, "%8.2fs  %s\n", time.Since(s.began).Seconds(), fmt.Sprintf(format, args...))
}

// harness is one run.
type harness struct {
	o       options
	dir     string
	say     *say
	cluster *cluster.Cluster
	load    *workload.Load
	history *history.History
	sum     summary
}

// run plays everything from the start to the final comparison. The error is of the
// harness; what the cluster did wrong is in the summary.
func run(ctx context.Context, o options, stderr io.Writer) (summary, error) {
	h := &harness{o: o, say: &say{out: stderr, began: time.Now()}, history: &history.History{}, sum: newSummary(o)}
	var err error
	if h.dir = o.dir; h.dir == "" {
		h.dir, err = os.MkdirTemp("", "tidemark-chaos-")
	} else {
		err = os.Mkdir(h.dir, 0o700)
	}
	if err != nil {
		return h.sum, err
	}
	h.say.printf("seed %d, %s, in %s", o.seed, o.coordination, h.dir)
	if err = h.play(ctx); err == nil {
		err = h.check()
	}
	if err == nil && h.sum.good() && !o.keep {
		err = os.RemoveAll(h.dir)
	} else {
		h.say.printf("logs and stores are kept in %s", h.dir)
	}
	return h.sum, err
}

// play runs the cluster. When it returns everything has been stopped.
func (h *harness) play(ctx context.Context) (err error) {
	starting, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	h.cluster, err = cluster.Start(starting, h.dir, cluster.Options{
		Brokers: h.o.brokers, Partitions: h.o.partitions, ReplicationFactor: replicationFactor, MinISR: minISR,
		SessionTimeout: h.o.sessionTimeout, MaxLag: h.o.maxLag, Coordination: h.o.coordination,
		TLS: h.o.tls, EarlyAck: h.o.earlyAck, Say: h.say.printf,
	})
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, h.cluster.Close())
		if h.load != nil {
			h.load.Close() // what it waited for has ended with the processes
		}
	}()
	h.load = workload.Start(h.cluster, h.history, workload.Options{
		Partitions: h.o.partitions, Producers: h.o.producers, InFlight: h.o.inFlight, Readers: h.o.readers,
		Rate: h.o.rate, CallTimeout: h.o.sessionTimeout + callTimeout, Resend: h.o.resend,
	})
	began := time.Now()
	if err := h.faults(ctx); err != nil {
		return err
	}
	h.sum.Seconds = time.Since(began).Seconds()
	if ctx.Err() != nil {
		return errors.New("interrupted")
	}
	return h.settle(ctx)
}

// faults makes them for as long as is asked for.
func (h *harness) faults(ctx context.Context) error {
	patience, _ := h.o.patience()
	n, err := nemesis.New(h.cluster, h.load, nemesis.Options{
		Seed: h.o.seed, SessionTimeout: h.o.sessionTimeout, Bound: h.o.bound(), SyncBound: patience,
		Kinds: h.o.only, Only: len(h.o.only) > 0, Press: pressed, Say: h.say.printf,
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, h.o.duration)
	defer cancel()
	done := make(chan struct{})
	go h.progress(done)
	r, err := n.Run(ctx)
	close(done)
	h.sum.faults(r)
	return err
}

// pressed is how many appends per partition a paused leader has in flight.
const pressed = 16

// progress says now and then how it goes.
func (h *harness) progress(done <-chan struct{}) {
	ticker := time.NewTicker(5 * time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-done:
			return
		case <-ticker.C:
			c := h.load.Counts()
			h.say.printf("acked %d, refused %d, unknown %d, read %d", c.Acked, c.Refused, c.Unknown, c.Reads)
		}
	}
}

// settle waits until everything that was acknowledged has been read and all copies are
// complete, and stops the brokers.
func (h *harness) settle(ctx context.Context) error {
	_, patience := h.o.patience()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	h.say.printf("the faults are over: waiting for all appends to be decided and all replicas to be in sync")
	if err := h.load.StopAppending(patience); err != nil {
		h.sum.Late = append(h.sum.Late, err.Error())
	}
	if err := h.cluster.AwaitInSync(ctx); err != nil {
		h.sum.Late = append(h.sum.Late, fmt.Sprintf("in the end, %v", err))
	}
	ends, view := h.cluster.Ends(ctx)
	if !h.load.StopReading(ctx, ends) {
		h.sum.Late = append(h.sum.Late, "in the end, readers did not get everything")
	}
	h.sum.AckedAfterResume = h.load.AckedAfterResume()
	h.sum.Reads = h.load.Counts().Reads
	for id, r := range view.Brokers {
		if r.Losses+r.Damaged+r.UncleanElections+r.ObserverPanics > 0 {
			h.sum.Complaints = append(h.sum.Complaints, fmt.Sprintf("broker %d tells of %d losses, %d damaged logs, %d unclean elections, %d panics of its observer",
				id, r.Losses, r.Damaged, r.UncleanElections, r.ObserverPanics))
		}
	}
	if err := h.cluster.StopAll(); err != nil {
		h.sum.Complaints = append(h.sum.Complaints, err.Error())
	}
	for _, e := range h.cluster.BadExits() {
		h.sum.Complaints = append(h.sum.Complaints, fmt.Sprintf("a process of broker %d ended with %d", e.Broker, e.Code))
	}
	h.sum.Restarts = len(h.cluster.Exits()) - h.o.brokers
	return nil
}

// check opens the brokers' stores, compares them, and has the history checked.
func (h *harness) check() error {
	h.say.printf("comparing the brokers' stores")
	var all []*audit.Logs
	defer func() {
		for _, l := range all {
			if err := l.Close(); err != nil {
				h.say.printf("store of broker %d: %v", l.Broker, err)
			}
		}
	}()
	for _, id := range h.cluster.IDs() {
		l, err := audit.Open(id, h.cluster.StoreDir(id))
		if err != nil {
			return fmt.Errorf("store of broker %d: %w", id, err)
		}
		all = append(all, l)
	}
	for p := range int32(h.o.partitions) {
		var replicas []*audit.Logs
		for _, l := range all {
			if !l.Has(p) {
				continue
			}
			replicas = append(replicas, l)
			f, err := l.Final(p)
			if err != nil {
				return err
			}
			h.history.AddFinal(f)
		}
		if len(replicas) != replicationFactor {
			h.sum.Complaints = append(h.sum.Complaints, fmt.Sprintf("%d brokers have a log of partition %d", len(replicas), p))
		}
		differ, err := audit.Compare(p, replicas)
		if err != nil {
			return err
		}
		if differ != "" {
			h.sum.Complaints = append(h.sum.Complaints, differ)
		}
	}
	report := h.history.Check()
	h.say.printf("%s", report)
	h.sum.checked(report)
	return os.WriteFile(filepath.Join(h.dir, "report.txt"), []byte(report.String()), 0o600)
}
