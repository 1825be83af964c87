package tidemark

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/storage"
)

// D20: the Controller learns that a cleared log follows as soon as the clearing is
// stored, also while the leader sends so much that some op is always under way.
func TestClearedLogIsToldUnderLoad(t *testing.T) {
	g := newRig(t, 0, 0, 1, 1, 1)
	g.leader(2, 1)
	g.stored()
	g.turn(func() { g.r.fail(storage.ErrDamaged) })
	require.Equal(t, roleFailed, g.r.role)
	eff := g.become(func(s *protocol.PartitionState) { s.LeaderEpoch, s.ISR = 2, []int32{2, 3} })
	require.NotNil(t, sentFetch(t, eff, 2))
	// Each answer arrives before the ops of the one before are stored.
	told := 0
	base := int64(0)
	next := func() {
		g.answer(protocol.FetchAnswer{Code: protocol.OK, Batches: [][]byte{stamped(t, base, 2, 1)}, HW: base})
		base++
	}
	next()
	for range 100 {
		next()
		eff := g.turn(func() { g.store.Sync(1) })
		for _, r := range eff.replies {
			if r.Accepted {
				told++
			}
		}
	}
	require.Positive(t, told, "the clearing has been on the disk for a hundred groups, and nobody was told")
}
