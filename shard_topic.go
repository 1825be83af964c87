package tidemark

import (
	"maps"
	"slices"

	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/storage"
)

// onTopic takes the configuration of a topic, new or altered. It comes before the
// first state of the topic's partitions.
func (s *shard) onTopic(t protocol.Topic) {
	if known, ok := s.topics[t.ID]; (ok && known.Version >= t.Version) || s.tombs.hold(t.ID) {
		return
	}
	s.topics[t.ID] = t
	for _, r := range s.ofTopic[t.ID] {
		r.topic = t.Config
	}
}

// onImage takes which topics there are. The configurations of others are forgotten,
// and the replicas known from messages only, unless something waits there: what was
// deleted while this broker was away may be among them. No log is touched (D3).
func (s *shard) onImage(topics map[protocol.UUID]bool) {
	for id := range s.topics {
		if !topics[id] && len(s.ofTopic[id]) == 0 {
			delete(s.topics, id)
		}
	}
	for id, r := range s.replicas {
		if r.stranger && !topics[id.Topic] && len(r.held) == 0 {
			s.strangers--
			s.drop(r)
		}
	}
}

// onDeleted has everything of a topic deleted (D21). Once nothing is left of it,
// the effects name it as cleared. To say it again does no harm, and has tried
// again what the store refused.
func (s *shard) onDeleted(topic protocol.UUID) {
	delete(s.topics, topic)
	s.tombs.add(topic)
	left := s.ofTopic[topic]
	if len(left) == 0 {
		s.env.eff.cleared = append(s.env.eff.cleared, topic)
		return
	}
	for _, n := range slices.Sorted(maps.Keys(left)) {
		left[n].delete()
	}
}

// gone forgets a replica whose log the store has deleted.
func (s *shard) gone(r *replicaState) {
	if s.drop(r) {
		s.env.eff.cleared = append(s.env.eff.cleared, r.id.Topic)
	}
}

// drop forgets a replica, and reports whether it was the last of its topic.
func (s *shard) drop(r *replicaState) (last bool) {
	delete(s.replicas, r.id)
	s.sorted = nil
	r.wake = 0
	topic := r.id.Topic
	delete(s.ofTopic[topic], r.id.Partition)
	if len(s.ofTopic[topic]) > 0 {
		return false
	}
	delete(s.ofTopic, topic)
	return true
}

// delete ends the replica and deletes its log.
func (r *replicaState) delete() {
	if r.deleting {
		return
	}
	r.deleting = true
	r.endRole(protocol.UnknownPartition)
	r.forgetLog(0)
	r.role, r.fault, r.known, r.held, r.lookupAt = roleNone, nil, false, nil, 0
	if r.stranger {
		r.stranger = false
		r.env.shard.strangers--
	}
	r.emit(storage.Op{Kind: storage.Delete}, pendingOp{led: noEpoch, last: true})
}

// maxTombs bounds the deleted topics that a shard remembers. Only messages that
// were under way when the topic was deleted can still name one.
const maxTombs = 1024

// tombs remembers which topics were deleted lately, so that a late message does
// not bring one back.
type tombs struct {
	set  map[protocol.UUID]bool
	ring [maxTombs]protocol.UUID
	next int
}

func (t *tombs) hold(topic protocol.UUID) bool { return t.set[topic] }

func (t *tombs) add(topic protocol.UUID) {
	if t.set[topic] {
		return
	}
	if t.set == nil {
		t.set = make(map[protocol.UUID]bool)
	}
	delete(t.set, t.ring[t.next])
	t.ring[t.next] = topic
	t.set[topic] = true
	t.next = (t.next + 1) % maxTombs
}
