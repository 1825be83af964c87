package pebblestore

import (
	"fmt"
	"time"

	"github.com/tidemark-log/tidemark/internal/pebblefs"
	"github.com/tidemark-log/tidemark/storage"
)

// Close implements storage.Store. It waits up to Options.CloseTimeout for the
// groups that are queued, and as long again for the engine to let go of its files.
// When the disk does not answer in that time, groups that are not done get
// ErrClosed and Close returns ErrAbandoned. Otherwise it returns the failure that
// poisoned the store, if one did. Close and Fence wait for dones: they must not be
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
// for it up to Options.CloseTimeout and then returns ErrAbandoned; the lock is
// released when it has returned.
func (s *Store) Fence() error {
	idle := s.guard.Fence()
	s.startClose()
	s.abandon(fmt.Errorf("%w: %w", storage.ErrClosed, pebblefs.ErrFenced))
	<-s.finished
	if !within(s.o.CloseTimeout, idle) {
		return ErrAbandoned
	}
	return nil
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
	if !within(s.o.CloseTimeout, s.finished) {
		s.guard.Fence()
		s.abandon(fmt.Errorf("%w: %w", storage.ErrClosed, ErrAbandoned))
		<-s.finished
		s.closeErr = ErrAbandoned
	}
	s.guard.Hurry()
	released := make(chan struct{})
	go s.release(released)
	if !within(s.o.CloseTimeout, released) {
		s.guard.Fence()
		s.closeErr = ErrAbandoned
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closeErr == nil {
		s.closeErr = s.err
	}
}

// release frees what the store has once nobody uses it any more. On a disk that
// hangs it waits with it.
func (s *Store) release(released chan<- struct{}) {
	defer close(released)
	<-s.committed
	<-s.synced
	<-s.noReaders
	if !s.wedged.Load() {
		s.closeDB()
	}
	// Not before: Pebble's last writes belong to this store's life.
	<-s.guard.Fence()
}

// closeDB closes Pebble, which may panic when it is in an odd state.
func (s *Store) closeDB() {
	defer func() {
		if r := recover(); r != nil {
			s.guard.Fail(panicError(r))
		}
	}()
	if s.guard.Err() == nil {
		b := s.db.NewBatch()
		writer{b}.mark(s)
		if err := s.apply(b); err != nil {
			s.guard.Fail(err)
			if s.wedged.Load() {
				return
			}
		} else if err := b.SyncWait(); err != nil {
			s.guard.Fail(err)
		}
	}
	if err := s.db.Close(); err != nil {
		s.guard.Fail(fmt.Errorf("pebblestore: close: %w", err))
	}
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
