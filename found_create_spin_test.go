package tidemark

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/protocol"
)

// A creation that meets the end of a deletion whose answer was lost must wait for
// what became of that: the same guard fails again and again, as fast as the store
// answers. In virtual time, or with a store in this process, the control loop spins.
func TestCreateDoesNotSpinOnTheEndOfADeletion(t *testing.T) {
	b := newMetaBench(t, 1, 2, 3)
	b.ask(protocol.DeleteTopic, b.made(topicNamed("t", 1, 1, 3, 2)))
	b.settle()
	b.took(1)
	for id := range b.epochs {
		b.m.onRemoval(id, b.epochs[id], protocol.Removal{Topic: protocol.UUID{1}})
	}
	b.turn()
	retire := b.write()
	r := b.command(topicNamed("u", 2, 1, 3, 2))
	b.turn()
	b.do(retire.txn) // applied, and
	b.noAnswer(retire)

	tries := 0
	for len(b.writes) > 0 || len(b.rereads) > 0 { // no time passes
		if len(b.writes) > 0 {
			tries++
			b.answer(b.write())
		} else {
			b.reread()
		}
		require.Less(t, tries, 10, "attempts at the same creation within no time")
	}
	b.now += rereadAfter
	b.settle()
	b.accept()
	require.Equal(t, map[uint64]protocol.Code{r: protocol.OK}, b.codes())
}
