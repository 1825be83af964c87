package pebblecoord_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/coordination/pebblecoord"
)

// TestHungDisk: readers go on, writers end with their context, Close ends in bounded
// time and leaves the directory locked until the disk has answered.
func TestHungDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := newGate()
		fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(gate.pass))
		s := open(t, fs, "data")
		c := s.Connect()
		rev := do(t, c, put("k", "before", ""))
		ch, err := c.Watch(ctx, "", rev)
		require.NoError(t, err)
		sess, err := c.NewSession(ctx, time.Hour)
		require.NoError(t, err)

		gate.shut()
		for _, key := range []string{"k", "queued behind"} {
			short, cancel := context.WithTimeout(ctx, time.Second)
			_, err = c.Do(short, put(key, "hung", ""))
			require.ErrorIs(t, err, coordination.ErrUnavailable)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			cancel()
		}
		kv, _, err := c.Get(ctx, "k")
		require.NoError(t, err)
		require.Equal(t, "before", string(kv.Value), "what is not durable is not visible")
		require.Empty(t, ch)
		require.NoError(t, sess.Renew(ctx))

		begun := time.Now()
		require.ErrorIs(t, s.Close(), pebblecoord.ErrAbandoned)
		require.LessOrEqual(t, time.Since(begun), 6*time.Second)
		_, err = pebblecoord.Open("data", pebblecoord.Options{FS: fs})
		require.ErrorIs(t, err, pebblecoord.ErrInUse)

		gate.open()
		synctest.Wait()
		s = open(t, fs, "data")
		kv, _, err = s.Connect().Get(ctx, "k")
		require.NoError(t, err)
		require.Equal(t, "hung", string(kv.Value), "the write went on without its caller")
		require.NoError(t, s.Close())
	})
}

// gate holds up everything that writes while it is shut.
type gate struct {
	mu sync.Mutex
	ch chan struct{}
}

func newGate() *gate { return &gate{} }

func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ch = make(chan struct{})
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	close(g.ch)
	g.ch = nil
}

func (g *gate) pass(op errorfs.Op) error {
	if op.Kind.ReadOrWrite() != errorfs.OpIsWrite || op.Kind == errorfs.OpLock {
		return nil
	}
	g.mu.Lock()
	ch := g.ch
	g.mu.Unlock()
	if ch != nil {
		<-ch
	}
	return nil
}

// breaker has a file system fail for good from some write operation on.
type breaker struct {
	match func(errorfs.Op) bool

	mu    sync.Mutex
	armed bool
	left  int // operations that still succeed
}

var errBroken = errors.New("broken disk")

func (b *breaker) arm(left int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.armed, b.left = true, left
}

func (b *breaker) check(op errorfs.Op) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.armed || op.Kind.ReadOrWrite() != errorfs.OpIsWrite || op.Kind == errorfs.OpFileClose || b.left >= 0 && !b.match(op) {
		return nil
	}
	if b.left--; b.left >= 0 {
		return nil
	}
	return errBroken
}

func anyWrite(errorfs.Op) bool { return true }

func only(kinds ...errorfs.OpKind) func(errorfs.Op) bool {
	return func(op errorfs.Op) bool { return slices.Contains(kinds, op.Kind) }
}

// TestFailingDisk has the disk fail for good at some operation. The store is
// poisoned, says so, closes, and loses nothing that it answered.
func TestFailingDisk(t *testing.T) {
	defer goleak.VerifyNone(t)
	big := strings.Repeat("x", 1<<20) // makes the database start new files soon
	for _, tt := range []struct {
		name  string
		match func(errorfs.Op) bool
		value string
		upTo  int
	}{
		{"any", anyWrite, "v", 8},
		{"create", only(errorfs.OpCreate, errorfs.OpReuseForWrite), big, 3},
		{"sync", only(errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo), big, 6},
		{"write", only(errorfs.OpFileWrite), big, 5},
	} {
		for at := range tt.upTo {
			t.Run(fmt.Sprint(tt.name, at), func(t *testing.T) {
				mem := vfs.NewCrashableMem()
				b := &breaker{match: tt.match}
				s := open(t, errorfs.Wrap(mem, errorfs.InjectorFunc(b.check)), "data")
				j := breakStore(t, s, b, at, tt.value)
				err := s.Close()
				require.ErrorIs(t, err, errBroken)
				require.NotErrorIs(t, err, pebblecoord.ErrAbandoned)
				require.NoError(t, j.check(mem.CrashClone(vfs.CrashCloneCfg{})))
				require.NoError(t, j.check(mem), "the directory is free again")
			})
		}
	}
}

// breakStore writes until the disk fails, and checks what the store says then.
func breakStore(t *testing.T, s *pebblecoord.Store, b *breaker, at int, value string) *journal {
	c := s.Connect()
	j := &journal{puts: make(map[string]int64)}
	watch, err := c.Watch(ctx, "none", 0)
	require.NoError(t, err)
	sess, err := c.NewSession(ctx, time.Hour)
	require.NoError(t, err)
	b.arm(at)
	for n := 0; err == nil; n++ {
		key := fmt.Sprintf("k/%d", n)
		var res coordination.TxnResult
		if res, err = c.Do(ctx, put(key, value, "")); err == nil {
			j.note(key, res.Revision)
		}
	}
	require.ErrorIs(t, err, coordination.ErrUnavailable)
	require.ErrorIs(t, err, errBroken)
	_, err = c.Do(ctx, put("again", "", ""))
	require.ErrorIs(t, err, coordination.ErrUnavailable)
	_, _, err = c.Get(ctx, "k/0")
	require.ErrorIs(t, err, coordination.ErrUnavailable)
	require.ErrorIs(t, sess.Renew(ctx), coordination.ErrUnavailable)
	require.ErrorIs(t, (<-watch).Err, coordination.ErrUnavailable)
	_, more := <-watch
	require.False(t, more)
	return j
}

// TestFailingOpen: an open that fails says so, and the next one finds everything.
func TestFailingOpen(t *testing.T) {
	defer goleak.VerifyNone(t)
	for _, existing := range []bool{false, true} {
		failures := 0
		for at := range 60 {
			mem := vfs.NewMem()
			j := &journal{puts: make(map[string]int64)}
			if existing {
				s := open(t, mem, "data")
				c := s.Connect()
				j.note("k", do(t, c, put("k", "v", "")))
				sess, err := c.NewSession(ctx, time.Hour)
				require.NoError(t, err)
				do(t, c, put("e", "v", sess.ID()))
				require.NoError(t, s.Close())
			}
			b := &breaker{match: anyWrite}
			b.arm(at)
			s, err := pebblecoord.Open("data", pebblecoord.Options{FS: errorfs.Wrap(mem, errorfs.InjectorFunc(b.check))})
			if err != nil {
				failures++
				require.ErrorIs(t, err, errBroken, "at %d", at)
			} else {
				_ = s.Close()
			}
			require.NoError(t, j.check(mem), "at %d", at)
		}
		require.Greater(t, failures, 10)
	}
}
