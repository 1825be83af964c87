package tidemark

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tidemark-log/tidemark/protocol"
)

// testBrokers is who is there for an election: broker epochs, whose directory was
// replaced, who ended uncleanly, whose log was cleared, and who is not reached.
type testBrokers struct {
	epochs  map[int32]int64
	wiped   []int32
	unclean []int32
	cleared []int32
	far     []int32
}

func (c testBrokers) registered(b int32) int64 { return c.epochs[b] }
func (c testBrokers) reached(b int32) bool     { return !slices.Contains(c.far, b) }
func (c testBrokers) emptied(b int32) bool     { return slices.Contains(c.cleared, b) }
func (c testBrokers) holding(b int32) holding {
	switch {
	case slices.Contains(c.wiped, b):
		return holdsNothing
	case slices.Contains(c.unclean, b):
		return holdsPart
	}
	return holdsAll
}

func (c testBrokers) without(far ...int32) testBrokers {
	c.far = far
	return c
}

func (c testBrokers) wipe(ids ...int32) testBrokers {
	c.wiped = ids
	return c
}

func (c testBrokers) crash(ids ...int32) testBrokers {
	c.unclean = ids
	return c
}

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

// S-83: elections as the brokers' state demands them.
func TestS083ElectionTable(t *testing.T) {
	ar := []int32{2, 4}
	state := func(leader int32, isr ...int32) protocol.PartitionState { return partitionState(leader, ar, isr) }
	for name, c := range map[string]electionCase{
		"leader dead, other in sync":      {state: state(2, 2, 4), brokers: up(4), leader: 4, isr: []int32{4}, epoch: 6},
		"leader dead, other not in sync":  {state: state(2, 2), brokers: up(4), leader: -1, isr: []int32{2}, epoch: 6},
		"none, other not in sync":         {state: state(-1, 2), brokers: up(4), leader: -1, isr: []int32{2}, epoch: 5, same: true},
		"none, a member is back":          {state: state(-1, 2), brokers: up(2, 4), leader: 2, isr: []int32{2}, epoch: 6},
		"all dead":                        {state: state(2, 2, 4), brokers: up(), leader: -1, isr: []int32{2, 4}, epoch: 6},
		"valid leader stays":              {state: state(4, 2, 4), brokers: up(2, 4), leader: 4, isr: []int32{2, 4}, epoch: 5, same: true},
		"follower dead, leader stays":     {state: state(4, 2, 4), brokers: up(4), leader: 4, isr: []int32{4}, epoch: 5},
		"order is that of AR, not of ISR": {state: state(-1, 4, 2), brokers: up(2, 4), leader: 2, isr: []int32{4, 2}, epoch: 6},
		"leader's broker began another life": {state: state(4, 2, 4), brokers: testBrokers{epochs: map[int32]int64{2: 20, 4: 41}},
			leader: 2, isr: []int32{2, 4}, epoch: 6},
		"sole leader began another life": {state: state(4, 4), brokers: testBrokers{epochs: map[int32]int64{2: 20, 4: 41}},
			leader: 4, isr: []int32{4}, epoch: 6},

		"refused, above all answers":   {state: state(2, 2, 4), brokers: up(2, 4), e: election{refused: true, floor: 11}, leader: 2, isr: []int32{2, 4}, epoch: 12},
		"refused, floor is lower":      {state: state(2, 2, 4), brokers: up(2, 4), e: election{refused: true, floor: 3}, leader: 2, isr: []int32{2, 4}, epoch: 6},
		"refused, and nobody is there": {state: state(-1, 2, 4), brokers: up(), e: election{refused: true, floor: 11}, leader: -1, isr: []int32{2, 4}, epoch: 5, same: true},
		"floor counts without refusal": {state: state(2, 2, 4), brokers: up(4), e: election{floor: 11}, leader: 4, isr: []int32{4}, epoch: 12},

		"replaced leader leaves":           {state: state(2, 2, 4), brokers: up(2, 4).wipe(2), leader: 4, isr: []int32{4}, epoch: 6},
		"replaced follower leaves":         {state: state(2, 2, 4), brokers: up(2, 4).wipe(4), leader: 2, isr: []int32{2}, epoch: 5},
		"replaced sole member stays":       {state: state(2, 2), brokers: up(2, 4).wipe(2), leader: -1, isr: []int32{2}, epoch: 6},
		"replaced, the only other dead":    {state: state(2, 2, 4), brokers: up(2).wipe(2), leader: -1, isr: []int32{4}, epoch: 6},
		"replaced stranger does no harm":   {state: state(2, 2), brokers: up(2, 4).wipe(4), leader: 2, isr: []int32{2}, epoch: 5, same: true},
		"all replaced: whoever was, stays": {state: state(2, 2, 4), brokers: up(2, 4).wipe(2, 4), leader: -1, isr: []int32{2, 4}, epoch: 6},
		"unclean end, other did not":       {state: state(2, 2, 4), brokers: up(2, 4).crash(2), leader: 4, isr: []int32{4}, epoch: 6},
		"unclean end, sole member":         {state: state(2, 2), brokers: up(2, 4).crash(2), leader: -1, isr: []int32{2}, epoch: 6},
		"common power cut":                 {state: state(2, 2, 4), brokers: up(2, 4).crash(2, 4), leader: -1, isr: []int32{2, 4}, epoch: 6},

		"D18: unreached leader moves":                  {state: state(2, 2, 4), brokers: up(2, 4).without(2), leader: 4, isr: []int32{2, 4}, epoch: 6},
		"D18: unreached leader, other not in sync":     {state: state(2, 2), brokers: up(2, 4).without(2), leader: 2, isr: []int32{2}, epoch: 5, same: true},
		"D18: unreached leader, other dead":            {state: state(2, 2, 4), brokers: up(2).without(2), leader: 2, isr: []int32{2}, epoch: 5},
		"D18: unreached leader, other unreached":       {state: state(2, 2, 4), brokers: up(2, 4).without(2, 4), leader: 2, isr: []int32{2, 4}, epoch: 5, same: true},
		"D18: unreached follower stays in sync":        {state: state(2, 2, 4), brokers: up(2, 4).without(4), leader: 2, isr: []int32{2, 4}, epoch: 5, same: true},
		"D18: unreached is not elected, nobody leaves": {state: state(2, 2, 4), brokers: up(4).without(4), leader: -1, isr: []int32{2, 4}, epoch: 6},
		"D18: reached again, nothing moves back":       {state: state(4, 2, 4), brokers: up(2, 4), leader: 4, isr: []int32{2, 4}, epoch: 5, same: true},

		"D20: an epoch for a log to be cleared": {state: state(4, 2, 4), brokers: up(2, 4), e: election{renew: true}, leader: 4, isr: []int32{2, 4}, epoch: 6},
		"D20: in the write that leaves it out":  {state: state(4, 2, 4), brokers: up(4), e: election{renew: true}, leader: 4, isr: []int32{4}, epoch: 6},
		"D20: without a leader nothing begins":  {state: state(-1, 2), brokers: up(), e: election{renew: true}, leader: -1, isr: []int32{2}, epoch: 5, same: true},
	} {
		t.Run(name, c.run)
	}
}

// electionCase is an election and what must come of it.
type electionCase struct {
	state   protocol.PartitionState
	brokers testBrokers
	e       election
	leader  int32
	isr     []int32
	epoch   int32 // leader epoch; 5: as before
	same    bool  // no change at all
	unclean bool
}

func (c electionCase) run(t *testing.T) {
	before := c.state.Clone()
	next, changed := decide(&c.state, c.brokers, c.e, nil)
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
	if c.unclean {
		require.Equal(t, next.LeaderEpoch, next.UncleanEpoch)
	} else {
		require.Equal(t, before.UncleanEpoch, next.UncleanEpoch)
	}
	if c.same {
		require.Equal(t, before, next)
	} else {
		require.Equal(t, before.PartitionEpoch+1, next.PartitionEpoch)
	}
}

// S-83, EL-2: a leader that may lack committed records, where the topic or an order wants one.
func TestS083UncleanElectionTable(t *testing.T) {
	ar := []int32{2, 4, 6}
	state := func(leader int32, isr ...int32) protocol.PartitionState { return partitionState(leader, ar, isr) }
	setting, order := election{unclean: uncleanBySetting}, election{unclean: uncleanByOrder}
	for name, c := range map[string]electionCase{
		"off":                             {state: state(2, 2), brokers: up(4), leader: -1, isr: []int32{2}, epoch: 6},
		"on":                              {state: state(2, 2), brokers: up(4, 6), e: setting, leader: 4, isr: []int32{4}, epoch: 6, unclean: true},
		"on, and the leader lives":        {state: state(6, 6), brokers: up(2, 4, 6), e: setting, leader: 6, isr: []int32{6}, epoch: 5, same: true},
		"on, and another member lives":    {state: state(2, 2, 6), brokers: up(4, 6), e: setting, leader: 6, isr: []int32{6}, epoch: 6},
		"on, and a member is not reached": {state: state(-1, 2), brokers: up(2, 4).without(2), e: setting, leader: -1, isr: []int32{2}, epoch: 5, same: true},
		"on, and nobody is there":         {state: state(-1, 2), brokers: up(), e: setting, leader: -1, isr: []int32{2}, epoch: 5, same: true},
		"on, and nobody is reached":       {state: state(-1, 2), brokers: up(4, 6).without(4, 6), e: setting, leader: -1, isr: []int32{2}, epoch: 5, same: true},
		"on, who is not reached is not":   {state: state(-1, 2), brokers: up(4, 6).without(4), e: setting, leader: 6, isr: []int32{6}, epoch: 6, unclean: true},
		"floor":                           {state: state(-1, 2), brokers: up(4), e: election{unclean: uncleanBySetting, floor: 9}, leader: 4, isr: []int32{4}, epoch: 10, unclean: true},

		"an empty disk is not taken":              {state: state(-1, 2), brokers: up(4, 6).wipe(4, 6), e: setting, leader: -1, isr: []int32{2}, epoch: 5, same: true},
		"one with data is preferred":              {state: state(-1, 2), brokers: up(4, 6).wipe(4), e: setting, leader: 6, isr: []int32{6}, epoch: 6, unclean: true},
		"power cut: the first member":             {state: state(6, 4, 6), brokers: up(2, 4, 6).crash(2, 4, 6), e: setting, leader: 4, isr: []int32{4}, epoch: 6, unclean: true},
		"power cut: a member before a clean one":  {state: state(6, 6), brokers: up(2, 6).crash(6), e: setting, leader: 6, isr: []int32{6}, epoch: 6, unclean: true},
		"power cut: who is clean and in sync":     {state: state(6, 4, 6), brokers: up(2, 4, 6).crash(2, 6), e: setting, leader: 4, isr: []int32{4}, epoch: 6},
		"order: as by the setting":                {state: state(-1, 2), brokers: up(4, 6).wipe(4), e: order, leader: 6, isr: []int32{6}, epoch: 6, unclean: true},
		"order: an empty disk if there is nobody": {state: state(-1, 2), brokers: up(4, 6).wipe(4, 6), e: order, leader: 4, isr: []int32{4}, epoch: 6, unclean: true},
		"order: the replaced sole member":         {state: state(-1, 2), brokers: up(2).wipe(2), e: order, leader: 2, isr: []int32{2}, epoch: 6, unclean: true},
	} {
		t.Run(name, c.run)
	}
}

// S-83, S-84, EL-3: the first replica leads, if nothing is lost by it.
func TestS084PreferredElectionTable(t *testing.T) {
	ar := []int32{2, 4}
	state := func(leader int32, isr ...int32) protocol.PartitionState { return partitionState(leader, ar, isr) }
	e := election{preferred: true}
	for name, c := range map[string]electionCase{
		"in sync and there": {state: state(4, 2, 4), brokers: up(2, 4), e: e, leader: 2, isr: []int32{2, 4}, epoch: 6},
		"leads already":     {state: state(2, 2, 4), brokers: up(2, 4), e: e, leader: 2, isr: []int32{2, 4}, epoch: 5, same: true},
		"dead":              {state: state(4, 4), brokers: up(4), e: e, leader: 4, isr: []int32{4}, epoch: 5, same: true},
		"not in sync":       {state: state(4, 4), brokers: up(2, 4), e: e, leader: 4, isr: []int32{4}, epoch: 5, same: true},
		"not reached":       {state: state(4, 2, 4), brokers: up(2, 4).without(2), e: e, leader: 4, isr: []int32{2, 4}, epoch: 5, same: true},
		"nobody leads":      {state: state(-1, 4), brokers: up(2), e: e, leader: -1, isr: []int32{4}, epoch: 5, same: true},
		"no second best": {state: partitionState(6, []int32{2, 4, 6}, []int32{2, 4, 6}), brokers: up(2, 4, 6).without(2), e: e,
			leader: 6, isr: []int32{2, 4, 6}, epoch: 5, same: true},
	} {
		t.Run(name, c.run)
	}
}

// Who was chosen by an unclean election stays chosen until its broker's mark is
// cleared, though an epoch was refused meanwhile; in another life it is not.
func TestUncleanChoiceHolds(t *testing.T) {
	for name, brokers := range map[string]testBrokers{"empty disk": up(4).wipe(4), "unclean end": up(4).crash(4)} {
		t.Run(name, func(t *testing.T) {
			s := partitionState(-1, []int32{2, 4}, []int32{2})
			s, changed := decide(&s, brokers, election{unclean: uncleanByOrder}, nil)
			require.True(t, changed)
			_, changed = decide(&s, brokers, election{}, nil)
			require.False(t, changed)
			s, changed = decide(&s, brokers, election{refused: true, floor: 20}, nil)
			require.True(t, changed)
			require.Equal(t, int32(4), s.Leader)
			require.Equal(t, int32(21), s.UncleanEpoch)
			_, changed = decide(&s, brokers, election{}, nil)
			require.False(t, changed)
			brokers.epochs[4]++
			s, _ = decide(&s, brokers, election{}, nil)
			require.Equal(t, protocol.NoLeader, s.Leader)
			require.Equal(t, []int32{4}, s.ISR)
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
	require.NoError(t, w.check.err())
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
		c := testBrokers{epochs: up(subset("there", ids, 0)...).epochs, wiped: subset("wiped", ids, 0),
			unclean: subset("unclean", ids, 0), cleared: subset("cleared", ids, 0), far: subset("far", ids, 0)}
		for id := range c.epochs {
			c.epochs[id] += int64(rapid.IntRange(0, 1).Draw(t, "another life"))
		}
		e := election{preferred: rapid.Bool().Draw(t, "preferred")}
		if rapid.Bool().Draw(t, "by setting") {
			e.unclean = uncleanBySetting
		}
		next, changed := decide(&s, c, e, nil)
		there := func(b int32) bool { return c.registered(b) != 0 && c.holding(b) == holdsAll }
		reached := func(b int32) bool { return there(b) && c.reached(b) }

		require.NotEmpty(t, next.ISR)
		unclean := next.UncleanEpoch > 0
		switch {
		case unclean:
			require.NotNil(t, e.unclean)
			require.Equal(t, []int32{next.Leader}, next.ISR)
			require.Falsef(t, slices.ContainsFunc(s.ISR, there), "one of %v is a clean candidate", s.ISR)
			require.True(t, c.registered(next.Leader) != 0 && c.reached(next.Leader) && c.holding(next.Leader) != holdsNothing && !c.emptied(next.Leader))
			require.Equal(t, c.registered(next.Leader), next.LeaderBrokerEpoch)
		case next.Leader == protocol.NoLeader:
			require.Falsef(t, slices.ContainsFunc(s.ISR, reached), "one of %v could lead", s.ISR)
		default:
			require.Contains(t, next.ISR, next.Leader)
			require.True(t, reached(next.Leader) || next.Leader == s.Leader && there(next.Leader) && !slices.ContainsFunc(s.ISR, reached))
			require.Equal(t, c.registered(next.Leader), next.LeaderBrokerEpoch)
			require.False(t, slices.ContainsFunc(next.ISR, func(b int32) bool { return !there(b) }))
			if e.preferred && slices.Contains(s.ISR, replicas[0]) && reached(replicas[0]) {
				require.Equal(t, replicas[0], next.Leader)
			}
		}
		if !unclean {
			for _, b := range next.ISR {
				require.Contains(t, s.ISR, b, "only the leader adds members (EL-8)")
			}
			for _, b := range s.ISR {
				require.True(t, slices.Contains(next.ISR, b) || !there(b), "broker %d left though it is there", b)
			}
		}
		led := next.Leader != s.Leader || next.LeaderBrokerEpoch != s.LeaderBrokerEpoch
		require.True(t, !led || next.LeaderEpoch == s.LeaderEpoch+1)
		require.True(t, led || unclean || next.LeaderEpoch == s.LeaderEpoch)
		require.Equal(t, changed, next.PartitionEpoch == s.PartitionEpoch+1)
		again, more := decide(&next, c, e, nil)
		require.False(t, more, "%+v became %+v", next, again)
	})
}

func TestS115FirstStateWhileReplicaIsOffline(t *testing.T) {
	s := newPartition([]int32{3, 1, 2}, 5, testBrokers{epochs: map[int32]int64{1: 10, 2: 20}})
	require.Equal(t, protocol.PartitionState{
		Version: 1, Leader: 1, LeaderBrokerEpoch: 10, ISR: []int32{1, 2}, Replicas: []int32{3, 1, 2}, MinISR: 3,
	}, s)
	s = newPartition([]int32{1, 2}, 1, up(1, 2).wipe(1))
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
	require.NoError(t, w.check.err())
}
