package local_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark"
	"github.com/tidemark-log/tidemark/local"
)

// inMemory runs f on a cluster in memory, in virtual time.
func inMemory(t *testing.T, o local.Options, f func(t *testing.T, ctx context.Context, c *local.Cluster)) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		o.InMemory, o.MemoryBudget = true, 24<<20
		c, err := local.Open(ctx, "cluster", o)
		require.NoError(t, err)
		defer func() { require.NoError(t, c.Close()) }()
		f(t, ctx, c)
	})
}

// until waits, in virtual time, for at most a minute.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for range 6000 {
		if ok() {
			return
		}
		<-time.After(10 * time.Millisecond)
	}
	t.Fatalf("not within a minute: %s", what)
}

func files(t *testing.T, dir string) map[string]string {
	found := make(map[string]string)
	require.NoError(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		found[path] = string(data)
		return err
	}))
	return found
}

func TestOpenRefusesDirectories(t *testing.T) {
	ctx := deadline(t)
	write := func(t *testing.T, path, content string) {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(content), 0o644))
	}
	for name, c := range map[string]struct {
		prepare func(t *testing.T, dir string) (open string)
		err     error
	}{
		"below a file": {func(t *testing.T, dir string) string {
			write(t, filepath.Join(dir, "file"), "x")
			return filepath.Join(dir, "file", "cluster")
		}, syscall.ENOTDIR},
		"a file": {func(t *testing.T, dir string) string {
			write(t, filepath.Join(dir, "file"), "x")
			return filepath.Join(dir, "file")
		}, syscall.ENOTDIR},
		"foreign": {func(t *testing.T, dir string) string {
			write(t, filepath.Join(dir, "notes.txt"), "keep me")
			return dir
		}, local.ErrForeign},
		"foreign, hidden": {func(t *testing.T, dir string) string {
			write(t, filepath.Join(dir, ".git", "config"), "keep me")
			return dir
		}, local.ErrForeign},
		"unknown format": {func(t *testing.T, dir string) string {
			write(t, filepath.Join(dir, "tidemark.json"), `{"format":99,"brokers":3}`)
			return dir
		}, local.ErrFormat},
		"unreadable marker": {func(t *testing.T, dir string) string {
			write(t, filepath.Join(dir, "tidemark.json"), `{"format":`)
			return dir
		}, local.ErrFormat},
		"marker of more brokers": {func(t *testing.T, dir string) string {
			write(t, filepath.Join(dir, "tidemark.json"), `{"format":1,"brokers":5}`)
			return dir
		}, local.ErrFewerBrokers},
		"foreign coordination": {func(t *testing.T, dir string) string {
			write(t, filepath.Join(dir, "tidemark.json"), `{"format":1,"brokers":3}`)
			write(t, filepath.Join(dir, "coordination", "notes.txt"), "keep me")
			return dir
		}, local.ErrForeign},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			open := c.prepare(t, dir)
			before := files(t, dir)
			_, err := local.Open(ctx, open, local.Options{})
			require.ErrorIs(t, err, c.err)
			require.Equal(t, before, files(t, dir), "something was written")
		})
	}
	t.Run("foreign broker directory", func(t *testing.T) {
		dir := t.TempDir()
		write(t, filepath.Join(dir, "tidemark.json"), `{"format":1,"brokers":3}`)
		write(t, filepath.Join(dir, "broker-2", "notes.txt"), "keep me")
		_, err := local.Open(ctx, dir, local.Options{})
		require.ErrorIs(t, err, local.ErrForeign)
		left, err := os.ReadDir(filepath.Join(dir, "broker-2"))
		require.NoError(t, err)
		require.Len(t, left, 1)
	})
	t.Run("no brokers", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "new")
		_, err := local.Open(ctx, dir, local.Options{Brokers: -1})
		require.ErrorIs(t, err, tidemark.ErrInvalidConfig)
		require.NoDirExists(t, dir)
	})
	t.Run("left by a crash while it was made", func(t *testing.T) {
		dir := t.TempDir()
		write(t, filepath.Join(dir, "tidemark.json.new"), `{"for`)
		c, err := local.Open(ctx, dir, local.Options{Brokers: 1})
		require.NoError(t, err)
		require.NoError(t, c.Close())
	})
}

// A directory in use is refused and the cluster that has it goes on; more brokers than
// before are welcome, fewer are not; and what was acknowledged is there after all of it.
func TestOpenInUseAndNumberOfBrokers(t *testing.T) {
	ctx, dir := deadline(t), t.TempDir()
	c, err := local.Open(ctx, dir, local.Options{Brokers: 1, MemoryBudget: 32 << 20})
	require.NoError(t, err)
	require.NoError(t, c.Controller().EnsureTopic(ctx, "t", tidemark.TopicConfig{}))
	_, err = c.Partition("t", 0).Append(ctx, tidemark.Record{Value: []byte("v0")})
	require.NoError(t, err)

	_, err = local.Open(ctx, dir, local.Options{Brokers: 1})
	require.ErrorIs(t, err, local.ErrInUse)
	res, err := c.Partition("t", 0).Append(ctx, tidemark.Record{Value: []byte("v1")})
	require.NoError(t, err)
	require.Equal(t, int64(1), res.Base)
	require.NoError(t, c.Close())

	c, err = local.Open(ctx, dir, local.Options{Brokers: 2, MemoryBudget: 32 << 20})
	require.NoError(t, err)
	require.Len(t, c.Brokers(), 2)
	require.NoError(t, c.Controller().EnsureTopic(ctx, "u", tidemark.TopicConfig{ReplicationFactor: 2}))
	require.NoError(t, c.Close())
	_, err = local.Open(ctx, dir, local.Options{Brokers: 1})
	require.ErrorIs(t, err, local.ErrFewerBrokers)
	c, err = local.Open(ctx, dir, local.Options{Brokers: 2, MemoryBudget: 32 << 20})
	require.NoError(t, err)
	defer c.Close()
	f, err := c.Partition("t", 0).Fetch(ctx, 0, tidemark.FetchOptions{MaxWait: time.Minute})
	require.NoError(t, err)
	require.Len(t, f.Records, 2)
}

func TestUnknownTopicsAndPartitions(t *testing.T) {
	inMemory(t, local.Options{Brokers: 1}, func(t *testing.T, ctx context.Context, c *local.Cluster) {
		require.NoError(t, c.Controller().CreateTopic(ctx, "t", tidemark.TopicConfig{Partitions: 2}))
		for _, p := range []struct {
			partition *tidemark.Partition
			err       error
		}{
			{c.Partition("missing", 0), tidemark.ErrUnknownTopic},
			{c.Partition("t", 2), tidemark.ErrUnknownPartition},
			{c.Topic("t").Partition(-1), tidemark.ErrUnknownPartition},
		} {
			_, err := p.partition.Append(ctx, tidemark.Record{})
			require.ErrorIs(t, err, p.err)
			require.Equal(t, tidemark.NotAppended, tidemark.OutcomeOf(err))
			_, err = p.partition.Fetch(ctx, 0, tidemark.FetchOptions{})
			require.ErrorIs(t, err, p.err)
			_, err = p.partition.Offsets(ctx)
			require.ErrorIs(t, err, p.err)
			_, err = p.partition.Status(ctx)
			require.ErrorIs(t, err, p.err)
			require.ErrorIs(t, p.partition.Writable(ctx), p.err)
			for _, at := range []tidemark.Position{tidemark.Earliest(), tidemark.Latest(), tidemark.At(0)} {
				n := 0
				for _, err := range p.partition.Records(ctx, at) {
					require.ErrorIs(t, err, p.err)
					n++
				}
				require.Equal(t, 1, n)
			}
			_, err = c.Broker(1).Replica(ctx, p.partition.Topic(), p.partition.Number())
			require.ErrorIs(t, err, p.err)
		}
		_, err := c.Topic("missing").Partitions(ctx)
		require.ErrorIs(t, err, tidemark.ErrUnknownTopic)
		_, err = c.Topic("missing").Config(ctx)
		require.ErrorIs(t, err, tidemark.ErrUnknownTopic)
		require.ErrorIs(t, c.Kill(9), local.ErrUnknownBroker)
		require.ErrorIs(t, c.Restart(ctx, 9), local.ErrUnknownBroker)
		require.ErrorIs(t, c.Restart(ctx, 1), local.ErrRunning)
		require.Nil(t, c.Broker(9))
		require.NoError(t, c.Kill(1))
		require.NoError(t, c.Kill(1), "dead already")
		require.Nil(t, c.Broker(1))
	})
}

// What is refused before it is stored leaves no trace.
func TestRefusedAppendsStoreNothing(t *testing.T) {
	inMemory(t, local.Options{}, func(t *testing.T, ctx context.Context, c *local.Cluster) {
		require.NoError(t, c.Controller().CreateTopic(ctx, "t", tidemark.TopicConfig{}))
		p := c.Partition("t", 0)
		_, err := p.Append(ctx, tidemark.Record{Value: []byte("v0")})
		require.NoError(t, err)
		const mib = 1 << 20
		many := make([]tidemark.Record, 3)
		for i := range many {
			many[i].Value = make([]byte, mib/2)
		}
		for name, r := range map[string]struct {
			acks tidemark.Acks
			recs []tidemark.Record
			err  error
		}{
			"record too large":         {0, []tidemark.Record{{Value: make([]byte, mib+1)}}, tidemark.ErrRecordTooLarge},
			"key and headers count":    {0, []tidemark.Record{{Key: make([]byte, mib-2), Headers: []tidemark.Header{{Key: "h", Value: []byte("xx")}}}}, tidemark.ErrRecordTooLarge},
			"one of several too large": {0, []tidemark.Record{{}, {Value: make([]byte, mib+1)}}, tidemark.ErrRecordTooLarge},
			"batch too large":          {0, many, tidemark.ErrBatchTooLarge},
			"no records":               {0, nil, tidemark.ErrInvalidRecord},
			"impossible time":          {0, []tidemark.Record{{Timestamp: time.Unix(-1, 0)}}, tidemark.ErrInvalidRecord},
			"unknown acks":             {3, []tidemark.Record{{}}, tidemark.ErrInvalidAcks},
			"negative acks":            {-1, []tidemark.Record{{}}, tidemark.ErrInvalidAcks},
		} {
			_, err := p.AppendWith(ctx, tidemark.AppendOptions{Acks: r.acks}, r.recs...)
			require.ErrorIs(t, err, r.err, name)
			require.Equal(t, tidemark.NotAppended, tidemark.OutcomeOf(err), name)
			var ae *tidemark.AppendError
			require.ErrorAs(t, err, &ae, name)
			require.Equal(t, "t", ae.Topic)
		}
		res, err := p.Append(ctx, tidemark.Record{Value: make([]byte, mib)})
		require.NoError(t, err, "one record of MaxRecordBytes always fits")
		require.Equal(t, int64(1), res.Base)
	})
}

func TestAppendUnderMinISR(t *testing.T) {
	inMemory(t, local.Options{}, func(t *testing.T, ctx context.Context, c *local.Cluster) {
		require.NoError(t, c.Controller().CreateTopic(ctx, "t", tidemark.TopicConfig{}))
		p := c.Partition("t", 0)
		_, err := p.Append(ctx, tidemark.Record{Value: []byte("v0")})
		require.NoError(t, err)
		s, err := p.Status(ctx)
		require.NoError(t, err)
		for _, id := range s.Replicas {
			if id != s.Leader {
				require.NoError(t, c.Kill(id))
			}
		}
		until(t, "under MinISR", func() bool {
			s, err := p.Status(ctx)
			return err == nil && len(s.ISR) == 1
		})
		_, err = p.Append(ctx, tidemark.Record{Value: []byte("v1")})
		require.ErrorIs(t, err, tidemark.ErrNotEnoughReplicas)
		require.Equal(t, tidemark.NotAppended, tidemark.OutcomeOf(err))
		r, err := c.Broker(s.Leader).Replica(ctx, "t", 0)
		require.NoError(t, err)
		require.Equal(t, int64(1), r.LogEnd)

		// D19: the other levels are stored, and nobody sees it before there are enough again.
		res, err := p.AppendWith(ctx, tidemark.AppendOptions{Acks: tidemark.AcksLeader}, tidemark.Record{Value: []byte("v1")})
		require.NoError(t, err)
		require.Equal(t, int64(1), res.Base)
		ends, err := p.Offsets(ctx)
		require.NoError(t, err)
		require.Equal(t, tidemark.Offsets{HighWatermark: 1, LogEnd: 2}, ends)
		for _, id := range s.Replicas {
			if id != s.Leader {
				require.NoError(t, c.Restart(ctx, id))
			}
		}
		f, err := p.Fetch(ctx, 1, tidemark.FetchOptions{MaxWait: time.Minute})
		require.NoError(t, err)
		require.Len(t, f.Records, 1)
	})
}

func TestFetchOutOfRange(t *testing.T) {
	inMemory(t, local.Options{Brokers: 1}, func(t *testing.T, ctx context.Context, c *local.Cluster) {
		require.NoError(t, c.Controller().CreateTopic(ctx, "t", tidemark.TopicConfig{}))
		p := c.Partition("t", 0)
		_, err := p.Append(ctx, tidemark.Record{}, tidemark.Record{})
		require.NoError(t, err)
		for _, offset := range []int64{-1, 3, 1 << 62} {
			_, err := p.Fetch(ctx, offset, tidemark.FetchOptions{MaxWait: time.Second})
			require.ErrorIs(t, err, tidemark.ErrOffsetOutOfRange)
			for _, err := range p.Records(ctx, tidemark.At(offset)) {
				require.ErrorIs(t, err, tidemark.ErrOffsetOutOfRange)
			}
		}
		began := time.Now()
		f, err := p.Fetch(ctx, 2, tidemark.FetchOptions{MaxWait: 3 * time.Second})
		require.NoError(t, err, "at the end it waits instead")
		require.Empty(t, f.Records)
		require.Equal(t, 3*time.Second, time.Since(began).Round(100*time.Millisecond))
		f, err = p.Fetch(ctx, 1, tidemark.FetchOptions{MaxBytes: 1})
		require.NoError(t, err)
		require.Len(t, f.Records, 1, "at least one batch, from the offset on")
	})
}

func TestTopicConfigurations(t *testing.T) {
	inMemory(t, local.Options{}, func(t *testing.T, ctx context.Context, c *local.Cluster) {
		admin := c.Controller()
		require.ErrorIs(t, admin.CreateTopic(ctx, "t", tidemark.TopicConfig{ReplicationFactor: 4}), tidemark.ErrTooFewBrokers)
		for _, name := range []string{"", ".", "..", "a/b", "ä", "a b", strings.Repeat("x", 250), "nul\x00"} {
			require.ErrorIs(t, admin.CreateTopic(ctx, name, tidemark.TopicConfig{}), tidemark.ErrInvalidTopic, "%q", name)
			require.ErrorIs(t, admin.EnsureTopic(ctx, name, tidemark.TopicConfig{}), tidemark.ErrInvalidTopic, "%q", name)
		}
		for _, cfg := range []tidemark.TopicConfig{{Partitions: -1}, {Partitions: 1 << 30}, {ReplicationFactor: -1}, {MinISR: -2}} {
			require.ErrorIs(t, admin.CreateTopic(ctx, "t", cfg), tidemark.ErrInvalidTopic, "%+v", cfg)
		}
		topics, err := admin.Topics(ctx)
		require.NoError(t, err)
		require.Empty(t, topics)

		good := strings.Repeat("x", 249)
		require.NoError(t, admin.CreateTopic(ctx, good, tidemark.TopicConfig{Partitions: 2, MinISR: 1}))
		require.ErrorIs(t, admin.CreateTopic(ctx, good, tidemark.TopicConfig{Partitions: 2, MinISR: 1}), tidemark.ErrTopicExists)
		require.NoError(t, admin.EnsureTopic(ctx, good, tidemark.TopicConfig{Partitions: 2, MinISR: 1, ReplicationFactor: 3}))
		err = admin.EnsureTopic(ctx, good, tidemark.TopicConfig{Partitions: 3, MinISR: 1})
		require.ErrorIs(t, err, tidemark.ErrTopicMismatch)
		var mismatch *tidemark.TopicMismatchError
		require.ErrorAs(t, err, &mismatch)
		require.Equal(t, tidemark.TopicConfig{Partitions: 2, ReplicationFactor: 3, MinISR: 1}, mismatch.Found)
		require.Equal(t, tidemark.TopicConfig{Partitions: 3, ReplicationFactor: 3, MinISR: 1}, mismatch.Wanted)
		n, err := c.Topic(good).Partitions(ctx)
		require.NoError(t, err)
		require.Equal(t, 2, n, "it was not changed")

		// S-36: more than there are replicas cannot be asked of them.
		require.NoError(t, admin.CreateTopic(ctx, "capped", tidemark.TopicConfig{ReplicationFactor: 1, MinISR: 3}))
		s, err := c.Partition("capped", 0).Status(ctx)
		require.NoError(t, err)
		require.Equal(t, 1, s.MinISR)
		cfg, err := c.Topic("capped").Config(ctx)
		require.NoError(t, err)
		require.Equal(t, int32(3), cfg.MinISR, "as asked for")
		_, err = c.Partition("capped", 0).Append(ctx, tidemark.Record{})
		require.NoError(t, err)
	})
}

func TestCallsAfterClose(t *testing.T) {
	inMemory(t, local.Options{}, func(t *testing.T, ctx context.Context, c *local.Cluster) {
		require.NoError(t, c.Controller().CreateTopic(ctx, "t", tidemark.TopicConfig{}))
		p, topic, admin, b := c.Partition("t", 0), c.Topic("t"), c.Controller(), c.Broker(1)
		_, err := p.Append(ctx, tidemark.Record{})
		require.NoError(t, err)
		producer := topic.Producer(tidemark.ProducerOptions{})
		defer producer.Close(ctx)
		replica, err := b.Replica(ctx, "t", 0)
		require.NoError(t, err)
		require.NoError(t, c.Close())

		first := func(p *tidemark.Partition, at tidemark.Position) (err error) {
			for _, err = range p.Records(ctx, at) {
				break
			}
			return err
		}
		for name, call := range map[string]func() error{
			"Partition.Append": func() error { _, err := p.Append(ctx, tidemark.Record{}); return err },
			"Partition.AppendWith": func() error {
				_, err := p.AppendWith(ctx, tidemark.AppendOptions{Acks: tidemark.AcksNone}, tidemark.Record{})
				return err
			},
			"Partition.Fetch":        func() error { _, err := p.Fetch(ctx, 0, tidemark.FetchOptions{}); return err },
			"Partition.Offsets":      func() error { _, err := p.Offsets(ctx); return err },
			"Partition.Records":      func() error { return first(p, tidemark.Earliest()) },
			"Partition.Records at":   func() error { return first(p, tidemark.At(0)) },
			"Partition.Status":       func() error { _, err := p.Status(ctx); return err },
			"Partition.Writable":     func() error { return p.Writable(ctx) },
			"Topic.Config":           func() error { _, err := topic.Config(ctx); return err },
			"Topic.Partitions":       func() error { _, err := topic.Partitions(ctx); return err },
			"Controller.CreateTopic": func() error { return admin.CreateTopic(ctx, "u", tidemark.TopicConfig{}) },
			"Controller.EnsureTopic": func() error { return admin.EnsureTopic(ctx, "t", tidemark.TopicConfig{}) },
			"Controller.Topics":      func() error { _, err := admin.Topics(ctx); return err },
			"Controller.Status":      func() error { _, err := admin.Status(); return err },
			"Producer.AppendAsync":   func() error { return producer.AppendAsync(ctx, tidemark.Record{}, nil) },
			"Producer.Append":        func() error { _, err := producer.Append(ctx, tidemark.Record{}); return err },
			"Broker.Replica":         func() error { _, err := b.Replica(ctx, "t", 0); return err },
			"Broker.Partition":       func() error { _, err := b.Partition("t", 0).Append(ctx, tidemark.Record{}); return err },
			"Cluster.Restart":        func() error { return c.Restart(ctx, 1) },
		} {
			began := time.Now()
			err := call()
			require.ErrorIs(t, err, tidemark.ErrClosed, name)
			require.LessOrEqual(t, time.Since(began), time.Second, name)
			var ae *tidemark.AppendError
			if errors.As(err, &ae) {
				require.Equal(t, tidemark.NotAppended, ae.Outcome, name)
			}
		}
		for _, err := range replica.Batches(ctx, 0) {
			require.Error(t, err)
		}
		require.NoError(t, c.Close(), "idempotent")
		require.NoError(t, b.Close())
		require.NoError(t, b.Shutdown(ctx))
		require.NoError(t, c.Shutdown(ctx))
		require.NoError(t, c.Kill(1))
		require.Nil(t, c.Broker(1))
		require.Empty(t, c.Brokers())
		require.Equal(t, int32(1), b.Status().Broker)
		require.Equal(t, int32(1), b.ID())
		require.NoError(t, producer.Flush(ctx))
		require.NoError(t, producer.Resume(0))
		require.NoError(t, producer.Close(ctx))
		require.NoError(t, producer.Close(ctx), "idempotent")
		require.ErrorIs(t, producer.AppendAsync(ctx, tidemark.Record{}, nil), tidemark.ErrClosed)
	})
}

// Appends under way when everything is closed end, and as unknown.
func TestCloseEndsWhatIsUnderWay(t *testing.T) {
	inMemory(t, local.Options{}, func(t *testing.T, ctx context.Context, c *local.Cluster) {
		require.NoError(t, c.Controller().CreateTopic(ctx, "t", tidemark.TopicConfig{}))
		p := c.Partition("t", 0)
		_, err := p.Append(ctx, tidemark.Record{})
		require.NoError(t, err)
		s, err := p.Status(ctx)
		require.NoError(t, err)
		c.Network().Isolate(s.Leader)
		ends := make(chan error)
		go func() {
			_, err := p.Append(ctx, tidemark.Record{})
			ends <- err
		}()
		go func() {
			for rec, err := range p.Records(ctx, tidemark.Latest()) {
				if err != nil {
					ends <- err
					return
				}
				t.Errorf("read %v", rec)
			}
		}()
		synctest.Wait()
		require.NoError(t, c.Close())
		for range 2 {
			err := <-ends
			require.ErrorIs(t, err, tidemark.ErrClosed)
			require.Equal(t, tidemark.Unknown, tidemark.OutcomeOf(err))
		}
	})
}

var errChangedMind = errors.New("the host has changed its mind")

func TestCancelledWhileUnderWay(t *testing.T) {
	inMemory(t, local.Options{}, func(t *testing.T, ctx context.Context, c *local.Cluster) {
		require.NoError(t, c.Controller().CreateTopic(ctx, "t", tidemark.TopicConfig{}))
		p := c.Partition("t", 0)
		_, err := p.Append(ctx, tidemark.Record{})
		require.NoError(t, err)
		s, err := p.Status(ctx)
		require.NoError(t, err)

		c.Network().Isolate(s.Leader)
		during, cancel := context.WithCancelCause(ctx)
		time.AfterFunc(100*time.Millisecond, func() { cancel(errChangedMind) })
		_, err = p.Append(during, tidemark.Record{})
		require.ErrorIs(t, err, errChangedMind)
		require.Equal(t, tidemark.Unknown, tidemark.OutcomeOf(err))
		during, stop := context.WithTimeout(ctx, 100*time.Millisecond)
		defer stop()
		_, err = p.Append(during, tidemark.Record{})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, tidemark.Unknown, tidemark.OutcomeOf(err))
		during, stop = context.WithTimeout(ctx, 100*time.Millisecond)
		defer stop()
		_, err = p.Fetch(during, 1, tidemark.FetchOptions{MaxWait: time.Hour})
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

func TestCancelledWhileThereIsNoLeader(t *testing.T) {
	inMemory(t, local.Options{}, func(t *testing.T, ctx context.Context, c *local.Cluster) {
		require.NoError(t, c.Controller().CreateTopic(ctx, "one", tidemark.TopicConfig{ReplicationFactor: 1}))
		one := c.Partition("one", 0)
		s, err := one.Status(ctx)
		require.NoError(t, err)
		require.NoError(t, c.Kill(s.Leader))
		until(t, "no leader", func() bool {
			short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
			defer cancel()
			s, err := one.Status(short)
			return err == nil && s.Leader == -1
		})
		during, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, err = one.Append(during, tidemark.Record{})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, tidemark.ErrNotLeader)
		require.Equal(t, tidemark.NotAppended, tidemark.OutcomeOf(err))
	})
}

func TestCancelledBefore(t *testing.T) {
	inMemory(t, local.Options{}, func(t *testing.T, ctx context.Context, c *local.Cluster) {
		cancelled, cancel := context.WithCancelCause(ctx)
		cancel(errChangedMind)
		_, err := local.Open(cancelled, "other", local.Options{InMemory: true})
		require.ErrorIs(t, err, errChangedMind)
		require.ErrorIs(t, c.Controller().CreateTopic(cancelled, "u", tidemark.TopicConfig{}), errChangedMind)
	})
}

// An append whose context has ended before the call is sent all the same, and ends as Unknown.
func TestAppendWithCancelledContext(t *testing.T) {
	inMemory(t, local.Options{}, func(t *testing.T, ctx context.Context, c *local.Cluster) {
		require.NoError(t, c.Controller().CreateTopic(ctx, "t", tidemark.TopicConfig{}))
		p := c.Partition("t", 0)
		cancelled, cancel := context.WithCancelCause(ctx)
		cancel(errChangedMind)
		_, err := p.Append(cancelled, tidemark.Record{})
		require.ErrorIs(t, err, errChangedMind)
		require.Equal(t, tidemark.NotAppended, tidemark.OutcomeOf(err))
		_, err = p.Append(ctx, tidemark.Record{})
		require.NoError(t, err)
		ends, err := p.Offsets(ctx)
		require.NoError(t, err)
		require.Equal(t, int64(1), ends.LogEnd, "it was stored")
	})
}

// Ready of a broker that was ready and is closed.
func TestReadyAfterClose(t *testing.T) {
	inMemory(t, local.Options{Brokers: 1}, func(t *testing.T, ctx context.Context, c *local.Cluster) {
		b := c.Broker(1)
		require.NoError(t, c.Close())
		require.ErrorIs(t, b.Ready(ctx), tidemark.ErrClosed)
	})
}
