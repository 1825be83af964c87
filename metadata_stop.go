package tidemark

import (
	"fmt"
	"slices"

	"github.com/tidemark-log/tidemark/protocol"
)

// A broker that is about to stop says so. Until it is registered anew it is not
// elected, not placed upon and not admitted into an ISR; what it leads moves to
// another member that may lead, and stays where there is none (EL-10). It goes on
// following, and leaves the ISRs when it goes.

// stops reports that the broker is about to stop, in its present life.
func (b *brokerEntry) stops() bool { return b != nil && b.stopping != 0 && b.stopping == b.epoch }

// onStop takes a broker's word that it is about to stop. That of an earlier life does
// not count.
func (m *metadata) onStop(q queuedCommand) {
	b := m.brokers[q.from]
	if b == nil || b.epoch != q.fromEpoch {
		return
	}
	if !b.stops() {
		b.stopping = b.epoch
		m.markAll(map[int32]bool{q.from: true})
	}
	m.stops = slices.DeleteFunc(m.stops, func(o queuedCommand) bool { return o.from == q.from }) // it asks again
	m.stops = append(m.stops, q)
}

// answerStops answers whoever leads nothing any more that could move.
func (m *metadata) answerStops() {
	if len(m.stops) == 0 {
		return
	}
	stay, moves := make(map[int32]int), make(map[int32]bool)
	for _, p := range m.parts {
		stay[p.state.Leader]++
		if p.writing || p.dirty {
			moves[p.state.Leader] = true
		}
	}
	m.stops = slices.DeleteFunc(m.stops, func(q queuedCommand) bool {
		switch b := m.brokers[q.from]; {
		case b == nil || b.epoch != q.fromEpoch:
			return true
		case moves[q.from]:
			return false
		}
		m.answer(q.origin(), protocol.OK, fmt.Sprintf("%d partitions have no other leader", stay[q.from]), nil)
		return true
	})
}
