package tidemark

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/protocol"
)

// EL-4: an election is not recorded for a leader that has gone meanwhile: the ISR
// would be handed to somebody who is not there, and whoever left it could not lead.
func TestElectionForALeaderThatHasGone(t *testing.T) {
	b := newMetaBench(t, 1, 2, 3)
	b.topicOf(2, nil)
	b.unregister(1)
	b.observe()
	b.turn()
	w := b.write()
	b.unregister(2) // not observed
	b.answer(w)
	b.reread()
	require.Equal(t, []int32{1, 2}, b.stored("t", 0).ISR)
	b.observe()
	b.settle()
	b.back(1)
	s := b.stored("t", 0)
	require.Equal(t, int32(1), s.Leader)
	require.Zero(t, s.UncleanEpoch)
}

// D17: a write that was refused once is refused for ever, also where it rests on a
// broker's absence: an earlier copy must not be applied when that broker goes again.
func TestRefusedWriteIsRefusedForEver(t *testing.T) {
	b := newMetaBench(t, 1, 2, 3)
	id := b.topicOf(2, unclean)
	b.shrink(id, 1)
	b.unregister(1)
	b.observe()
	b.turn()
	w := b.write()
	b.noAnswer(w) // it is on its way still
	b.pause()
	b.reread()
	again := b.write()
	require.Equal(t, w.txn, again.txn)
	b.register(1) // not observed
	b.answer(again)
	b.reread()
	b.unregister(1) // not observed either
	require.False(t, b.do(w.txn).Applied)
}

// D7: a registration that is not seen to be over holds up what rests on it, and
// nothing else.
func TestOnePartitionsRefusalDoesNotHoldUpOthers(t *testing.T) {
	b := newMetaBench(t, 1, 2, 3)
	b.command(topicNamed("t", 1, 3, 2, 1))
	b.settle()
	b.accept()
	var leads, follows [4]int
	for n := range int32(3) {
		s := b.stored("t", n)
		leads[s.Replicas[0]], follows[s.Replicas[1]] = int(n), int(n)
	}
	require.NotEqual(t, follows[2], follows[3])
	// Broker 1 goes, and 3 with it, unseen; what 1 leads is followed by 2 or 3.
	one := b.stored("t", int32(leads[1])).Replicas[1]
	other := 5 - one
	require.Equal(t, []int32{other, 1}, b.stored("t", int32(leads[other])).Replicas, "a ring")
	b.unregister(1)
	b.observe()
	b.turn()
	w := b.write()
	b.unregister(one) // not observed
	b.answer(w)
	b.reread()
	for range 3 {
		b.pause()
		b.settle()
	}
	require.Equal(t, []int32{other}, b.stored("t", int32(leads[other])).ISR, "the dead follower of the other one has left")
	require.Equal(t, int32(1), b.stored("t", int32(leads[1])).Leader)
}

// PL-7: creations that are under way count.
func TestCreationsAtOnceAreSpread(t *testing.T) {
	b := newMetaBench(t, 1, 2, 3)
	for i := range byte(9) {
		b.command(topicNamed(fmt.Sprint("t", i), i+1, 1, 3, 2))
	}
	b.settle()
	leads := make(map[int32]int)
	for i := range 9 {
		leads[b.stored(fmt.Sprint("t", i), 0).Leader]++
	}
	require.Equal(t, map[int32]int{1: 3, 2: 3, 3: 3}, leads)
}

// A creation whose answer was lost is looked for in few calls, however many
// partitions it has.
func TestLostCreationIsReadInOneCall(t *testing.T) {
	for _, arrived := range []bool{true, false} {
		b := newMetaBench(t, 1, 2, 3)
		request := b.command(topicNamed("t", 1, 500, 3, 2))
		b.turn()
		w := b.write()
		if arrived {
			b.do(w.txn)
		}
		b.noAnswer(w)
		b.pause()
		require.Len(t, b.rereads, 1)
		require.Less(t, len(b.rereads[0].keys), 10)
		b.reread()
		b.settle()
		b.accept()
		require.Contains(t, b.codes(), request)
		require.Equal(t, int32(499), b.m.topics["t"].parts[499].id.Partition)
	}
}

// A mark is taken off though the broker registered anew meanwhile, without asking
// again and again.
func TestClearedMarkMeetsANewerRegistration(t *testing.T) {
	b := newMetaBench(t, 1, 2, 3)
	b.wipe(3)
	b.register(3)
	b.observe()
	b.turn()
	w := b.write()
	b.register(3) // not observed
	b.answer(w)
	writes := 0
	for len(b.rereads)+len(b.writes) > 0 {
		if len(b.rereads) > 0 {
			b.reread()
			continue
		}
		writes++
		require.Less(t, writes, 3)
		b.answer(b.write())
	}
	replaced, _ := b.marks(3)
	require.False(t, replaced)
}

// What the Controller itself has told is not undone by a watch that is behind.
func TestLateWatchDoesNotBringBackAnOldController(t *testing.T) {
	m := newMember()
	m.onController(1, 5)
	_, taken, _ := m.onUpdate(2, &protocol.Update{ControllerEpoch: 6, Seq: 1, Full: true})
	require.True(t, taken)
	m.onController(1, 5)
	require.Equal(t, [2]int32{2, 6}, [2]int32{m.controller, m.controllerEpoch})
	m.onController(-1, 6)
	require.Equal(t, int32(-1), m.controller, "it has gone")
}
