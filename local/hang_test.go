package local

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark"
	"github.com/tidemark-log/tidemark/storage/pebblestore"
)

// stuck makes writes to a write-ahead log hang while it is on.
type stuck struct {
	mu    sync.Mutex
	until chan struct{}
}

func (s *stuck) set(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if on {
		s.until = make(chan struct{})
	} else if s.until != nil {
		close(s.until)
		s.until = nil
	}
}

func (s *stuck) String() string { return "stuck" }

func (s *stuck) MaybeError(op errorfs.Op) error {
	s.mu.Lock()
	until := s.until
	s.mu.Unlock()
	if until != nil && op.Kind.ReadOrWrite() == errorfs.OpIsWrite && strings.HasSuffix(op.Path, ".log") {
		<-until
	}
	return nil
}

// A leader whose disk hangs is killed and comes back while its old life is still
// inside the disk; nothing acknowledged is lost, and nothing of the old life stays
// when the disk has let go (D16, D24).
func TestKillOnHungDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		disk, victim := &stuck{}, atomic.Int32{}
		c, err := Open(ctx, "cluster", Options{
			InMemory: true, MemoryBudget: 24 << 20,
			disk: func(broker int32, fs vfs.FS) vfs.FS {
				if broker == victim.Load() { // its next life is on a disk that works
					return fs
				}
				return errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
					if broker == victim.Load() {
						return disk.MaybeError(op)
					}
					return nil
				}))
			},
		})
		require.NoError(t, err)
		defer func() { require.NoError(t, c.Close()) }()
		require.NoError(t, c.Controller().EnsureTopic(ctx, "t", tidemark.TopicConfig{Partitions: 1}))
		p := c.Partition("t", 0)
		inSync := func() int32 {
			for {
				s, err := p.Status(ctx)
				require.NoError(t, ctx.Err())
				if err == nil && len(s.ISR) == 3 && s.Leader >= 0 {
					return s.Leader
				}
				<-time.After(100 * time.Millisecond)
			}
		}
		leader := inSync()
		before, err := p.Append(ctx, tidemark.Record{Value: []byte("before")})
		require.NoError(t, err)

		synctest.Wait()
		victim.Store(leader)
		disk.set(true)
		_, err = p.Append(ctx, tidemark.Record{Value: []byte("held")})
		require.Error(t, err, "acknowledged without the leader's disk")
		began := time.Now()
		require.ErrorIs(t, c.Kill(leader), pebblestore.ErrAbandoned)
		require.LessOrEqual(t, time.Since(began), 20*time.Second)
		require.NoError(t, c.Kill(leader), "dead already")
		require.NoError(t, c.Restart(ctx, leader))
		inSync()
		after, err := p.Append(ctx, tidemark.Record{Value: []byte("after")})
		require.NoError(t, err)
		require.Greater(t, after.Base, before.Last)

		disk.set(false)
		synctest.Wait() // the old life ends
		var values []string
		for rec, err := range p.Records(ctx, tidemark.Earliest()) {
			require.NoError(t, err)
			values = append(values, string(rec.Value))
			if rec.Offset == after.Base {
				break
			}
		}
		require.Equal(t, "before", values[0])
		require.Equal(t, "after", values[len(values)-1])
		inSync()
	})
}
