package local_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tidemark-log/tidemark"
	"github.com/tidemark-log/tidemark/local"
	"github.com/tidemark-log/tidemark/storage"
)

// The tests named after an R-n play what was reported of other systems of this kind,
// as far as it is about a cluster on its disks.

// patient is a SessionTimeout for tests on a real disk, which a busy machine may keep
// waiting: half of it is how long a write may take.
const patient = 20 * time.Second

// fill makes a topic with some records.
func fill(ctx context.Context, t *testing.T, c *local.Cluster, records int) {
	require.NoError(t, c.Controller().EnsureTopic(ctx, "t", tidemark.TopicConfig{}))
	for i := range records {
		_, err := c.Partition("t", 0).Append(ctx, tidemark.Record{Value: fmt.Appendf(nil, "v%d", i)})
		require.NoError(t, err)
	}
}

// holds checks that the topic has so many records.
func holds(ctx context.Context, t *testing.T, c *local.Cluster, records int) {
	t.Helper()
	n := 0
	for rec, err := range c.Partition("t", 0).Records(ctx, tidemark.Earliest()) {
		require.NoError(t, err)
		require.Equal(t, fmt.Sprintf("v%d", n), string(rec.Value))
		if n++; n == records {
			return
		}
	}
}

// caughtUp waits until all replicas are in sync and have all there is.
func caughtUp(ctx context.Context, t *testing.T, c *local.Cluster) {
	t.Helper()
	for {
		s, err := c.Partition("t", 0).Status(ctx)
		require.NoError(t, err)
		whole := s.Ends != nil && len(s.OSR) == 0
		for _, b := range c.Brokers() {
			r, err := b.Replica(ctx, "t", 0)
			require.NoError(t, err)
			whole = whole && r.StoredEnd == s.Ends.LogEnd && r.HighWatermark == s.Ends.LogEnd
		}
		if whole {
			return
		}
		select {
		case <-ctx.Done():
			require.NoError(t, ctx.Err(), "%+v", s)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// R54: readers that nobody reads from any more, or that wait at the end, hold nothing of
// the store: it closes at once and without a complaint, and they end.
func TestR54AbandonedReaders(t *testing.T) {
	ctx, dir := deadline(t), t.TempDir()
	c, err := local.Open(ctx, dir, local.Options{Brokers: 1, MemoryBudget: 32 << 20, SessionTimeout: patient})
	require.NoError(t, err)
	fill(ctx, t, c, 50)
	var next []func() (tidemark.Record, error, bool)
	for i := range 20 {
		more, stop := iter.Pull2(c.Partition("t", 0).Records(ctx, tidemark.At(int64(i))))
		defer stop()
		rec, err, ok := more()
		require.NoError(t, err)
		require.True(t, ok)
		require.EqualValues(t, i, rec.Offset)
		next = append(next, more)
	}
	tail := make(chan error, 1)
	go func() {
		for _, err := range c.Partition("t", 0).Records(ctx, tidemark.Latest()) {
			tail <- err
		}
	}()
	rep, err := c.Broker(1).Replica(ctx, "t", 0)
	require.NoError(t, err)
	batches, stop := iter.Pull2(rep.Batches(ctx, 0))
	defer stop()
	_, err, _ = batches()
	require.NoError(t, err)

	began := time.Now()
	require.NoError(t, c.Close())
	require.Less(t, time.Since(began), 5*time.Second)
	require.ErrorIs(t, <-tail, tidemark.ErrClosed)
	for _, more := range next {
		for err, ok := error(nil), true; ok; { // what it had, then the end
			if _, err, ok = more(); err != nil {
				require.ErrorIs(t, err, tidemark.ErrClosed)
			}
		}
	}
	c, err = local.Open(ctx, dir, local.Options{Brokers: 1, MemoryBudget: 32 << 20, SessionTimeout: patient})
	require.NoError(t, err)
	holds(ctx, t, c, 50)
	require.NoError(t, c.Close())
}

// R59: one broker's directory is lost while the cluster is closed. It comes back empty
// and says so by its directory's id: it leaves the ISR, is filled by the others, and
// rejoins. Nobody panics, and nothing is lost.
func TestR59LostDirectory(t *testing.T) {
	ctx, dir := deadline(t), t.TempDir()
	o := local.Options{MemoryBudget: 96 << 20, SessionTimeout: patient}
	c, err := local.Open(ctx, dir, o)
	require.NoError(t, err)
	fill(ctx, t, c, 20)
	caughtUp(ctx, t, c)
	s, err := c.Partition("t", 0).Status(ctx)
	require.NoError(t, err)
	require.NoError(t, c.Close())
	require.NoError(t, os.RemoveAll(filepath.Join(dir, fmt.Sprintf("broker-%d", s.Leader))))

	c, err = local.Open(ctx, dir, o)
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	holds(ctx, t, c, 20)
	caughtUp(ctx, t, c)
	now, err := c.Partition("t", 0).Status(ctx)
	require.NoError(t, err)
	require.NotEqual(t, s.Leader, now.Leader, "it was not elected with nothing")
	require.Greater(t, now.LeaderEpoch, s.LeaderEpoch)
	rep, err := c.Broker(s.Leader).Replica(ctx, "t", 0)
	require.NoError(t, err)
	require.EqualValues(t, 20, rep.StoredEnd)
	require.Empty(t, rep.Fault)
}

// R64: each file that Tidemark writes beside the engine's is missing, empty, cut short,
// or garbage. Open says what is wrong and changes nothing there; with the file back,
// everything is there.
func TestR64MarkerFiles(t *testing.T) {
	ctx, dir := deadline(t), t.TempDir()
	o := local.Options{Brokers: 1, MemoryBudget: 32 << 20, SessionTimeout: patient}
	c, err := local.Open(ctx, dir, o)
	require.NoError(t, err)
	fill(ctx, t, c, 5)
	require.NoError(t, c.Close())
	var ours []string
	for path := range files(t, dir) {
		if name := filepath.Base(path); strings.HasPrefix(strings.ToLower(name), "tidemark") {
			ours = append(ours, path)
		}
	}
	require.Len(t, ours, 3, "the cluster's, the coordination store's, the log store's")
	for _, path := range ours {
		good, err := os.ReadFile(path)
		require.NoError(t, err)
		for name, bad := range map[string][]byte{
			"missing": nil, "empty": {}, "cut short": good[:len(good)*2/3], "garbage": bytes.Repeat([]byte{0xfe, 0}, len(good)/2),
		} {
			what := fmt.Sprintf("%s is %s", filepath.Base(path), name)
			require.NoError(t, os.RemoveAll(path))
			if bad != nil {
				require.NoError(t, os.WriteFile(path, bad, 0o644))
			}
			before := files(t, filepath.Dir(path))
			c, err := local.Open(ctx, dir, o)
			if err == nil {
				require.NoError(t, c.Close())
			}
			require.Error(t, err, what)
			if !isAny(err, local.ErrForeign, local.ErrFormat, storage.ErrDamaged) {
				t.Errorf("%s: %v", what, err)
			}
			require.Equal(t, before, files(t, filepath.Dir(path)), what)
		}
		require.NoError(t, os.WriteFile(path, good, 0o644))
		c, err := local.Open(ctx, dir, o)
		require.NoError(t, err)
		holds(ctx, t, c, 5)
		require.NoError(t, c.Close())
	}
}

func isAny(err error, sentinels ...error) bool {
	for _, s := range sentinels {
		if errors.Is(err, s) {
			return true
		}
	}
	return false
}

// R69: the limit of a record is checked once, when it is appended. What was taken reaches
// every follower, also when it is larger than what one fetch brings, and when the limit
// was lowered since.
func TestR69LargeRecords(t *testing.T) {
	const limit = 3 << 19 // a fetch brings about 1 MiB
	ctx, dir := deadline(t), t.TempDir()
	o := local.Options{MemoryBudget: 192 << 20, MaxRecordBytes: limit, SessionTimeout: patient}
	c, err := local.Open(ctx, dir, o)
	require.NoError(t, err)
	require.NoError(t, c.Controller().EnsureTopic(ctx, "t", tidemark.TopicConfig{}))
	p := c.Partition("t", 0)
	appendOf := func(n int) error {
		_, err := p.Append(ctx, tidemark.Record{Value: make([]byte, n)})
		return err
	}
	require.NoError(t, appendOf(1))
	caughtUp(ctx, t, c)
	s, err := p.Status(ctx)
	require.NoError(t, err)
	away := s.Replicas[2]
	require.NotEqual(t, s.Leader, away)
	require.NoError(t, c.Kill(away))
	for _, n := range []int{limit - 1, limit, 1000} {
		require.NoError(t, appendOf(n), "%d bytes", n)
	}
	for _, n := range []int{limit + 1, 100 * limit} {
		err := appendOf(n)
		require.ErrorIs(t, err, tidemark.ErrRecordTooLarge)
		require.Equal(t, tidemark.NotAppended, tidemark.OutcomeOf(err))
	}
	many := make([]tidemark.Record, 1500)
	for i := range many {
		many[i].Value = make([]byte, 1020) // together a little below the limit of a batch
	}
	_, err = p.Append(ctx, many...)
	require.NoError(t, err)
	require.NoError(t, c.Close())

	o.MaxRecordBytes = 1000
	c, err = local.Open(ctx, dir, o)
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	caughtUp(ctx, t, c)
	p = c.Partition("t", 0)
	require.ErrorIs(t, appendOf(1001), tidemark.ErrRecordTooLarge)
	require.NoError(t, appendOf(1000))
	rep, err := c.Broker(away).Replica(ctx, "t", 0)
	require.NoError(t, err)
	require.EqualValues(t, 1505, rep.LogEnd)
	ends, err := p.Offsets(ctx)
	require.NoError(t, err)
	n := int64(0)
	for rec, err := range p.Records(ctx, tidemark.Earliest()) {
		require.NoError(t, err)
		require.Equal(t, n, rec.Offset)
		if n++; n == ends.HighWatermark {
			break
		}
	}
}

// R70: two clusters in one process, opened and closed ten times, do not meet: they have
// no state, name or metric in common, and say nothing on stdout or stderr.
func TestR70TwoClustersInOneProcess(t *testing.T) {
	said := spoken(t, func() {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			for round := range 10 {
				var both []*local.Cluster
				for k := range 2 {
					c, err := local.Open(ctx, "cluster", local.Options{InMemory: true, MemoryBudget: 24 << 20})
					require.NoError(t, err)
					fill(ctx, t, c, 1+k)
					both = append(both, c)
				}
				require.NoError(t, both[round%2].Kill(2))
				for k, c := range both {
					holds(ctx, t, c, 1+k)
					ends, err := c.Partition("t", 0).Offsets(ctx)
					require.NoError(t, err)
					require.EqualValues(t, 1+k, ends.LogEnd)
				}
				require.NoError(t, both[round%2].Close())
				_, err := both[1-round%2].Partition("t", 0).Append(ctx, tidemark.Record{Value: []byte("x")})
				require.NoError(t, err, "the other one goes on")
				require.NoError(t, both[1-round%2].Close())
			}
		})
	})
	require.Empty(t, said)
}

// The same on a disk, in real time: nothing is left behind, neither goroutines nor
// open files, and what was acknowledged is there at every next open.
func TestTwoClustersOnDiskAgainAndAgain(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	dirs := []string{t.TempDir(), t.TempDir()}
	var files int
	said := spoken(t, func() {
		before := goleak.IgnoreCurrent() // spoken's
		for round := range 10 {
			var both []*local.Cluster
			for k, dir := range dirs {
				c, err := local.Open(ctx, dir, local.Options{MemoryBudget: 24 << 20, SessionTimeout: patient})
				require.NoError(t, err)
				require.NoError(t, c.Controller().EnsureTopic(ctx, "t", tidemark.TopicConfig{}))
				ends, err := c.Partition("t", 0).Offsets(ctx)
				require.NoError(t, err)
				require.EqualValues(t, round*(k+1), ends.HighWatermark)
				for range k + 1 {
					_, err := c.Partition("t", 0).Append(ctx, tidemark.Record{Value: []byte("x")})
					require.NoError(t, err)
				}
				both = append(both, c)
			}
			require.NoError(t, both[round%2].Close())
			require.NoError(t, both[1-round%2].Shutdown(ctx))
			goleak.VerifyNone(t, before)
			now := openFiles(t)
			if round == 0 {
				files = now
			}
			require.LessOrEqual(t, now, files, "open files after round %d", round)
		}
	})
	require.Empty(t, said)
}

// openFiles counts what this process has open, where the system tells; else 0.
func openFiles(t *testing.T) int {
	all, err := os.ReadDir("/proc/self/fd")
	if errors.Is(err, os.ErrNotExist) {
		return 0
	}
	require.NoError(t, err)
	return len(all)
}

// spoken returns what f writes to stdout and stderr.
func spoken(t *testing.T, f func()) string {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	stdout, stderr := os.Stdout, os.Stderr
	os.Stdout, os.Stderr = w, w
	defer func() { os.Stdout, os.Stderr = stdout, stderr }()
	all := make(chan string, 1)
	go func() {
		data, _ := io.ReadAll(r)
		all <- string(data)
	}()
	f()
	require.NoError(t, w.Close())
	said := <-all
	require.NoError(t, r.Close())
	return said
}
