// Package pebblestore keeps logs in one Pebble database.
//
// # Guarantees
//
// A group whose done came without error and that was written with synced true is
// on the disk, wholly. After a crash a prefix of the sequence of groups is there;
// no group is there in part. Every batch is verified against its checksum when it
// is read.
//
// Damage to what a crash leaves of the last groups in the newest write-ahead log
// cannot be told from a write that a power cut has torn: those groups are lost
// without notice. So is, at worst, what the engine has put into tables since the last
// group was written, when the note of that in its manifest is damaged. Damage to
// earlier ones, to a store that was closed, or elsewhere gives an error.
//
// # Failures
//
// The first failed write or sync ends the store's life as a writer: nothing more
// reaches the disk, every group that is not done gets an error, and so do later
// ones. Reads go on as well as they can. Close and a new Open start over from what
// the disk holds.
//
// A log that is damaged when the store is opened is listed by Logs with what could
// be read of its state, but its ops and reads get ErrDamaged; only Delete and Reset
// are taken, as they need nothing of what is there. A saved high watermark above
// the log's end is left as it is.
//
// # Goroutines
//
// Three per store, from Open to Close or Fence: the committer puts groups together
// and applies them, the syncer waits for the disk, the finisher calls done. So one
// group is put together while the one before it is being synced. Pebble has some
// more of its own.
package pebblestore

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/tidemark-log/tidemark/internal/pebblefs"
	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/storage"
)

// ErrAbandoned is what Close and Fence return when the disk did not answer in time.
// The store is fenced and has let go of its directory, which can be opened again
// at once: of what the store still has in hand, only calls that are inside the
// operating system already may reach the disk, and they find nothing there that
// the next open uses.
var ErrAbandoned = errors.New("pebblestore: the disk did not answer in time, the store was abandoned")

// Store is a storage.Store in a directory. Write keeps every group until its done:
// the caller bounds how much that is.
type Store struct {
	o     Options
	log   *slog.Logger
	guard *pebblefs.Guard
	db    *pebble.DB

	directory protocol.UUID
	unclean   bool      // how the open before this one ended, if the cluster does not know
	home      string    // where this open has the database
	dirLock   io.Closer // of the directory; see unlock
	unlocked  sync.Once
	reported  sync.Once // that it was abandoned

	mu      sync.Mutex // short: never held across a call of Pebble or of done
	logs    map[storage.LogID]*log
	damaged map[storage.LogID]error // found at open
	// changing has a channel for each log whose data is being removed; it is closed
	// when logs shows the result.
	changing  map[storage.LogID]chan struct{}
	node      storage.Node
	told      bool     // the cluster knows what there was to know of unclean
	queue     []*group // not done, in order
	applied   int      // how many of them the committer is through with
	err       error    // poisoned
	closing   bool     // no more groups are taken
	abandoned bool     // the finisher does not wait any more
	// abandonedFor is what groups get that are not done by then.
	abandonedFor error
	readers      int           // calls that use db
	noReaders    chan struct{} // closed when closing and readers is 0

	building sync.Mutex // held while ops are being read; before mu

	toCommit, toFinish chan struct{} // wake-ups, capacity 1
	toSync             chan *group
	committed          chan struct{} // closed when the committer has returned
	synced             chan struct{} // ... the syncer
	finished           chan struct{} // ... the finisher
	dying              chan struct{} // ... Close or Fence was called
	released           chan struct{} // ... everything is released
	closed             chan struct{} // ... that, or it was given up
	closeOnce          sync.Once
	closeErr           error
	wedged             atomic.Bool // Pebble panicked: db must not be touched

	late struct { // groups that came after closing
		sync.Mutex
		queue   []func()
		running bool
	}

	// Only the committer uses these, and Open before it starts.
	counters     counters
	saveCounters bool
	inSegment    int64                   // bytes appended
	inMemtable   int64                   // bytes, about
	refused      map[storage.LogID]error // by an op that did not fit

	spares chan *pebble.Batch

	disk      atomic.Uint64
	diskStale atomic.Bool
	diskTime  atomic.Int64
}

var _ storage.Store = (*Store)(nil)

// group is what Write was given, and what became of it. The committer, the syncer
// and the finisher have it in turn.
type group struct {
	ops    []storage.Op
	node   *storage.Node
	synced bool
	done   func(storage.Result)

	batch   *pebble.Batch
	refused map[storage.LogID]error
	// Guarded by Store.mu:
	ready bool // done may be called
	err   error
}

// Write implements storage.Store. It only queues.
func (s *Store) Write(ops []storage.Op, synced bool, done func(storage.Result)) {
	s.submit(&group{ops: ops, synced: synced, done: done})
}

func (s *Store) submit(g *group) {
	s.mu.Lock()
	if s.closing {
		s.mu.Unlock()
		s.refuseLate(g)
		return
	}
	s.queue = append(s.queue, g)
	s.mu.Unlock()
	wake(s.toCommit)
}

// refuseLate calls done with ErrClosed from another goroutine, after those of all
// groups that were taken.
func (s *Store) refuseLate(g *group) {
	s.late.Lock()
	defer s.late.Unlock()
	s.late.queue = append(s.late.queue, func() { g.done(storage.Result{Err: storage.ErrClosed}) })
	if s.late.running {
		return
	}
	s.late.running = true
	go func() {
		<-s.finished
		for {
			s.late.Lock()
			queue := s.late.queue
			s.late.queue = nil
			s.late.running = len(queue) > 0
			s.late.Unlock()
			if len(queue) == 0 {
				return
			}
			for _, f := range queue {
				f()
			}
		}
	}()
}

// Node implements storage.Store.
func (s *Store) Node() storage.Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.node
}

// SetNode implements storage.Store. It takes its turn among the groups.
func (s *Store) SetNode(n storage.Node) error {
	if n.Directory != s.Node().Directory {
		return errors.New("pebblestore: the directory id cannot change")
	}
	n.Unclean = s.unclean
	answer := make(chan error, 1)
	s.submit(&group{node: &n, synced: true, done: func(r storage.Result) { answer <- r.Err }})
	return <-answer
}

// Logs implements storage.Store.
func (s *Store) Logs() (map[storage.LogID]storage.State, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return nil, storage.ErrClosed
	}
	out := make(map[storage.LogID]storage.State, len(s.logs))
	for id, l := range s.logs {
		state := l.state.Clone()
		state.Damaged = s.damaged[id]
		out[id] = state
	}
	return out, nil
}

// Health implements storage.Store. Disk is at most about a second old while the
// disk answers.
func (s *Store) Health() storage.Health {
	if n := now(); n-s.diskTime.Load() > int64(time.Second) && s.diskStale.CompareAndSwap(false, true) {
		wake(s.toCommit)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	h := storage.Health{Err: s.err, Disk: s.disk.Load()}
	if s.closing {
		h.Err = storage.ErrClosed
	}
	return h
}

// poison makes the store take no more writes. It is called from any goroutine,
// Pebble's too.
func (s *Store) poison(cause error) {
	s.mu.Lock()
	first := s.err == nil && !s.abandoned
	if s.err == nil {
		s.err = fmt.Errorf("%w: %w", storage.ErrPoisoned, cause)
	}
	s.mu.Unlock()
	if first {
		s.log.Error("store failed and takes no more writes", "error", cause)
	}
	wake(s.toFinish)
}

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// now is for the age of measurements only.
func now() int64 { return time.Now().UnixNano() }
