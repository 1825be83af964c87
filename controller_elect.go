package tidemark

import (
	"context"
	"fmt"

	"github.com/tidemark-log/tidemark/protocol"
)

// ElectPreferred gives the leadership of partition n to its first replica, where
// placement put it, and returns once that one has accepted. It never loses
// anything: a first replica that is not in sync, not there or not reached gives
// ErrPreferredUnavailable, and the leader stays. If it leads already the error is
// ErrElectionNotNeeded.
func (c *Controller) ElectPreferred(ctx context.Context, topic string, n int) error {
	ctx = given(ctx)
	return c.elect(ctx, topic, n, protocol.Command{Kind: protocol.ElectPreferred, Broker: -1}, ErrPreferredUnavailable)
}

// ElectUnclean gives partition n, which has no leader, one that may lack committed
// records, and returns once it has accepted. The ISR is that broker alone then:
// what only other replicas have is lost for good, acknowledged or not.
//
// broker is whom to take: one of the replicas, also one that came back with an empty
// directory. With -1 it is the first in order that is there, and one with an empty
// directory only when there is no other.
//
// With a leader the error is ErrElectionNotNeeded. While an in-sync replica is
// registered nothing is given up for another one, even if it cannot be reached: then,
// and when nobody is there who could lead, it is ErrNoCandidate.
func (c *Controller) ElectUnclean(ctx context.Context, topic string, n int, broker int32) error {
	ctx = given(ctx)
	if broker < -1 {
		return fmt.Errorf("%w: there is no broker %d", ErrNoCandidate, broker)
	}
	return c.elect(ctx, topic, n, protocol.Command{Kind: protocol.ElectUnclean, Broker: broker}, ErrNoCandidate)
}

func (c *Controller) elect(ctx context.Context, topic string, n int, cmd protocol.Command, unavailable error) error {
	_, t, err := c.client.topicOf(ctx, topic, 0)
	if err != nil {
		return err
	}
	cmd.Topic, cmd.Partition = t, partitionNumber(n)
	if cmd.Partition < 0 {
		return fmt.Errorf("%w: %s/%d", ErrUnknownPartition, topic, n)
	}
	a, again, err := c.commandAgain(ctx, cmd)
	switch {
	case err != nil:
		return err
	case a.Code == protocol.OK || again && a.Code == protocol.NotNeeded: // an earlier copy did it
		return nil
	case a.Code != protocol.NoCandidate:
		unavailable = codeError(a.Code)
	}
	if a.Detail == "" {
		return fmt.Errorf("%w: %s/%d", unavailable, topic, n)
	}
	return fmt.Errorf("%w: %s/%d: %s", unavailable, topic, n, a.Detail)
}
