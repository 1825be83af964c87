package tidemark

import (
	"fmt"
	"maps"
	"slices"

	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/protocol"
)

// onCommand takes an administrative request.
func (m *metadata) onCommand(from int32, fromEpoch int64, c protocol.Command) {
	q := queuedCommand{from, fromEpoch, c}
	if m.cutOff != 0 {
		m.answer(q.origin(), protocol.NotController, "", nil) // another one may be it soon (D18)
		return
	}
	switch c.Kind {
	case protocol.CreateTopic:
		m.createTopic(q)
	case protocol.AlterTopic, protocol.AddPartitions, protocol.DeleteTopic:
		m.changeTopic(q)
	case protocol.MoveLeaders:
		m.onStop(q)
	case protocol.RaiseLevel:
		m.raiseLevel(q)
	case protocol.ElectPreferred, protocol.ElectUnclean:
		m.onElect(q)
	default:
		m.answer(q.origin(), protocol.InvalidRequest, fmt.Sprintf("unknown command %d", c.Kind), nil)
	}
}

func (q *queuedCommand) origin() commandOrigin {
	return commandOrigin{q.from, q.fromEpoch, q.command.Request}
}

// createTopic creates a topic, or joins its creation. It waits for a command on
// that name which is under way, and for the state keys of an earlier topic to go:
// they have the same names.
func (m *metadata) createTopic(q queuedCommand) {
	topic := q.command.Topic
	if why := invalidTopic(&topic); why != "" {
		m.answer(q.origin(), protocol.InvalidRequest, why, nil)
		return
	}
	t := m.topics[topic.Name]
	switch {
	case m.deleted[topic.ID] != nil || slices.Contains(m.cleared.record.Topics, topic.ID):
		m.answer(q.origin(), protocol.UnknownTopic, "the topic was created, and deleted meanwhile", nil)
	case t == nil:
		for _, d := range m.deletedInOrder() {
			if d.record.Name == topic.Name && len(d.left) > 0 {
				d.others = append(d.others, q)
				return
			}
		}
		m.create(q)
	case t.topic.ID == topic.ID:
		m.awaitAll(t, q.origin()) // the same request again: its answer was lost
	case t.occupied():
		t.others = append(t.others, q)
	default:
		m.answer(q.origin(), protocol.TopicExists, "", &t.topic)
	}
}

const (
	// maxPartitions bounds a topic, and
	maxPartitions = 20_000
	// maxAssignment the replicas of all of them, in bytes: one key holds them.
	maxAssignment = coordination.MaxTxnBytes * 3 / 4
)

// invalidTopic says what is wrong with a topic, or "".
func invalidTopic(t *protocol.Topic) string {
	switch {
	case t.ID.IsZero():
		return "topic id is zero"
	case t.Name == "" || len(t.Name) > protocol.MaxTopicName || t.Name == "." || t.Name == "..":
		return fmt.Sprintf("topic name must have 1 to %d characters and not be . or ..", protocol.MaxTopicName)
	case slices.ContainsFunc([]byte(t.Name), func(c byte) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '.' && c != '_' && c != '-'
	}):
		return "topic name may have letters, digits, '.', '_' and '-' only"
	case t.Config.Partitions < 1 || t.Config.Partitions > maxPartitions:
		return fmt.Sprintf("partitions must be 1 to %d", maxPartitions)
	case t.Config.ReplicationFactor < 1:
		return "replication factor must be at least 1"
	}
	return invalidConfig(&t.Config)
}

// invalidConfig says what is wrong with the part of a configuration that can be
// altered, or "".
func invalidConfig(c *TopicConfig) string {
	switch {
	case c.MinISR < 1:
		return "min ISR must be at least 1"
	case c.MaxRecordBytes < 0:
		return "max record bytes is negative"
	case c.MaxUncommittedBytes < 0:
		return "max uncommitted bytes is negative"
	case c.MaxUncommittedBytes > 0 && c.MaxUncommittedBytes < int64(c.MaxRecordBytes):
		return "max uncommitted bytes is below max record bytes: the largest record would never fit"
	}
	return ""
}

// create writes a topic and the first states of its partitions, of all that one
// transaction takes; the others are made by level. See growOn.
func (m *metadata) create(q queuedCommand) {
	topic := q.command.Topic
	topic.Version = 0
	assignment := m.assign(q.origin(), &topic, nil, int(topic.Config.Partitions))
	if assignment == nil {
		return
	}
	t := &topicEntry{topic: topic}
	w := &metaWrite{topic: t, change: &topicChange{asked: &q, topic: topic, assignment: assignment}}
	m.putTopic(w, 0, 0)
	// A copy of this write that arrives after the topic was deleted again must fail.
	w.txn.Guards = append(w.txn.Guards, coordination.Guard{Key: deletedKey(topic.ID)},
		coordination.Guard{Key: clearedKey, Revision: m.cleared.revision})
	m.topics[topic.Name] = t
	m.writeTopic(w)
}

// assign places new partitions beside those that there are, and returns all. nil: that
// cannot be, and whoever asked was told.
func (m *metadata) assign(origin commandOrigin, topic *protocol.Topic, have [][]int32, partitions int) [][]int32 {
	rf := int(topic.Config.ReplicationFactor)
	on := m.ground(topic)
	added := place(partitions, rf, on)
	if added == nil {
		m.answer(origin, protocol.TooFewBrokers, fmt.Sprintf("replication factor %d, brokers %d", rf, len(on.live)+len(on.down)), nil)
		return nil
	}
	all := slices.Concat(have, added)
	if size := len(marshal(all)); size > maxAssignment {
		m.answer(origin, protocol.InvalidRequest, fmt.Sprintf("the replicas of all partitions take %d bytes, and may take %d", size, maxAssignment), nil)
		return nil
	}
	return all
}

// putTopic adds the topic's key to a write, and the first states of its next
// partitions, from first on: of as many as one write takes.
func (m *metadata) putTopic(w *metaWrite, revision int64, first int32) {
	c := w.change
	all := int32(len(c.assignment))
	end := min(first+int32(m.perWrite), all)
	c.topic.Config.Partitions, c.unmade = all, all-end
	w.put(topicKey(c.topic.Name), revision, topicRecord{Topic: c.topic, Assignment: c.assignment, Unmade: c.unmade})
	for n := first; n < end; n++ {
		p := &partEntry{
			id: protocol.PartitionID{Topic: c.topic.ID, Partition: n}, key: partitionKey(c.topic.Name, n),
			topic: w.topic, accepted: noEpoch, floor: noEpoch, writing: true,
		}
		s := newPartition(c.assignment[n], c.topic.Config.MinISR, partView{m, p})
		s.ControllerEpoch = m.epoch
		w.put(p.key, 0, s)
		w.parts = append(w.parts, partWrite{part: p, state: s})
		c.parts = append(c.parts, p)
		m.parts[p.id] = p
	}
}

// put and remove add an op to a write, and its guard.
func (w *metaWrite) put(key string, revision int64, v any) {
	w.txn.Guards = append(w.txn.Guards, coordination.Guard{Key: key, Revision: revision})
	w.txn.Ops = append(w.txn.Ops, coordination.Op{Key: key, Value: marshal(v)})
}

func (w *metaWrite) remove(key string, revision int64) {
	w.txn.Guards = append(w.txn.Guards, coordination.Guard{Key: key, Revision: revision})
	w.txn.Ops = append(w.txn.Ops, coordination.Op{Key: key, Delete: true})
}

// creationConflicted ends a creation that found the topic in the store, or tries
// again one that only met the end of a deletion.
func (m *metadata) creationConflicted(w *metaWrite, kvs map[string]coordination.KV) {
	t, asked := w.topic, *w.change.asked
	delete(m.topics, t.topic.Name)
	var rec topicRecord
	switch {
	case !slices.ContainsFunc(w.txn.Ops, func(op coordination.Op) bool { return kvs[op.Key].Key != "" }):
		if m.cleared.busy { // the guard may have been overtaken by it, and would be again
			m.cleared.others = append(m.cleared.others, asked)
		} else {
			m.again([]queuedCommand{asked})
		}
		if next := m.topics[t.topic.Name]; next != nil && next.topic.ID == t.topic.ID {
			next.waiting = append(next.waiting, t.waiting...)
		} else {
			m.end(t, protocol.NotController, "") // they are sent again
		}
	case readTopic(kvs[topicKey(t.topic.Name)], &rec) == nil:
		t.topic = rec.Topic
		m.await(t, asked.origin())
		m.end(t, protocol.TopicExists, "")
	default:
		m.await(t, asked.origin())
		m.end(t, protocol.Failed, "the coordination store refused the topic's keys")
	}
	m.decided(t)
}

// forget drops partitions that do not exist, or not any more.
func (m *metadata) forget(parts []*partEntry) {
	of := make(map[*partEntry]bool, len(parts))
	for _, p := range parts {
		of[p] = true
		p.dirty, p.changed = false, false
		delete(m.parts, p.id)
	}
	is := func(p *partEntry) bool { return of[p] }
	m.dirty = slices.DeleteFunc(m.dirty, is)
	m.changed = slices.DeleteFunc(m.changed, is)
}

// decided looks again at the commands that came while one was under way.
func (m *metadata) decided(t *topicEntry) {
	others := t.others
	t.others = nil
	m.again(others)
}

func (m *metadata) again(commands []queuedCommand) {
	for _, q := range commands {
		m.onCommand(q.from, q.fromEpoch, q.command)
	}
}

// abdicate ends the commands that wait: whoever sent them looks for the next
// Controller, which finds in the store what was carried out.
func (m *metadata) abdicate() map[int32]*protocol.Payload {
	var queued []queuedCommand
	for _, name := range slices.Sorted(maps.Keys(m.topics)) {
		t := m.topics[name]
		m.end(t, protocol.NotController, "")
		queued = append(queued, t.others...)
	}
	for _, d := range m.deletedInOrder() {
		queued = append(queued, d.others...)
	}
	queued = append(queued, m.cleared.others...)
	for _, token := range slices.Sorted(maps.Keys(m.writes)) {
		switch w := m.writes[token]; {
		case w.change != nil && w.change.asked != nil:
			queued = append(queued, *w.change.asked)
		case w.raise != nil:
			queued = append(queued, *w.raise)
		}
	}
	for _, q := range queued {
		m.answer(q.origin(), protocol.NotController, "", nil)
	}
	m.dropOrders()
	return m.eff.out
}

func (m *metadata) answer(o commandOrigin, code protocol.Code, detail string, t *protocol.Topic) {
	a := protocol.CommandAnswer{Request: o.request, Code: code, Detail: detail}
	if t != nil {
		topic := *t
		a.Topic = &topic
	}
	if b := m.brokers[o.broker]; b == nil || b.epoch != o.brokerEpoch {
		return // another life of that broker has no such request
	}
	out := m.to(o.broker)
	out.CommandAnswers = append(out.CommandAnswers, a)
}
