package tidemark

import (
	"slices"

	"github.com/tidemark-log/tidemark/protocol"
)

// candidates is what an election needs to know of the brokers.
type candidates interface {
	// registered returns the broker's present broker epoch; 0: not registered, or
	// unable to carry this partition.
	registered(broker int32) int64
	// holding is how much of what its memberships vouch for the broker has.
	holding(broker int32) holding
	// emptied reports that the broker's log was cleared, and was not in sync since (D20).
	emptied(broker int32) bool
	// reached reports that the Controller can tell the broker to lead (D18).
	reached(broker int32) bool
}

// holding is what a broker's disk has of what its memberships vouch for.
type holding uint8

const (
	holdsAll     holding = iota
	holdsPart            // its store was not closed cleanly, and the topic does not wait for the disk (D25)
	holdsNothing         // it came back with another directory (D15)
)

// election is what one election is to respect besides the state and the brokers.
type election struct {
	refused   bool  // the present leader epoch was refused: there must be another
	floor     int32 // a new leader epoch exceeds it: the highest that a replica answered with
	renew     bool  // a leader epoch begins though the leader stays, for a log to be cleared (D20)
	preferred bool  // the first replica leads if it may (EL-3)
	// unclean is whom to take when nobody may lead otherwise (EL-2); nil: nobody.
	unclean func(s *protocol.PartitionState, c candidates) int32
}

// decide returns the state that a partition should have, given which brokers
// are there, and whether that is a change. It is the whole of leader election:
//
//   - Members without all that they vouch for leave the ISR, unless all are such.
//   - A valid leader stays (EL-1.1), unless the first replica is to have its place
//     (EL-3), or the leader is not reached and another member is (D18). A leader
//     whose broker registered anew has failed (D11).
//   - Else the first replica in AR order that is in the ISR, there and reached (EL-1.2).
//   - Else, if that is wanted and no member is there: whoever is there. It is the
//     whole ISR then (EL-2).
//   - Else none.
//   - Dead members leave only in a write that has a leader; otherwise the ISR
//     stays whole, so that the last holders can be recognised (EL-4, D17).
func decide(s *protocol.PartitionState, c candidates, e election, planted planted) (protocol.PartitionState, bool) {
	holds := func(b int32) bool { return vouches(s, c, b) }
	isr := keepIfAny(s.ISR, holds)
	there := func(b int32) bool { return c.registered(b) != 0 && holds(b) }
	if planted.has(bugISREmptied) && !slices.ContainsFunc(isr, there) {
		isr = s.Replicas
	}
	best := protocol.NoLeader
	for _, b := range s.Replicas {
		if slices.Contains(isr, b) && there(b) && c.reached(b) {
			best = b
			break
		}
	}
	leader := s.Leader
	sameLife := c.registered(leader) == s.LeaderBrokerEpoch || planted.has(bugSameEpochAgain) || planted.has(bugBounceUnnoticed)
	stays := leader != protocol.NoLeader && slices.Contains(isr, leader) && there(leader) && !e.refused && sameLife &&
		(c.reached(leader) || best == protocol.NoLeader) && !(e.preferred && best == s.Replicas[0])
	if !stays {
		leader = best
	}
	unclean := false
	switch {
	case leader != protocol.NoLeader && planted.has(bugReturningReadded):
		isr = keepIfAny(s.Replicas, there)
	case leader != protocol.NoLeader:
		isr = keepIfAny(isr, there)
	case e.unclean != nil && !slices.ContainsFunc(isr, there):
		if leader = e.unclean(s, c); leader != protocol.NoLeader {
			isr, unclean = []int32{leader}, true
		}
	}
	return change(s, c, e, leader, isr, stays, unclean)
}

// change makes the state in which an election ends, if it differs.
func change(s *protocol.PartitionState, c candidates, e election, leader int32, isr []int32, stays, unclean bool) (protocol.PartitionState, bool) {
	life := int64(-1)
	switch {
	case stays:
		life = s.LeaderBrokerEpoch
	case leader != protocol.NoLeader:
		life = c.registered(leader)
	}
	newLeader := leader != s.Leader || life != s.LeaderBrokerEpoch || unclean ||
		leader != protocol.NoLeader && (e.refused || e.renew)
	if !newLeader && len(isr) == len(s.ISR) {
		return *s, false
	}
	next := s.Clone()
	next.ISR = isr
	next.PartitionEpoch++
	if newLeader {
		next.Leader, next.LeaderBrokerEpoch = leader, life
		next.LeaderEpoch = max(s.LeaderEpoch, e.floor) + 1
	}
	if unclean {
		next.ELR, next.LastKnownELR = nil, nil
	}
	if unclean || newLeader && c.holding(leader) != holdsAll && chosenAsItIs(s, leader, life) {
		next.UncleanEpoch = next.LeaderEpoch
	}
	return next, true
}

// chosenAsItIs reports whether the broker leads by an unclean election, in the
// life in which it was elected: what its disk had then is the log by definition,
// whatever it had lost before.
func chosenAsItIs(s *protocol.PartitionState, broker int32, life int64) bool {
	return s.Leader == broker && s.LeaderBrokerEpoch == life && s.UncleanEpoch > 0 && s.UncleanEpoch == s.LeaderEpoch
}

// vouches reports whether a membership of the broker means what it says: it has
// all that was committed. See candidates.holding.
func vouches(s *protocol.PartitionState, c candidates, broker int32) bool {
	return c.holding(broker) == holdsAll || chosenAsItIs(s, broker, c.registered(broker))
}

// uncleanBySetting is whom a topic takes that prefers any leader to none: in AR
// order a member that may have lost the end of its log, else another replica. One
// that has nothing is never taken without having been asked for (D15).
func uncleanBySetting(s *protocol.PartitionState, c candidates) int32 {
	some := func(b int32) bool { return c.holding(b) != holdsNothing && !c.emptied(b) }
	if b := firstToLead(s, c, func(b int32) bool { return s.InISR(b) && some(b) }); b != protocol.NoLeader {
		return b
	}
	return firstToLead(s, c, some)
}

// uncleanByOrder is whom an order without a name takes: one that has nothing only
// when there is no other.
func uncleanByOrder(s *protocol.PartitionState, c candidates) int32 {
	if b := uncleanBySetting(s, c); b != protocol.NoLeader {
		return b
	}
	return firstToLead(s, c, func(int32) bool { return true })
}

// firstToLead is the first replica in AR order that is there, reached and good; -1: none.
func firstToLead(s *protocol.PartitionState, c candidates, good func(int32) bool) int32 {
	for _, b := range s.Replicas {
		if c.registered(b) != 0 && c.reached(b) && good(b) {
			return b
		}
	}
	return protocol.NoLeader
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

// newPartition is the first state of a partition (PL-1, S-115): the live
// replicas are in sync, because there is nothing yet that they could lack.
func newPartition(replicas []int32, minISR int32, c candidates) protocol.PartitionState {
	s := protocol.PartitionState{
		Version: protocol.StateVersion, Leader: protocol.NoLeader, LeaderBrokerEpoch: -1,
		Replicas: replicas, MinISR: min(minISR, int32(len(replicas))), // S-36
	}
	for _, b := range replicas {
		if epoch := c.registered(b); epoch != 0 && c.holding(b) == holdsAll && c.reached(b) {
			s.ISR = append(s.ISR, b)
			if s.Leader == protocol.NoLeader {
				s.Leader, s.LeaderBrokerEpoch = b, epoch
			}
		}
	}
	return s
}
