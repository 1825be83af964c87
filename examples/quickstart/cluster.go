package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/tidemark-log/tidemark"
	"github.com/tidemark-log/tidemark/local"
)

const (
	brokers = 3
	// topicPrefix and the input's fingerprint make the topic's name: so the log
	// itself knows which file it holds, from the moment that it exists.
	topicPrefix = "quickstart-"
	// patience is how long to wait without any progress before giving up.
	patience = 60 * time.Second

	nothingToKeep = true
)

// job is one run of the quickstart.
type job struct {
	o      options
	in     *input
	say    *log.Logger
	logger *slog.Logger // nil: the brokers are silent

	dir       string
	temporary bool
	cluster   *local.Cluster
	topic     *tidemark.Topic
	acked     []bool // by line
}

// open opens the cluster and makes the topic, or finds the one of an earlier run.
func (j *job) open(ctx context.Context) error {
	if err := j.makeDir(); err != nil {
		return badInput{fmt.Errorf("directory: %w", err)}
	}
	cluster, err := local.Open(ctx, j.dir, local.Options{Brokers: brokers, Logger: j.logger})
	if err != nil {
		return errors.Join(classify(fmt.Errorf("open %s: %w", j.dir, err)), j.close(nothingToKeep))
	}
	j.cluster = cluster
	if err := j.openTopic(ctx); err != nil {
		return errors.Join(err, j.close(nothingToKeep))
	}
	j.say.Printf("%d brokers in %s, topic %s", brokers, j.dir, j.topic.Name())
	return nil
}

func (j *job) makeDir() (err error) {
	if j.o.dir != "" {
		j.dir = j.o.dir
		return os.MkdirAll(j.dir, 0o755)
	}
	j.temporary = true
	j.dir, err = os.MkdirTemp("", "tidemark-quickstart-")
	return err
}

// openTopic refuses a directory that holds anything but this input.
func (j *job) openTopic(ctx context.Context) error {
	name := topicPrefix + j.in.sum
	controller := j.cluster.Controller()
	found, err := controller.Topics(ctx)
	if err != nil {
		return err
	}
	for _, other := range found {
		switch {
		case other == name:
		case strings.HasPrefix(other, topicPrefix):
			return badInput{fmt.Errorf("%s holds another input than %s", j.dir, j.in.path)}
		default:
			return badInput{fmt.Errorf("%s is the cluster of another program: it has a topic %q", j.dir, other)}
		}
	}
	j.topic = j.cluster.Topic(name)
	err = controller.EnsureTopic(ctx, name, tidemark.TopicConfig{
		Partitions: int32(j.o.partitions), ReplicationFactor: brokers, MinISR: 2,
	})
	return classify(err)
}

// classify marks the errors that the caller can correct.
func classify(err error) error {
	for _, target := range []error{
		local.ErrForeign, local.ErrInUse, local.ErrFormat, local.ErrFewerBrokers,
		fs.ErrPermission, syscall.EROFS, syscall.ENOTDIR,
		tidemark.ErrTopicMismatch, tidemark.ErrInvalidTopic,
	} {
		if errors.Is(err, target) {
			return badInput{err}
		}
	}
	return err
}

// close closes the cluster. A temporary directory goes when all was well; else it
// stays for whoever wants to know why.
func (j *job) close(discard bool) error {
	var err error
	if j.cluster != nil {
		err = j.cluster.Close()
	}
	if j.temporary && discard {
		return errors.Join(err, os.RemoveAll(j.dir))
	}
	if j.temporary {
		j.say.Printf("kept %s", j.dir)
	}
	return err
}

// waitInSync waits until every partition has a leader and a full ISR, and every
// copy has everything.
func (j *job) waitInSync(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, errors.New("the replicas did not get in sync"))
	defer cancel()
	for n := range j.o.partitions {
		for {
			ok, err := j.inSync(ctx, n)
			if err != nil {
				return err
			}
			if ok {
				break
			}
			if err := pause(ctx); err != nil {
				return fmt.Errorf("partition %d: %w", n, err)
			}
		}
	}
	return nil
}

func (j *job) inSync(ctx context.Context, n int) (bool, error) {
	st, err := j.topic.Partition(n).Status(ctx)
	if err != nil {
		return false, err
	}
	if st.Ends == nil || len(st.ISR) < brokers || st.Ends.HighWatermark < st.Ends.LogEnd {
		return false, nil
	}
	for _, b := range j.cluster.Brokers() {
		r, err := b.Replica(ctx, j.topic.Name(), n)
		switch {
		case errors.Is(err, tidemark.ErrUnknownPartition):
			return false, nil // the broker does not know of it yet
		case err != nil:
			return false, err
		case r.StoredEnd != st.Ends.LogEnd || r.HighWatermark != st.Ends.LogEnd:
			return false, nil
		}
	}
	return true, nil
}

// pause waits a moment, or less when ctx ends.
func pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(20 * time.Millisecond):
		return nil
	}
}

// printTable shows where each partition stands.
func (j *job) printTable(ctx context.Context, w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "partition\tleader\tepoch\tISR\tLEO\tHW")
	for n := range j.o.partitions {
		st, err := j.topic.Partition(n).Status(ctx)
		if err != nil {
			return err
		}
		if st.Ends == nil {
			return fmt.Errorf("partition %d: its leader does not answer", n)
		}
		fmt.Fprintf(t, "%d\t%d\t%d\t%v\t%d\t%d\n", n, st.Leader, st.LeaderEpoch, st.ISR, st.Ends.LogEnd, st.Ends.HighWatermark)
	}
	return t.Flush()
}
