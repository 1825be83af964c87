package pebblestore

import (
	"errors"
	"fmt"

	"github.com/tidemark-log/tidemark/internal/pebblefs"
	"github.com/tidemark-log/tidemark/storage"
)

// sync is the syncer: it waits until groups are on the disk, in order.
func (s *Store) sync() {
	defer close(s.synced)
	for g := range s.toSync {
		var err error
		waited := g.batch != nil && g.synced
		if waited {
			err = g.batch.SyncWait()
			if err != nil {
				s.guard.Fail(fmt.Errorf("pebblestore: sync: %w", err))
			}
		}
		// The guard knows of failures that Pebble was not told.
		switch cause := s.guard.Err(); {
		case errors.Is(cause, pebblefs.ErrFenced): // Close or Fence is about to say so
			err = fmt.Errorf("%w: %w", storage.ErrClosed, cause)
		case cause != nil:
			s.poison(cause) // who is told of it finds the store poisoned; the guard may not have come to that yet
			err = fmt.Errorf("%w: %w", storage.ErrPoisoned, cause)
		}
		b := g.batch
		s.mu.Lock()
		g.ready, g.err = true, err
		s.mu.Unlock()
		wake(s.toFinish)
		if waited && err == nil {
			s.recycle(b)
		}
	}
	wake(s.toFinish)
}

// finish is the finisher: it calls the dones.
func (s *Store) finish() {
	defer close(s.finished)
	for {
		outcomes, end := s.takeDone()
		for _, o := range outcomes {
			o.done(o.result)
		}
		switch {
		case end:
			return
		case len(outcomes) == 0:
			<-s.toFinish
		}
	}
}

// outcome is apart from its group because an abandoned group is still in the
// hands of the committer or the syncer.
type outcome struct {
	done   func(storage.Result)
	result storage.Result
}

// takeDone removes what is done from the head of the queue. end says that nothing
// is left and nothing more will come.
func (s *Store) takeDone() (outcomes []outcome, end bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.queue) > 0 && (s.queue[0].ready || s.abandoned) {
		g := s.queue[0]
		o := outcome{done: g.done}
		switch {
		case !g.ready:
			o.result.Err = s.abandonedFor
		case g.err != nil:
			o.result.Err = g.err
		default:
			o.result.Refused = g.refused
		}
		outcomes = append(outcomes, o)
		s.queue[0] = nil
		s.queue = s.queue[1:]
		s.applied = max(s.applied-1, 0)
	}
	return outcomes, s.closing && len(s.queue) == 0
}
