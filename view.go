package tidemark

import (
	"slices"
	"sync"

	"github.com/tidemark-log/tidemark/protocol"
)

// view is the cluster image as this broker's clients read it. The control loop
// writes it; anyone may read.
type view struct {
	mu      sync.RWMutex
	whole   bool
	topics  map[string]protocol.Topic
	names   map[protocol.UUID]string
	dropped []protocol.UUID // deleted topics that still have a name, the oldest first
	states  map[protocol.PartitionID]protocol.PartitionState
	changed chan struct{} // closed and replaced with every change
	levels  levelView
}

// levelView is what this broker knows of the cluster's feature levels.
type levelView struct {
	known     bool
	err       error // why the level in force cannot be read
	inForce   int32
	supported levelRange // by all registered brokers
}

// droppedNames is how many deleted topics keep their names.
const droppedNames = 128

func newView() *view {
	v := &view{changed: make(chan struct{})}
	v.clear()
	return v
}

func (v *view) clear() {
	v.topics = make(map[string]protocol.Topic)
	v.names, v.dropped = make(map[protocol.UUID]string), nil
	v.states = make(map[protocol.PartitionID]protocol.PartitionState)
}

// apply takes an update that the member has taken. When that completed its
// image, everything is copied anew; else only what the update names.
func (v *view) apply(m *member, u *protocol.Update, completed bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case completed:
		learnt := v.states
		v.clear()
		for _, t := range m.topics {
			v.topics[t.Name], v.names[t.ID] = t, t.Name
		}
		for id, s := range m.states {
			v.states[id] = newerState(learnt, id, *s)
		}
		v.whole = true
	case !m.whole:
		return // a part of a whole image that is still on its way
	default:
		for _, id := range u.Deleted {
			v.drop(id)
		}
		for _, t := range u.Topics {
			v.topics[t.Name], v.names[t.ID] = t, t.Name
		}
		for _, s := range u.States {
			v.states[s.ID] = newerState(v.states, s.ID, s.State)
		}
	}
	close(v.changed)
	v.changed = make(chan struct{})
}

// drop takes a deleted topic out of the view.
func (v *view) drop(id protocol.UUID) {
	name := v.names[id]
	t, ok := v.topics[name]
	if !ok || t.ID != id {
		return
	}
	for n := range t.Config.Partitions {
		delete(v.states, protocol.PartitionID{Topic: id, Partition: n})
	}
	delete(v.topics, name)
	// Its name stays for a while: what ends with it is told by name.
	if v.dropped = append(v.dropped, id); len(v.dropped) > droppedNames {
		delete(v.names, v.dropped[0])
		v.dropped = v.dropped[1:]
	}
}

// newerState keeps a state that came with an answer and is ahead of the image.
func newerState(known map[protocol.PartitionID]protocol.PartitionState, id protocol.PartitionID, s protocol.PartitionState) protocol.PartitionState {
	if k, ok := known[id]; ok && k.PartitionEpoch > s.PartitionEpoch {
		return k
	}
	return s
}

// learn takes a state that came with an answer, if it is newer.
func (v *view) learn(id protocol.PartitionID, s *protocol.PartitionState) {
	if s == nil {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if old, ok := v.states[id]; !ok || s.PartitionEpoch <= old.PartitionEpoch {
		return
	}
	v.states[id] = *s
	close(v.changed)
	v.changed = make(chan struct{})
}

// topic finds a topic by name. whole is false while the image is not complete,
// and then a missing topic means nothing. changed is closed with the next change.
func (v *view) topic(name string) (t protocol.Topic, ok, whole bool, changed <-chan struct{}) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	t, ok = v.topics[name]
	return t, ok, v.whole, v.changed
}

func (v *view) topicName(id protocol.UUID) (string, bool) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	name, ok := v.names[id]
	return name, ok
}

func (v *view) topicNames() []string {
	v.mu.RLock()
	defer v.mu.RUnlock()
	names := make([]string, 0, len(v.topics))
	for name := range v.topics {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// state returns a partition's state, and a channel that is closed with the next change.
func (v *view) state(id protocol.PartitionID) (s protocol.PartitionState, ok bool, changed <-chan struct{}) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	s, ok = v.states[id]
	return s, ok, v.changed
}

func (v *view) setLevels(l levelView) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.levels = l
	close(v.changed)
	v.changed = make(chan struct{})
}

func (v *view) featureLevels() (l levelView, changed <-chan struct{}) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.levels, v.changed
}
