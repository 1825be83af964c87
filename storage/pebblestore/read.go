package pebblestore

import (
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/tidemark-log/tidemark/record"
	"github.com/tidemark-log/tidemark/storage"
)

// Read implements storage.Store.
func (s *Store) Read(id storage.LogID, from int64, maxBytes int) (storage.Read, error) {
	if !s.enter() {
		return storage.Read{}, storage.ErrClosed
	}
	defer s.leave()
	for {
		l, err := s.view(id)
		if err != nil {
			return storage.Read{}, err
		}
		st := l.state
		if from < st.Start || from > st.End {
			return storage.Read{}, fmt.Errorf("%w: %d, log is [%d, %d)", storage.ErrOutOfRange, from, st.Start, st.End)
		}
		r := storage.Read{Start: st.Start, End: st.End}
		if from == st.End {
			return r, nil
		}
		i := l.find(from)
		if i < 0 {
			return storage.Read{}, fmt.Errorf("%w: nothing is indexed at %d", storage.ErrDamaged, from)
		}
		it, err := s.db.NewIter(&pebble.IterOptions{
			LowerBound: dataKey(l.index[i].segment, l.local, l.index[i].first),
			UpperBound: dataKey(l.index[i].segment, l.local, l.until(i)),
		})
		if err != nil {
			return storage.Read{}, s.readError(err)
		}
		if !s.stillShows(id, l) {
			it.Close() // its error would be that of an operation, of which there was none
			continue
		}
		r.Batches, err = collect(it, l, i, from, maxBytes)
		if cerr := it.Close(); err == nil && cerr != nil {
			err = engineError(cerr)
		}
		if err != nil {
			return storage.Read{}, s.readError(err)
		}
		return r, nil
	}
}

// collect reads batches from the one that contains from on.
func collect(it *pebble.Iterator, l *log, i int, from int64, maxBytes int) ([]byte, error) {
	var out []byte
	next := from
	// The first batch may begin before from.
	found := it.SeekLT(dataKey(l.index[i].segment, l.local, from+1))
	for {
		if !found {
			if err := it.Error(); err != nil {
				return nil, engineError(err)
			}
			if next != l.until(i) {
				return nil, fmt.Errorf("%w: no batch at %d", storage.ErrDamaged, next)
			}
			if i++; i == len(l.index) {
				return out, nil
			}
			it.SetBounds(dataKey(l.index[i].segment, l.local, next), dataKey(l.index[i].segment, l.local, l.until(i)))
			found = it.First()
			continue
		}
		v, err := it.ValueAndErr()
		if err != nil {
			return nil, engineError(err)
		}
		if len(out) > 0 && len(out)+len(v) > maxBytes {
			return out, nil
		}
		info, err := record.Verify(v)
		switch {
		case err != nil:
			return nil, fmt.Errorf("%w: batch at %d: %w", storage.ErrDamaged, next, err)
		case info.Size != len(v) || info.End() > l.until(i) || info.End() <= next || info.Base > next || len(out) > 0 && info.Base != next:
			return nil, fmt.Errorf("%w: batch [%d, %d) where one was due at %d", storage.ErrDamaged, info.Base, info.End(), next)
		}
		if out == nil {
			out = make([]byte, 0, max(len(v), int(min(int64(maxBytes), l.estimate(i, next)+int64(len(v))))))
		}
		out = append(out, v...)
		if next = info.End(); len(out) >= maxBytes {
			return out, nil
		}
		found = it.Next()
	}
}

// estimate is about how much the log holds from offset on, which is in entry i.
func (l *log) estimate(i int, offset int64) int64 {
	e := l.index[i]
	share := float64(l.state.End-offset) / float64(l.state.End-e.first)
	return int64(float64(l.total-e.before) * share)
}

// view returns the log as reads see it, once no removal is under way.
func (s *Store) view(id storage.LogID) (*log, error) {
	for {
		s.mu.Lock()
		l, damage, changing := s.logs[id], s.damaged[id], s.changing[id]
		s.mu.Unlock()
		if changing == nil {
			switch {
			case damage != nil:
				return nil, damage
			case l == nil:
				return nil, fmt.Errorf("%w: %s", storage.ErrUnknownLog, id)
			}
			return l, nil
		}
		select {
		case <-changing:
		case <-s.dying:
			return nil, storage.ErrClosed
		}
	}
}

// stillShows tells whether a view of the log that was taken before the database's
// agrees with it: nothing was removed in between. What was appended since is above
// the view's end, where nobody looks.
func (s *Store) stillShows(id storage.LogID, l *log) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.logs[id]
	return s.changing[id] == nil && now != nil && now.local == l.local && now.gen == l.gen
}

// readError says that a read failed because the store did, when that is so.
func (s *Store) readError(err error) error {
	cause := s.guard.Err() // the store may not have come to that yet
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closing:
		return storage.ErrClosed
	case s.err != nil:
		return fmt.Errorf("%w; read: %w", s.err, err)
	case cause != nil:
		return fmt.Errorf("%w: %w; read: %w", storage.ErrPoisoned, cause, err)
	}
	return err
}

// enter begins a use of db by a caller; leave must follow if it is true.
func (s *Store) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return false
	}
	s.readers++
	return true
}

func (s *Store) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.readers--; s.readers == 0 && s.closing {
		close(s.noReaders)
	}
}
