package tidemark

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/tidemark-log/tidemark/protocol"
)

const (
	// retryPause is how long a call waits, at most, before it looks again for a
	// leader or a controller when nothing tells it that something changed.
	retryPause = 20 * time.Millisecond
	// unknownGrace is how long a topic may be missing from a broker's image before
	// a call believes that there is none: another broker may have just created it.
	unknownGrace = 250 * time.Millisecond
)

// Client gives out handles that work through any of several brokers of this
// process: a call goes straight to the leader where the leader is one of them,
// and over a link otherwise. A Broker is a Client of itself.
type Client struct {
	source    func() []*Broker
	closed    func() bool
	defaultRF int32
}

// ClientOptions adjusts a Client. The zero value is right for most.
type ClientOptions struct {
	// DefaultReplicationFactor applies to topics created without one. Default 3.
	DefaultReplicationFactor int
	// Closed reports that whoever owns the brokers has closed them, or is about to:
	// calls then end with ErrClosed, rather than wait for a broker to come back. It is
	// called like source. Default: never.
	Closed func() bool
}

// NewClient makes a Client over the brokers that source returns at the time of
// each call; closed ones are passed over, and a Producer goes on asking an open one that
// it has found about its topic. source is called from any goroutine and does not block.
func NewClient(source func() []*Broker, o ClientOptions) *Client {
	if o.DefaultReplicationFactor <= 0 {
		o.DefaultReplicationFactor = 3
	}
	if source == nil {
		source = func() []*Broker { return nil }
	}
	if o.Closed == nil {
		o.Closed = func() bool { return false }
	}
	return &Client{source: source, closed: o.Closed, defaultRF: int32(min(o.DefaultReplicationFactor, protocol.MaxReplicas))}
}

// given is the context of a call: nil counts as one that never ends.
func given(ctx context.Context) context.Context {
	if ctx == nil {
		return context.Background()
	}
	return ctx
}

// Topic returns a handle of a topic, which need not exist yet. A call about a topic
// or a partition that nobody knows looks for it for about a quarter of a second, and
// then ends with ErrUnknownTopic or ErrUnknownPartition.
func (c *Client) Topic(name string) *Topic { return &Topic{client: c, name: name} }

// Partition returns a handle of one partition, which need not exist yet: see Topic.
func (c *Client) Partition(topic string, n int) *Partition {
	return &Partition{client: c, topic: topic, n: partitionNumber(n)}
}

// partitionNumber keeps a number that no partition can have from becoming one
// that some partition has.
func partitionNumber(n int) int32 {
	if n < 0 || n > math.MaxInt32 {
		return -1
	}
	return int32(n)
}

// Controller returns the handle for administration.
func (c *Client) Controller() *Controller { return &Controller{client: c} }

// pick returns an open broker, another one from attempt to attempt: one that is
// registered and knows the cluster when there is one. An unfit broker cannot reach
// anybody; when there is no other, its reason is the error.
func (c *Client) pick(attempt int) (*Broker, error) {
	all := c.source()
	var best *Broker
	rank, err := 0, ErrClosed
	if c.closed() {
		return nil, err
	}
	if len(all) == 0 {
		err = ErrNoBroker
	}
	for i := range all {
		b := all[(i+attempt)%len(all)]
		if b == nil || b.ctx.Err() != nil || b.draining.Load() {
			continue
		}
		if why := b.unfitReason(); why != nil {
			err = because(ErrUnfit, why)
			continue
		}
		at := 1
		if _, _, whole, _ := b.view.topic(""); whole {
			at++
			if b.attached.Load() {
				return b, nil
			}
		}
		if at > rank {
			best, rank = b, at
		}
	}
	if best == nil {
		return nil, err
	}
	return best, nil
}

// takesCalls reports whether pick would return the broker before all others.
func (b *Broker) takesCalls() bool {
	return b.ctx.Err() == nil && !b.draining.Load() && b.attached.Load() && b.unfit.Load() == nil
}

// some is pick, waiting while no broker is up.
func (c *Client) some(ctx context.Context, attempt int) (*Broker, error) {
	for {
		b, err := c.pick(attempt)
		if !errors.Is(err, ErrNoBroker) {
			return b, err
		}
		if waitErr := wait(ctx, nil, nil, retryPause); waitErr != nil {
			return nil, ctxError(ctx, err)
		}
	}
}

// newest returns the newest state of a partition that an open broker knows.
func (c *Client) newest(b *Broker, id protocol.PartitionID) (protocol.PartitionState, bool, <-chan struct{}) {
	s, ok, changed := b.view.state(id)
	for _, other := range c.source() {
		if other == nil || other == b || other.ctx.Err() != nil {
			continue
		}
		if o, known, _ := other.view.state(id); known && (!ok || o.PartitionEpoch > s.PartitionEpoch) {
			s, ok = o, true
		}
	}
	return s, ok, changed
}

// open returns the broker with that id, if it is one of the source's and takes calls.
func (c *Client) open(id int32) *Broker {
	for _, b := range c.source() {
		if b != nil && b.cfg.ID == id && b.ctx.Err() == nil && !b.draining.Load() {
			return b
		}
	}
	return nil
}

// route says where a call to a partition goes now.
type route struct {
	client *Client
	via    *Broker // sends it
	leader int32   // takes it
	epoch  int32   // the leader epoch that it is meant for
	id     protocol.PartitionID
	state  protocol.PartitionState
}

// obstacle is why a call cannot be made now.
type obstacle struct {
	err     error
	passing bool            // it may be over by itself
	changed <-chan struct{} // closed with the next change of what was looked at; nil: nothing tells
}

// over reports whether the obstacle has to be taken for what it is. since is when
// the caller's topic or partition was first missing; a broker may not have heard of
// it yet.
func (o *obstacle) over(since *time.Time) bool {
	missing := errors.Is(o.err, ErrUnknownTopic) || errors.Is(o.err, ErrUnknownPartition) || errors.Is(o.err, ErrTopicRecreated)
	if !o.passing || !missing {
		return !o.passing
	}
	if since.IsZero() {
		*since = time.Now()
	}
	return time.Since(*since) > unknownGrace
}

// patiently repeats an attempt until it succeeds, its obstacle is none that passes,
// or ctx ends.
func patiently(ctx context.Context, attempt int, try func(attempt int) *obstacle) error {
	var missing time.Time
	for ; ; attempt++ {
		no := try(attempt)
		switch {
		case no == nil:
			return nil
		case no.over(&missing):
			return no.err
		}
		if wait(ctx, no.changed, nil, retryPause) != nil {
			return ctxError(ctx, no.err)
		}
	}
}

// lookTopic finds a topic's description, and the broker that knows it.
func (c *Client) lookTopic(name string, attempt int) (*Broker, protocol.Topic, *obstacle) {
	b, err := c.pick(attempt)
	if err != nil {
		return nil, protocol.Topic{}, &obstacle{err: err, passing: errors.Is(err, ErrNoBroker)}
	}
	t, ok, whole, changed := b.view.topic(name)
	switch {
	case ok:
		return b, t, nil
	case whole:
		return nil, t, &obstacle{fmt.Errorf("%w: %q", ErrUnknownTopic, name), true, changed}
	}
	return nil, t, &obstacle{ErrNoController, true, changed}
}

// topicOf is lookTopic, waiting for the image where that makes sense.
func (c *Client) topicOf(ctx context.Context, name string, attempt int) (b *Broker, t protocol.Topic, err error) {
	err = patiently(ctx, attempt, func(attempt int) (no *obstacle) {
		b, t, no = c.lookTopic(name, attempt)
		return no
	})
	return b, t, err
}

// look finds the way to a partition's leader. bound, when not zero, is the topic id
// that the caller began with; attempt counts its tries, so that each goes by another
// broker.
func (c *Client) look(topic string, n int32, bound protocol.UUID, attempt int) (route, *obstacle) {
	b, t, no := c.lookTopic(topic, attempt)
	switch {
	case no != nil:
		return route{}, no
	case !bound.IsZero() && bound != t.ID:
		return route{}, &obstacle{err: fmt.Errorf("%w: %q", ErrTopicRecreated, topic), passing: true}
	}
	id := protocol.PartitionID{Topic: t.ID, Partition: n}
	s, ok, changed := c.newest(b, id)
	switch {
	case n < 0 || n >= t.Config.Partitions:
		return route{}, &obstacle{fmt.Errorf("%w: %s/%d of %d", ErrUnknownPartition, topic, n, t.Config.Partitions), n >= 0, changed}
	case !ok || s.Leader == protocol.NoLeader:
		return route{}, &obstacle{ErrNotLeader, true, changed}
	}
	r := route{client: c, via: b, leader: s.Leader, epoch: s.LeaderEpoch, id: id, state: s}
	if at := c.open(s.Leader); at != nil {
		r.via = at
	}
	return r, nil
}

// locate is look, waiting while there is no leader.
func (c *Client) locate(ctx context.Context, topic string, n int32, bound protocol.UUID, attempt int) (r route, err error) {
	err = patiently(ctx, attempt, func(attempt int) (no *obstacle) {
		r, no = c.look(topic, n, bound, attempt)
		return no
	})
	return r, err
}

// append sends an append along the route. done is called once, from any
// goroutine, and does not block; false means that it was not sent and never will
// be. session, when not nil, is the link session that it must go in; zero is
// filled in with the one it went in, and stays zero within this process.
func (r *route) append(a protocol.Append, session *uint64, done func(protocol.AppendAnswer)) bool {
	b := r.via
	// Known before it is asked: what the farewell of one life answers, the next one must not take.
	life := b.links.life(r.leader)
	if life == 0 && r.leader != b.cfg.ID {
		return false
	}
	if r.leader != b.cfg.ID {
		// A refusal may come while this is still in a transport, whose bytes do not change;
		// the next try may be in this process, where the leader stamps them.
		a.Batch = bytes.Clone(a.Batch)
	}
	a.ID = r.id
	a.Request = b.appends.add(r.leader, done)
	if a.Request == 0 {
		return false
	}
	if b.sendWith(r.leader, &protocol.Payload{Appends: []protocol.Append{a}}, sendOptions{bulk: true, session: session, epoch: life, client: true}) {
		return true
	}
	return !b.appends.drop(a.Request)
}

// read sends a read along the route, like append.
func (r *route) read(q protocol.Read, done func(protocol.ReadAnswer)) bool {
	b := r.via
	q.ID = r.id
	q.Request = b.reads.add(r.leader, done)
	if q.Request == 0 {
		return false
	}
	if b.sendWith(r.leader, &protocol.Payload{Reads: []protocol.Read{q}}, sendOptions{client: true}) {
		return true
	}
	return !b.reads.drop(q.Request)
}

// again waits before a call is tried anew after a refusal, having learnt what
// the refusal said.
func (r *route) again(ctx context.Context, hint *protocol.PartitionState) error {
	if hint != nil {
		r.via.view.learn(r.id, hint)
	}
	s, _, changed := r.client.newest(r.via, r.id)
	if s.LeaderEpoch > r.epoch {
		return nil
	}
	return wait(ctx, changed, nil, retryPause)
}

// elsewhere reports whether a refusal means that the call may succeed at another
// time or broker, nothing having happened.
func elsewhere(c protocol.Code) bool {
	switch c {
	case protocol.NotLeader, protocol.FencedEpoch, protocol.UnknownPartition, protocol.StreamRefused, protocol.Canceled,
		protocol.Disconnected, protocol.Unfit, protocol.StorageFailed:
		return true
	}
	return false
}
