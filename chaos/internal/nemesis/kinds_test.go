package nemesis

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func drawn(t *testing.T, seed uint64, names ...string) (plans []plan) {
	from, err := find(names)
	require.NoError(t, err)
	n := &Nemesis{o: Options{SessionTimeout: time.Second, Only: len(names) > 0}, rng: rand.New(rand.NewPCG(seed, 1))}
	for range 400 {
		p := n.draw(from)
		p.inflict = nil // functions cannot be compared
		plans = append(plans, p)
	}
	return plans
}

func TestDraw(t *testing.T) {
	plans := drawn(t, 1)
	require.Equal(t, plans, drawn(t, 1), "a seed says it all")
	require.NotEqual(t, plans, drawn(t, 2))
	seen := make(map[string]int)
	outages := [2]int{}
	for _, p := range plans {
		seen[p.name]++
		require.GreaterOrEqual(t, p.hold, time.Duration(0))
		require.LessOrEqual(t, p.hold, 3*time.Second)
		if p.name == Outage && p.hold < time.Second {
			outages[0]++
		} else if p.name == Outage {
			outages[1]++
		}
	}
	require.Len(t, seen, len(kinds), "every kind comes")
	require.NotZero(t, outages[0], "shorter than a session")
	require.NotZero(t, outages[1], "longer than one")
	for _, p := range drawn(t, 1, Pause) {
		require.Equal(t, Pause, p.name)
		require.Equal(t, 2*time.Second, p.hold)
	}
}

func TestFind(t *testing.T) {
	none, err := find([]string{None})
	require.NoError(t, err)
	require.Empty(t, none)
	_, err = find([]string{"earthquake"})
	require.ErrorContains(t, err, Kill)
	require.Len(t, Names(), len(kinds)+1)
}
