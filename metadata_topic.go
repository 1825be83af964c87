package tidemark

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/protocol"
)

// onCommand takes an administrative request.
func (m *metadata) onCommand(from int32, fromEpoch int64, c protocol.Command) {
	origin := commandOrigin{from, fromEpoch, c.Request}
	if c.Kind != protocol.CreateTopic {
		m.answer(origin, protocol.InvalidRequest, fmt.Sprintf("unknown command %d", c.Kind), nil)
		return
	}
	if why := invalidTopic(&c.Topic); why != "" {
		m.answer(origin, protocol.InvalidRequest, why, nil)
		return
	}
	t := m.topics[c.Topic.Name]
	switch {
	case t == nil:
		m.create(origin, c.Topic)
	case !t.written && t.topic.ID != c.Topic.ID:
		t.others = append(t.others, queuedCommand{from, fromEpoch, c}) // until that creation is decided
	case t.topic.ID == c.Topic.ID:
		t.waiting = append(t.waiting, origin) // the same request again: its answer was lost
		m.answerCreated(t)
	default:
		m.answer(origin, protocol.TopicExists, "", &t.topic)
	}
}

// maxPartitions bounds a topic, which is written in one transaction.
const maxPartitions = 20_000

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
	case t.Config.MinISR < 1:
		return "min ISR must be at least 1"
	}
	return ""
}

// create writes a topic and the first states of all its partitions at once.
func (m *metadata) create(origin commandOrigin, topic protocol.Topic) {
	live, down, carried := m.placement()
	rf := int(topic.Config.ReplicationFactor)
	assignment := place(int(topic.Config.Partitions), rf, live, down, carried)
	if assignment == nil {
		m.answer(origin, protocol.TooFewBrokers, fmt.Sprintf("replication factor %d, brokers %d", rf, len(live)+len(down)), nil)
		return
	}
	t := &topicEntry{topic: topic, waiting: []commandOrigin{origin}}
	w := &metaWrite{topic: t}
	put := func(key string, v any) {
		w.txn.Guards = append(w.txn.Guards, coordination.Guard{Key: key})
		w.txn.Ops = append(w.txn.Ops, coordination.Op{Key: key, Value: marshal(v)})
	}
	put(topicKey(topic.Name), topicRecord{Topic: topic, Assignment: assignment})
	for n, replicas := range assignment {
		p := &partEntry{
			id: protocol.PartitionID{Topic: topic.ID, Partition: int32(n)}, key: partitionKey(topic.Name, int32(n)),
			topic: t, accepted: noEpoch, floor: noEpoch, writing: true,
		}
		s := newPartition(replicas, topic.Config.MinISR, partView{m, nil})
		s.ControllerEpoch = m.epoch
		put(p.key, s)
		t.parts = append(t.parts, p)
		w.parts = append(w.parts, partWrite{part: p, state: s})
		m.parts[p.id] = p
	}
	m.topics[topic.Name] = t
	m.begin(w)
}

// placement returns the brokers that can take new replicas, and what they carry.
func (m *metadata) placement() (live, down []int32, carried map[int32]load) {
	for id, b := range m.brokers {
		if b.epoch != 0 && !b.last.Replaced {
			live = append(live, id)
		} else {
			down = append(down, id)
		}
	}
	slices.Sort(live)
	slices.Sort(down)
	carried = make(map[int32]load)
	for _, p := range m.parts {
		for i, b := range p.state.Replicas {
			l := carried[b]
			l.replicas++
			if i == 0 {
				l.leaders++ // the preferred one: where leadership goes back to
			}
			carried[b] = l
		}
	}
	return live, down, carried
}

// creationConflicted ends a creation that found the topic in the store.
func (m *metadata) creationConflicted(t *topicEntry, kvs map[string]coordination.KV) {
	waiting := t.waiting
	t.waiting = nil
	defer m.decided(t)
	delete(m.topics, t.topic.Name)
	for _, p := range t.parts {
		delete(m.parts, p.id)
		p.dirty = false
	}
	m.dirty = slices.DeleteFunc(m.dirty, func(p *partEntry) bool { return p.topic == t })
	m.changed = slices.DeleteFunc(m.changed, func(p *partEntry) bool { return p.topic == t })
	var rec topicRecord
	if kv, ok := kvs[topicKey(t.topic.Name)]; ok && json.Unmarshal(kv.Value, &rec) == nil {
		for _, origin := range waiting {
			m.answer(origin, protocol.TopicExists, "", &rec.Topic)
		}
		return
	}
	for _, origin := range waiting {
		m.answer(origin, protocol.Failed, "the coordination store refused the topic's keys", nil)
	}
}

// decided looks again at the commands that came while a creation was under way.
func (m *metadata) decided(t *topicEntry) {
	others := t.others
	t.others = nil
	for _, q := range others {
		m.onCommand(q.from, q.fromEpoch, q.command)
	}
}

// abdicate ends the commands that wait: whoever sent them looks for the next
// Controller, which finds the topic in the store.
func (m *metadata) abdicate() map[int32]*protocol.Payload {
	for _, name := range slices.Sorted(maps.Keys(m.topics)) {
		t := m.topics[name]
		for _, origin := range t.waiting {
			m.answer(origin, protocol.NotController, "", nil)
		}
		t.waiting = nil
	}
	return m.eff.out
}

// answerCreated ends the creations that waited for every leader to accept. A
// partition without a leader does not hold it up: nobody is there to accept.
func (m *metadata) answerCreated(t *topicEntry) {
	if !t.written || len(t.waiting) == 0 {
		return
	}
	for _, p := range t.parts {
		if p.state.Leader != protocol.NoLeader && p.accepted != p.state.LeaderEpoch {
			return
		}
	}
	for _, origin := range t.waiting {
		m.answer(origin, protocol.OK, "", &t.topic)
	}
	t.waiting = nil
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

// clearReplaced takes the mark of a replaced directory off a broker once no ISR
// and no ELR rests on the data it lost (D15).
func (m *metadata) clearReplaced() {
	ids := make([]int32, 0, len(m.brokers))
	for id, b := range m.brokers {
		if b.last.Replaced && b.epoch != 0 && !b.clearing {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	for _, id := range ids {
		if m.vouchedFor(id) {
			continue
		}
		b := m.brokers[id]
		b.clearing = true
		last := b.last
		last.Replaced = false
		m.begin(&metaWrite{clear: b, txn: coordination.Txn{
			Guards: []coordination.Guard{{Key: brokerLastKey(id), Revision: b.lastRevision}},
			Ops:    []coordination.Op{{Key: brokerLastKey(id), Value: marshal(last)}},
		}})
	}
}

// vouchedFor reports whether some partition counts on the broker's data, or may
// do so once a write under way is decided.
func (m *metadata) vouchedFor(id int32) bool {
	if len(m.unreadable) > 0 {
		return true // what cannot be read may count on it (D3)
	}
	for _, p := range m.parts {
		if p.state.InISR(id) || slices.Contains(p.state.ELR, id) || (p.writing && slices.Contains(p.state.Replicas, id)) {
			return true
		}
	}
	return false
}
