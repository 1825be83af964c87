package pebblestore

import (
	"errors"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"github.com/tidemark-log/tidemark/record"
	"github.com/tidemark-log/tidemark/storage"
)

var errBoundary = errors.New("offset is not a batch boundary")

// change is what a group makes of the store.
type change struct {
	batch   *pebble.Batch
	logs    map[storage.LogID]*work
	refused map[storage.LogID]error
}

// work is what a group makes of one log. It is found in two passes: the first
// looks whether all ops fit, so that the second writes for all of them or for none.
type work struct {
	log     *log // nil: does not exist
	removes bool // data goes away
	epochs  bool // the epochs key must be written
	begin   int  // the group's ops before this one are void: it is a Delete

	// Of the first pass.
	state  storage.State
	exists bool
	stored int64   // up to where the database has the log's batches
	ends   []int64 // ends of batches that the group appends above
}

// build makes g's Pebble batch and the logs' new states. Only the committer calls
// it. The ops are not needed afterwards.
func (s *Store) build(g *group, cuts []cut) *change {
	c := &change{logs: make(map[storage.LogID]*work, len(g.ops))}
	states, size := s.admit(c, g.ops, cuts)
	c.batch = s.newBatch(size + 256*(len(g.ops)+1))
	w := writer{c.batch}
	if s.inSegment >= s.o.SegmentBytes {
		s.nextSegment()
	}
	for i, op := range g.ops {
		if k := c.logs[op.Log]; k != nil && i >= k.begin {
			s.put(w, k, op, states[i])
		}
	}
	for id, k := range c.logs {
		if k.log == nil {
			w.del(logKey(prefixState, id))
			w.del(logKey(prefixEpochs, id))
			continue
		}
		w.set(logKey(prefixState, id), k.log.record())
		if k.epochs {
			w.set(logKey(prefixEpochs, id), encodeEpochs(k.log.state.Led, k.log.state.Epochs))
		}
	}
	if g.node != nil {
		w.set(keyNode, encodeNode(*g.node))
	}
	if s.saveCounters && len(c.logs) > 0 {
		w.set(keyCounters, s.counters.encode())
		s.saveCounters = false
	}
	s.inMemtable += int64(c.batch.Len()) + memtableEntry*int64(c.batch.Count())
	if int64(c.batch.Len()) >= memtable(s.o)/2 {
		s.inMemtable = s.o.MemtableBytes // Pebble makes a memtable of so large a batch, and begins another
	}
	// A synced group that changes nothing still waits for the groups before it.
	if !c.batch.Empty() || g.synced {
		w.mark(s)
	}
	return c
}

// admit is the first pass. It returns the state after each op, and how many bytes
// are appended.
func (s *Store) admit(c *change, ops []storage.Op, cuts []cut) (states []storage.State, size int) {
	states = make([]storage.State, len(ops))
	for i, op := range ops {
		for _, b := range op.Batches {
			size += len(b)
		}
		if op.Kind == storage.Delete {
			delete(s.refused, op.Log)
			c.restart(s.open(op.Log), op.Log, i)
		}
		if s.refused[op.Log] != nil {
			c.refuse(op.Log, s.refused[op.Log])
			continue
		}
		w := c.logs[op.Log]
		if w == nil {
			w = s.open(op.Log)
			c.logs[op.Log] = w
		}
		var err error
		if size > maxGroup && op.Kind == storage.Append {
			err = storage.OpError(op, w.state, "group is too large")
		} else {
			states[i], err = w.admit(op, cuts)
		}
		if err != nil {
			s.refused[op.Log] = err
			c.refuse(op.Log, err)
		}
	}
	return states, size
}

func (c *change) refuse(id storage.LogID, err error) {
	delete(c.logs, id)
	if c.refused == nil {
		c.refused = map[storage.LogID]error{}
	}
	c.refused[id] = err
}

// restart drops what the group did to the log before its op i, a Delete.
func (c *change) restart(w *work, id storage.LogID, i int) {
	w.begin = i
	c.logs[id] = w
	if delete(c.refused, id); len(c.refused) == 0 {
		c.refused = nil
	}
}

// open begins a group's work on a log.
func (s *Store) open(id storage.LogID) *work {
	w := &work{}
	if l := s.logs[id]; l != nil {
		copied := *l
		w.log, w.state, w.exists, w.stored = &copied, l.state, true, l.state.End
		w.state.Damaged = s.damaged[id]
	}
	return w
}

// admit looks whether op fits the log as the ops before it leave it.
func (w *work) admit(op storage.Op, cuts []cut) (storage.State, error) {
	next, err := storage.Apply(w.state, w.exists, op)
	if err != nil {
		return next, err
	}
	w.exists = true
	switch op.Kind {
	case storage.Append:
		for _, b := range op.Batches {
			info, _ := record.Peek(b) // storage.Apply has done so
			w.ends = append(w.ends, info.End())
		}
	case storage.Truncate:
		if err := w.cutFits(op, cuts); err != nil {
			return next, err
		}
		w.stored = min(w.stored, op.Offset)
		w.ends = slices.DeleteFunc(w.ends, func(end int64) bool { return end > op.Offset })
	case storage.Reset:
		w.stored, w.ends = op.Offset, nil
	case storage.Delete:
		w.stored, w.ends, w.exists = 0, nil, false
	}
	w.state = next
	return next, nil
}

func (w *work) cutFits(op storage.Op, cuts []cut) error {
	at := op.Offset
	if at == w.state.Start || at == w.state.End || slices.Contains(w.ends, at) || at == w.stored {
		return nil
	}
	err := errBoundary
	if at < w.stored {
		err = findCut(cuts, op.Log, at)
	}
	if err == errBoundary {
		return storage.OpError(op, w.state, err.Error())
	}
	return err
}

// put is the second pass: it writes what op changes.
func (s *Store) put(b writer, w *work, op storage.Op, next storage.State) {
	l := w.log
	if l == nil && op.Kind == storage.Delete {
		return
	}
	if l == nil {
		l = &log{local: s.nextLocal(), state: storage.NewState()}
		w.log, w.epochs = l, true
	}
	switch op.Kind {
	case storage.Append:
		s.append(b, l, op)
	case storage.Truncate:
		l.cut(b, op.Offset)
		w.removes = true
	case storage.Trim:
		l.trim(b, op.Offset)
		w.removes = true
	case storage.Reset:
		l.clear(b)
		l.local = s.nextLocal()
		w.removes, w.epochs = true, true // also of a log whose epochs key is damaged
	case storage.Delete:
		l.clear(b)
		w.log, w.removes = nil, true
		return
	}
	if w.removes {
		l.gen++
	}
	if next.Led != l.state.Led || !slices.Equal(next.Epochs, l.state.Epochs) {
		next.Epochs = slices.Clone(next.Epochs)
		w.epochs = true
	} else {
		next.Epochs = l.state.Epochs
	}
	next.Bytes = l.held()
	if next.Start == next.End {
		next.Bytes = 0
	}
	l.state = next
}

func (s *Store) append(b writer, l *log, op storage.Op) {
	if len(op.Batches) == 0 {
		return
	}
	l.extend(b, s.counters.segment)
	key := make([]byte, 0, dataKeySize)
	at := op.Offset
	for _, v := range op.Batches {
		key = appendDataKey(key[:0], s.counters.segment, l.local, at)
		b.set(key, v)
		l.total += int64(len(v))
		s.inSegment += int64(len(v))
		info, _ := record.Peek(v)
		at = info.End()
	}
}

func (s *Store) nextSegment() {
	s.counters.segment++
	s.inSegment, s.saveCounters = 0, true
}

func (s *Store) nextLocal() uint64 {
	s.saveCounters = true
	s.counters.local++
	return s.counters.local
}

// writer writes to a batch. Its methods cannot fail: a batch that is too large or
// already applied would panic, and build sees to it that neither happens.
type writer struct{ b *pebble.Batch }

func (w writer) set(key, value []byte)    { _ = w.b.Set(key, value, nil) }
func (w writer) del(key []byte)           { _ = w.b.Delete(key, nil) }
func (w writer) delRange(from, to []byte) { _ = w.b.DeleteRange(from, to, nil) }

// mark tells a later open how much it must be able to read.
func (w writer) mark(s *Store) {
	_ = w.b.LogData(syncedMark(s.directory, s.guard.Synced()), nil)
}
