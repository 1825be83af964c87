package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tidemark-log/tidemark"
)

// moment is when the leader dies.
type moment struct {
	when string
	// acked says which levels are acknowledged then. For the others play waits in vain.
	acked func(tidemark.Acks) bool
	// before makes sure that the record gets no further than it should.
	before func(c *cluster, leader int32)
	// after waits until the record is where it should be.
	after func(ctx context.Context, c *cluster, leader int32) error
	why   map[tidemark.Acks]string
}

var moments = []moment{
	{
		when:  "before its disk has the record",
		acked: func(a tidemark.Acks) bool { return a == tidemark.AcksNone },
		before: func(c *cluster, leader int32) {
			c.cutOff(leader)
			c.node(leader).disk.Hang()
		},
		after: func(ctx context.Context, c *cluster, leader int32) error { return c.waitLogEnd(ctx, leader, 1, 2) },
		why: map[tidemark.Acks]string{
			tidemark.AcksNone:   "it was acknowledged on arrival, in memory",
			tidemark.AcksLeader: "the leader waits for its disk",
			tidemark.AcksAll:    "the leader waits for its disk, and for the others'",
		},
	},
	{
		when:   "before a follower has the record",
		acked:  func(a tidemark.Acks) bool { return a != tidemark.AcksAll },
		before: func(c *cluster, leader int32) { c.cutOff(leader) },
		after:  func(ctx context.Context, c *cluster, leader int32) error { return c.waitLogEnd(ctx, leader, 2, 2) },
		why: map[tidemark.Acks]string{
			tidemark.AcksNone:   "no other broker had it",
			tidemark.AcksLeader: "the only disk that had it was the leader's; when it returns it follows the new leader's log",
			tidemark.AcksAll:    "the leader waits for every in-sync replica",
		},
	},
	{
		when:   "once every in-sync replica has it",
		acked:  func(tidemark.Acks) bool { return true },
		before: func(*cluster, int32) {},
		after: func(ctx context.Context, c *cluster, _ int32) error {
			for id := range c.nodes {
				if err := c.waitLogEnd(ctx, id, 2, 2); err != nil {
					return err
				}
			}
			return nil
		},
		why: map[tidemark.Acks]string{
			tidemark.AcksNone:   "whoever leads next has it",
			tidemark.AcksLeader: "whoever leads next has it",
			tidemark.AcksAll:    "whoever leads next has it: this is the only moment at which it is acknowledged",
		},
	},
}

// patience is how long an append waits for an acknowledgement that should not come.
const patience = 300 * time.Millisecond

// play appends a record, has the leader die at the moment, brings it back, and
// looks for the record.
func play(ctx context.Context, acks tidemark.Acks, m moment, say func(string, ...any)) (acked, kept bool, err error) {
	c, err := open(ctx)
	if err != nil {
		return false, false, err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	log := c.client.Partition(topic, 0)
	if _, err := log.Append(ctx, tidemark.Record{Value: []byte("before")}); err != nil {
		return false, false, err
	}
	if err := c.waitInSync(ctx); err != nil {
		return false, false, err
	}
	status, err := log.Status(ctx)
	if err != nil {
		return false, false, err
	}
	leader := status.Leader
	m.before(c, leader)

	appendCtx := ctx
	if !m.acked(acks) {
		var cancel context.CancelFunc
		appendCtx, cancel = context.WithTimeout(ctx, patience)
		defer cancel()
	}
	_, err = log.AppendWith(appendCtx, tidemark.AppendOptions{Acks: acks}, tidemark.Record{Value: []byte("the record")})
	acked = err == nil
	say("append: acknowledged %v, outcome %v", acked, tidemark.OutcomeOf(err))
	if err != nil && tidemark.OutcomeOf(err) != tidemark.Unknown {
		return acked, false, err
	}
	if err := m.after(ctx, c, leader); err != nil {
		return acked, false, err
	}

	c.crash(leader)
	if err := appendAtLeastOnce(ctx, log, tidemark.Record{Value: []byte("after")}); err != nil {
		return acked, false, err
	}
	say("broker %d crashed; the others go on", leader)
	if err := c.restart(ctx, leader); err != nil {
		return acked, false, err
	}
	if err := c.waitInSync(ctx); err != nil {
		return acked, false, err
	}
	kept, err = find(ctx, log, "the record", "after")
	say("broker %d is back and in sync; the record is there: %v", leader, kept)
	return acked, kept, err
}

// appendAtLeastOnce appends a record that may as well be there twice. It waits for
// the next leader; what was on its way to the dead one has an unknown outcome.
func appendAtLeastOnce(ctx context.Context, log *tidemark.Partition, rec tidemark.Record) error {
	for {
		_, err := log.Append(ctx, rec)
		if err == nil || tidemark.OutcomeOf(err) != tidemark.Unknown || ctx.Err() != nil {
			return err
		}
	}
}

// find reads the log up to the record whose value is last, and reports whether
// value came before it.
func find(ctx context.Context, log *tidemark.Partition, value, last string) (found bool, err error) {
	for rec, err := range log.Records(ctx, tidemark.Earliest()) {
		switch {
		case err != nil:
			return found, err
		case string(rec.Value) == last:
			return found, nil
		case string(rec.Value) == value:
			found = true
		}
	}
	return found, fmt.Errorf("the log ended before %q", last)
}
