package tidemark

import (
	"context"
	"errors"
	"fmt"

	"github.com/tidemark-log/tidemark/protocol"
)

// AlterTopic changes the configuration of a topic and returns it as recorded: Status
// has the MinISR in force. change gets the present configuration and alters it; it is called
// again, with a newer one, when somebody else altered the topic meanwhile or an
// answer was lost, so it should set fields and not count them up.
//
// MinISR, UncleanElection, MaxRecordBytes and MaxUncommittedBytes can be altered.
// AlterTopic returns once the new MinISR is recorded for every partition; a leader
// goes by it as soon as it hears of that, a moment later. Partitions (see
// AddPartitions), ReplicationFactor and Background cannot be altered: that, and a
// bad number, is ErrInvalidTopic. When the context ends first, the change may or
// may not be made, now or later.
func (c *Controller) AlterTopic(ctx context.Context, name string, change func(*TopicConfig)) (TopicConfig, error) {
	ctx = given(ctx)
	b, t, err := c.client.topicOf(ctx, name, 0)
	for err == nil {
		cmd := protocol.Command{Kind: protocol.AlterTopic, Topic: t}
		if change != nil {
			change(&cmd.Topic.Config)
		}
		if why := firstText(unalterable(t.Config, cmd.Topic.Config), b.cfg.misfit(&cmd.Topic.Config)); why != "" {
			return t.Config, fmt.Errorf("%w: %s", ErrInvalidTopic, why)
		}
		var a protocol.CommandAnswer
		a, err = c.command(ctx, cmd)
		switch {
		case err != nil:
		case a.Code == protocol.OK && a.Topic != nil:
			return a.Topic.Config, c.seen(ctx, a.Topic)
		case a.Code == protocol.Conflict && a.Topic != nil:
			t = *a.Topic
		default:
			err = topicError(name, &a)
		}
	}
	return TopicConfig{}, err
}

// AddPartitions raises the number of a topic's partitions to total and returns once
// every leader has accepted. A topic that has that number already is left as it is;
// a lower one gives ErrInvalidTopic: partitions are never taken away. Keys belong to
// other partitions from then on (see PartitionFor): an application that needs all
// records of a key in one partition should choose the number of partitions once.
func (c *Controller) AddPartitions(ctx context.Context, name string, total int) error {
	ctx = given(ctx)
	_, t, err := c.client.topicOf(ctx, name, 0)
	if err != nil {
		return err
	}
	if total < 1 || total > maxPartitions {
		return fmt.Errorf("%w: partitions must be 1 to %d", ErrInvalidTopic, maxPartitions)
	}
	t.Config.Partitions = int32(total)
	a, err := c.command(ctx, protocol.Command{Kind: protocol.AddPartitions, Topic: t})
	switch {
	case err != nil:
		return err
	case a.Code == protocol.OK && a.Topic != nil:
		return c.seen(ctx, a.Topic)
	}
	return topicError(name, &a)
}

// DeleteTopic deletes a topic and its records, for good. It returns once that is
// recorded: no Controller will bring the topic back, and its name is free. The
// brokers that have logs of it delete them when they hear of it, also after a
// restart. A topic that is created under the same name is another one; calls that
// began with the old one fail with ErrTopicRecreated.
func (c *Controller) DeleteTopic(ctx context.Context, name string) error {
	ctx = given(ctx)
	_, t, err := c.client.topicOf(ctx, name, 0)
	if err != nil {
		return err
	}
	a, isCopy, err := c.commandAgain(ctx, protocol.Command{Kind: protocol.DeleteTopic, Topic: t})
	switch {
	case err != nil:
		return err
	case a.Code != protocol.OK && !(a.Code == protocol.UnknownTopic && isCopy):
		return topicError(name, &a)
	}
	return c.shown(ctx, func(v *view) (bool, <-chan struct{}) {
		now, ok, _, changed := v.topic(name)
		return !ok || now.ID != t.ID, changed
	})
}

func topicError(name string, a *protocol.CommandAnswer) error {
	err := answerError(a)
	if errors.Is(err, ErrUnknownTopic) {
		return fmt.Errorf("%w: %q", ErrUnknownTopic, name)
	}
	return err
}
