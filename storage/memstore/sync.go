package memstore

import (
	"errors"
	"fmt"
	"time"

	"github.com/tidemark-log/tidemark/storage"
)

// Pending is the number of groups that are not durable yet.
func (s *Store) Pending() int {
	s.disk.mu.Lock()
	defer s.disk.mu.Unlock()
	return len(s.queue)
}

// Step is Sync(1).
func (s *Store) Step() bool { return s.Sync(1) == 1 }

// Sync makes the next n groups durable, or as many as there are, and calls their
// dones, in order, before it returns. It returns how many: 0 while the disk hangs.
// When the disk fails, all groups are done with an error and it returns 0.
func (s *Store) Sync(n int) int {
	s.disk.mu.Lock()
	count := 0
	var done []*group
	if !s.disk.hung && !s.dead {
		if s.poisoned() {
			done, s.queue = s.queue, nil
			for _, g := range done {
				if g.result.Err == nil {
					g.result = storage.Result{Err: s.err}
				}
			}
		} else {
			count = min(max(n, 0), len(s.queue))
			done = s.queue[:count:count]
			s.queue = s.queue[count:]
			for _, g := range done {
				s.disk.persist(g)
				if g.node != nil {
					s.take(*g.node)
				}
			}
		}
	}
	done = append(done, s.takeLate()...)
	s.disk.mu.Unlock()
	s.call(done)
	return count
}

// Complete calls the dones of the groups at the head of the queue that were
// written with synced false, and leaves the groups as they are: not durable. It
// returns how many. It does not need the disk, which may hang.
func (s *Store) Complete() int {
	s.disk.mu.Lock()
	var done []*group
	if !s.dead && !s.poisoned() {
		for _, g := range s.queue {
			if g.synced {
				break
			}
			if g.done != nil {
				done = append(done, g)
			}
		}
	}
	s.disk.mu.Unlock()
	s.call(done)
	return len(done)
}

// takeLate returns the groups that were not taken, once no other is before them.
// disk.mu is held.
func (s *Store) takeLate() []*group {
	if len(s.queue) > 0 {
		return nil
	}
	late := s.late
	s.late = nil
	return late
}

// call calls the dones of groups, unless the store crashes meanwhile.
func (s *Store) call(groups []*group) {
	for _, g := range groups {
		s.disk.mu.Lock()
		done := g.done
		g.done = nil
		if s.crashed {
			done = nil
		}
		s.disk.mu.Unlock()
		if done != nil {
			done(g.result)
		}
	}
}

// poisoned tells whether the store takes no more writes; it is what turns a fault
// of the disk into one of the store. disk.mu is held.
func (s *Store) poisoned() bool {
	if s.err == nil && s.disk.fail != nil {
		s.err = fmt.Errorf("%w: %w", storage.ErrPoisoned, s.disk.fail)
	}
	return s.err != nil
}

var errHung = errors.New("memstore: the disk hangs")

// finish ends a store that was closed: what is still queued is done with ErrClosed.
func (s *Store) finish() {
	s.disk.mu.Lock()
	if s.disk.open != s {
		s.disk.mu.Unlock()
		return
	}
	queue := s.queue
	s.queue = nil
	for _, g := range queue {
		g.result = storage.Result{Err: storage.ErrClosed}
	}
	switch {
	case s.poisoned():
		s.closeErr = s.err
	case s.disk.hung || len(queue) > 0:
		s.closeErr = errHung
	default:
		s.disk.clean = !s.node.Unclean || s.told
	}
	queue = append(queue, s.takeLate()...)
	if !s.dead {
		s.dead = true
		s.end()
	}
	s.disk.mu.Unlock()
	s.call(queue)
	s.disk.mu.Lock()
	if s.disk.open == s {
		s.disk.open = nil
	}
	s.disk.mu.Unlock()
}

// run is the goroutine of a store whose disk is not Manual. It ends when the
// store is closed and everything is done, or when the store is dead.
func (s *Store) run() {
	defer close(s.gone)
	defer s.finish()
	for {
		s.Complete()
		s.disk.mu.Lock()
		n, idle := len(s.queue), s.disk.hung || len(s.queue)+len(s.late) == 0
		stop := s.dead || s.closing && len(s.queue)+len(s.late) == 0
		s.disk.mu.Unlock()
		if stop {
			return
		}
		if idle {
			select {
			case <-s.kick:
			case <-s.over:
			}
			continue
		}
		if s.disk.delay > 0 {
			select {
			case <-time.After(s.disk.delay):
			case <-s.over:
			}
		}
		s.Sync(n)
	}
}

// drain calls the dones of groups that came when the store was dead, behind all
// that run has called.
func (s *Store) drain() {
	<-s.gone
	for {
		s.disk.mu.Lock()
		late := s.late
		s.late = nil
		s.draining = len(late) > 0
		s.disk.mu.Unlock()
		if len(late) == 0 {
			return
		}
		for _, g := range late {
			g.done(g.result)
		}
	}
}

// signal makes run look again.
func (s *Store) signal() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}
