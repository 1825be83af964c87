package engine

import (
	"bytes"
	"slices"
	"strings"

	"github.com/tidemark-log/tidemark/coordination"
)

// Change is the net effect of one transaction: at most one event per key, each
// at Revision. The values in it are never modified.
type Change struct {
	Revision int64
	Events   []coordination.Event
}

// state holds the keys as of one revision. It knows nothing of locks, time or
// watches. Values that are in it never change in place.
type state struct {
	revision  int64
	keys      map[string]coordination.KV
	sorted    []string                       // the keys of keys, in order
	bySession map[string]map[string]struct{} // ephemeral keys of each session that has any
}

func newState(revision int64, keys []coordination.KV) *state {
	s := &state{
		revision:  revision,
		keys:      make(map[string]coordination.KV, len(keys)),
		bySession: make(map[string]map[string]struct{}),
	}
	for _, kv := range keys {
		s.set(cloneKV(kv))
	}
	return s
}

// holds says whether every guard holds.
func (s *state) holds(guards []coordination.Guard) bool {
	for _, g := range guards {
		// A key that does not exist has the zero KV, thus revision 0.
		if s.keys[g.Key].Revision != g.Revision {
			return false
		}
	}
	return true
}

// plan returns what ops would change. Of several ops on one key the last one
// counts; a delete of a key that does not exist changes nothing.
func (s *state) plan(ops []coordination.Op) Change {
	last := make(map[string]int, len(ops))
	for i, op := range ops {
		last[op.Key] = i
	}
	ch := Change{Revision: s.revision + 1}
	for i, op := range ops {
		if last[op.Key] != i {
			continue
		}
		ev := coordination.Event{KV: coordination.KV{Key: op.Key, Revision: ch.Revision}}
		if op.Delete {
			if _, exists := s.keys[op.Key]; !exists {
				continue
			}
			ev.Deleted = true
		} else {
			ev.Value = cloneValue(op.Value)
			ev.Session = op.Session
		}
		ch.Events = append(ch.Events, ev)
	}
	return ch
}

// planEnd returns the deletion of all keys of a session.
func (s *state) planEnd(session string) Change {
	ops := make([]coordination.Op, 0, len(s.bySession[session]))
	for key := range s.bySession[session] {
		ops = append(ops, coordination.Op{Key: key, Delete: true})
	}
	slices.SortFunc(ops, func(a, b coordination.Op) int { return strings.Compare(a.Key, b.Key) })
	return s.plan(ops)
}

// apply makes ch, which was planned on this very state, part of it.
func (s *state) apply(ch Change) {
	if len(ch.Events) == 0 {
		return
	}
	s.revision = ch.Revision
	for _, ev := range ch.Events {
		if ev.Deleted {
			s.remove(ev.Key)
		} else {
			s.set(ev.KV)
		}
	}
}

func (s *state) set(kv coordination.KV) {
	old, exists := s.keys[kv.Key]
	if exists {
		s.unbind(old)
	} else {
		i, _ := slices.BinarySearch(s.sorted, kv.Key)
		s.sorted = slices.Insert(s.sorted, i, kv.Key)
	}
	s.keys[kv.Key] = kv
	if kv.Session != "" {
		if s.bySession[kv.Session] == nil {
			s.bySession[kv.Session] = make(map[string]struct{})
		}
		s.bySession[kv.Session][kv.Key] = struct{}{}
	}
}

func (s *state) remove(key string) {
	s.unbind(s.keys[key])
	delete(s.keys, key)
	if i, found := slices.BinarySearch(s.sorted, key); found {
		s.sorted = slices.Delete(s.sorted, i, i+1)
	}
}

func (s *state) unbind(kv coordination.KV) {
	if kv.Session == "" {
		return
	}
	delete(s.bySession[kv.Session], kv.Key)
	if len(s.bySession[kv.Session]) == 0 {
		delete(s.bySession, kv.Session)
	}
}

// list returns copies of the keys with prefix, in order.
func (s *state) list(prefix string) []coordination.KV {
	from, _ := slices.BinarySearch(s.sorted, prefix)
	var kvs []coordination.KV
	for _, key := range s.sorted[from:] {
		if !strings.HasPrefix(key, prefix) {
			break
		}
		kvs = append(kvs, cloneKV(s.keys[key]))
	}
	return kvs
}

func cloneKV(kv coordination.KV) coordination.KV {
	kv.Value = cloneValue(kv.Value)
	return kv
}

// cloneValue never returns nil: a value has no other form of "empty" than no bytes.
func cloneValue(v []byte) []byte {
	if len(v) == 0 {
		return []byte{}
	}
	return bytes.Clone(v)
}
