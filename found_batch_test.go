package tidemark

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Two brokers die one after the other: the writes that hand over what the first one
// led rest on the second one's registration, and are refused as a whole. What follows
// must not be one transaction per partition.
func TestTwoFailuresAreWrittenInBatches(t *testing.T) {
	const partitions = 600
	b := newMetaBench(t, 1, 2, 3)
	b.made(topicNamed("t", 1, partitions, 3, 1))
	b.unregister(3)
	b.observe()
	b.turn()
	first := b.writes
	b.writes = nil
	require.LessOrEqual(t, len(first), partitions/partitionsPerWrite+1)
	b.unregister(2) // nobody was told yet
	for _, w := range first {
		b.answer(w)
	}
	for len(b.rereads) > 0 {
		r := b.rereads
		b.rereads = r[:1]
		b.reread()
		b.rereads = append(b.rereads, r[1:]...)
	}
	b.observe()
	b.turn()
	writes := 0
	for len(b.writes)+len(b.rereads) > 0 {
		if len(b.rereads) > 0 {
			r := b.rereads
			b.rereads = r[:1]
			b.reread()
			b.rereads = append(b.rereads, r[1:]...)
			continue
		}
		w := b.writes[0]
		b.writes = b.writes[1:]
		writes++
		b.answer(w)
	}
	t.Log(len(first), "writes, then", writes)
	require.LessOrEqual(t, writes, partitions/10)
}
