package pebblestore

import (
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"github.com/tidemark-log/tidemark/record"
	"github.com/tidemark-log/tidemark/storage"
)

// maxGroup bounds a group's batches, in bytes: an atomic write of Pebble ends at 4 GiB.
const maxGroup = 1 << 30

// commit is the committer: it turns groups into Pebble batches and applies them,
// in order, and passes them on to the syncer.
func (s *Store) commit() {
	defer close(s.committed)
	defer close(s.toSync)
	for g := s.next(); g != nil; g = s.next() {
		if !s.commitGroup(g) {
			return
		}
		s.toSync <- g
	}
}

// next waits for the next group; nil at the end.
func (s *Store) next() *group {
	for {
		s.mu.Lock()
		var g *group
		end := s.abandoned
		if !end && s.applied < len(s.queue) {
			g = s.queue[s.applied]
			s.applied++
		}
		end = end || g == nil && s.closing
		s.mu.Unlock()
		if g != nil || end {
			return g
		}
		if s.diskStale.Load() {
			s.measureDisk()
			continue
		}
		<-s.toCommit
	}
}

// commitGroup is false when the store was abandoned: the group's ops may be gone.
func (s *Store) commitGroup(g *group) bool {
	if s.guard.Err() != nil {
		return true // the syncer gives it its error
	}
	if s.inMemtable > 0 && s.inMemtable+g.size() > s.o.MemtableBytes {
		if err := s.flush(); err != nil {
			s.guard.Fail(err)
			return true
		}
	}
	s.building.Lock()
	cuts := s.cuts(g)
	s.building.Unlock()
	for i := range cuts {
		cuts[i].err = s.checkBoundary(cuts[i].log, cuts[i].at)
	}
	s.building.Lock()
	if s.isAbandoned() {
		s.building.Unlock()
		return false
	}
	c := s.build(g, cuts)
	s.building.Unlock()
	g.refused = c.refused
	if c.batch.Empty() {
		s.recycle(c.batch)
		return true
	}
	s.announce(c)
	if err := s.apply(c.batch); err != nil {
		s.guard.Fail(err)
		return true
	}
	g.batch = c.batch
	s.publish(c, g.node)
	return true
}

// apply puts b into effect without waiting for the disk.
func (s *Store) apply(b *pebble.Batch) (err error) {
	defer s.recovered(&err)
	return s.db.ApplyNoSyncWait(b, pebble.Sync)
}

// memtableEntry is about what a memtable needs for an entry besides key and value.
const memtableEntry = 64

// size is about what the group takes in a memtable.
func (g *group) size() (n int64) {
	for i := range g.ops {
		for _, b := range g.ops[i].Batches {
			n += int64(len(b)) + memtableEntry
		}
	}
	return n
}

// flush ends the memtable before it is full, and the segment with it. If Pebble ended it
// the segment would go on in the next one, and their tables would overlap in all logs.
// It does not wait until the tables are written.
func (s *Store) flush() (err error) {
	defer s.recovered(&err)
	s.inMemtable = 0
	s.nextSegment()
	_, err = s.db.AsyncFlush()
	return err
}

// recovered makes an error of a panic. Pebble panics where it sees no way on, possibly
// with its locks held: then it must not be called again.
func (s *Store) recovered(err *error) {
	if r := recover(); r != nil {
		s.wedged.Store(true)
		*err = panicError(r)
	}
}

// announce makes readers of logs that lose data wait for publish: between the two
// the view that they would start from and the database do not agree.
func (s *Store) announce(c *change) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, w := range c.logs {
		if w.removes {
			s.changing[id] = make(chan struct{})
		}
	}
}

// publish shows the group's outcome to readers.
func (s *Store) publish(c *change, node *storage.Node) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, w := range c.logs {
		if w.log == nil {
			delete(s.logs, id)
		} else {
			s.logs[id] = w.log
		}
		if w.state.Damaged == nil {
			delete(s.damaged, id)
		}
		if ch := s.changing[id]; ch != nil {
			close(ch)
			delete(s.changing, id)
		}
	}
	if node != nil {
		s.told = s.told || node.BrokerEpoch > s.node.BrokerEpoch
		s.node = *node
	}
}

// newBatch returns an empty batch with room for about n bytes.
func (s *Store) newBatch(n int) *pebble.Batch {
	select {
	case b := <-s.spares:
		return b
	default:
	}
	return s.db.NewBatch(pebble.WithInitialSizeBytes(n), pebble.WithMaxRetainedSizeBytes(maxSpare))
}

// maxSpare is how much memory a batch may keep for the next group.
const maxSpare = 8 << 20

// recycle keeps a batch that Pebble is through with.
func (s *Store) recycle(b *pebble.Batch) {
	b.Reset()
	select {
	case s.spares <- b:
	default:
	}
}

// cut is a place where a group truncates a log.
type cut struct {
	log *log
	id  storage.LogID
	at  int64
	err error
}

// cuts lists the truncations of which only the database can tell whether they are
// at a batch boundary.
func (s *Store) cuts(g *group) (cuts []cut) {
	if s.isAbandoned() {
		return nil
	}
	for _, op := range g.ops {
		if op.Kind != storage.Truncate {
			continue
		}
		if l := s.logs[op.Log]; l != nil && op.Offset > l.state.Start && op.Offset < l.state.End {
			cuts = append(cuts, cut{log: l, id: op.Log, at: op.Offset})
		}
	}
	return cuts
}

// checkBoundary tells whether a batch of l ends at offset, which is inside of it.
func (s *Store) checkBoundary(l *log, offset int64) error {
	i := l.find(offset - 1)
	if i < 0 {
		return fmt.Errorf("%w: nothing is indexed at %d", storage.ErrDamaged, offset-1)
	}
	it, err := s.db.NewIter(&pebble.IterOptions{
		LowerBound: dataKey(l.index[i].segment, l.local, l.index[i].first),
		UpperBound: dataKey(l.index[i].segment, l.local, offset),
	})
	if err != nil {
		return engineError(err)
	}
	defer it.Close()
	if !it.Last() {
		if err := it.Error(); err != nil {
			return engineError(err)
		}
		return fmt.Errorf("%w: no batch at %d", storage.ErrDamaged, offset-1)
	}
	v, err := it.ValueAndErr()
	if err != nil {
		return engineError(err)
	}
	info, err := record.Peek(v)
	switch {
	case err != nil:
		return fmt.Errorf("%w: batch before %d: %w", storage.ErrDamaged, offset, err)
	case info.End() > offset:
		return errBoundary
	case info.End() < offset:
		return fmt.Errorf("%w: no batch at %d", storage.ErrDamaged, offset-1)
	}
	return nil
}

// engineError gives Pebble's errors the meaning that the contract has.
func engineError(err error) error {
	if pebble.IsCorruptionError(err) {
		return fmt.Errorf("%w: %w", storage.ErrDamaged, err)
	}
	return fmt.Errorf("pebblestore: %w", err)
}

// findCut returns what is known of a truncation at offset.
func findCut(cuts []cut, id storage.LogID, at int64) error {
	i := slices.IndexFunc(cuts, func(c cut) bool { return c.id == id && c.at == at })
	if i < 0 {
		return errBoundary
	}
	return cuts[i].err
}
