package tidemark

import (
	"maps"
	"slices"

	"github.com/tidemark-log/tidemark/protocol"
)

// candidates is what an election needs to know of the brokers.
type candidates interface {
	// registered returns the broker's present broker epoch; 0: not registered, or
	// unable to carry this partition.
	registered(broker int32) int64
	// replaced reports that the broker came back with another directory, and so
	// without the data that its memberships vouch for (D15).
	replaced(broker int32) bool
}

// decide returns the state that a partition should have, given which brokers
// are there, and whether that is a change. It is the whole of leader election:
//
//   - A member whose directory was replaced leaves the ISR, unless it is the last.
//   - Dead members leave only in a write that keeps a live one; otherwise the
//     ISR stays whole, so that the last holders can be recognised (EL-4, D17).
//   - A valid leader stays (EL-1.1). A leader whose broker registered anew has failed (D11).
//   - Else the first replica in AR order that is in the ISR and there (EL-1.2); else none.
//
// force says that the present leader epoch was refused; the next one is then
// above floor, the highest epoch that a replica answered with.
func decide(s *protocol.PartitionState, c candidates, force bool, floor int32, planted plantedBugs) (protocol.PartitionState, bool) {
	isr := keepIfAny(s.ISR, func(b int32) bool { return !c.replaced(b) })
	isr = keepIfAny(isr, func(b int32) bool { return c.registered(b) != 0 })
	valid := func(b int32) bool { return slices.Contains(isr, b) && c.registered(b) != 0 && !c.replaced(b) }

	leader, leaderBrokerEpoch := s.Leader, s.LeaderBrokerEpoch
	stays := leader != protocol.NoLeader && valid(leader) && !force &&
		(c.registered(leader) == leaderBrokerEpoch || planted.sameEpochAgain)
	if !stays {
		leader, leaderBrokerEpoch = protocol.NoLeader, -1
		if i := slices.IndexFunc(s.Replicas, valid); i >= 0 {
			leader = s.Replicas[i]
			leaderBrokerEpoch = c.registered(leader)
		}
	}
	newLeader := leader != s.Leader || leaderBrokerEpoch != s.LeaderBrokerEpoch || (force && leader != protocol.NoLeader)
	if !newLeader && len(isr) == len(s.ISR) {
		return *s, false
	}
	next := s.Clone()
	next.ISR = isr
	next.PartitionEpoch++
	if newLeader {
		next.Leader, next.LeaderBrokerEpoch = leader, leaderBrokerEpoch
		next.LeaderEpoch = max(s.LeaderEpoch, floor) + 1
	}
	return next, true
}

// keepIfAny filters brokers, but keeps them all when none would be left.
func keepIfAny(brokers []int32, keep func(int32) bool) []int32 {
	var kept []int32
	for _, b := range brokers {
		if keep(b) {
			kept = append(kept, b)
		}
	}
	if len(kept) == 0 {
		return slices.Clone(brokers)
	}
	return kept
}

// load counts what a broker already carries, for the placement of new partitions.
type load struct {
	leaders, replicas int
}

// place assigns replicas to new partitions so that leaders and replicas are
// spread evenly over the brokers, counting what they carry already (M15, PL-6,
// PL-7). The first of each list is the preferred leader. Brokers that are down
// are used only when the live ones do not suffice, and never first. It returns
// nil when there are fewer brokers than replicas.
func place(partitions, replicationFactor int, live, down []int32, carried map[int32]load) [][]int32 {
	if len(live) == 0 || replicationFactor > len(live)+len(down) {
		return nil
	}
	counts := maps.Clone(carried)
	if counts == nil {
		counts = make(map[int32]load)
	}
	pairs := make(map[[2]int32]int) // how often a broker follows another one
	out := make([][]int32, partitions)
	for p := range out {
		// Leaders count first; of two equal ones, the broker with fewer replicas.
		leader := pick(live, nil, p, func(b int32) int { return counts[b].leaders<<20 + counts[b].replicas })
		// Of two that carry the same, the one that follows this leader less often: when
		// the leader fails, its load spreads.
		follows := func(b int32) int { return counts[b].replicas<<20 + pairs[[2]int32{leader, b}] }
		begin := p + 1 + p/len(live) // one further with every round of leaders
		assigned := []int32{leader}
		for len(assigned) < replicationFactor {
			next := pick(live, assigned, begin, follows)
			if next < 0 {
				next = pick(down, assigned, begin, follows)
			}
			assigned = append(assigned, next)
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

// newPartition is the first state of a partition (PL-1, S-115): the live
// replicas are in sync, because there is nothing yet that they could lack.
func newPartition(replicas []int32, minISR int32, c candidates) protocol.PartitionState {
	s := protocol.PartitionState{
		Version: protocol.StateVersion, Leader: protocol.NoLeader, LeaderBrokerEpoch: -1,
		Replicas: replicas, MinISR: min(minISR, int32(len(replicas))), // S-36
	}
	for _, b := range replicas {
		if epoch := c.registered(b); epoch != 0 && !c.replaced(b) {
			s.ISR = append(s.ISR, b)
			if s.Leader == protocol.NoLeader {
				s.Leader, s.LeaderBrokerEpoch = b, epoch
			}
		}
	}
	return s
}
