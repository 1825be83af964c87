package tidemark

import (
	"maps"
	"slices"
)

// load counts what a broker already carries, for the placement of new partitions.
type load struct {
	leaders, replicas int
}

// ground is what new partitions can be placed on.
type ground struct {
	live, down []int32
	racks      map[int32]string // of both; brokers without one are of one rack
	carried    map[int32]load
}

// place assigns replicas to new partitions so that leaders and replicas are
// spread evenly over the brokers, counting what they carry already, and those of
// one partition over racks (M15, PL-5 to PL-7). The first of each list is the
// preferred leader. Brokers that are down are used only when the live ones do not
// suffice, and never first. It returns nil when there are fewer brokers than
// replicas.
func place(partitions, replicationFactor int, on ground) [][]int32 {
	if len(on.live) == 0 || replicationFactor > len(on.live)+len(on.down) {
		return nil
	}
	counts := maps.Clone(on.carried)
	if counts == nil {
		counts = make(map[int32]load)
	}
	pairs := make(map[[2]int32]int) // how often a broker follows another one
	out := make([][]int32, partitions)
	for p := range out {
		// Leaders count first; of two equal ones, the broker with fewer replicas.
		leader := pick(on.live, nil, p, func(b int32) int { return counts[b].leaders<<20 + counts[b].replicas })
		inRack := map[string]int{on.racks[leader]: 1}
		// The rack that has fewest of this partition counts first; then how much a broker
		// carries, and how often it follows this leader already: when the leader fails,
		// its load spreads.
		follows := func(b int32) int {
			return inRack[on.racks[b]]<<40 + counts[b].replicas + pairs[[2]int32{leader, b}]
		}
		begin := p + 1 + p/len(on.live) // one further with every round of leaders
		assigned := []int32{leader}
		for len(assigned) < replicationFactor {
			next := pick(on.live, assigned, begin, follows)
			if next < 0 {
				next = pick(on.down, assigned, begin, follows)
			}
			assigned = append(assigned, next)
			inRack[on.racks[next]]++
			pairs[[2]int32{leader, next}]++
		}
		for i, b := range assigned {
			l := counts[b]
			l.replicas++
			if i == 0 {
				l.leaders++
			}
			counts[b] = l
		}
		out[p] = assigned
	}
	return out
}

// pick returns the lightest of the brokers that are not taken, beginning at a
// place of its own among equals; -1 when all are taken.
func pick(from, taken []int32, begin int, weight func(int32) int) int32 {
	best, bestAt := int32(-1), 0
	for i := range from {
		b := from[(begin+i)%len(from)]
		if slices.Contains(taken, b) {
			continue
		}
		if w := weight(b); best < 0 || w < bestAt {
			best, bestAt = b, w
		}
	}
	return best
}
