package memstore

import (
	"bytes"
	"fmt"
	"slices"
	"sort"

	"github.com/tidemark-log/tidemark/record"
	"github.com/tidemark-log/tidemark/storage"
)

// image is one log at one point of the sequence of writes. It does not change
// once it is made, so that the applied and the durable image, and the groups
// between them, can share it.
type image struct {
	state   storage.State
	batches []batch
}

type batch struct {
	base, end int64
	bytes     []byte
}

// apply returns what op makes of the log; nil stands for a log that does not
// exist, before and after.
func (l *image) apply(op storage.Op) (*image, error) {
	var old image
	if l != nil {
		old = *l
	}
	state, err := storage.Apply(old.state, l != nil, op)
	if err != nil {
		return nil, err
	}
	state.Epochs = slices.Clone(state.Epochs)
	next := &image{state: state, batches: old.batches}
	switch op.Kind {
	case storage.Append:
		for _, b := range op.Batches {
			info, _ := record.Peek(b) // storage.Apply has done so
			next.batches = append(next.batches, batch{info.Base, info.End(), bytes.Clone(b)})
		}
	case storage.Truncate:
		n := sort.Search(len(old.batches), func(i int) bool { return old.batches[i].end > op.Offset })
		if n < len(old.batches) && old.batches[n].base < op.Offset && op.Offset > state.Start {
			return nil, storage.OpError(op, old.state, "offset is not a batch boundary")
		}
		// Clipped: a later append must not write into what older images still show.
		next.batches = slices.Clip(old.batches[:n])
		next.state.Bytes = size(next.batches)
	case storage.Trim:
		n := sort.Search(len(old.batches), func(i int) bool { return old.batches[i].end > op.Offset })
		next.batches = old.batches[n:]
		next.state.Bytes = size(next.batches)
	case storage.Reset:
		next.batches = nil
	case storage.Delete:
		return nil, nil
	}
	return next, nil
}

func size(batches []batch) (n int64) {
	for _, b := range batches {
		n += int64(len(b.bytes))
	}
	return n
}

// read is Store.Read on one image.
func (l *image) read(from int64, maxBytes int, check bool) (storage.Read, error) {
	s := l.state
	if from < s.Start || from > s.End {
		return storage.Read{}, fmt.Errorf("%w: %d, log is [%d, %d)", storage.ErrOutOfRange, from, s.Start, s.End)
	}
	r := storage.Read{Start: s.Start, End: s.End}
	first := sort.Search(len(l.batches), func(i int) bool { return l.batches[i].end > from })
	for i, b := range l.batches[first:] {
		if i > 0 && len(r.Batches)+len(b.bytes) > maxBytes {
			break
		}
		if check {
			if _, err := record.Check(b.bytes); err != nil {
				return storage.Read{}, fmt.Errorf("%w: at offset %d: %w", storage.ErrDamaged, b.base, err)
			}
		}
		r.Batches = append(r.Batches, b.bytes...)
	}
	return r, nil
}

// corrupt is the one exception to the rule that an image does not change.
func (l *image) corrupt(offset int64) bool {
	if l == nil {
		return false
	}
	for _, b := range l.batches {
		if b.base <= offset && offset < b.end {
			b.bytes[len(b.bytes)-1] ^= 1
			return true
		}
	}
	return false
}
