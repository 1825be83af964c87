package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	brokers    = 3
	partitions = 3
	// patience is how long to wait for the brokers to get somewhere before giving up.
	patience = time.Minute
)

// show is one run of the demo.
type show struct {
	o        options
	stderr   io.Writer
	children *children
	clients  []*client
	writers  *writers
}

func (d *show) say(format string, args ...any) { fmt.Fprintf(d.stderr, format+"\n", args...) }

// demo runs the show in a directory of its own, and prints the summary. What it has
// started has ended when it returns.
func demo(ctx context.Context, o options, stdout, stderr io.Writer) (err error) {
	dir, temporary, err := demoDir(o.dir)
	if err != nil {
		return err
	}
	running, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	d := &show{o: o, stderr: stderr}
	sum, err := d.run(running, cancel, dir)
	switch cause := context.Cause(running); {
	case err == nil && !sum.good():
		err = errors.New("not everything holds")
	case err != nil && cause != nil:
		err = cause // what ended the show, not how it ended
	}
	if temporary && (err == nil || ctx.Err() != nil) {
		err = errors.Join(err, os.RemoveAll(dir))
	} else {
		d.say("kept %s: the brokers' data and what they logged", dir)
	}
	if sum == (summary{}) {
		return err
	}
	text, _ := json.Marshal(sum)
	_, printErr := fmt.Fprintf(stdout, "%s\n", text)
	return errors.Join(err, printErr)
}

// demoDir returns the directory to use. The ports change from run to run, and members
// of etcd remember them: so what an earlier run left cannot be used again.
func demoDir(asked string) (dir string, temporary bool, err error) {
	if asked == "" {
		dir, err = os.MkdirTemp("", "tidemark-cluster-")
		return dir, true, err
	}
	if err := os.MkdirAll(asked, 0o755); err != nil {
		return "", false, badInput{err}
	}
	entries, err := os.ReadDir(asked)
	if err == nil && len(entries) > 0 {
		err = badInput{fmt.Errorf("%s is not empty", asked)}
	}
	return asked, false, err
}

// run is the script. The summary is empty unless it came to the end.
func (d *show) run(ctx context.Context, fail context.CancelCauseFunc, dir string) (summary, error) {
	began := time.Now()
	all, err := freePlaces(brokers)
	if err != nil {
		return summary{}, err
	}
	if err := writeCerts(filepath.Join(dir, "certs"), all); err != nil {
		return summary{}, err
	}
	web := &http.Client{}
	defer web.CloseIdleConnections()
	for _, p := range all {
		d.clients = append(d.clients, &client{p, web})
	}
	d.children = &children{dir: dir, all: all, session: d.o.session, fail: fail, running: make(map[int32]*child)}
	if d.o.verbose {
		d.children.tee = d.stderr
	}
	defer d.children.stop()

	if err := d.open(ctx, dir); err != nil {
		return summary{}, err
	}
	sum := summary{Lines: d.o.lines, SessionMs: d.o.session.Milliseconds()}
	if err := d.appendThroughFailover(ctx, &sum); err != nil {
		return summary{}, err
	}
	d.say("reading everything back")
	if err := d.verify(ctx, &sum); err != nil {
		return summary{}, err
	}
	sum.ElapsedMs = time.Since(began).Milliseconds()
	d.judge(sum)
	d.say("shutting the brokers down")
	return sum, nil
}

// open starts the brokers and makes the topic.
func (d *show) open(ctx context.Context, dir string) error {
	began := time.Now()
	d.say("three brokers, each a process with its own logs and a member of etcd, in %s", dir)
	for _, c := range d.clients {
		if err := d.children.start(c.place); err != nil {
			return err
		}
		d.say("  broker %d: process %d, to other brokers %s, HTTP %s", c.id, d.children.pid(c.id), c.broker(), c.place.http())
	}
	ctx, cancel := context.WithTimeoutCause(ctx, patience, errors.New("the brokers did not come up"))
	defer cancel()
	for _, c := range d.clients {
		if err := until(ctx, func() bool { return c.createTopic(ctx, partitions) == nil }); err != nil {
			return err
		}
	}
	if err := d.waitInSync(ctx); err != nil {
		return err
	}
	d.say("after %v they are a cluster; topic %q has %d partitions with a copy on each broker", rounded(began), topic, partitions)
	return d.printPartitions(ctx)
}

// appendThroughFailover appends all lines. Halfway it kills the leader of partition 0;
// once others have taken over it starts it again, and waits until it is in sync.
func (d *show) appendThroughFailover(ctx context.Context, sum *summary) error {
	d.writers = newWriters(d.clients, d.makeLines())
	d.say("appending %d lines with acks=all", d.o.lines)
	both, running := errgroup.WithContext(ctx)
	both.Go(func() error { return d.writers.run(running) })
	both.Go(func() error { return d.failover(running, sum) })
	if err := both.Wait(); err != nil {
		return err
	}
	d.say("all %d lines are acknowledged; the longest pauses of the partitions were %v", d.writers.total(), d.pauses())
	waiting, cancel := context.WithTimeoutCause(ctx, patience, errors.New("the replicas did not get in sync"))
	defer cancel()
	if err := d.waitInSync(waiting); err != nil {
		return err
	}
	return d.printPartitions(ctx)
}

func (d *show) failover(ctx context.Context, sum *summary) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*patience, errors.New("the appends did not get anywhere"))
	defer cancel()
	if err := wait(ctx, d.writers.half); err != nil {
		return err
	}
	st, err := d.clients[0].status(ctx, 0)
	if err != nil {
		return err
	}
	victim := d.clients[st.Leader-1]
	d.say("%d lines are acknowledged: SIGKILL to process %d, broker %d, which leads partition 0", d.writers.total(), d.children.pid(victim.id), victim.id)
	strike := d.writers.struck(st.Epoch)
	if err := d.children.kill(victim.id); err != nil {
		return err
	}
	if err := wait(ctx, strike.over); err != nil {
		return err
	}
	sum.FailoverMs = strike.failover.Milliseconds()
	d.say("partition 0 takes lines again, %v after the SIGKILL (SessionTimeout is %v)", strike.failover.Round(time.Millisecond), d.o.session)

	began := time.Now()
	if err := d.children.start(victim.place); err != nil {
		return err
	}
	d.say("broker %d starts again, process %d, on what its disk has", victim.id, d.children.pid(victim.id))
	if err := d.waitInSync(ctx); err != nil {
		return err
	}
	sum.RecoveryMs = time.Since(began).Milliseconds()
	d.say("after %v it has caught up, and is in sync again", rounded(began))
	return nil
}

// makeLines deals the lines out to the partitions. Each is unique.
func (d *show) makeLines() [][]string {
	lines := make([][]string, partitions)
	for i := range d.o.lines {
		n := i % partitions
		lines[n] = append(lines[n], fmt.Sprintf("line %d, for partition %d", i, n))
	}
	return lines
}

// waitInSync waits until every copy of every partition is in the ISR.
func (d *show) waitInSync(ctx context.Context) error {
	for n := range partitions {
		err := until(ctx, func() bool {
			for _, c := range d.clients { // every broker must know
				s, err := c.status(ctx, n)
				if err != nil || s.HighWatermark < 0 || len(s.ISR) < brokers {
					return false
				}
			}
			return true
		})
		if err != nil {
			return fmt.Errorf("partition %d: %w", n, err)
		}
	}
	return nil
}

func (d *show) printPartitions(ctx context.Context) error {
	for n := range partitions {
		s, err := d.clients[0].status(ctx, n)
		if err != nil {
			return err
		}
		slices.Sort(s.ISR)
		d.say("  partition %d: led by broker %d in epoch %d, in sync %v, %d records", n, s.Leader, s.Epoch, s.ISR, s.HighWatermark)
	}
	return nil
}

func (d *show) pauses() []time.Duration {
	var all []time.Duration
	for _, p := range d.writers.pauses {
		all = append(all, p.Round(time.Millisecond))
	}
	return all
}

// judge says in words what the numbers mean.
func (d *show) judge(s summary) {
	if s.Lost > 0 {
		d.say("%d acknowledged lines are LOST", s.Lost)
	}
	if s.OutOfOrder > 0 {
		d.say("%d lines are OUT OF ORDER", s.OutOfOrder)
	}
	if s.FailoverMs > s.SessionMs+1000 {
		d.say("the failover took TOO LONG")
	}
	if s.good() {
		d.say("every acknowledged line is there, in order, the same on all three brokers")
	}
	if s.Duplicated > 0 {
		d.say("%d came twice: how the first attempt ended was not known, so it was sent again", s.Duplicated)
	}
}

// until calls a condition until it holds.
func until(ctx context.Context, holds func() bool) error {
	for !holds() {
		if err := pause(ctx); err != nil {
			return err
		}
	}
	return nil
}

func wait(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func rounded(since time.Time) time.Duration { return time.Since(since).Round(10 * time.Millisecond) }
