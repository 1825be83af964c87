package tidemark

import (
	"slices"

	"github.com/tidemark-log/tidemark/protocol"
)

// updateBytes bounds one Update.
const updateBytes = 256 << 10

// brokerFeed is how far a broker was told of the cluster image.
type brokerFeed struct {
	linked bool
	whole  bool   // it got the whole image in this session; changes follow
	seq    uint64 // of the last Update sent
	acked  uint64 // the highest that was answered
}

// onLink begins or ends the feed of a broker. A new session begins with the whole image.
func (m *metadata) onLink(broker int32, up bool) {
	b := m.brokers[broker]
	if b == nil {
		b = &brokerEntry{id: broker}
		m.brokers[broker] = b
	}
	b.feed.linked, b.feed.whole = up, false
}

// onUpdateAck handles a broker that missed something, or knows a newer Controller.
func (m *metadata) onUpdateAck(from int32, a protocol.UpdateAck) {
	b := m.brokers[from]
	if b == nil {
		return
	}
	if a.ControllerEpoch == m.epoch {
		b.feed.acked = max(b.feed.acked, a.Seq)
	}
	switch {
	case a.Code == protocol.StaleController && a.ControllerEpoch > m.epoch:
		m.resigned = errControllerMoved
	case a.Code == protocol.Gap && a.ControllerEpoch == m.epoch:
		b.feed.whole = false
	}
}

// feedBrokers sends every linked broker what changed, or the whole image.
func (m *metadata) feedBrokers() {
	ids := make([]int32, 0, len(m.brokers))
	for id, b := range m.brokers {
		// One that does not count as registered yet is not told that it is part of it all.
		if b.feed.linked && b.epoch != 0 {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	news := len(m.changed) > 0 || len(m.created) > 0 || len(m.removed) > 0 || m.tellStore
	var changes, whole []protocol.Update
	for _, id := range ids {
		b := m.brokers[id]
		switch {
		case !b.feed.whole:
			if whole == nil {
				whole = m.image()
			}
			m.feed(b, whole)
			b.feed.whole = true
		case news:
			if changes == nil {
				changes = m.chunks(m.removed, m.created, m.changed)
			}
			m.feed(b, changes)
		}
	}
	for _, p := range m.changed {
		p.changed = false
	}
	m.changed, m.created, m.removed, m.tellStore = nil, nil, nil, false
}

func (m *metadata) feed(b *brokerEntry, updates []protocol.Update) {
	out := m.to(b.id)
	for _, u := range updates {
		b.feed.seq++
		u.Seq = b.feed.seq
		out.Updates = append(out.Updates, u)
	}
}

// image is the whole cluster image in parts.
func (m *metadata) image() []protocol.Update {
	topics := make([]*topicEntry, 0, len(m.topics))
	for _, t := range m.topics {
		if t.written {
			topics = append(topics, t)
		}
	}
	slices.SortFunc(topics, func(a, b *topicEntry) int {
		if a.topic.Name < b.topic.Name {
			return -1
		}
		return 1
	})
	var parts []*partEntry
	for _, t := range topics {
		parts = append(parts, t.parts...)
	}
	var deleted []protocol.UUID
	for _, d := range m.deletedInOrder() {
		deleted = append(deleted, d.id)
	}
	updates := m.chunks(deleted, topics, parts)
	updates[0].Full = true
	for i := range updates[:len(updates)-1] {
		updates[i].More = true
	}
	return updates
}

// chunks cuts an update into parts of updateBytes. Topics come before the
// partitions that belong to them, and deleted ones before one that has their name.
func (m *metadata) chunks(deleted []protocol.UUID, topics []*topicEntry, parts []*partEntry) []protocol.Update {
	blank := protocol.Update{ControllerEpoch: m.epoch, StoreOK: m.storeOK}
	out := []protocol.Update{blank}
	size := 0
	room := func(need int) *protocol.Update {
		if size > 0 && size+need > updateBytes {
			out, size = append(out, blank), 0
		}
		size += need
		return &out[len(out)-1]
	}
	for _, id := range deleted {
		u := room(len(id))
		u.Deleted = append(u.Deleted, id)
	}
	for _, t := range topics {
		u := room(t.topic.Size())
		u.Topics = append(u.Topics, t.topic)
	}
	for _, p := range parts {
		if !p.topic.written {
			continue
		}
		s := protocol.PartitionUpdate{ID: p.id, State: p.state.Clone()}
		u := room(s.Size())
		u.States = append(u.States, s)
	}
	return out
}
