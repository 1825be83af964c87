package tidemark

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/protocol"
)

// S-16: two replicas bounce one after the other, again and again, with a record
// in between. After every bounce both have everything, and both are in sync.
func TestS016FastBounces(t *testing.T) {
	s := newScript(t)
	s.w = newSimWorld(t, 1, 2)
	topic := s.w.createTopic("t", TopicConfig{Partitions: 1, ReplicationFactor: 2, MinISR: 1})
	id := protocol.PartitionID{Topic: topic.ID}
	whole := func(n int64, when string) {
		t.Helper()
		st := s.w.stored("t", 0)
		for range 100 {
			if st = s.w.stored("t", 0); len(st.ISR) == 2 && st.Leader >= 0 && st.LeaderBrokerEpoch == s.w.records.live[st.Leader] {
				break
			}
			s.settle(20 * time.Millisecond)
		}
		require.Len(t, st.ISR, 2, when)
		s.settle(50 * time.Millisecond)
		for _, b := range s.w.up() {
			r := b.broker.loops[0].shard.replicas[id]
			require.Equal(t, []int64{n, n, n}, []int64{r.end, r.stored, r.hw}, "broker %d %s", b.id, when)
		}
		require.NoError(t, s.w.check.err(), when)
	}
	bounce := func(b *simBroker, away time.Duration) {
		b.crash(0)
		s.settle(away)
		b.start()
		s.settle(50 * time.Millisecond)
	}
	for round := range int64(5) {
		whole(round, "at first")
		lead := s.w.stored("t", 0).Leader
		s.w.append(s.w.brokers[lead], id, AcksLeader)
		s.settle(20 * time.Millisecond)
		away := time.Duration(0)
		if round%2 == 0 { // long enough to be held for dead, and to leave the ISR
			away = simSession + simSession/10
		}
		bounce(s.w.brokers[3-lead], away)
		whole(round+1, fmt.Sprintf("after the follower's bounce %d", round))
		bounce(s.w.brokers[s.w.stored("t", 0).Leader], away)
		whole(round+1, fmt.Sprintf("after the leader's bounce %d", round))
	}
	require.GreaterOrEqual(t, s.w.stored("t", 0).LeaderEpoch, int32(5), "every bounce of a leader ended its epoch")
}
