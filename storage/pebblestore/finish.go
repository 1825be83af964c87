package pebblestore

import (
	"fmt"

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
		if cause := s.guard.Err(); cause != nil {
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
	var list []*group
	for {
		list = list[:0]
		s.mu.Lock()
		for len(s.queue) > 0 && (s.queue[0].ready || s.abandoned) {
			g := s.queue[0]
			if !g.ready {
				g.err = s.abandonedFor
			}
			list = append(list, g)
			s.queue[0] = nil
			s.queue = s.queue[1:]
			s.applied = max(s.applied-1, 0)
		}
		end := s.closing && len(s.queue) == 0
		s.mu.Unlock()
		for i, g := range list {
			list[i] = nil
			r := storage.Result{Err: g.err}
			if r.Err == nil {
				r.Refused = g.refused
			}
			g.done(r)
		}
		switch {
		case end:
			return
		case len(list) == 0:
			<-s.toFinish
		}
	}
}
