package tidemark

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/protocol"
)

// deletedTopic is a topic that was deleted and of which something may be left:
// state keys in the store, logs on brokers (D21). The key that names it is written
// in the transaction that removes the topic, and goes when nothing is left; so
// whatever a Controller does not get done, the next one does.
type deletedTopic struct {
	id        protocol.UUID
	record    deletedRecord
	revision  int64
	left      []*partEntry    // whose state keys are there
	others    []queuedCommand // creations of the name, which wait until left is empty
	confirmed map[int32]bool  // brokers that have nothing of it
}

// clearedTopics are the deleted topics of which nothing is left, the last ones: a
// copy of the command that created one must not bring it back under the same id.
type clearedTopics struct {
	record   clearedRecord
	revision int64
	busy     bool            // a write is under way
	others   []queuedCommand // creations that wait for what becomes of it
	damaged  bool            // the key cannot be read, and is left alone
}

// maxCleared bounds how many of those are remembered.
const maxCleared = 128

func newDeleted(id protocol.UUID, rec deletedRecord) *deletedTopic {
	return &deletedTopic{id: id, record: rec, confirmed: make(map[int32]bool)}
}

// loadDeleted reads the key of a deleted topic. Topics are loaded before: one
// that is both there and deleted is left alone.
func (m *metadata) loadDeleted(kv coordination.KV) error {
	name, ok := strings.CutPrefix(kv.Key, deletedPrefix)
	if !ok {
		return nil
	}
	var id protocol.UUID
	var rec deletedRecord
	if err := id.UnmarshalText([]byte(name)); err != nil {
		return fmt.Errorf("tidemark: key %s: %w", kv.Key, err)
	}
	if err := json.Unmarshal(kv.Value, &rec); err != nil {
		return fmt.Errorf("tidemark: key %s: %w", kv.Key, err)
	}
	if m.topicByID(id) != nil {
		return fmt.Errorf("tidemark: key %s names a topic that exists", kv.Key)
	}
	d := newDeleted(id, rec)
	d.revision = kv.Revision
	m.deleted[id] = d
	return nil
}

func (m *metadata) loadCleared(kv coordination.KV) error {
	if kv.Key != clearedKey {
		return nil
	}
	m.cleared.revision = kv.Revision
	if err := json.Unmarshal(kv.Value, &m.cleared.record); err != nil {
		m.cleared.damaged = true
		return fmt.Errorf("tidemark: key %s: %w", kv.Key, err)
	}
	return nil
}

// leftOver takes up a state key without a topic, if it is of a deleted one.
func (m *metadata) leftOver(name string, n int32, kv coordination.KV) bool {
	for _, d := range m.deleted {
		if d.record.Name == name && n < d.record.Partitions {
			d.left = append(d.left, &partEntry{key: kv.Key, revision: kv.Revision})
			return true
		}
	}
	return false
}

func (m *metadata) deletedInOrder() []*deletedTopic {
	return slices.SortedFunc(maps.Values(m.deleted), func(a, b *deletedTopic) int {
		return strings.Compare(string(a.id[:]), string(b.id[:]))
	})
}

// deleteTopic removes the topic's key and names the topic as deleted, at once.
func (m *metadata) deleteTopic(t *topicEntry, q queuedCommand) {
	d := newDeleted(t.topic.ID, deletedRecord{Name: t.topic.Name, Partitions: t.topic.Config.Partitions, Brokers: t.brokers()})
	w := &metaWrite{topic: t, change: &topicChange{asked: &q, deleted: d}}
	w.remove(topicKey(t.topic.Name), t.revision) // first: see writtenAs
	w.put(deletedKey(d.id), 0, d.record)
	m.writeTopic(w)
}

// brokers are all that may have logs of the topic.
func (t *topicEntry) brokers() []int32 {
	var all []int32
	for _, replicas := range t.assignment {
		all = append(all, replicas...)
	}
	for _, p := range t.parts {
		all = append(all, p.state.Replicas...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// deleteWritten forgets a topic whose key is gone. What is written to its
// partitions still is decided first; then their keys go too.
func (m *metadata) deleteWritten(t *topicEntry, d *deletedTopic, revision int64) {
	d.revision, d.left = revision, slices.Concat(t.parts, t.unread)
	m.deleted[d.id] = d
	m.removed = append(m.removed, d.id)
	t.gone = true
	delete(m.topics, t.topic.Name)
	m.forget(t.parts)
	m.created = slices.DeleteFunc(m.created, func(c *topicEntry) bool { return c == t })
	m.end(t, protocol.UnknownTopic, "the topic was deleted meanwhile")
}

// sweep removes what is left of deleted topics: their state keys, and when those
// are gone and every broker has confirmed, the keys that name them, one at a time.
func (m *metadata) sweep() {
	if !m.toSweep {
		return
	}
	m.toSweep = false
	for _, d := range m.deletedInOrder() {
		w := &metaWrite{sweeps: d}
		for _, p := range d.left {
			if p.writing {
				continue
			}
			p.writing = true
			w.swept = append(w.swept, p)
			w.remove(p.key, p.revision)
			if len(w.swept) == m.perWrite {
				m.begin(w)
				w = &metaWrite{sweeps: d}
			}
		}
		if len(w.swept) > 0 {
			m.begin(w)
		}
		if c := &m.cleared; len(d.left) == 0 && !c.busy && !c.damaged && d.confirmedByAll() {
			c.busy = true
			last := c.record.Topics[max(0, len(c.record.Topics)+1-maxCleared):]
			w.remove(deletedKey(d.id), d.revision) // first: see writtenAs
			w.after.Topics = append(slices.Clone(last), d.id)
			w.put(clearedKey, c.revision, w.after)
			m.begin(w)
		}
	}
}

func (d *deletedTopic) confirmedByAll() bool {
	return !slices.ContainsFunc(d.record.Brokers, func(b int32) bool { return !d.confirmed[b] })
}

// sweepWritten notes which keys are gone. A write without state keys is the last one.
func (m *metadata) sweepWritten(w *metaWrite, revision int64) {
	d := w.sweeps
	if len(w.swept) == 0 {
		others := m.cleared.others
		m.cleared = clearedTopics{record: w.after, revision: revision}
		delete(m.deleted, d.id)
		m.again(others)
		return
	}
	for _, p := range w.swept {
		p.writing, p.revision = false, 0
	}
	m.swept(d)
}

// sweepConflicted takes what the store has instead.
func (m *metadata) sweepConflicted(w *metaWrite, kvs map[string]coordination.KV) {
	d := w.sweeps
	if len(w.swept) == 0 {
		d.revision = kvs[deletedKey(d.id)].Revision
		others := m.cleared.others
		m.cleared = clearedTopics{}
		if kv, ok := kvs[clearedKey]; ok {
			_ = m.loadCleared(kv) // damaged: nothing is cleared any more
		}
		m.again(others)
		return
	}
	for _, p := range w.swept {
		p.writing, p.revision = false, kvs[p.key].Revision
	}
	m.swept(d)
}

func (m *metadata) swept(d *deletedTopic) {
	d.left = slices.DeleteFunc(d.left, func(p *partEntry) bool { return !p.writing && p.revision == 0 })
	if len(d.left) > 0 {
		return
	}
	others := d.others
	d.others = nil
	m.again(others)
}

// onRemoval takes a broker's word that it has nothing of a deleted topic any more.
func (m *metadata) onRemoval(from int32, fromEpoch int64, r protocol.Removal) {
	if b, d := m.brokers[from], m.deleted[r.Topic]; b != nil && b.epoch == fromEpoch && d != nil {
		d.confirmed[from], m.toSweep = true, true
	}
}
