package local_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark"
	"github.com/tidemark-log/tidemark/local"
)

// committed reads what is committed in a partition.
func committed(t *testing.T, ctx context.Context, p *tidemark.Partition) (values []string) {
	ends, err := p.Offsets(ctx)
	require.NoError(t, err)
	for next := int64(0); next < ends.HighWatermark; {
		f, err := p.Fetch(ctx, next, tidemark.FetchOptions{MaxWait: time.Minute})
		require.NoError(t, err)
		for _, rec := range f.Records {
			require.Equal(t, next, rec.Offset)
			values = append(values, string(rec.Value))
			next++
		}
	}
	return values
}

// Many goroutines: nothing is lost, nothing comes twice, and what each of them appended
// is in its order, within each partition.
func TestProducerKeepsOrderAndLosesNothing(t *testing.T) {
	inMemory(t, local.Options{}, func(t *testing.T, ctx context.Context, c *local.Cluster) {
		const partitions, writers, each = 3, 8, 300
		require.NoError(t, c.Controller().CreateTopic(ctx, "t", tidemark.TopicConfig{Partitions: partitions}))
		p := c.Topic("t").Producer(tidemark.ProducerOptions{})
		var ended atomic.Int64
		var wg sync.WaitGroup
		for w := range writers {
			wg.Go(func() {
				for i := range each {
					err := p.AppendAsync(ctx, tidemark.Record{Key: fmt.Append(nil, i%10), Value: fmt.Appendf(nil, "%d-%03d", w, i)}, func(res tidemark.Result, err error) {
						if err == nil && res.Base >= 0 && res.Base == res.Last {
							ended.Add(1)
						}
					})
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		require.NoError(t, p.Flush(ctx))
		require.Equal(t, int64(writers*each), ended.Load(), "callbacks run before Flush returns")
		require.NoError(t, p.Close(ctx))
		seen := make(map[string]bool)
		for n := range partitions {
			last := make(map[byte]string)
			for _, v := range committed(t, ctx, c.Partition("t", n)) {
				require.False(t, seen[v], "%s twice", v)
				seen[v] = true
				require.Less(t, last[v[0]], v)
				last[v[0]] = v
				var w, i int
				_, err := fmt.Sscanf(v, "%d-%d", &w, &i)
				require.NoError(t, err)
				require.Equal(t, tidemark.PartitionFor(fmt.Append(nil, i%10), partitions), n)
			}
		}
		require.Len(t, seen, writers*each)
	})
}

// Records without a key go round; a partitioner decides otherwise.
func TestProducerPartitions(t *testing.T) {
	inMemory(t, local.Options{Brokers: 1}, func(t *testing.T, ctx context.Context, c *local.Cluster) {
		require.NoError(t, c.Controller().CreateTopic(ctx, "t", tidemark.TopicConfig{Partitions: 4}))
		round := c.Topic("t").Producer(tidemark.ProducerOptions{})
		defer round.Close(ctx)
		for range 8 {
			_, err := round.Append(ctx, tidemark.Record{})
			require.NoError(t, err)
		}
		for n := range 4 {
			require.Len(t, committed(t, ctx, c.Partition("t", n)), 2)
		}
		fixed := c.Topic("t").Producer(tidemark.ProducerOptions{Partitioner: func(rec tidemark.Record, n int) int { return len(rec.Value) % n }})
		defer fixed.Close(ctx)
		for i := range 4 {
			_, err := fixed.Append(ctx, tidemark.Record{Key: []byte("same"), Value: make([]byte, i)})
			require.NoError(t, err)
		}
		for n := range 4 {
			require.Len(t, committed(t, ctx, c.Partition("t", n)), 3)
		}
	})
}

// The budget blocks, and gives way when something ended, or the context.
func TestProducerBudget(t *testing.T) {
	inMemory(t, local.Options{}, func(t *testing.T, ctx context.Context, c *local.Cluster) {
		require.NoError(t, c.Controller().CreateTopic(ctx, "t", tidemark.TopicConfig{}))
		s, err := c.Partition("t", 0).Status(ctx)
		require.NoError(t, err)
		p := c.Topic("t").Producer(tidemark.ProducerOptions{MaxBufferedBytes: 10_000})
		defer p.Close(ctx)
		c.Network().Isolate(s.Leader)
		ended := make(chan error, 10)
		done := func(_ tidemark.Result, err error) { ended <- err }
		rec := tidemark.Record{Value: make([]byte, 4500)}
		require.NoError(t, p.AppendAsync(ctx, rec, done))
		require.NoError(t, p.AppendAsync(ctx, rec, done))

		short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		defer cancel()
		err = p.AppendAsync(short, rec, done)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, tidemark.NotAppended, tidemark.OutcomeOf(err))

		third := make(chan error, 1)
		go func() { third <- p.AppendAsync(ctx, rec, done) }()
		synctest.Wait()
		require.Empty(t, third, "it does not fit")
		c.Network().HealAll()
		require.NoError(t, <-third)
		for range 3 {
			require.NoError(t, <-ended)
		}
		// One record always fits.
		_, err = p.Append(ctx, tidemark.Record{Value: make([]byte, 100_000)})
		require.NoError(t, err)
		require.Len(t, committed(t, ctx, c.Partition("t", 0)), 4)
	})
}

// Append, Flush and Close obey their contexts; what Close cuts off ends.
func TestProducerCancelAndClose(t *testing.T) {
	inMemory(t, local.Options{SessionTimeout: time.Minute, MaxLag: time.Hour}, func(t *testing.T, ctx context.Context, c *local.Cluster) {
		require.NoError(t, c.Controller().CreateTopic(ctx, "t", tidemark.TopicConfig{}))
		s, err := c.Partition("t", 0).Status(ctx)
		require.NoError(t, err)
		p := c.Topic("t").Producer(tidemark.ProducerOptions{})
		require.NoError(t, p.Flush(ctx), "nothing to wait for")
		c.Network().Isolate(s.Leader)
		short := func() context.Context {
			ctx, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
			t.Cleanup(cancel)
			return ctx
		}
		_, err = p.Append(short(), tidemark.Record{})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, tidemark.Unknown, tidemark.OutcomeOf(err))
		var ends []error
		for range 3 {
			require.NoError(t, p.AppendAsync(ctx, tidemark.Record{Value: make([]byte, 20_000)}, func(_ tidemark.Result, err error) { ends = append(ends, err) }))
		}
		require.ErrorIs(t, p.Flush(short()), context.DeadlineExceeded)
		require.ErrorIs(t, p.Close(short()), context.DeadlineExceeded)
		require.Len(t, ends, 3)
		for _, err := range ends {
			require.ErrorIs(t, err, tidemark.ErrClosed)
			require.NotEqual(t, tidemark.Appended, tidemark.OutcomeOf(err))
		}
		require.ErrorIs(t, p.AppendAsync(ctx, tidemark.Record{}, nil), tidemark.ErrClosed)
		require.NoError(t, p.Close(ctx), "idempotent")
	})
}

// feeder is an application that appends values in order and sends again, in order,
// whatever was not acknowledged.
type feeder struct {
	p        *tidemark.Producer
	n        int // partition
	prefix   string
	next     int // number of the next new value
	unsure   []int
	acked    map[int]bool
	resent   int
	mu       sync.Mutex
	failed   []int // ended without acknowledgement since the last resend, in order
	order    []int // numbers in the order of their callbacks, since the last resend
	unending int
}

func (f *feeder) append(ctx context.Context, i int) error {
	return f.p.AppendAsync(ctx, tidemark.Record{Value: fmt.Appendf(nil, "%s%06d", f.prefix, i)}, func(_ tidemark.Result, err error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.order = append(f.order, i)
		f.unending--
		if err == nil {
			f.acked[i] = true
		} else {
			f.failed = append(f.failed, i)
		}
	})
}

// feed appends until stop is closed, and then until everything is acknowledged.
func (f *feeder) feed(ctx context.Context, stop <-chan struct{}) error {
	for {
		select {
		case <-stop:
			if err := f.resend(ctx); err != nil {
				return err
			}
			if len(f.unsure) == 0 {
				return nil
			}
			continue
		case <-time.After(4 * time.Millisecond):
		}
		if err := f.one(ctx, f.next); errors.Is(err, tidemark.ErrResume) {
			if err := f.resend(ctx); err != nil {
				return err
			}
		} else if err != nil {
			return err
		} else {
			f.next++
		}
	}
}

func (f *feeder) one(ctx context.Context, i int) error {
	f.mu.Lock()
	f.unending++
	f.mu.Unlock()
	err := f.append(ctx, i)
	if err != nil {
		f.mu.Lock()
		f.unending--
		f.mu.Unlock()
	}
	return err
}

// resend waits until everything has ended, and appends again what was not acknowledged.
func (f *feeder) resend(ctx context.Context) error {
	if err := f.p.Flush(ctx); err != nil {
		return err
	}
	for f.p.Resume(f.n) != nil {
		<-time.After(time.Millisecond)
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	f.mu.Lock()
	sorted := slices.IsSorted(f.order)
	f.unsure, f.failed, f.order = f.failed, nil, nil
	pending := f.unending
	f.mu.Unlock()
	if !sorted || pending != 0 {
		return fmt.Errorf("callbacks out of order (%v) or missing (%d)", !sorted, pending)
	}
	for _, i := range f.unsure {
		f.resent++
		err := f.one(ctx, i)
		if errors.Is(err, tidemark.ErrResume) { // halted again: the rest stays for the next time
			f.mu.Lock()
			f.failed = append(f.failed, i)
			f.mu.Unlock()
		} else if err != nil {
			return err
		}
	}
	return nil
}

// Leaders are killed under load: after the application has sent again what was not
// acknowledged, nothing is lost, and the first occurrences are in order.
func TestProducerThroughFailovers(t *testing.T) {
	for round := range 3 {
		inMemory(t, local.Options{}, func(t *testing.T, ctx context.Context, c *local.Cluster) {
			const partitions = 3
			require.NoError(t, c.Controller().CreateTopic(ctx, "t", tidemark.TopicConfig{Partitions: partitions}))
			stop := make(chan struct{})
			var feeders []*feeder
			ends := make(chan error, partitions)
			for n := range partitions {
				f := &feeder{n: n, prefix: fmt.Sprint(n, "-"), acked: make(map[int]bool)}
				f.p = c.Topic("t").Producer(tidemark.ProducerOptions{Partitioner: func(tidemark.Record, int) int { return n }})
				feeders = append(feeders, f)
				go func() { ends <- f.feed(ctx, stop) }()
			}
			for kill := range 3 {
				<-time.After(time.Duration(100+37*round+13*kill) * time.Millisecond)
				id := int32(1 + (round+kill)%3)
				require.NoError(t, c.Kill(id))
				<-time.After(time.Duration(300+400*(kill%3)) * time.Millisecond)
				require.NoError(t, c.Restart(ctx, id))
				for n := range partitions {
					until(t, "all in sync", func() bool {
						short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
						defer cancel()
						s, err := c.Partition("t", n).Status(short)
						return err == nil && len(s.ISR) == 3 && s.Leader >= 0
					})
				}
			}
			close(stop)
			for range partitions {
				require.NoError(t, <-ends)
			}
			resent := 0
			for n, f := range feeders {
				require.NoError(t, f.p.Close(ctx))
				require.Len(t, f.acked, f.next)
				resent += f.resent
				var first []string
				seen := make(map[string]bool)
				for _, v := range committed(t, ctx, c.Partition("t", n)) {
					if !seen[v] {
						first = append(first, v)
						seen[v] = true
					}
				}
				require.Len(t, first, f.next, "acknowledged and lost")
				require.True(t, slices.IsSorted(first), "out of order")
			}
			t.Logf("%d records, %d sent again", feeders[0].next+feeders[1].next+feeders[2].next, resent)
			require.Positive(t, resent, "no leader died with something under way")
		})
	}
}
