package tidemark

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/protocol"
)

func mustUnmarshal(t testing.TB, data []byte, v any) {
	t.Helper()
	if err := json.Unmarshal(data, v); err != nil {
		t.Fatal(err)
	}
}

// simRecords is what the coordination store holds, followed write by write.
type simRecords struct {
	w       *simWorld
	feed    <-chan coordination.Changes
	touched [len(simWatches)]int64 // counts the changes that each watch tells
	topics  map[string]protocol.Topic
	ids     map[string]protocol.UUID // of the topics that have or last had a name
	states  map[protocol.PartitionID]*simState
	live    map[int32]int64         // broker epochs of the registrations
	since   map[int32]time.Duration // when each was made
	last    map[int32]lastLife
	deleted map[protocol.UUID]bool // topics that are deleted, or were
	clear   map[string]bool        // keys of topics still to be cleared away
	term    int32                  // controller epoch
}

// simState is a partition's recorded state.
type simState struct {
	protocol.PartitionState
	topic string
}

func newSimRecords(w *simWorld) *simRecords {
	feed, err := w.reader.Watch(w.ctx, "/", 0)
	w.must(err)
	return &simRecords{
		w: w, feed: feed, topics: make(map[string]protocol.Topic), ids: make(map[string]protocol.UUID), states: make(map[protocol.PartitionID]*simState),
		live: make(map[int32]int64), since: make(map[int32]time.Duration), last: make(map[int32]lastLife), deleted: make(map[protocol.UUID]bool), clear: make(map[string]bool),
	}
}

// follow takes up what was written since.
func (r *simRecords) follow() {
	for {
		select {
		case changes := <-r.feed:
			r.w.must(changes.Err)
			r.take(changes.Events)
		default:
			return
		}
	}
}

// take takes the events of a transaction. The key of a topic says what the keys of
// its partitions are about: it is read before they come, and forgotten after they went.
func (r *simRecords) take(events []coordination.Event) {
	for _, e := range events {
		if name, ok := strings.CutPrefix(e.Key, topicsPrefix); ok && !strings.Contains(name, "/") && !e.Deleted {
			var t topicRecord
			r.w.must(json.Unmarshal(e.Value, &t))
			r.topics[name], r.ids[name] = t.Topic, t.ID
		}
	}
	for _, e := range events {
		if e.Key == controllerEpochKey && !e.Deleted {
			var term controllerTerm
			r.w.must(json.Unmarshal(e.Value, &term))
			r.term = term.Epoch
		}
		for i, prefix := range simWatches {
			if strings.HasPrefix(e.Key, prefix) {
				r.touched[i]++
			}
		}
		if name, n, ok := parsePartitionKey(e.Key); ok {
			r.partition(name, n, e)
			continue
		}
		if id, ok := parseBrokerKey(e.Key, brokerIDsPrefix); ok {
			r.since[id] = r.w.now
			if r.live[id] = e.Revision; e.Deleted {
				delete(r.live, id)
			}
		}
		if id, ok := parseBrokerKey(e.Key, brokerLastPrefix); ok {
			var last lastLife
			r.w.must(json.Unmarshal(e.Value, &last))
			r.last[id] = last
		}
		if id, ok := strings.CutPrefix(e.Key, deletedPrefix); ok {
			if r.clear[id] = true; e.Deleted {
				delete(r.clear, id)
			}
		}
	}
	for _, e := range events {
		if name, ok := strings.CutPrefix(e.Key, topicsPrefix); ok && !strings.Contains(name, "/") && e.Deleted {
			r.w.trace("recorded: topic %s is deleted", name)
			vanishedTopic{}.gone(r.w.check, name)
			r.deleted[r.ids[name]] = true
			delete(r.topics, name)
		}
	}
}

func (r *simRecords) partition(topic string, n int32, e coordination.Event) {
	id := protocol.PartitionID{Topic: r.ids[topic], Partition: n}
	if e.Deleted {
		delete(r.states, id)
		return
	}
	is := &simState{topic: topic}
	r.w.must(json.Unmarshal(e.Value, &is.PartitionState))
	was := r.states[id]
	r.states[id] = is
	r.w.check.recorded(id, was, is)
}

// doubtful reports whether the broker may lack what its memberships vouch for, and
// the cluster knows: it was replaced, or ended uncleanly, and was not cleared since.
func (r *simRecords) doubtful(b *simBroker, background bool) bool {
	last, ok := r.last[b.id]
	return !ok || last.Replaced || last.Directory != b.directory || background && last.Unclean
}
