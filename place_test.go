package tidemark

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// spread are the numbers of leaders and of replicas that each broker got.
func spread(brokers []int32, assignments ...[][]int32) (leaders, replicas map[int32]int) {
	leaders, replicas = make(map[int32]int), make(map[int32]int)
	for _, b := range brokers {
		leaders[b], replicas[b] = 0, 0
	}
	for _, a := range assignments {
		for _, list := range a {
			leaders[list[0]]++
			for _, b := range list {
				replicas[b]++
			}
		}
	}
	return leaders, replicas
}

func unevenness(n map[int32]int) int {
	all := slices.Collect(maps.Values(n))
	return slices.Max(all) - slices.Min(all)
}

// PL-6: one topic on equal brokers.
func TestPlacementOfOneTopic(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 12).Draw(t, "live")
		down := rapid.IntRange(0, 3).Draw(t, "down")
		rf := rapid.IntRange(1, n+down).Draw(t, "rf")
		partitions := rapid.IntRange(1, 60).Draw(t, "partitions")
		var live, gone []int32
		for i := range n {
			live = append(live, int32(i*3+1))
		}
		for i := range down {
			gone = append(gone, int32(i*3+2))
		}
		a := place(partitions, rf, ground{live: live, down: gone})
		require.Len(t, a, partitions)
		for _, list := range a {
			require.Len(t, list, rf)
			distinct := slices.Clone(list)
			slices.Sort(distinct)
			require.Len(t, slices.Compact(distinct), rf, "a broker twice in %v", list)
			require.Contains(t, live, list[0], "a broker that is down leads")
			for i, b := range list {
				if slices.Contains(gone, b) {
					require.GreaterOrEqual(t, i, n, "a live broker was left out of %v", list)
				}
			}
		}
		leaders, replicas := spread(live, a)
		require.LessOrEqual(t, unevenness(leaders), 1, "leaders %v", leaders)
		if rf <= n { // leaders count first, which may cost the replicas one
			require.LessOrEqual(t, unevenness(replicas), 2, "replicas %v", replicas)
		}
		require.Nil(t, place(partitions, n+down+1, ground{live: live, down: gone}))
		require.Nil(t, place(partitions, 1, ground{down: gone}))
	})
}

// PL-7: topics come one after the other, also such with one partition only, and
// the whole stays even.
func TestPlacementOfManyTopics(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 8).Draw(t, "brokers")
		var live []int32
		for i := range n {
			live = append(live, int32(i+1))
		}
		rf := rapid.IntRange(1, n).Draw(t, "rf")
		carried := make(map[int32]load)
		var all [][][]int32
		for range rapid.IntRange(1, 40).Draw(t, "topics") {
			partitions := rapid.SampledFrom([]int{1, 1, 1, 2, 5}).Draw(t, "partitions")
			before := maps.Clone(carried)
			a := place(partitions, rf, ground{live: live, carried: carried})
			require.Equal(t, before, carried, "the count it was given was changed")
			for _, list := range a {
				for i, b := range list {
					l := carried[b]
					l.replicas++
					if i == 0 {
						l.leaders++
					}
					carried[b] = l
				}
			}
			all = append(all, a)
		}
		leaders, replicas := spread(live, all...)
		require.LessOrEqual(t, unevenness(leaders), 1, "leaders %v", leaders)
		require.LessOrEqual(t, unevenness(replicas), 2, "replicas %v", replicas)
	})
}

// A new broker takes the new leaderships until it has caught up with the others.
func TestPlacementFillsNewBrokers(t *testing.T) {
	carried := map[int32]load{1: {10, 20}, 2: {10, 20}}
	leaders, replicas := spread([]int32{1, 2, 3}, place(12, 2, ground{live: []int32{1, 2, 3}, carried: carried}))
	require.GreaterOrEqual(t, leaders[3], 10)
	require.Equal(t, 12, replicas[3])
}

// The followers of one leader differ from partition to partition, so that its
// load spreads when it fails.
func TestPlacementVariesFollowers(t *testing.T) {
	second := make(map[int32]map[int32]bool)
	for _, list := range place(60, 3, ground{live: []int32{1, 2, 3, 4, 5}}) {
		if second[list[0]] == nil {
			second[list[0]] = make(map[int32]bool)
		}
		second[list[0]][list[1]] = true
	}
	for leader, followers := range second {
		require.GreaterOrEqual(t, len(followers), 3, "of leader %d: %v", leader, followers)
	}
}

// PL-5, PL-6, S-128: whatever the racks and brokers are, the replicas of a partition
// lie as far apart as they can, leaders are even, and the same question has the same
// answer.
func TestPlacementOverRacks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 12).Draw(t, "brokers")
		on := ground{racks: make(map[int32]string), carried: make(map[int32]load)}
		size := make(map[string]int)
		for i := range n {
			b := int32(i*2 + 1)
			rack := rapid.SampledFrom([]string{"", "a", "b", "c", "d"}).Draw(t, "rack")
			on.live = append(on.live, b)
			on.racks[b] = rack
			size[rack]++
		}
		rf := rapid.IntRange(1, n).Draw(t, "rf")
		partitions := rapid.IntRange(1, 50).Draw(t, "partitions")
		a := place(partitions, rf, on)
		require.Equal(t, a, place(partitions, rf, on))
		for _, list := range a {
			require.Len(t, list, rf)
			distinct := slices.Clone(list)
			slices.Sort(distinct)
			require.Len(t, slices.Compact(distinct), rf, "a broker twice in %v", list)
			in := make(map[string]int)
			for _, b := range list {
				in[on.racks[b]]++
			}
			for full := range in {
				for rack := range size {
					require.False(t, in[rack] < size[rack] && in[full] > in[rack]+1,
						"%v: rack %q has %d, and %q, with room, %d", list, full, in[full], rack, in[rack])
				}
			}
		}
		leaders, _ := spread(on.live, a)
		require.LessOrEqual(t, unevenness(leaders), 1, "leaders %v", leaders)

		// One that is down takes part only when the live ones do not suffice, whatever its rack.
		down := rapid.SampledFrom(on.live).Draw(t, "down")
		less := on
		less.live, less.down = slices.DeleteFunc(slices.Clone(on.live), func(b int32) bool { return b == down }), []int32{down}
		for _, list := range place(partitions, rf, less) {
			require.NotEqual(t, down, list[0])
			require.True(t, rf == n || !slices.Contains(list, down))
		}
	})
}

// PL-6: racks of one size get their share to the replica, and so does every broker.
func TestPlacementOverEqualRacks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		racks, each := rapid.IntRange(1, 4).Draw(t, "racks"), rapid.IntRange(1, 3).Draw(t, "brokers of each")
		on := ground{racks: make(map[int32]string)}
		for b := range int32(racks * each) {
			on.live = append(on.live, b)
			on.racks[b] = string(rune('a' + int(b)%racks))
		}
		rf := rapid.IntRange(1, len(on.live)).Draw(t, "rf")
		a := place(rapid.IntRange(1, 60).Draw(t, "partitions"), rf, on)
		for _, list := range a {
			in := make(map[string]int)
			for _, b := range list {
				in[on.racks[b]]++
			}
			for _, n := range in {
				require.True(t, n == rf/racks || n == (rf+racks-1)/racks, "%v in racks: %v", list, in)
			}
		}
		leaders, replicas := spread(on.live, a)
		require.LessOrEqual(t, unevenness(leaders), 1, "leaders %v", leaders)
		require.LessOrEqual(t, unevenness(replicas), 2, "replicas %v", replicas)
	})
}

// Followers vary over racks, too: each broker of the other racks takes its part when
// a leader fails.
func TestPlacementOverRacksVariesFollowers(t *testing.T) {
	on := ground{live: []int32{0, 1, 2, 3, 4, 5}, racks: map[int32]string{0: "a", 1: "b", 2: "c", 3: "a", 4: "b", 5: "c"}}
	follow := make(map[int32]map[int32]int)
	for _, list := range place(60, 3, on) {
		if follow[list[0]] == nil {
			follow[list[0]] = make(map[int32]int)
		}
		for _, b := range list[1:] {
			follow[list[0]][b]++
		}
	}
	for leader, n := range follow {
		require.Len(t, n, 4, "of leader %d", leader)
		require.LessOrEqual(t, unevenness(n), 2, "of leader %d: %v", leader, n)
	}
}
