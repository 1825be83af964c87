package tidemark

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/storage"
)

// stepBench is the cores of three brokers with nothing between and under them: what one
// sends is there at once, and what it writes is stored at once.
type stepBench struct {
	b      testing.TB
	shards map[int32]*shard
	now    time.Duration
	acked  int
}

func newStepBench(b testing.TB, partitions int) *stepBench {
	s := &stepBench{b: b, shards: make(map[int32]*shard), now: time.Hour}
	for self := range int32(3) {
		sh := newShard(rigConfig(), self+1)
		sh.env.brokerEpoch, sh.env.controller = life(self+1), controllerView{epoch: 1, reachable: true, storeOK: true}
		for peer := int32(1); peer <= 3; peer++ {
			sh.env.brokers[peer] = life(peer)
			if peer != self+1 {
				sh.onLink(peer, life(peer), true)
			}
		}
		s.shards[self+1] = sh
	}
	state := protocol.PartitionState{
		Version: 1, Leader: 1, LeaderBrokerEpoch: life(1), Replicas: []int32{1, 2, 3}, ISR: []int32{1, 2, 3}, MinISR: 2,
	}
	for self := int32(1); self <= 3; self++ {
		for n := range partitions {
			id := stepPartition(n)
			s.shards[self].load(id, storage.NewState())
			s.shards[self].onState(s.now, id, &state)
		}
		s.finish(self)
	}
	return s
}

func stepPartition(n int) protocol.PartitionID {
	return protocol.PartitionID{Topic: protocol.UUID{1}, Partition: int32(n)}
}

// finish ends the turn of one broker, and all turns that follow from it.
func (s *stepBench) finish(self int32) {
	sh := s.shards[self]
	for peer := range sh.env.links {
		sh.onCredit(peer, linkWindow)
	}
	eff := sh.finish(s.now)
	for peer, p := range eff.out {
		if peer == self {
			s.acked += len(p.AppendAnswers)
			continue
		}
		s.shards[peer].onPayload(s.now, self, life(self), p)
	}
	for i := range eff.ops {
		sh.onStored(eff.ops[i].Log, 1, nil)
	}
	if len(eff.ops) > 0 {
		s.finish(self)
	}
	for peer := range eff.out {
		if peer != self {
			s.finish(peer)
		}
	}
}

// BenchmarkStep takes appends of one batch each through the cores of a leader and two
// followers until they are acknowledged; one turn takes up appends of that many partitions.
func BenchmarkStep(b *testing.B) {
	for _, partitions := range []int{1, 16, 1000} {
		b.Run(fmt.Sprintf("%d partitions", partitions), func(b *testing.B) {
			s := newStepBench(b, partitions)
			var turn protocol.Payload
			for n := range partitions {
				turn.Appends = append(turn.Appends, protocol.Append{
					ID: stepPartition(n), Request: uint64(n + 1), LeaderEpoch: -1, Acks: protocol.AcksAll, Batch: batchOf(b, 1, "value"),
				})
			}
			b.ReportAllocs()
			turns := 0
			for b.Loop() {
				s.shards[1].onPayload(s.now, 1, life(1), &turn)
				s.finish(1)
				turns++
			}
			require.Equal(b, turns*partitions, s.acked)
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(turns*partitions), "ns/append")
		})
	}
}
