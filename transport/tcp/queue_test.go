package tcp

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/protocol"
)

// The queue does what a slow and simple one does.
func TestQueueAgainstModel(t *testing.T) {
	const limit = 100_000
	for seed := range uint64(50) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		var (
			q               queue
			urgents, others []queued // the model
			taken           []queued
		)
		cost := func() (n, bytes int) {
			for _, e := range slices.Concat(urgents, others, taken) {
				n, bytes = n+1, bytes+e.cost()
			}
			return n, bytes
		}
		for now := range time.Duration(500) {
			switch op := rnd.IntN(100); {
			case op < 70:
				m := &protocol.Message{Kind: protocol.Kind(1 + rnd.IntN(5)), Session: rnd.Uint64N(3)}
				if rnd.IntN(20) > 0 && m.Kind != protocol.Heartbeat {
					m.Kind = protocol.Data
				}
				e := queued{m: m, size: rnd.IntN(5000), at: now}
				n, bytes := cost()
				kept := others
				switch m.Kind {
				case protocol.Hello, protocol.Welcome:
					kept = slices.DeleteFunc(slices.Clone(others), func(o queued) bool { return o.m.Session != m.Session })
				case protocol.Reset:
					kept = slices.DeleteFunc(slices.Clone(others), func(o queued) bool { return o.m.Session == m.Session })
				}
				want := urgent(m.Kind) || n == 0 || bytes+e.cost() <= limit
				ok, superseded := q.add(e, limit)
				require.Equal(t, want, ok)
				require.Equal(t, len(others)-len(kept), superseded)
				others = kept
				if ok && urgent(m.Kind) {
					urgents = append(urgents, e)
				} else if ok {
					others = append(others, e)
				}
			case op < 90:
				got := q.take(nil, 10_000)
				size := 0
				for _, e := range got {
					require.Less(t, size, 10_000)
					size += e.size
					from := &urgents
					if len(urgents) == 0 {
						from = &others
					}
					require.Equal(t, (*from)[0], e)
					*from = (*from)[1:]
					taken = append(taken, e)
				}
				require.True(t, size >= 10_000 || len(urgents)+len(others) == 0)
			case op < 97:
				for i := range taken {
					q.done(&taken[i])
				}
				taken = nil
			case op < 99:
				old := func(e queued) bool { return e.at < now-50 }
				n := len(urgents) + len(others)
				urgents, others = slices.DeleteFunc(urgents, old), slices.DeleteFunc(others, old)
				require.Equal(t, n-len(urgents)-len(others), q.dropBefore(now-50))
			default:
				require.Equal(t, len(others), q.dropOrdered())
				others = nil
			}
			n, bytes := cost()
			require.Equal(t, n, q.messages)
			require.Equal(t, bytes, q.bytes)
		}
	}
}

// Link control finds room beside bulk, but is bounded too.
func TestQueueOfLinkControl(t *testing.T) {
	var q queue
	data := queued{m: &protocol.Message{Kind: protocol.Data}, size: 1000}
	ok, _ := q.add(data, 100)
	require.True(t, ok, "one is always taken")
	ok, _ = q.add(data, 100)
	require.False(t, ok)
	for range maxUrgent {
		ok, _ = q.add(queued{m: &protocol.Message{Kind: protocol.Hello}}, 100)
		require.True(t, ok)
	}
	ok, _ = q.add(queued{m: &protocol.Message{Kind: protocol.Hello}}, 100)
	require.False(t, ok)
}

func TestBackoff(t *testing.T) {
	require.Zero(t, backoff(0))
	for failures, most := range map[int]time.Duration{1: 50 * time.Millisecond, 2: 100 * time.Millisecond, 5: 800 * time.Millisecond, 6: time.Second, 1000: time.Second} {
		seen := map[time.Duration]bool{}
		for range 100 {
			d := backoff(failures)
			require.GreaterOrEqual(t, d, most/2)
			require.LessOrEqual(t, d, most)
			seen[d] = true
		}
		require.Greater(t, len(seen), 10, "no jitter")
	}
}
