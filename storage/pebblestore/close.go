package pebblestore

import (
	"errors"
	"fmt"
	"time"

	"github.com/tidemark-log/tidemark/internal/pebblefs"
	"github.com/tidemark-log/tidemark/storage"
)

// Close implements storage.Store. It waits up to Options.CloseTimeout for the
// groups that are queued, and as long again for the engine to let go of its files.
// When the disk does not answer in that time, groups that are not done get
// ErrClosed, the store is abandoned and Close returns ErrAbandoned. Otherwise it
// returns the failure that poisoned the store, if one did. Without an error all
// groups are on the disk, also those that were written without sync. Close and Fence wait for dones: they must not be
// called from one.
func (s *Store) Close() error {
	s.startClose()
	<-s.closed
	return s.closeErr
}

// Fence ends the store as a crash of the process would: nothing that it has in
// hand reaches the disk any more, its files are closed and the lock of its
// directory is released, so that the directory can be opened again at once. Groups
// that are not done get an error that wraps ErrClosed before Fence returns; some of
// them may be on the disk. Memory is freed in the background; Close, which is not
// needed after Fence, waits for that.
//
// A write that is inside the operating system cannot be called back. Fence waits
// for it up to Options.CloseTimeout, then abandons the store and returns
// ErrAbandoned.
func (s *Store) Fence() error {
	idle := s.guard.Fence()
	s.startClose()
	s.abandon(fmt.Errorf("%w: %w", storage.ErrClosed, pebblefs.ErrFenced))
	<-s.finished
	defer s.unlock()
	if !within(s.o.CloseTimeout, idle) {
		return s.abandonment()
	}
	return nil
}

// Released returns a channel that is closed when the store has ended and nothing
// of it is left: memory, files, goroutines. After a Close without error that is
// so. What was abandoned stays until the disk has answered, so a host that opens
// abandoned stores again should not let too many of them gather.
func (s *Store) Released() <-chan struct{} { return s.released }

// abandonment is the report of a store that the disk does not let go. It goes to
// the log once.
func (s *Store) abandonment() error {
	n := s.guard.Writing()
	s.reported.Do(func() {
		s.log.Error("store abandoned: the disk did not answer in time", "home", s.home, "writes", n)
	})
	return fmt.Errorf("%w (%d writes are inside the disk)", ErrAbandoned, n)
}

// unlock frees the directory for the next open: when nothing of this one can reach
// the disk any more, or when it is abandoned.
func (s *Store) unlock() {
	s.unlocked.Do(func() {
		if s.dirLock != nil {
			s.dirLock.Close() // may fail: nothing depends on it any more
		}
	})
}

// startClose makes the store take nothing any more and begins to end it.
func (s *Store) startClose() {
	s.closeOnce.Do(func() {
		s.mu.Lock()
		s.closing = true
		if s.readers == 0 {
			close(s.noReaders)
		}
		s.mu.Unlock()
		close(s.dying)
		wake(s.toCommit)
		wake(s.toFinish)
		go s.end()
	})
}

// end waits for what is queued, releases everything, and gives up where the disk
// does not let it.
func (s *Store) end() {
	defer close(s.closed)
	var abandoned error
	if !within(s.o.CloseTimeout, s.finished) {
		s.guard.Fence()
		s.abandon(fmt.Errorf("%w: %w", storage.ErrClosed, ErrAbandoned))
		<-s.finished
		abandoned = s.abandonment()
	}
	s.guard.Hurry()
	go s.release()
	if !within(s.o.CloseTimeout, s.released) {
		s.guard.Fence()
		s.closeErr = s.abandonment()
		s.unlock()
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closeErr = abandoned; abandoned == nil {
		s.closeErr = s.err
	}
}

// release frees what the store has once nobody uses it any more. On a disk that
// hangs it waits with it.
func (s *Store) release() {
	defer close(s.released)
	<-s.committed
	<-s.synced
	<-s.noReaders
	if !s.wedged.Load() {
		s.closeDB()
	}
	if s.guard.Err() == nil && (!s.unclean || s.told) {
		if err := markClean(s.guard, s.home); err != nil {
			s.guard.Fail(err)
		}
	}
	// Not before: Pebble's last writes belong to this store's life.
	<-s.guard.Fence()
	s.unlock()
}

// closeDB closes Pebble, which may panic when it is in an odd state.
func (s *Store) closeDB() {
	defer func() {
		if r := recover(); r != nil {
			s.guard.Fail(panicError(r))
		}
	}()
	if s.guard.Err() == nil {
		if err := s.leaveMark(); err != nil {
			s.guard.Fail(err)
			if s.wedged.Load() {
				return
			}
		}
	}
	if err := s.db.Close(); err != nil {
		s.guard.Fail(fmt.Errorf("pebblestore: close: %w", err))
	}
}

// leaveMark writes a mark of all that was synced so far, and syncs it.
func (s *Store) leaveMark() error {
	b := s.db.NewBatch()
	writer{b}.mark(s)
	if err := s.apply(b); err != nil {
		return err
	}
	return errors.Join(b.SyncWait(), b.Close())
}

// abandon makes the finisher stop waiting for the committer and the syncer. It
// comes after startClose.
func (s *Store) abandon(why error) {
	s.building.Lock() // the ops may be reused once their dones were called
	s.mu.Lock()
	if !s.abandoned {
		s.abandoned, s.abandonedFor = true, why
	}
	s.mu.Unlock()
	s.building.Unlock()
	wake(s.toCommit)
	wake(s.toFinish)
}

func (s *Store) isAbandoned() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.abandoned
}

// within waits for c, but not longer than bound.
func within(bound time.Duration, c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
	}
	timer := time.NewTimer(bound)
	defer timer.Stop()
	select {
	case <-c:
		return true
	case <-timer.C:
		return false
	}
}
