package tidemark

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/protocol"
)

func TestRequests(t *testing.T) {
	q := newRequests(func() uint64 { return 0 }, "lost", "closed")
	var got []string
	add := func(peer int32, name string) uint64 {
		id := q.add(peer, func(a string) { got = append(got, name+" "+a) })
		require.NotZero(t, id)
		return id
	}
	a, b, c, d := add(1, "a"), add(2, "b"), add(1, "c"), add(1, "d")
	require.Equal(t, 4, q.open())
	q.finish(2, a, "of another broker")
	q.finish(1, 999, "never asked")
	require.Empty(t, got)
	q.finish(1, a, "yes")
	q.finish(1, a, "again")
	require.Equal(t, []string{"a yes"}, got)

	require.True(t, q.drop(d))
	require.False(t, q.drop(d))
	require.False(t, q.drop(a), "answered")
	q.finish(1, d, "dropped")

	e := add(1, "e")
	q.lose(1)
	require.Equal(t, []string{"a yes", "c lost", "e lost"}, got, "in the order in which they were asked")
	q.finish(1, c, "late")
	q.finish(1, e, "late")
	require.Equal(t, 1, q.open())

	q.close()
	require.Equal(t, []string{"a yes", "c lost", "e lost", "b closed"}, got)
	q.finish(2, b, "late")
	require.Zero(t, q.add(2, func(string) { t.Error("called") }))
	q.close()
	require.Zero(t, q.open())
}

// A request ends once, whoever is quicker.
func TestRequestsEndOnce(t *testing.T) {
	q := newRequests(func() uint64 { return 0 }, -1, -2)
	const n = 500
	ends := make([]int, n)
	ids := make([]uint64, n)
	for i := range n {
		ids[i] = q.add(int32(i%3), func(int) { ends[i]++ })
	}
	var wg sync.WaitGroup
	for peer := range int32(3) {
		wg.Go(func() { q.lose(peer) })
		wg.Go(func() {
			for i, id := range ids {
				q.finish(int32(i%3), id, i)
			}
		})
	}
	wg.Go(func() {
		for i, id := range ids {
			if q.drop(id) {
				ends[i]++
			}
		}
	})
	wg.Wait()
	for i := range n {
		require.Equal(t, 1, ends[i], "request %d", i)
	}
}

// The numbers of a process do not begin where those of another one did, so that no
// answer to the one fits a request of the other.
func TestRequestNumbersBeginByChance(t *testing.T) {
	a, b := newBroker(Config{ID: 1}.withDefaults()), newBroker(Config{ID: 1}.withDefaults())
	first := a.appends.add(1, func(protocol.AppendAnswer) {})
	require.NotZero(t, first)
	require.Equal(t, first+1, a.appends.add(1, func(protocol.AppendAnswer) {}))
	require.NotEqual(t, first, b.appends.add(1, func(protocol.AppendAnswer) {}))
	require.NotEqual(t, a.reads.add(1, func(protocol.ReadAnswer) {}), b.reads.add(1, func(protocol.ReadAnswer) {}))
	require.NotEqual(t, a.commands.add(1, func(protocol.CommandAnswer) {}), b.commands.add(1, func(protocol.CommandAnswer) {}))
}
