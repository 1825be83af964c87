package zookeeper_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/coordination/zookeeper"
	"github.com/tidemark-log/tidemark/protocol"
)

// states are the state keys of partitions, in transactions as the Controller makes them.
func states(from, to int, leader int32) (ops []coordination.Op) {
	for i := from; i < to; i++ {
		value, _ := json.Marshal(protocol.PartitionState{
			Version: 1, Leader: leader, LeaderEpoch: 3, LeaderBrokerEpoch: 1 << 33, ControllerEpoch: 2,
			ISR: []int32{1, 2, 3}, Replicas: []int32{1, 2, 3}, MinISR: 2,
		})
		ops = append(ops, coordination.Op{Key: fmt.Sprintf("/brokers/topics/orders/partitions/%d/state", i), Value: value})
	}
	return ops
}

func fill(b *testing.B, partitions int) (*zookeeper.Store, zookeeper.Config) {
	s, c := fresh(b)
	for i := 0; i < partitions; i += coordination.MaxTxnOps {
		do(b, s, states(i, min(i+coordination.MaxTxnOps, partitions), 1)...)
	}
	return s, c
}

func BenchmarkList(b *testing.B) {
	for _, n := range []int{1000, 20_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s, _ := fill(b, n)
			for b.Loop() {
				kvs, _, err := s.List(b.Context(), "/brokers/topics/")
				require.NoError(b, err)
				require.Len(b, kvs, n)
			}
		})
	}
}

// BenchmarkDo is one key at a time, and as many as a transaction may have: what it costs,
// and what it takes on the wire.
func BenchmarkDo(b *testing.B) {
	for _, n := range []int{1, coordination.MaxTxnOps} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s, _ := fill(b, n)
			kvs, _, err := s.List(b.Context(), "")
			require.NoError(b, err)
			rev := kvs[0].Revision
			for b.Loop() {
				t := coordination.Txn{Ops: states(0, n, 2)}
				for _, op := range t.Ops {
					t.Guards = append(t.Guards, coordination.Guard{Key: op.Key, Revision: rev})
				}
				res, err := s.Do(b.Context(), t)
				require.NoError(b, err)
				require.True(b, res.Applied)
				rev = res.Revision
			}
		})
	}
}

func BenchmarkGet(b *testing.B) {
	s, _ := fill(b, 1)
	for b.Loop() {
		_, ok, err := s.Get(b.Context(), "/brokers/topics/orders/partitions/0/state")
		require.NoError(b, err)
		require.True(b, ok)
	}
}

// BenchmarkWatch is the time from a write to the event of it at another Store.
func BenchmarkWatch(b *testing.B) {
	s, c := fill(b, 1)
	other := open(b, c)
	ch := watch(b, other, "/brokers/", do(b, s, put("/x", "")))
	for b.Loop() {
		do(b, s, states(0, 1, 2)...)
		require.NoError(b, next(b, ch).Err)
	}
}
