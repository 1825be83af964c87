package scale

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tidemark-log/tidemark"
	"github.com/tidemark-log/tidemark/bench/cluster"
	"github.com/tidemark-log/tidemark/bench/pause"
	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/coordination/pebblecoord"
)

// childVariable is in the environment of the process that is killed: what it has to do.
const childVariable = "TIDEMARK_BENCH_CHILD"

// childJob is what the child has to do.
type childJob struct {
	Dir        string
	Partitions int
	Bytes      int64 // to append
}

// childDone is what the child says once all of it is acknowledged.
type childDone struct{ Acked []int64 }

// reopening is W12. The process has three brokers; what is stored counts over all of them.
func reopening(ctx context.Context, o Options) (res Result, err error) {
	stored := o.bytes(10 * gib)
	dir, err := o.place("w12", stored+stored/4)
	if err != nil {
		return res, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	job := childJob{Dir: dir, Partitions: o.partitions(100), Bytes: stored / 3}
	l := newLedger("w12", job.Partitions, kib)
	o.Say("W12: a child stores %d MiB", stored>>20)
	if err := fillAndKill(ctx, job, l); err != nil {
		return res, err
	}
	o.Say("W12: reopening")
	began := time.Now()
	c, closeAll, err := openKept(ctx, dir)
	if err != nil {
		return res, err
	}
	defer func() { err = errors.Join(err, closeAll()) }()
	ready := time.Since(began)
	took, err := serves(ctx, c, l)
	if err != nil {
		return res, err
	}
	res.Figures = []Figure{
		{"until every leader serves", millis(ready + took), "ms", atMost(2000)},
		{"until every broker is ready", millis(ready), "ms", Bound{}},
	}
	o.Say("W12: reading back")
	return res, l.verify(ctx, c)
}

// openKept opens three brokers whose metadata are on the disk too.
func openKept(ctx context.Context, dir string) (*cluster.Cluster, func() error, error) {
	meta, err := pebblecoord.Open(filepath.Join(dir, "coordination"), pebblecoord.Options{})
	if err != nil {
		return nil, nil, err
	}
	c, err := cluster.Open(ctx, cluster.Options{
		Dir: dir, Coordination: func(int32) (coordination.Store, error) { return meta.Connect(), nil },
	})
	if err != nil {
		return nil, nil, errors.Join(err, meta.Close())
	}
	return c, func() error { return errors.Join(c.Close(), meta.Close()) }, nil
}

// serves waits until every partition has given a record and taken one.
func serves(ctx context.Context, c *cluster.Cluster, l *ledger) (time.Duration, error) {
	began := time.Now()
	g, ctx := errgroup.WithContext(ctx)
	for n := range l.partitions() {
		g.Go(func() error {
			p := c.Partition(l.topic, n)
			f, err := p.Fetch(ctx, 0, tidemark.FetchOptions{MaxBytes: 1})
			if err != nil {
				return fmt.Errorf("fetch from %s/%d: %w", l.topic, n, err)
			}
			if len(f.Records) == 0 {
				return fmt.Errorf("fetch from %s/%d: no records", l.topic, n)
			}
			// The child went on appending: the offset is not known before.
			res, err := p.Append(ctx, tidemark.Record{Value: []byte("after")})
			if err == nil && res.Base < l.acked[n] {
				err = fmt.Errorf("got offset %d, %d were acknowledged before", res.Base, l.acked[n])
			}
			if err != nil {
				return fmt.Errorf("append to %s/%d: %w", l.topic, n, err)
			}
			return nil
		})
	}
	err := g.Wait()
	return time.Since(began), err
}

// fillAndKill has a child do the job, notes what it got acknowledged, and kills it
// while it goes on appending.
func fillAndKill(ctx context.Context, job childJob, l *ledger) error {
	text, err := json.Marshal(job)
	if err != nil {
		return err
	}
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	child := exec.CommandContext(ctx, exe)
	child.Env = append(os.Environ(), childVariable+"="+string(text))
	var said bytes.Buffer
	child.Stderr = &said
	out, err := child.StdoutPipe()
	if err != nil {
		return err
	}
	if _, err := child.StdinPipe(); err != nil { // it ends when this process does
		return err
	}
	if err := child.Start(); err != nil {
		return err
	}
	var done childDone
	err = json.NewDecoder(bufio.NewReader(out)).Decode(&done)
	if err == nil {
		err = pause.For(ctx, time.Second) // it is in the midst of appending
	}
	killErr := child.Process.Kill()
	_ = child.Wait() // it was killed
	if err := errors.Join(err, killErr); err != nil {
		return fmt.Errorf("child: %w; it said: %s", err, said.String())
	}
	copy(l.acked, done.Acked)
	return nil
}

// Child does what a process was started for by a workload, and reports whether it was.
// A program that runs workloads calls it first, and ends when it was. The work goes on
// until the process is killed, or stdin ends with the process that started it.
func Child(ctx context.Context, stdin io.Reader, stdout io.Writer) (started bool, err error) {
	text, ok := os.LookupEnv(childVariable)
	if !ok {
		return false, nil
	}
	var job childJob
	if err := json.Unmarshal([]byte(text), &job); err != nil {
		return true, fmt.Errorf("bench: child: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, stdin) // nothing is ever said
		cancel()
	}()
	if err := job.run(ctx, stdout); err != nil {
		return true, fmt.Errorf("bench: child: %w", err)
	}
	return true, nil
}

func (j *childJob) run(ctx context.Context, stdout io.Writer) error {
	c, closeAll, err := openKept(ctx, j.Dir)
	if err != nil {
		return err
	}
	r := &rig{Cluster: c}
	l := newLedger("w12", j.Partitions, kib)
	if err := r.create(ctx, l, 3); err != nil {
		return errors.Join(err, closeAll())
	}
	if _, err := l.drive(ctx, c, flow{inFlight: w11InFlight, bytes: j.Bytes}); err != nil {
		return errors.Join(err, closeAll())
	}
	if err := json.NewEncoder(stdout).Encode(childDone{l.acked}); err != nil {
		return errors.Join(err, closeAll())
	}
	_, err = l.drive(ctx, c, flow{inFlight: w11InFlight, span: time.Hour}) // it is killed meanwhile
	return errors.Join(err, closeAll())
}
