package tidemark

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/protocol"
)

// topicChange is a write of a topic's key: its creation, a change, or its deletion.
type topicChange struct {
	asked      *queuedCommand // nil: the rest of what was asked for earlier
	topic      protocol.Topic
	assignment [][]int32
	unmade     int32
	parts      []*partEntry  // new ones
	deleted    *deletedTopic // a deletion: what will be left
}

// changeTopic takes a command about a topic that exists. A topic's key is written
// by one command at a time; the others wait.
func (m *metadata) changeTopic(q queuedCommand) {
	t, id := m.topicByID(q.command.Topic.ID), q.command.Topic.ID
	switch {
	case t == nil && q.command.Kind == protocol.DeleteTopic && m.deleted[id] != nil:
		m.answer(q.origin(), protocol.OK, "", nil) // the same request again: its answer was lost
	case t == nil:
		m.answer(q.origin(), protocol.UnknownTopic, "", nil)
	case t.occupied():
		t.others = append(t.others, q)
	case q.command.Kind == protocol.DeleteTopic:
		m.deleteTopic(t, q)
	case q.command.Kind == protocol.AddPartitions:
		m.addPartitions(t, q)
	default:
		m.alterTopic(t, q)
	}
}

func (m *metadata) topicByID(id protocol.UUID) *topicEntry {
	for _, t := range m.topics {
		if t.topic.ID == id {
			return t
		}
	}
	return nil
}

// alterTopic changes a topic's configuration. What of it is part of the
// partitions' states follows by level: see minISR.
func (m *metadata) alterTopic(t *topicEntry, q queuedCommand) {
	have, want := t.topic, q.command.Topic
	why := unalterable(have.Config, want.Config)
	switch {
	case want.Config == have.Config && (want.Version == have.Version || want.Version == have.Version-1):
		m.await(t, q.origin()) // nothing to change, or the same request again
	case want.Version != have.Version:
		m.answer(q.origin(), protocol.Conflict, "", &have)
	case why != "":
		m.answer(q.origin(), protocol.InvalidRequest, why, nil)
	default:
		c := &topicChange{asked: &q, topic: have, assignment: t.assignment, unmade: t.unmade}
		c.topic.Config = want.Config
		c.topic.Version++
		w := &metaWrite{topic: t, change: c}
		w.put(topicKey(have.Name), t.revision, topicRecord{Topic: c.topic, Assignment: c.assignment, Unmade: c.unmade})
		m.writeTopic(w)
	}
}

// unalterable says why a configuration cannot become another one, or "".
func unalterable(have, want TopicConfig) string {
	switch {
	case want.Partitions != have.Partitions:
		return fmt.Sprintf("partitions are added by AddPartitions, not altered (%d to %d)", have.Partitions, want.Partitions)
	case want.ReplicationFactor != have.ReplicationFactor:
		return fmt.Sprintf("the replication factor cannot be altered yet (%d to %d)", have.ReplicationFactor, want.ReplicationFactor)
	case want.Background != have.Background:
		return "background is set at the creation of a topic, for good"
	}
	return invalidConfig(&want)
}

// addPartitions gives a topic more partitions (S-127).
func (m *metadata) addPartitions(t *topicEntry, q queuedCommand) {
	have, total := t.topic.Config.Partitions, q.command.Topic.Config.Partitions
	switch {
	case total == have:
		m.awaitAll(t, q.origin()) // what was asked for, or the same request again
		return
	case total < have:
		m.answer(q.origin(), protocol.InvalidRequest, fmt.Sprintf("the number of partitions only grows (%d to %d)", have, total), nil)
		return
	case total > maxPartitions:
		m.answer(q.origin(), protocol.InvalidRequest, fmt.Sprintf("partitions must be 1 to %d", maxPartitions), nil)
		return
	}
	assignment := m.assign(q.origin(), &t.topic, t.assignment, int(total-have))
	if assignment == nil {
		return
	}
	c := &topicChange{asked: &q, topic: t.topic, assignment: assignment}
	c.topic.Version++
	w := &metaWrite{topic: t, change: c}
	m.putTopic(w, t.revision, have-t.unmade)
	m.writeTopic(w)
}

// growing reports that partitions are still to be made.
func (t *topicEntry) growing() bool { return t.unmade > 0 && !t.stuck }

// occupied reports that commands about the topic wait.
func (t *topicEntry) occupied() bool { return t.busy || t.growing() }

// growOn makes the next partitions of topics that do not have all yet, whichever
// Controller began with it.
func (m *metadata) growOn() {
	if !m.toGrow {
		return
	}
	m.toGrow = false
	for _, name := range slices.Sorted(maps.Keys(m.topics)) {
		if t := m.topics[name]; t.growing() && !t.busy {
			w := &metaWrite{topic: t, change: &topicChange{topic: t.topic, assignment: t.assignment}}
			m.putTopic(w, t.revision, t.topic.Config.Partitions-t.unmade)
			m.writeTopic(w)
		}
	}
}

// awaitAll is await for whoever wants all partitions: what could not be made may be
// possible by now.
func (m *metadata) awaitAll(t *topicEntry, origin commandOrigin) {
	if t.stuck {
		t.stuck, m.toGrow = false, true
	}
	m.await(t, origin)
}

// writeTopic begins a write of a topic's key.
func (m *metadata) writeTopic(w *metaWrite) {
	w.topic.busy = true
	m.begin(w)
}

// topicWritten makes what a write recorded of a topic the present truth.
func (m *metadata) topicWritten(w *metaWrite, revision int64) {
	t, c := w.topic, w.change
	t.busy = false
	if c.deleted != nil {
		m.deleteWritten(t, c.deleted, revision)
		m.answer(c.asked.origin(), protocol.OK, "", nil)
	} else {
		t.topic, t.assignment, t.unmade, t.revision, t.written = c.topic, c.assignment, c.unmade, revision, true
		t.stuck = t.stuck && len(c.parts) == 0
		m.toGrow = m.toGrow || t.growing()
		t.parts = append(t.parts, c.parts...)
		if !slices.Contains(m.created, t) {
			m.created = append(m.created, t)
		}
		for _, p := range t.parts {
			if p.state.MinISR != m.minISR(p) || p.state.Leader == protocol.NoLeader {
				m.markDirty(p) // leaderless: unclean elections may be allowed now (S-88)
			}
		}
		if c.asked != nil {
			m.await(t, c.asked.origin())
		}
		m.answerCreated(t)
	}
	if !t.growing() {
		m.decided(t)
	}
}

// topicConflicted ends a command that found the topic's key changed, or a new
// partition's there: somebody else than a Controller has written.
func (m *metadata) topicConflicted(w *metaWrite, kvs map[string]coordination.KV) {
	t, c := w.topic, w.change
	t.busy = false
	m.forget(c.parts)
	if !t.written {
		m.creationConflicted(w, kvs)
		return
	}
	code, detail := protocol.Failed, "the coordination store refused the topic's keys"
	var rec topicRecord
	if kv := kvs[topicKey(t.topic.Name)]; kv.Revision != t.revision && readTopic(kv, &rec) == nil && rec.ID == t.topic.ID {
		t.topic, t.assignment, t.unmade, t.revision = rec.Topic, rec.Assignment, rec.Unmade, kv.Revision
		code = protocol.Conflict
	}
	switch {
	case c.asked != nil:
		m.answer(c.asked.origin(), code, detail, &t.topic)
		m.toGrow = true // what it stands at now may lack some still, and others wait for that
	case code == protocol.Failed: // a key is in the way
		t.stuck = true
		m.end(t, code, detail)
	default:
		m.toGrow = true
	}
	if !t.growing() {
		m.decided(t)
	}
}

// readTopic decodes and checks the value of a topic's key.
func readTopic(kv coordination.KV, rec *topicRecord) error {
	if err := json.Unmarshal(kv.Value, rec); err != nil {
		return fmt.Errorf("tidemark: key %s: %w", kv.Key, err)
	}
	if kv.Key != topicKey(rec.Name) || invalidTopic(&rec.Topic) != "" {
		return fmt.Errorf("tidemark: key %s holds another or an invalid topic", kv.Key)
	}
	return nil
}

// minISR is the MinISR that should be in force for a partition: what the topic
// asks for, capped by the number of replicas (D19, S-36). Whatever raised or
// lowered it, and under whichever Controller, a state that differs is rewritten.
func (m *metadata) minISR(p *partEntry) int32 {
	return min(p.topic.topic.Config.MinISR, int32(len(p.state.Replicas)))
}

// await has a command answered once its topic is settled.
func (m *metadata) await(t *topicEntry, origin commandOrigin) {
	t.waiting = append(t.waiting, origin)
	m.answerCreated(t)
}

// answerCreated has the commands that wait for a topic answered at the end of the
// turn, if they can be.
func (m *metadata) answerCreated(t *topicEntry) {
	if len(t.waiting) > 0 && !slices.Contains(m.settling, t) {
		m.settling = append(m.settling, t)
	}
}

// answerSettled ends the commands that waited for topics which are settled now.
func (m *metadata) answerSettled() {
	for _, t := range m.settling {
		if m.settled(t) {
			m.end(t, protocol.OK, "")
		}
	}
	m.settling = nil
}

// settled reports whether every leader has accepted and every state is as the
// topic wants it, and no write is under way that may make it otherwise. A partition
// without a leader does not hold that up: nobody is there to accept.
func (m *metadata) settled(t *topicEntry) bool {
	return t.written && !t.growing() && !slices.ContainsFunc(t.parts, func(p *partEntry) bool {
		return p.writing || p.state.Leader != protocol.NoLeader && p.accepted != p.state.LeaderEpoch || p.state.MinISR != m.minISR(p)
	})
}

// end answers everybody who waits for a topic.
func (m *metadata) end(t *topicEntry, code protocol.Code, detail string) {
	for _, origin := range t.waiting {
		m.answer(origin, code, detail, &t.topic)
	}
	t.waiting = nil
}
