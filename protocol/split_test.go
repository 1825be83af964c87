package protocol

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// numbered draws up to 12 items, each made from its place in the whole payload.
func numbered[T any](t *rapid.T, n *uint64, label string, make func(n uint64, size int) T) []T {
	var items []T
	for range rapid.IntRange(0, 12).Draw(t, label) {
		*n++
		items = append(items, make(*n, rapid.IntRange(0, 600).Draw(t, "size")))
	}
	return items
}

func drawPayload(t *rapid.T) (p Payload) {
	var n uint64
	id := func(n uint64) PartitionID { return PartitionID{Partition: int32(n)} }
	state := func(size int) *PartitionState {
		if size%2 == 0 {
			return nil
		}
		return &PartitionState{Replicas: make([]int32, size/4)}
	}
	p.Fetches = numbered(t, &n, "fetches", func(n uint64, _ int) Fetch { return Fetch{ID: id(n)} })
	p.FetchAnswers = numbered(t, &n, "fetch answers", func(n uint64, s int) FetchAnswer {
		return FetchAnswer{ID: id(n), Batches: [][]byte{make([]byte, s), make([]byte, s/2)}, State: state(s)}
	})
	p.Reports = numbered(t, &n, "reports", func(n uint64, _ int) Report { return Report{ID: id(n)} })
	p.Watermarks = numbered(t, &n, "watermarks", func(n uint64, _ int) Watermark { return Watermark{ID: id(n)} })
	p.Appends = numbered(t, &n, "appends", func(n uint64, s int) Append { return Append{Request: n, Batch: make([]byte, s)} })
	p.AppendAnswers = numbered(t, &n, "append answers", func(n uint64, s int) AppendAnswer { return AppendAnswer{Request: n, State: state(s)} })
	p.Reads = numbered(t, &n, "reads", func(n uint64, _ int) Read { return Read{Request: n} })
	p.ReadAnswers = numbered(t, &n, "read answers", func(n uint64, s int) ReadAnswer {
		return ReadAnswer{Request: n, Batches: [][]byte{make([]byte, s)}}
	})
	p.Proposals = numbered(t, &n, "proposals", func(n uint64, s int) Proposal { return Proposal{ID: id(n), ISR: make([]Member, s/12)} })
	p.Verdicts = numbered(t, &n, "verdicts", func(n uint64, s int) Verdict { return Verdict{ID: id(n), State: state(s)} })
	p.Updates = numbered(t, &n, "updates", func(n uint64, s int) Update {
		return Update{Seq: n, Topics: make([]Topic, s%3), States: make([]PartitionUpdate, s%2)}
	})
	p.UpdateAcks = numbered(t, &n, "update acks", func(n uint64, _ int) UpdateAck { return UpdateAck{Seq: n} })
	p.OrderReplies = numbered(t, &n, "order replies", func(n uint64, _ int) OrderReply { return OrderReply{ID: id(n)} })
	p.Commands = numbered(t, &n, "commands", func(n uint64, s int) Command {
		return Command{Request: n, Topic: Topic{Name: string(make([]byte, s))}}
	})
	p.CommandAnswers = numbered(t, &n, "command answers", func(n uint64, s int) CommandAnswer {
		return CommandAnswer{Request: n, Detail: string(make([]byte, s))}
	})
	return p
}

func TestSplit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPayload(t)
		max := messageSize + rapid.IntRange(1, 4000).Draw(t, "max")
		before := p.Size()
		parts := p.Split(max)
		var joined Payload
		size := 0
		for i, part := range parts {
			m := Message{Payload: part}
			require.True(t, !part.Empty() || len(parts) == 1, "an empty part")
			require.True(t, m.Size() <= max || part.items() == 1, "part of %d bytes and %d items, max %d", m.Size(), part.items(), max)
			if i > 0 {
				require.False(t, parts[i-1].Size()+part.Size()+messageSize <= max, "two parts that fit one message")
			}
			size += part.Size()
			joined.Merge(part)
		}
		require.Equal(t, p, joined, "every item once, in its order")
		require.Equal(t, before, size)
		require.Equal(t, before, p.Size(), "the payload is not changed")
	})
}

func TestSplitPutsControlFirst(t *testing.T) {
	p := Payload{ReadAnswers: []ReadAnswer{{Batches: [][]byte{make([]byte, 900)}}}, Verdicts: []Verdict{{}},
		FetchAnswers: []FetchAnswer{{Batches: [][]byte{make([]byte, 900)}}}, Updates: []Update{{Seq: 1}}}
	parts := p.Split(1100)
	require.Len(t, parts[0].Verdicts, 1)
	require.Len(t, parts[0].Updates, 1)
	require.Len(t, parts[len(parts)-1].ReadAnswers, 1)
}

func TestMerge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawPayload(t), drawPayload(t)
		items, size := a.items()+b.items(), a.Size()+b.Size()
		want := append(append([]Verdict{}, a.Verdicts...), b.Verdicts...)
		last := b
		a.Merge(b)
		require.Equal(t, items, a.items())
		require.Equal(t, size, a.Size())
		require.Equal(t, last, b)
		require.Equal(t, items == 0, a.Empty())
		for i := range want {
			require.Equal(t, want[i], a.Verdicts[i])
		}
	})
}
