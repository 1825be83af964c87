package tidemark

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/protocol"
)

// stop says that a broker is about to stop, in a life, and returns the request.
func (b *metaBench) stop(id int32, life int64) uint64 {
	b.request++
	b.m.onCommand(id, life, protocol.Command{Request: b.request, Kind: protocol.MoveLeaders})
	b.turn()
	return b.request
}

func (b *metaBench) stopAnswers(id int32) (all []protocol.Code) {
	for _, a := range b.took(id).CommandAnswers {
		all = append(all, a.Code)
	}
	return all
}

// S-91: what a broker leads that is about to stop moves to the next member in order; it
// stays a member, and leads on where there is no other.
func TestS091LeadersMoveBeforeABrokerStops(t *testing.T) {
	b := newMetaBench(t, 1, 2, 3)
	id := b.topic() // led by 1
	clear(b.out)
	b.stop(1, b.epochs[1])
	require.Empty(t, b.stopAnswers(1), "before it is written")
	b.settle()
	s := b.stored("t", 0)
	require.EqualValues(t, 2, s.Leader)
	require.Equal(t, []int32{1, 2, 3}, s.ISR)
	require.Equal(t, []protocol.Code{protocol.OK}, b.stopAnswers(1))

	b.stop(2, b.epochs[2])
	b.settle()
	require.EqualValues(t, 3, b.stored("t", 0).Leader)
	b.stop(3, b.epochs[3])
	b.settle()
	require.EqualValues(t, 3, b.stored("t", 0).Leader, "all stop: it stays")
	require.Equal(t, []protocol.Code{protocol.OK}, b.stopAnswers(3))
	b.gone(3)
	require.EqualValues(t, protocol.NoLeader, b.stored("t", 0).Leader, "nobody leads who is about to stop")
	b.back(1)
	require.EqualValues(t, 1, b.stored("t", 0).Leader, "it is registered anew")
	_ = id
}

// S-92: the word of an earlier life moves nothing.
func TestS092StopOfAnEarlierLife(t *testing.T) {
	b := newMetaBench(t, 1, 2, 3)
	b.topic()
	before := b.epochs[1]
	b.back(1)
	b.settle()
	leader := b.stored("t", 0).Leader
	s := b.stored("t", 0)
	clear(b.out)
	b.stop(leader, before-1)
	b.settle()
	require.Equal(t, s, b.stored("t", 0))
	require.Empty(t, b.stopAnswers(leader))
}

// S-93: it is not admitted again, and gets nothing new.
func TestS093StoppingBrokerIsNotAdmitted(t *testing.T) {
	b := newMetaBench(t, 1, 2, 3)
	id := b.topicOf(2, nil)
	leader := b.stored("t", 0).Leader
	other := 3 - leader
	b.shrink(id, leader)
	b.stop(other, b.epochs[other])
	b.settle()
	clear(b.out)
	b.propose(id, leader, other)
	b.settle()
	require.Equal(t, []protocol.Code{protocol.Ineligible}, b.verdicts(leader))
	b.made(topicNamed("u", 2, 6, 2, 1))
	for n := range int32(6) {
		require.NotContains(t, b.stored("u", n).Replicas, other)
	}
	b.back(other)
	clear(b.out)
	b.propose(id, leader, other)
	b.settle()
	require.Equal(t, []protocol.Code{protocol.OK}, b.verdicts(leader))
}
