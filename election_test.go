package tidemark

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tidemark-log/tidemark/protocol"
)

// registry of an election: broker epochs of those that are there, and whose
// directory was replaced.
type testBrokers struct {
	epochs map[int32]int64
	wiped  []int32
}

func (c testBrokers) registered(b int32) int64 { return c.epochs[b] }
func (c testBrokers) replaced(b int32) bool    { return slices.Contains(c.wiped, b) }

// up are brokers that are there, each with ten times its id as broker epoch.
func up(ids ...int32) testBrokers {
	c := testBrokers{epochs: make(map[int32]int64)}
	for _, id := range ids {
		c.epochs[id] = int64(id) * 10
	}
	return c
}

func partitionState(leader int32, replicas, isr []int32) protocol.PartitionState {
	s := protocol.PartitionState{
		Version: 1, Leader: leader, LeaderEpoch: 5, LeaderBrokerEpoch: -1, PartitionEpoch: 9, Replicas: replicas, ISR: isr, MinISR: 1,
	}
	if leader >= 0 {
		s.LeaderBrokerEpoch = int64(leader) * 10
	}
	return s
}

func TestS083ElectionTable(t *testing.T) {
	ar := []int32{2, 4}
	for name, c := range map[string]struct {
		state   protocol.PartitionState
		brokers testBrokers
		force   bool
		floor   int32
		leader  int32
		isr     []int32
		epoch   int32 // leader epoch; 5: as before
		same    bool  // no change at all
	}{
		"leader dead, other in sync":      {state: partitionState(2, ar, []int32{2, 4}), brokers: up(4), leader: 4, isr: []int32{4}, epoch: 6},
		"leader dead, other not in sync":  {state: partitionState(2, ar, []int32{2}), brokers: up(4), leader: -1, isr: []int32{2}, epoch: 6},
		"none, other not in sync":         {state: partitionState(-1, ar, []int32{2}), brokers: up(4), leader: -1, isr: []int32{2}, epoch: 5, same: true},
		"none, a member is back":          {state: partitionState(-1, ar, []int32{2}), brokers: up(2, 4), leader: 2, isr: []int32{2}, epoch: 6},
		"all dead":                        {state: partitionState(2, ar, []int32{2, 4}), brokers: up(), leader: -1, isr: []int32{2, 4}, epoch: 6},
		"valid leader stays":              {state: partitionState(4, ar, []int32{2, 4}), brokers: up(2, 4), leader: 4, isr: []int32{2, 4}, epoch: 5, same: true},
		"follower dead, leader stays":     {state: partitionState(4, ar, []int32{2, 4}), brokers: up(4), leader: 4, isr: []int32{4}, epoch: 5},
		"order is that of AR, not of ISR": {state: partitionState(-1, ar, []int32{4, 2}), brokers: up(2, 4), leader: 2, isr: []int32{4, 2}, epoch: 6},
		"leader's broker began another life": {state: partitionState(4, ar, []int32{2, 4}), brokers: testBrokers{epochs: map[int32]int64{2: 20, 4: 41}},
			leader: 2, isr: []int32{2, 4}, epoch: 6},
		"sole leader began another life": {state: partitionState(4, ar, []int32{4}), brokers: testBrokers{epochs: map[int32]int64{2: 20, 4: 41}},
			leader: 4, isr: []int32{4}, epoch: 6},
		"refused, above all answers":       {state: partitionState(2, ar, []int32{2, 4}), brokers: up(2, 4), force: true, floor: 11, leader: 2, isr: []int32{2, 4}, epoch: 12},
		"refused, floor is lower":          {state: partitionState(2, ar, []int32{2, 4}), brokers: up(2, 4), force: true, floor: 3, leader: 2, isr: []int32{2, 4}, epoch: 6},
		"refused, and nobody is there":     {state: partitionState(-1, ar, []int32{2, 4}), brokers: up(), force: true, floor: 11, leader: -1, isr: []int32{2, 4}, epoch: 5, same: true},
		"floor counts without force":       {state: partitionState(2, ar, []int32{2, 4}), brokers: up(4), floor: 11, leader: 4, isr: []int32{4}, epoch: 12},
		"replaced leader leaves":           {state: partitionState(2, ar, []int32{2, 4}), brokers: testBrokers{up(2, 4).epochs, []int32{2}}, leader: 4, isr: []int32{4}, epoch: 6},
		"replaced follower leaves":         {state: partitionState(2, ar, []int32{2, 4}), brokers: testBrokers{up(2, 4).epochs, []int32{4}}, leader: 2, isr: []int32{2}, epoch: 5},
		"replaced sole member stays":       {state: partitionState(2, ar, []int32{2}), brokers: testBrokers{up(2, 4).epochs, []int32{2}}, leader: -1, isr: []int32{2}, epoch: 6},
		"replaced, the only other dead":    {state: partitionState(2, ar, []int32{2, 4}), brokers: testBrokers{up(2).epochs, []int32{2}}, leader: -1, isr: []int32{4}, epoch: 6},
		"replaced stranger does no harm":   {state: partitionState(2, ar, []int32{2}), brokers: testBrokers{up(2, 4).epochs, []int32{4}}, leader: 2, isr: []int32{2}, epoch: 5, same: true},
		"all replaced: whoever was, stays": {state: partitionState(2, ar, []int32{2, 4}), brokers: testBrokers{up(2, 4).epochs, []int32{2, 4}}, leader: -1, isr: []int32{2, 4}, epoch: 6},
	} {
		t.Run(name, func(t *testing.T) {
			before := c.state.Clone()
			next, changed := decide(&c.state, c.brokers, c.force, c.floor, plantedBugs{})
			require.Equal(t, before, c.state, "the state itself was changed")
			require.Equal(t, !c.same, changed)
			require.Equal(t, c.leader, next.Leader)
			require.Equal(t, c.isr, next.ISR)
			require.Equal(t, c.epoch, next.LeaderEpoch)
			want := int64(-1)
			if c.leader >= 0 {
				want = c.brokers.registered(c.leader)
			}
			require.Equal(t, want, next.LeaderBrokerEpoch)
			if c.same {
				require.Equal(t, before, next)
			} else {
				require.Equal(t, before.PartitionEpoch+1, next.PartitionEpoch)
			}
		})
	}
}

func TestS085AllReplicasDieOneAfterAnother(t *testing.T) {
	w := newSimWorld(t, 85, 3)
	w.createTopic("t", TopicConfig{Partitions: 1, ReplicationFactor: 2, MinISR: 1})
	first := w.stored("t", 0)
	a, b := first.Replicas[0], first.Replicas[1]
	state := func() protocol.PartitionState {
		w.rest(3 * simSession)
		return w.stored("t", 0)
	}
	w.brokers[b].crash(0)
	s := state()
	require.Equal(t, []int32{a}, s.ISR)
	require.Equal(t, a, s.Leader)
	require.Equal(t, first.LeaderEpoch, s.LeaderEpoch)

	w.brokers[a].crash(0)
	s = state()
	require.Equal(t, []int32{a}, s.ISR, "the last member stays recognisable")
	require.Equal(t, protocol.NoLeader, s.Leader)
	require.Equal(t, first.LeaderEpoch+1, s.LeaderEpoch)

	w.brokers[b].start()
	require.Equal(t, s, state(), "b lacks what a may have")

	w.brokers[a].start()
	s = state()
	require.Equal(t, a, s.Leader)
	require.Equal(t, first.LeaderEpoch+2, s.LeaderEpoch)
	require.ElementsMatch(t, []int32{a, b}, s.ISR, "b caught up")
	require.NoError(t, w.check.err)
}

// Whatever the state and the brokers are: what decide makes of it is sound, and
// deciding again changes nothing.
func TestDecideProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ids := []int32{1, 2, 3, 4}
		subset := func(label string, of []int32, least int) []int32 {
			return rapid.SliceOfNDistinct(rapid.SampledFrom(of), least, len(of), rapid.ID[int32]).Draw(t, label)
		}
		replicas := subset("replicas", ids, 1)
		isr := subset("isr", replicas, 1)
		leader := rapid.SampledFrom(append([]int32{protocol.NoLeader}, isr...)).Draw(t, "leader")
		s := partitionState(leader, replicas, isr)
		c := testBrokers{epochs: up(subset("there", ids, 0)...).epochs, wiped: subset("wiped", ids, 0)}
		for id := range c.epochs {
			c.epochs[id] += int64(rapid.IntRange(0, 1).Draw(t, "another life"))
		}
		next, changed := decide(&s, c, false, noEpoch, plantedBugs{})
		valid := func(b int32) bool { return c.registered(b) != 0 && !c.replaced(b) }

		require.NotEmpty(t, next.ISR)
		for _, b := range next.ISR {
			require.Contains(t, s.ISR, b, "only the leader adds members (EL-8)")
		}
		if next.Leader == protocol.NoLeader {
			require.Falsef(t, slices.ContainsFunc(s.ISR, valid), "one of %v could lead", s.ISR)
		} else {
			require.Contains(t, next.ISR, next.Leader)
			require.True(t, valid(next.Leader))
			require.Equal(t, c.registered(next.Leader), next.LeaderBrokerEpoch)
			require.False(t, slices.ContainsFunc(next.ISR, func(b int32) bool { return !valid(b) }))
		}
		led := next.Leader != s.Leader || next.LeaderBrokerEpoch != s.LeaderBrokerEpoch
		require.Equal(t, led, next.LeaderEpoch == s.LeaderEpoch+1)
		require.Equal(t, changed, next.PartitionEpoch == s.PartitionEpoch+1)
		again, more := decide(&next, c, false, noEpoch, plantedBugs{})
		require.False(t, more, "%+v became %+v", next, again)
	})
}

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
		a := place(partitions, rf, live, gone, nil)
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
		require.Nil(t, place(partitions, n+down+1, live, gone, nil))
		require.Nil(t, place(partitions, 1, nil, gone, nil))
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
			a := place(partitions, rf, live, nil, carried)
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
	leaders, replicas := spread([]int32{1, 2, 3}, place(12, 2, []int32{1, 2, 3}, nil, carried))
	require.GreaterOrEqual(t, leaders[3], 10)
	require.Equal(t, 12, replicas[3])
}

func TestS115FirstStateWhileReplicaIsOffline(t *testing.T) {
	s := newPartition([]int32{3, 1, 2}, 5, testBrokers{epochs: map[int32]int64{1: 10, 2: 20}})
	require.Equal(t, protocol.PartitionState{
		Version: 1, Leader: 1, LeaderBrokerEpoch: 10, ISR: []int32{1, 2}, Replicas: []int32{3, 1, 2}, MinISR: 3,
	}, s)
	s = newPartition([]int32{1, 2}, 1, testBrokers{up(1, 2).epochs, []int32{1}})
	require.Equal(t, []int32{2}, s.ISR, "a replaced directory vouches for nothing yet")

	w := newSimWorld(t, 115, 3)
	w.rest(simSession)
	w.brokers[3].crash(0)
	w.rest(3 * simSession)
	topic := w.createTopic("t", TopicConfig{Partitions: 1, ReplicationFactor: 3, MinISR: 2})
	s = w.stored("t", 0)
	require.Equal(t, []int32{1, 2}, s.ISR)
	require.Equal(t, s.ISR[0], s.Leader)
	require.Len(t, s.Replicas, 3)
	id := protocol.PartitionID{Topic: topic.ID}
	w.append(w.brokers[s.Leader], id, AcksAll)
	w.rest(simSession)
	w.brokers[3].start()
	w.rest(2 * simSession)
	require.ElementsMatch(t, []int32{1, 2, 3}, w.stored("t", 0).ISR)
	require.Equal(t, int64(1), w.brokers[3].broker.loops[0].shard.replicas[id].stored)
	require.NoError(t, w.check.err)
}

// The followers of one leader differ from partition to partition, so that its
// load spreads when it fails.
func TestPlacementVariesFollowers(t *testing.T) {
	second := make(map[int32]map[int32]bool)
	for _, list := range place(60, 3, []int32{1, 2, 3, 4, 5}, nil, nil) {
		if second[list[0]] == nil {
			second[list[0]] = make(map[int32]bool)
		}
		second[list[0]][list[1]] = true
	}
	for leader, followers := range second {
		require.GreaterOrEqual(t, len(followers), 3, "of leader %d: %v", leader, followers)
	}
}
