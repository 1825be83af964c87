package pebblestore

import (
	"slices"
	"sort"

	"github.com/tidemark-log/tidemark/storage"
)

// entry is one line of a log's index.
type entry struct {
	segment uint64
	first   int64
	before  int64 // log.total as it was when the entry was made
}

// log is one log as of one point of the sequence of groups. The committer changes
// a copy and publishes it when the group is applied; what was published does not
// change, apart from that the array of index may be written beyond its length.
type log struct {
	local uint64
	state storage.State
	index []entry
	gen   uint64 // rises whenever data is removed; not stored
	total int64  // bytes ever appended, less those truncated: the end in bytes
}

// find returns the index position whose interval contains offset (which is not
// below the first entry's), -1 when the index is empty.
func (l *log) find(offset int64) int {
	return sort.Search(len(l.index), func(i int) bool { return l.index[i].first > offset }) - 1
}

// until is the end of the interval of entry i.
func (l *log) until(i int) int64 {
	if i+1 < len(l.index) {
		return l.index[i+1].first
	}
	return l.state.End
}

// held is what the index accounts for, in bytes.
func (l *log) held() int64 {
	if len(l.index) == 0 {
		return 0
	}
	return l.total - l.index[0].before
}

func (l *log) record() []byte {
	return logRecord{local: l.local, start: l.state.Start, end: l.state.End, hw: l.state.HW, total: l.total}.encode()
}

// edit is the sink of what a change of a log must write: a pebble.Batch.
type edit interface {
	set(key, value []byte)
	del(key []byte)
	delRange(from, to []byte)
}

// extend makes room for an append at the log's end in segment.
func (l *log) extend(b edit, segment uint64) {
	if n := len(l.index); n > 0 && l.index[n-1].segment == segment {
		return
	}
	e := entry{segment: segment, first: l.state.End, before: l.total}
	l.index = append(l.index, e)
	b.set(indexKey(l.local, segment), encodeEntry(e))
}

// cut removes the data of [at, end). It is called before state.End is lowered.
func (l *log) cut(b edit, at int64) {
	if at == l.state.Start {
		l.trim(b, l.state.End) // nothing stays
		return
	}
	keep := len(l.index)
	for keep > 0 && l.index[keep-1].first >= at {
		keep--
		l.drop(b, keep)
		l.total = l.index[keep].before
	}
	if keep > 0 {
		e, until := l.index[keep-1], l.until(keep-1)
		if until > at {
			b.delRange(dataKey(e.segment, l.local, at), dataKey(e.segment, l.local, until))
			// How many bytes that was is not known without reading them.
			share := float64(at-e.first) / float64(until-e.first)
			l.total = e.before + int64(float64(l.total-e.before)*share)
		}
	}
	// Older views share the array: what is appended next must not be written there.
	l.index = slices.Clone(l.index[:keep])
}

// trim frees the segments that lie wholly below at. It is called before
// state.Start is raised.
func (l *log) trim(b edit, at int64) {
	n := 0
	for n < len(l.index) && l.until(n) <= at {
		l.drop(b, n)
		n++
	}
	l.index = l.index[n:]
}

// clear removes all data.
func (l *log) clear(b edit) {
	for i := range l.index {
		l.drop(b, i)
	}
	l.index, l.total = nil, 0
}

// drop removes what entry i holds, and its key.
func (l *log) drop(b edit, i int) {
	e, until := l.index[i], l.until(i)
	b.del(indexKey(l.local, e.segment))
	if until > e.first { // not so only in a damaged log
		b.delRange(dataKey(e.segment, l.local, e.first), dataKey(e.segment, l.local, until))
	}
}
