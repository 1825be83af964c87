package tidemark

import (
	"context"
	"fmt"
	"time"

	"github.com/tidemark-log/tidemark/protocol"
)

// Controller is the handle for administration. The Controller itself is a role
// that one of the brokers holds; the handle finds it from any broker, and retries
// what is safe until the context ends. All methods may be called from any goroutine.
type Controller struct {
	client *Client
}

// CreateTopic creates a topic and returns once every partition's leader has
// accepted its role. A topic of that name gives ErrTopicExists, a replication
// factor above the number of brokers ErrTooFewBrokers, a bad name or number
// ErrInvalidTopic; ErrUnknownTopic means that it was deleted again before that. When the context ends first, the topic may or may not exist,
// now or later: EnsureTopic finds out.
func (c *Controller) CreateTopic(ctx context.Context, name string, cfg TopicConfig) error {
	ctx = given(ctx)
	_, err := c.create(ctx, name, cfg)
	return err
}

// EnsureTopic creates a topic unless it exists. What a zero field of cfg would be by
// default applies to a new topic; of one that exists it asks nothing, so that a
// program may ensure its topics at every start while somebody alters or grows them.
// A topic that differs in a field that is set, or in Background, gives a
// *TopicMismatchError, which wraps ErrTopicMismatch. While fewer brokers than the
// replication factor have ever registered, as at the first start of a cluster, it gives
// ErrTooFewBrokers: try again.
func (c *Controller) EnsureTopic(ctx context.Context, name string, cfg TopicConfig) error {
	ctx = given(ctx)
	a, err := c.create(ctx, name, cfg)
	if err == nil || a.Code != protocol.TopicExists || a.Topic == nil {
		return err
	}
	found := a.Topic.Config
	wanted := cfg
	def(&wanted.Partitions, found.Partitions)
	def(&wanted.ReplicationFactor, found.ReplicationFactor)
	def(&wanted.MinISR, found.MinISR)
	def(&wanted.UncleanElection, found.UncleanElection)
	def(&wanted.MaxRecordBytes, found.MaxRecordBytes)
	def(&wanted.MaxUncommittedBytes, found.MaxUncommittedBytes)
	if found != wanted {
		return &TopicMismatchError{Topic: name, Wanted: wanted, Found: found}
	}
	return c.seen(ctx, a.Topic)
}

func (c *Controller) withDefaults(cfg TopicConfig) TopicConfig {
	def(&cfg.Partitions, 1)
	def(&cfg.ReplicationFactor, c.client.defaultRF)
	def(&cfg.MinISR, 2)
	return cfg
}

// create sends the command with a topic id of its own, so that it may be sent
// again when an answer was lost: the second one joins the first.
func (c *Controller) create(ctx context.Context, name string, cfg TopicConfig) (protocol.CommandAnswer, error) {
	b, err := c.client.some(ctx, 0)
	if err != nil {
		return protocol.CommandAnswer{}, err
	}
	topic := protocol.Topic{ID: b.randomUUID(), Name: name, Config: c.withDefaults(cfg)}
	if why := firstText(invalidTopic(&topic), b.cfg.misfit(&topic.Config)); why != "" {
		return protocol.CommandAnswer{Code: protocol.InvalidRequest}, fmt.Errorf("%w: %s", ErrInvalidTopic, why)
	}
	a, err := c.command(ctx, protocol.Command{Kind: protocol.CreateTopic, Topic: topic})
	if err != nil {
		return a, err
	}
	switch a.Code {
	case protocol.OK:
		return a, c.seen(ctx, &topic)
	case protocol.TopicExists:
		return a, fmt.Errorf("%w: %q", ErrTopicExists, name)
	}
	err = answerError(&a)
	if a.Code == protocol.TooFewBrokers && cfg.ReplicationFactor == 0 {
		err = fmt.Errorf("%w: wait for the other brokers to register and try again, or set TopicConfig.ReplicationFactor, which is %d by default", err, topic.Config.ReplicationFactor)
	}
	return a, err
}

func firstText(all ...string) string {
	for _, s := range all {
		if s != "" {
			return s
		}
	}
	return ""
}

// seenWait bounds how long a command that was carried out waits for the image of a
// broker at hand: the topic may have been altered or deleted since.
const seenWait = 5 * time.Second

// seen waits until the image of a broker at hand has the topic, as it is now or
// newer, so that the caller's next call finds it.
func (c *Controller) seen(ctx context.Context, topic *protocol.Topic) error {
	return c.shown(ctx, func(v *view) (bool, <-chan struct{}) {
		t, _, _, changed := v.topic(topic.Name)
		return t.ID == topic.ID && t.Version >= topic.Version, changed
	})
}

// shown is until for what is recorded already, and so for seenWait at most: a broker
// that hears nothing hears of it later.
func (c *Controller) shown(ctx context.Context, is func(*view) (bool, <-chan struct{})) error {
	limited, cancel := context.WithTimeout(ctx, seenWait)
	defer cancel()
	err := c.until(limited, is)
	if limited.Err() != nil && ctx.Err() == nil {
		return nil
	}
	return err
}

// until waits until the view of a broker at hand is as wanted.
func (c *Controller) until(ctx context.Context, is func(*view) (bool, <-chan struct{})) error {
	for {
		b, err := c.client.some(ctx, 0)
		if err != nil {
			return err
		}
		ok, changed := is(b.view)
		if ok {
			return nil
		}
		if err := wait(ctx, changed, nil, retryPause); err != nil {
			return ctxError(ctx, nil)
		}
	}
}

// answerError is the error for a command that was refused.
func answerError(a *protocol.CommandAnswer) error {
	if a.Detail != "" {
		return fmt.Errorf("%w: %s", codeError(a.Code), a.Detail)
	}
	return codeError(a.Code)
}

// command sends a command to the Controller, wherever it is.
func (c *Controller) command(ctx context.Context, cmd protocol.Command) (protocol.CommandAnswer, error) {
	a, _, err := c.commandAgain(ctx, cmd)
	return a, err
}

// commandAgain is command; it also tells whether it had to send more than once, so
// that the answer may be to a copy of a command that was carried out.
func (c *Controller) commandAgain(ctx context.Context, cmd protocol.Command) (a protocol.CommandAnswer, isCopy bool, err error) {
	if ctx.Err() != nil {
		return a, false, context.Cause(ctx) // nothing is asked for, rather than asked for by chance
	}
	sent := false
	for attempt := 0; ; attempt++ {
		b, err := c.client.some(ctx, attempt)
		if err != nil {
			return a, isCopy, err
		}
		a, asked := b.command(ctx, cmd)
		if asked {
			isCopy, sent = sent, true
		}
		if a.Code != protocol.NotController {
			return a, isCopy, nil
		}
		if err := wait(ctx, nil, nil, retryPause); err != nil {
			return a, isCopy, ctxError(ctx, ErrNoController)
		}
	}
}

// command asks the Controller once. NotController: try again, if ctx has not ended.
func (b *Broker) command(ctx context.Context, cmd protocol.Command) (a protocol.CommandAnswer, asked bool) {
	a.Code = protocol.NotController
	id := b.controllerID()
	if id < 0 {
		return a, false
	}
	answered := make(chan protocol.CommandAnswer, 1)
	cmd.Request = b.commands.add(id, func(a protocol.CommandAnswer) { answered <- a })
	sending := &protocol.Payload{Commands: []protocol.Command{cmd}}
	if cmd.Request == 0 || !b.sendWith(id, sending, sendOptions{client: true}) && b.commands.drop(cmd.Request) {
		return a, false
	}
	// An answer can be lost with the Controller's life; the same command again does no harm.
	timer := time.NewTimer(b.cfg.ProposalTimeout)
	defer timer.Stop()
	select {
	case a = <-answered:
	case <-timer.C:
	case <-ctx.Done():
	}
	b.commands.drop(cmd.Request)
	if a.Code == protocol.Disconnected || a.Code == protocol.Canceled {
		a.Code = protocol.NotController
	}
	return a, true
}

// Topics lists the topics' names in order, as a broker at hand knows them.
func (c *Controller) Topics(ctx context.Context) ([]string, error) {
	ctx = given(ctx)
	for attempt := 0; ; attempt++ {
		b, err := c.client.some(ctx, attempt)
		if err != nil {
			return nil, err
		}
		if _, _, whole, _ := b.view.topic(""); whole {
			return b.view.topicNames(), nil
		}
		if err := wait(ctx, nil, nil, retryPause); err != nil {
			return nil, ctxError(ctx, ErrNoController)
		}
	}
}

// ControllerStatus says who the Controller is, as a broker at hand knows.
type ControllerStatus struct {
	Broker int32 // -1: not known
	Epoch  int32 // controller epoch; -1: not known
}

// Status does not wait.
func (c *Controller) Status() (ControllerStatus, error) {
	b, err := c.client.pick(0)
	if err != nil {
		return ControllerStatus{Broker: -1, Epoch: -1}, err
	}
	return ControllerStatus{Broker: b.controllerID(), Epoch: b.controllerTerm.Load()}, nil
}
