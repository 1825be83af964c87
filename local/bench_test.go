package local_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark"
	"github.com/tidemark-log/tidemark/local"
	"github.com/tidemark-log/tidemark/record"
)

const (
	// boundSamples is how many samples of each kind the bounds need to mean anything.
	boundSamples = 2000
	// boundRatio is how much longer the median append may take than the median
	// parallel sync of the bare engines.
	boundRatio = 1.3
	// boundWorst is what no append may exceed, unless the disk itself was slower.
	boundWorst = 50 * time.Millisecond
)

// BenchmarkAppendOne measures a lone append with AcksAll to an idle partition with
// three replicas on the disk, and compares it with what the disk takes: the time
// in which three bare Pebbles sync the same bytes in parallel. Both alternate in
// blocks, so that a neighbour's load falls on both.
//
// With -benchtime 2000x or more it fails when the bounds do not hold.
func BenchmarkAppendOne(b *testing.B) {
	const block, warmUp = 25, 200
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	p := openOne(ctx, b)
	rec := tidemark.Record{Value: payload(1024)}
	bare := openBare(b, rec)

	appendOne := func() time.Duration {
		began := time.Now()
		_, err := p.Append(ctx, rec)
		took := time.Since(began)
		require.NoError(b, err)
		return took
	}
	for range warmUp {
		appendOne()
		bare.syncOne(b)
	}
	var ours, theirs []time.Duration
	b.ResetTimer()
	for len(ours) < b.N {
		n := min(block, b.N-len(ours))
		for range n {
			ours = append(ours, appendOne())
		}
		b.StopTimer()
		for range n {
			theirs = append(theirs, bare.syncOne(b))
		}
		b.StartTimer()
	}
	b.StopTimer()

	status, err := p.Status(ctx)
	require.NoError(b, err)
	require.Len(b, status.ISR, 3, "a replica left the ISR: the appends did not wait for all")
	judge(b, ours, theirs)
}

// judge reports the latencies and, of enough samples, whether the bounds hold.
func judge(b *testing.B, ours, theirs []time.Duration) {
	slices.Sort(ours)
	slices.Sort(theirs)
	at := func(d []time.Duration, part float64) time.Duration { return d[int(part*float64(len(d)-1))] }
	micros := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
	for _, q := range []struct {
		name string
		part float64
	}{{"p50", 0.5}, {"p99", 0.99}, {"max", 1}} {
		b.ReportMetric(micros(at(ours, q.part)), q.name+"-µs")
		b.ReportMetric(micros(at(theirs, q.part)), "bare-"+q.name+"-µs")
	}
	ratio := float64(at(ours, 0.5)) / float64(at(theirs, 0.5))
	b.ReportMetric(ratio, "p50/bare")
	if len(ours) < boundSamples {
		return
	}
	// A benchmark that fails does not print its metrics.
	b.Logf("append p50 %v, p99 %v, max %v; bare sync p50 %v, p99 %v, max %v; ratio of p50 %.3f", at(ours, 0.5), at(ours, 0.99),
		at(ours, 1), at(theirs, 0.5), at(theirs, 0.99), at(theirs, 1), ratio)
	if ratio > boundRatio {
		b.Errorf("median append takes %v, %.2f times the bare sync's %v; the bound is %.1f",
			at(ours, 0.5), ratio, at(theirs, 0.5), boundRatio)
	}
	if limit := max(boundWorst, 2*at(theirs, 1)); at(ours, 1) > limit {
		b.Errorf("worst append took %v; the bound is %v, the worst bare sync took %v", at(ours, 1), limit, at(theirs, 1))
	}
}

// openOne opens a cluster of three brokers on the disk and waits until all of them
// are in sync in the one partition that there is.
func openOne(ctx context.Context, tb testing.TB) *tidemark.Partition {
	c, err := local.Open(ctx, tb.TempDir(), local.Options{})
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, c.Close()) })
	require.NoError(tb, c.Controller().EnsureTopic(ctx, "one", tidemark.TopicConfig{
		Partitions: 1, ReplicationFactor: 3, MinISR: 2,
	}))
	p := c.Partition("one", 0)
	for {
		_, err := p.Append(ctx, tidemark.Record{Value: []byte("first")})
		require.NoError(tb, err)
		status, err := p.Status(ctx)
		require.NoError(tb, err)
		if len(status.ISR) == 3 {
			return p
		}
	}
}

// payload is n bytes that do not compress.
func payload(n int) []byte {
	out := make([]byte, n)
	x := uint64(1)
	for i := range out {
		x = x*6364136223846793005 + 1442695040888963407
		out[i] = byte(x >> 56)
	}
	return out
}

// bareEngines are three Pebbles with nothing on top, each with a goroutine that
// syncs one value when it is told to.
type bareEngines struct {
	begin []chan uint64
	ended chan error
	key   uint64
}

// openBare opens the engines, with the options of the store that matter here.
func openBare(b *testing.B, rec tidemark.Record) *bareEngines {
	now := time.Now()
	value, err := record.Encode(nil, []record.Record{rec}, now)
	require.NoError(b, err)
	e := &bareEngines{ended: make(chan error, 3)}
	dir := b.TempDir()
	var running sync.WaitGroup
	var dbs []*pebble.DB
	b.Cleanup(func() {
		for _, begin := range e.begin {
			close(begin)
		}
		running.Wait()
		for _, db := range dbs {
			require.NoError(b, db.Close())
		}
	})
	for i := range 3 {
		db, err := pebble.Open(filepath.Join(dir, fmt.Sprintf("bare-%d", i)), &pebble.Options{
			FS: vfs.Default, Logger: quiet{}, FormatMajorVersion: pebble.FormatTableFormatV6,
			MemTableSize: 512 << 20 / 3 / 8, CacheSize: 512 << 20 / 3 / 16,
		})
		require.NoError(b, err)
		dbs = append(dbs, db)
		begin := make(chan uint64)
		e.begin = append(e.begin, begin)
		running.Go(func() {
			for key := range begin {
				e.ended <- db.Set(binary.BigEndian.AppendUint64(nil, key), value, pebble.Sync)
			}
		})
	}
	return e
}

// syncOne is how long all engines take to sync one value each, in parallel.
func (e *bareEngines) syncOne(b *testing.B) time.Duration {
	e.key++
	began := time.Now()
	for _, begin := range e.begin {
		begin <- e.key
	}
	var failed error
	for range e.begin {
		if err := <-e.ended; err != nil {
			failed = err
		}
	}
	took := time.Since(began)
	require.NoError(b, failed)
	return took
}

// quiet is a logger for Pebble that says nothing but what must not be missed.
type quiet struct{}

func (quiet) Infof(string, ...any)         {}
func (quiet) Errorf(string, ...any)        {}
func (quiet) Fatalf(f string, args ...any) { panic(fmt.Sprintf(f, args...)) }
