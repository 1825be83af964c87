package pebblecoord_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"syscall"
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

// TestHangAtEveryWrite has the disk hang from some write on, each in turn. Calls return
// with their context, Close in bounded time; only an Open waits for the disk. When that
// works again nothing is lost, and the directory is free.
func TestHangAtEveryWrite(t *testing.T) {
	defer goleak.VerifyNone(t)
	writes := 0
	require.NoError(t, live(t, atWrites(vfs.NewMem(), func(errorfs.Op) { writes++ }), newJournal(), ""))
	require.Greater(t, writes, 100)
	var wg sync.WaitGroup // all at once: each Close takes its five seconds
	for at := range writes {
		wg.Go(func() {
			if err := hangAt(t, at); err != nil {
				t.Errorf("at %d: %v", at, err)
			}
		})
	}
	wg.Wait()
}

func hangAt(t *testing.T, at int) error {
	mem := vfs.NewCrashableMem()
	g := newGate()
	g.shutAfter(at)
	j := newJournal()
	j.ctx, j.cancel = context.WithCancel(ctx)
	defer j.cancel()
	locks := &lockWatch{FS: errorfs.Wrap(mem, errorfs.InjectorFunc(g.pass)), back: make(chan struct{}, 2)}
	done := make(chan error, 1)
	go func() { done <- live(t, locks, j, "") }()
	select {
	case err := <-done: // it had one write less this time
		return err
	case <-g.reached:
	}
	opening := j.copy().opening
	if !opening {
		j.cancel()
		select {
		case err := <-done:
			if !errors.Is(err, pebblecoord.ErrAbandoned) {
				return fmt.Errorf("a life with a hung disk ended with %w", err)
			}
		case <-time.After(time.Minute):
			return errors.New("a call or Close hangs")
		}
		if _, err := pebblecoord.Open("data", pebblecoord.Options{FS: mem}); !errors.Is(err, pebblecoord.ErrInUse) {
			return fmt.Errorf("open beside a hung one: %w", err)
		}
	}
	if err := j.check(mem.CrashClone(vfs.CrashCloneCfg{})); err != nil {
		return fmt.Errorf("after a power cut: %w", err)
	}
	for len(locks.back) > 0 {
		<-locks.back // of the life before
	}
	g.open()
	if opening {
		if err := <-done; err != nil {
			return fmt.Errorf("once the disk works again: %w", err)
		}
	} else {
		<-locks.back
	}
	return j.check(mem)
}

// lockWatch tells when a store has given back its lock.
type lockWatch struct {
	vfs.FS
	back chan struct{}
}

func (w *lockWatch) Lock(name string) (io.Closer, error) {
	lock, err := w.FS.Lock(name)
	if err == nil && w.FS.PathBase(w.FS.PathDir(name)) == "data" {
		lock = &watchedLock{lock, w.back}
	}
	return lock, err
}

type watchedLock struct {
	io.Closer
	back chan struct{}
}

func (l *watchedLock) Close() error {
	err := l.Closer.Close()
	l.back <- struct{}{}
	return err
}

// gate holds up everything that writes while it is shut.
type gate struct {
	reached chan struct{} // closed when something is held up

	mu   sync.Mutex
	ch   chan struct{}
	free int // writes that pass all the same
}

func newGate() *gate { return &gate{reached: make(chan struct{})} }

func (g *gate) shut() { g.shutAfter(0) }

func (g *gate) shutAfter(free int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ch, g.free = make(chan struct{}), free
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
	if ch != nil {
		if g.free--; g.free == -1 {
			close(g.reached)
		}
	}
	late := g.free < 0
	g.mu.Unlock()
	if ch != nil && late {
		<-ch
	}
	return nil
}

// breaker has a file system fail at some write operation, and from then on.
type breaker struct {
	match func(errorfs.Op) bool
	err   error // nil: errBroken
	once  bool  // it recovers at once

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
	if b.left--; b.left >= 0 || b.once && b.left < -1 {
		return nil
	}
	return b.cause()
}

func (b *breaker) cause() error {
	if b.err != nil {
		return b.err
	}
	return errBroken
}

// failed tells whether it came to that.
func (b *breaker) failed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.left < 0
}

func anyWrite(errorfs.Op) bool { return true }

func only(kinds ...errorfs.OpKind) func(errorfs.Op) bool {
	return func(op errorfs.Op) bool { return slices.Contains(kinds, op.Kind) }
}

var matrix = flag.Bool("coord.matrix", false, "try every write and every byte, not only some of those in large files")

// large is a value that makes the database start new files now and then.
var large = strings.Repeat("x", 400<<10)

var (
	syncs = only(errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo)
	// fills are the operations that a full disk refuses.
	fills = only(errorfs.OpCreate, errorfs.OpReuseForWrite, errorfs.OpLink, errorfs.OpMkdirAll,
		errorfs.OpFileWrite, errorfs.OpFileWriteAt, errorfs.OpFilePreallocate)
)

// TestEveryWriteFails has each write fail in turn, once or from then on, during lives of
// a store that end there. Nothing that was answered is lost, whether the process ended
// then or the power failed too.
func TestEveryWriteFails(t *testing.T) {
	defer goleak.VerifyNone(t)
	small, step := 1, 97
	switch {
	case *matrix:
		step = 1
	case testing.Short():
		small = 7
	}
	for _, tt := range []struct {
		name  string
		match func(errorfs.Op) bool
		err   error
		once  bool
		value string
		step  int
	}{
		{"once", anyWrite, nil, true, "", small},
		{"for good", anyWrite, nil, false, "", small},
		{"sync once", syncs, nil, true, "", small},
		{"sync for good", syncs, nil, false, "", small},
		{"full", fills, syscall.ENOSPC, false, "", small},
		{"large, once", anyWrite, nil, true, large, step},
		{"large, for good", anyWrite, nil, false, large, step},
		{"large, full", fills, syscall.ENOSPC, false, large, step},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ended := 0
			for at := 0; ; at += tt.step {
				mem := vfs.NewCrashableMem()
				b := &breaker{match: tt.match, err: tt.err, once: tt.once}
				b.arm(at)
				j := newJournal()
				err := live(t, errorfs.Wrap(mem, errorfs.InjectorFunc(b.check)), j, tt.value)
				if err != nil {
					ended++
					require.ErrorIs(t, err, b.cause(), "at %d", at)
					require.NotErrorIs(t, err, pebblecoord.ErrAbandoned, "at %d", at)
				}
				require.NoError(t, j.check(mem.CrashClone(vfs.CrashCloneCfg{})), "at %d, power cut", at)
				require.NoError(t, j.check(mem), "at %d", at)
				if !b.failed() {
					require.NoError(t, err)
					require.Greater(t, ended*tt.step, 20)
					return
				}
			}
		})
	}
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
		{"sync", syncs, big, 6},
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
	j := newJournal()
	watch, err := c.Watch(ctx, "none", 0)
	require.NoError(t, err)
	sess, err := c.NewSession(ctx, time.Hour)
	require.NoError(t, err)
	b.arm(at)
	for n := 0; err == nil; n++ {
		key := fmt.Sprintf("k/%d", n)
		_, err = j.do(ctx, c, put(key, value, ""))
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
			j := newJournal()
			if existing {
				s := open(t, mem, "data")
				c := s.Connect()
				_, err := j.do(ctx, c, put("k", "v", ""))
				require.NoError(t, err)
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
