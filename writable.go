package tidemark

import (
	"context"
	"fmt"
	"time"

	"github.com/tidemark-log/tidemark/protocol"
)

// statusWait is how long Status and Writable wait for the leader.
const statusWait = time.Second

// errNoAnswer is why a question to the leader was given up.
var errNoAnswer = fmt.Errorf("%w: no answer within %v", ErrDisconnected, statusWait)

// Writable returns nil when the leader would take an append of a few bytes with
// AcksAll now, or a *NotWritableError that says why not. It asks the leader, for a
// second at most, and does not wait for one where there is none. That the
// coordination store or the Controller is away does not matter while there is a
// leader: see Broker.Status for that.
//
// Before that it waits until this broker knows the cluster, or ctx ends. A topic or
// partition that does not exist gives ErrUnknownTopic or ErrUnknownPartition.
func (p *Partition) Writable(ctx context.Context) error {
	ctx = given(ctx)
	b, id, s, err := p.state(ctx)
	if err != nil {
		return err
	}
	if s.Leader == protocol.NoLeader {
		return p.notWritable(&s, b.leaderless(&s))
	}
	limited, cancel := context.WithTimeoutCause(ctx, statusWait, errNoAnswer)
	defer cancel()
	a, err := p.ask(limited, protocol.Read{Kind: protocol.ReadWritable}, &reading{topic: id.Topic})
	if err == nil || ctx.Err() != nil {
		return err
	}
	b.view.learn(id, a.State)
	s, _, _ = p.client.newest(b, id)
	return p.notWritable(&s, err)
}

func (p *Partition) notWritable(s *protocol.PartitionState, err error) error {
	state := s.Clone()
	return &NotWritableError{Topic: p.topic, Partition: int(p.n), Leader: s.Leader, ISR: state.ISR, MinISR: int(s.MinISR), Err: err}
}

// leaderless says why a partition has no leader, as far as this broker can tell.
func (b *Broker) leaderless(s *protocol.PartitionState) error {
	err := fmt.Errorf("%w: none of its in-sync replicas %v is there", ErrNotLeader, s.ISR)
	why := b.outOfTouch()
	if why == nil {
		return err
	}
	return &chained{err.Error() + ", and a new leader has to wait: " + trimPrefix(why), []error{err, why}}
}

// outOfTouch says why changes of metadata have to wait, if this broker knows of a reason.
func (b *Broker) outOfTouch() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.regError != nil:
		return b.regError
	case b.renewError != nil:
		return b.renewError
	case !b.attached.Load():
		return errNotRegistered
	case b.controllerID() < 0:
		return ErrNoController
	}
	return nil
}

// state finds the partition's newest state, and a broker that knows its topic.
func (p *Partition) state(ctx context.Context) (*Broker, protocol.PartitionID, protocol.PartitionState, error) {
	b, t, err := p.client.topicOf(ctx, p.topic, 0)
	id := protocol.PartitionID{Topic: t.ID, Partition: p.n}
	if err != nil {
		return nil, id, protocol.PartitionState{}, err
	}
	s, ok, _ := p.client.newest(b, id)
	if !ok {
		return nil, id, s, fmt.Errorf("%w: %s/%d of %d", ErrUnknownPartition, p.topic, p.n, t.Config.Partitions)
	}
	return b, id, s, nil
}

// PartitionStatus is what is known of a partition.
type PartitionStatus struct {
	Leader         int32 // -1: none
	LeaderEpoch    int32
	PartitionEpoch int32
	Replicas       []int32 // AR, in order of preference
	ISR            []int32
	OSR            []int32 // AR = ISR + OSR
	ELR            []int32 // not in sync, but known to have all that is committed
	Adding         []int32 // a reassignment that is under way: what comes
	Removing       []int32 // and what goes
	MinISR         int     // in force: never above the number of replicas
	UncleanEpoch   int32   // leader epoch of the last unclean election; 0: there was none
	// Ends are the leader's; nil when it did not answer within a second. Just after a
	// failover it may not: its high watermark is not valid yet.
	Ends *Offsets
}

// Status returns the partition's state as this broker knows it, with the ends as
// its leader has them. See Broker.Replica for what one replica knows.
func (p *Partition) Status(ctx context.Context) (PartitionStatus, error) {
	ctx = given(ctx)
	_, _, shared, err := p.state(ctx)
	if err != nil {
		return PartitionStatus{}, err
	}
	s := shared.Clone()
	st := PartitionStatus{
		Leader: s.Leader, LeaderEpoch: s.LeaderEpoch, PartitionEpoch: s.PartitionEpoch,
		Replicas: s.Replicas, ISR: s.ISR, OSR: s.OSR(), ELR: s.ELR, Adding: s.Adding, Removing: s.Removing,
		MinISR: int(s.MinISR), UncleanEpoch: s.UncleanEpoch,
	}
	if s.Leader == protocol.NoLeader {
		return st, nil
	}
	endsCtx, cancel := context.WithTimeout(ctx, statusWait)
	defer cancel()
	if ends, err := p.Offsets(endsCtx); err == nil {
		st.Ends = &ends
	}
	return st, nil
}
