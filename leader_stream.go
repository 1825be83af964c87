package tidemark

import (
	"time"

	"github.com/tidemark-log/tidemark/protocol"
)

const (
	// streamMemory is how long a refusal is remembered: far longer than an append
	// of the same generation can be under way.
	streamMemory = time.Minute
	streamSlots  = 256
)

// refusedStreams remembers which generation of which producer stream this leader
// refused something of: the rest of that generation is refused as well, so that
// nothing behind a refused append can overtake its retry (D22).
//
// Streams share slots by their ids, which are random. One that shares a slot with
// a stream of a higher generation is refused, too, until its own has risen above
// it, which the answer says how to do. So the memory is fixed, and no number of
// producers can make it forget.
type refusedStreams struct {
	slots []refusedSlot // nil until something is refused
}

type refusedSlot struct {
	generation uint32 // the highest refused
	at         time.Duration
	used       bool
}

func (s *refusedStreams) refuses(now time.Duration, st protocol.Stream) bool {
	if st.ID == 0 || s.slots == nil {
		return false
	}
	slot := &s.slots[st.ID%streamSlots]
	if slot.used && now-slot.at > streamMemory {
		*slot = refusedSlot{}
	}
	return slot.used && st.Generation <= slot.generation
}

// refuse remembers a refusal, and returns the generation that the next one of the
// stream has to exceed.
func (s *refusedStreams) refuse(now time.Duration, st protocol.Stream) uint32 {
	if st.ID == 0 {
		return 0
	}
	if s.slots == nil {
		s.slots = make([]refusedSlot, streamSlots)
	}
	slot := &s.slots[st.ID%streamSlots]
	*slot = refusedSlot{generation: max(slot.generation, st.Generation), at: now, used: true}
	return slot.generation
}
