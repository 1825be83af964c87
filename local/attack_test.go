package local_test

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark"
	"github.com/tidemark-log/tidemark/local"
)

// Nothing acknowledged is lost or moved when brokers on Pebble are killed and come
// back, one, two or all at once, within a session or after it; readers see every
// offset once; and in the end all replicas have the same bytes.
func TestAttackKills(t *testing.T) {
	for _, memory := range []bool{false, true} {
		t.Run(fmt.Sprintf("in memory %v", memory), func(t *testing.T) {
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
				defer cancel()
				c, err := local.Open(ctx, dir, local.Options{InMemory: memory, MemoryBudget: 24 << 20})
				require.NoError(t, err)
				defer func() { require.NoError(t, c.Close()) }()
				require.NoError(t, c.Controller().CreateTopic(ctx, "t", tidemark.TopicConfig{Partitions: 1}))
				a := &attacked{t: t, ctx: ctx, c: c, acked: make(map[int64]string)}
				stop := a.use()
				for i := range 6 {
					down := 1 + i%3
					for k := range down {
						require.NoError(t, c.Kill(int32(1+(i+k)%3)))
					}
					<-time.After(time.Duration(i%2) * 1300 * time.Millisecond)
					for k := range down {
						require.NoError(t, c.Restart(ctx, int32(1+(i+k)%3)))
					}
					<-time.After(time.Duration(100+150*i) * time.Millisecond)
				}
				stop()
				a.holds()
			})
		})
	}
}

// attacked is a cluster and what its partition has acknowledged.
type attacked struct {
	t   *testing.T
	ctx context.Context
	c   *local.Cluster

	mu    sync.Mutex
	acked map[int64]string
}

// use appends and reads until stop is called.
func (a *attacked) use() (stop func()) {
	ctx, cancel := context.WithCancel(a.ctx)
	var work sync.WaitGroup
	for w := range 3 {
		work.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				a.append(fmt.Sprintf("w%d-%d", w, i))
				<-time.After(10 * time.Millisecond)
			}
		})
	}
	work.Go(func() {
		want := int64(0)
		for ctx.Err() == nil {
			for rec, err := range a.c.Partition("t", 0).Records(ctx, tidemark.At(want)) {
				if err != nil {
					break // all brokers are down, or it is over
				}
				if rec.Offset != want {
					a.t.Errorf("reader wants %d, gets %d", want, rec.Offset)
				}
				want = rec.Offset + 1
			}
			<-time.After(time.Millisecond)
		}
	})
	return func() { cancel(); work.Wait() }
}

func (a *attacked) append(value string) {
	ctx, cancel := context.WithTimeout(a.ctx, 3*time.Second)
	defer cancel()
	res, err := a.c.Partition("t", 0).Append(ctx, tidemark.Record{Value: []byte(value)})
	if err != nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if old, ok := a.acked[res.Base]; ok {
		a.t.Errorf("two acks at %d: %s and %s", res.Base, old, value)
	}
	a.acked[res.Base] = value
}

// equal reports whether all replicas are in sync and equally long.
func (a *attacked) equal() bool {
	ctx, cancel := context.WithTimeout(a.ctx, time.Second)
	defer cancel()
	s, err := a.c.Partition("t", 0).Status(ctx)
	if err != nil || len(s.ISR) != 3 || s.Ends == nil || s.Ends.HighWatermark != s.Ends.LogEnd {
		return false
	}
	for _, b := range a.c.Brokers() {
		rep, err := b.Replica(ctx, "t", 0)
		if err != nil || rep.HighWatermark != s.Ends.LogEnd || rep.StoredEnd != s.Ends.LogEnd {
			return false
		}
	}
	return true
}

func (a *attacked) holds() {
	for i := 0; !a.equal(); i++ {
		require.Less(a.t, i, 3000, "not healed within 30 s")
		<-time.After(10 * time.Millisecond)
	}
	require.NotEmpty(a.t, a.acked)
	var first []byte
	for i, b := range a.c.Brokers() {
		rep, err := b.Replica(a.ctx, "t", 0)
		require.NoError(a.t, err)
		var all []byte
		for batch, err := range rep.Batches(a.ctx, 0) {
			require.NoError(a.t, err)
			all = append(all, batch...)
		}
		if i == 0 {
			first = all
		}
		require.True(a.t, bytes.Equal(first, all), "broker %d has other bytes", b.ID())
	}
	got := make(map[int64]string)
	for next := int64(0); ; {
		f, err := a.c.Partition("t", 0).Fetch(a.ctx, next, tidemark.FetchOptions{})
		require.NoError(a.t, err)
		if len(f.Records) == 0 {
			break
		}
		for _, rec := range f.Records {
			require.Equal(a.t, next, rec.Offset)
			got[next] = string(rec.Value)
			next++
		}
	}
	for o, v := range a.acked {
		require.Equal(a.t, v, got[o], "acknowledged at %d", o)
	}
}
