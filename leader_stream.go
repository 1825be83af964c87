package tidemark

import (
	"time"

	"github.com/tidemark-log/tidemark/protocol"
)

const (
	// streamMemory is how long a refusal is remembered: far longer than an append
	// of the same generation can be under way.
	streamMemory = time.Minute
	// maxRefusedStreams bounds the memory per led partition. Beyond it every
	// stream is refused for a while, which keeps the order at the price of retries.
	maxRefusedStreams = 1024
)

// refusedStreams remembers which generation of which producer stream this leader
// refused something of: the rest of that generation is refused as well, so that
// nothing behind a refused append can overtake its retry (D22).
type refusedStreams struct {
	refused  map[uint64]refusedStream
	allUntil time.Duration
}

type refusedStream struct {
	generation uint32
	at         time.Duration
}

func (s *refusedStreams) refuses(now time.Duration, st protocol.Stream) bool {
	if st.ID == 0 {
		return false
	}
	if now < s.allUntil {
		return true
	}
	last, ok := s.refused[st.ID]
	if !ok {
		return false
	}
	if st.Generation > last.generation {
		delete(s.refused, st.ID)
		return false
	}
	return true
}

func (s *refusedStreams) refuse(now time.Duration, st protocol.Stream) {
	if st.ID == 0 {
		return
	}
	if last, ok := s.refused[st.ID]; ok && last.generation >= st.Generation {
		return
	}
	if len(s.refused) >= maxRefusedStreams {
		for id, last := range s.refused {
			if now-last.at > streamMemory {
				delete(s.refused, id)
			}
		}
	}
	if len(s.refused) >= maxRefusedStreams {
		s.allUntil = now + streamMemory
		return
	}
	if s.refused == nil {
		s.refused = make(map[uint64]refusedStream)
	}
	s.refused[st.ID] = refusedStream{st.Generation, now}
}
