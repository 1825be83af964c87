package pebblestore

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/tidemark-log/tidemark/record"
	"github.com/tidemark-log/tidemark/storage"
)

// load reads everything but the data, and makes a new store where there is none.
func (s *Store) load() error {
	version, err := s.get(keyFormat)
	switch {
	case errors.Is(err, pebble.ErrNotFound):
		if err := s.create(); err != nil {
			return err
		}
		s.measureDisk()
		return nil
	case err != nil:
		return engineError(err)
	case len(version) != 4:
		return fmt.Errorf("%w: format key", storage.ErrDamaged)
	case be.Uint32(version) > formatVersion:
		return fmt.Errorf("%w: version %d, this package knows up to %d", storage.ErrFormat, be.Uint32(version), formatVersion)
	}
	v, err := s.get(keyNode)
	if err == nil {
		s.node, err = decodeNode(v)
	}
	if err == nil && s.node.Directory != s.directory {
		err = fmt.Errorf("directory id is %s, %s says %s", s.node.Directory, markerName, s.directory)
	}
	s.node.Unclean = s.unclean
	if err != nil {
		return fmt.Errorf("%w: node key: %w", storage.ErrDamaged, err)
	}
	v, err = s.get(keyCounters)
	if err == nil {
		s.counters, err = decodeCounters(v)
	}
	if err != nil {
		return fmt.Errorf("%w: counters key: %w", storage.ErrDamaged, err)
	}
	// What the last open has written is in tables by now.
	s.counters.segment++
	s.saveCounters = true
	if err := s.loadLogs(); err != nil {
		return err
	}
	s.measureDisk()
	return nil
}

func (s *Store) get(key []byte) ([]byte, error) {
	v, closer, err := s.db.Get(key)
	if err != nil {
		return nil, err
	}
	v = bytes.Clone(v)
	return v, closer.Close()
}

// create writes the first keys of a store. The marker says that the database is
// ours, but one that has keys without these was not made by this package.
func (s *Store) create() error {
	it, err := s.db.NewIter(nil)
	if err != nil {
		return engineError(err)
	}
	empty := !it.First()
	if err := it.Close(); err != nil {
		return engineError(err)
	}
	if !empty {
		return fmt.Errorf("%w: database without a format key", storage.ErrForeign)
	}
	s.node = storage.Node{Directory: s.directory, BrokerID: -1, Unclean: s.unclean}
	b := s.db.NewBatch()
	w := writer{b}
	w.set(keyFormat, be.AppendUint32(nil, formatVersion))
	w.set(keyNode, encodeNode(s.node))
	w.set(keyCounters, s.counters.encode())
	if err := s.apply(b); err != nil {
		return err
	}
	if err := b.SyncWait(); err != nil {
		return err
	}
	return b.Close()
}

// scan calls f for all keys with a prefix.
func (s *Store) scan(prefix byte, f func(k, v []byte)) error {
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: []byte{prefix}, UpperBound: []byte{prefix + 1}})
	if err != nil {
		return engineError(err)
	}
	for ok := it.First(); ok; ok = it.Next() {
		v, err := it.ValueAndErr()
		if err != nil {
			break // Close gives it again
		}
		f(it.Key(), v)
	}
	if err := it.Close(); err != nil {
		return engineError(err)
	}
	return nil
}

// loader gathers what the keys say of the logs.
type loader struct {
	s       *Store
	byLocal map[uint64]storage.LogID
	epochs  map[storage.LogID]bool // has an epochs key
	odd     error                  // keys that belong to no log
}

// loadLogs reads the logs' states and indexes, and finds out which are damaged.
func (s *Store) loadLogs() error {
	l := &loader{s: s, byLocal: map[uint64]storage.LogID{}, epochs: map[storage.LogID]bool{}}
	for _, part := range []struct {
		prefix byte
		take   func(k, v []byte)
	}{{prefixState, l.state}, {prefixEpochs, l.history}, {prefixIndex, l.index}} {
		if err := s.scan(part.prefix, part.take); err != nil {
			return err
		}
	}
	for id, log := range s.logs {
		if !l.epochs[id] {
			l.damage(id, errors.New("no epochs key"))
		}
		if err := s.verify(log); err != nil {
			l.damage(id, err)
		}
		log.state.Bytes = log.held()
		if log.state.Start == log.state.End {
			log.state.Bytes = 0
		}
		if err := s.damaged[id]; err != nil {
			s.log.Warn("log is damaged", "log", id, "error", err)
		}
	}
	if l.odd != nil {
		s.log.Warn("keys that belong to no log", "error", l.odd)
	}
	return nil
}

func (l *loader) damage(id storage.LogID, err error) {
	if l.s.damaged[id] == nil {
		l.s.damaged[id] = fmt.Errorf("%w: %s: %w", storage.ErrDamaged, id, err)
	}
}

func (l *loader) state(k, v []byte) {
	id, err := parseLogKey(k)
	if err != nil {
		l.odd = errors.Join(l.odd, err)
		return
	}
	r, err := decodeLogRecord(v)
	if err != nil {
		l.damage(id, err)
	} else {
		l.byLocal[r.local] = id
	}
	state := storage.NewState()
	state.Start, state.End, state.HW = r.start, r.end, r.hw
	l.s.logs[id] = &log{local: r.local, total: r.total, state: state}
}

func (l *loader) history(k, v []byte) {
	id, err := parseLogKey(k)
	if err != nil {
		l.odd = errors.Join(l.odd, err)
		return
	}
	h := l.s.logs[id]
	if h == nil { // the two keys come and go together
		h = &log{state: storage.NewState()}
		l.s.logs[id] = h
		l.damage(id, errors.New("no state key"))
	}
	l.epochs[id] = true
	if h.state.Led, h.state.Epochs, err = decodeEpochs(v); err != nil {
		l.damage(id, err)
	}
}

func (l *loader) index(k, v []byte) {
	local, e, err := decodeEntry(k, v)
	id, known := l.byLocal[local]
	switch {
	case !known:
		l.odd = errors.Join(l.odd, fmt.Errorf("index entry without a log: %x", k))
	case err != nil:
		l.damage(id, err)
	default:
		log := l.s.logs[id]
		log.index = append(log.index, e)
	}
}

// verify looks whether what was loaded of a log fits together, and whether the
// data reaches the end that the state promises.
func (s *Store) verify(l *log) error {
	st := l.state
	switch {
	case l.local > s.counters.local:
		return fmt.Errorf("local %d was never given out", l.local)
	case st.Start < 0 || st.Start > st.End:
		return fmt.Errorf("state says [%d, %d)", st.Start, st.End)
	case len(l.index) == 0 && st.Start < st.End:
		return errors.New("no index")
	}
	if err := storage.CheckEpochs(st.Epochs, st.End); err != nil {
		return err
	}
	before := entry{first: -1}
	for i, e := range l.index {
		// Scanned in the order of segments; the rest must rise with them.
		if e.first <= before.first || e.before < before.before || e.before > l.total || e.segment >= s.counters.segment {
			return fmt.Errorf("index entry %d (segment %d from %d) does not fit", i, e.segment, e.first)
		}
		before = e
	}
	if len(l.index) == 0 {
		return nil
	}
	if l.index[0].first > st.Start || before.first >= st.End {
		return fmt.Errorf("index covers [%d, %d), state says [%d, %d)", l.index[0].first, before.first, st.Start, st.End)
	}
	return s.verifyTail(l)
}

// verifyTail proves the log's last batch.
func (s *Store) verifyTail(l *log) error {
	last := l.index[len(l.index)-1]
	it, err := s.db.NewIter(&pebble.IterOptions{
		LowerBound: dataKey(last.segment, l.local, last.first),
		UpperBound: dataKey(last.segment, l.local, l.state.End),
	})
	if err != nil {
		return err
	}
	defer it.Close()
	if !it.Last() {
		if err := it.Error(); err != nil {
			return err
		}
		return fmt.Errorf("no batch before the end %d", l.state.End)
	}
	v, err := it.ValueAndErr()
	if err != nil {
		return err
	}
	info, err := record.Check(v)
	if err != nil {
		return err
	}
	if info.End() != l.state.End {
		return fmt.Errorf("last batch ends at %d, state says %d", info.End(), l.state.End)
	}
	return nil
}

// measureDisk is called at open and by the committer, for Health.
func (s *Store) measureDisk() {
	s.disk.Store(s.db.Metrics().DiskSpaceUsage())
	s.diskTime.Store(now())
	s.diskStale.Store(false)
}
