package tidemark

import (
	"fmt"
	"slices"
	"time"

	"github.com/tidemark-log/tidemark/protocol"
)

// What clients do to a world.

// client returns the broker that a client's action goes through; nil: it cannot.
func (w *simWorld) client(a *simAction) *simBroker {
	if b := w.brokers[a.broker]; b.broker != nil && !b.paused {
		return b
	}
	return nil
}

var simAcks = map[string]Acks{"all": AcksAll, "leader": AcksLeader, "none": AcksNone}

func (w *simWorld) doAppend(a *simAction) {
	if via := w.client(a); via != nil && w.records.states[w.id(a)] != nil {
		w.values++
		w.send(via, w.id(a), &simAppend{value: fmt.Sprintf("v%d", w.values), acks: simAcks[a.kind], retries: a.n})
	}
}

func (w *simWorld) doProduce(a *simAction) {
	via := w.client(a)
	if via == nil || w.records.states[w.id(a)] == nil {
		return
	}
	key := simProducerKey{a.broker, w.id(a)}
	p := w.producers[key]
	if p == nil || p.broker != via.broker {
		p = w.newProducer(via, w.id(a))
		w.producers[key] = p
	}
	p.produce(a.n)
}

type simProducerKey struct {
	broker int32
	id     protocol.PartitionID
}

func (w *simWorld) doRead(a *simAction) {
	if via := w.client(a); via != nil && w.records.states[w.id(a)] != nil {
		w.read(via, w.id(a), int64(a.n), 50*time.Millisecond)
	}
}

// doCreate creates a topic with as many partitions as the action says.
func (w *simWorld) doCreate(a *simAction) {
	via := w.client(a)
	if via == nil {
		return
	}
	cfg := TopicConfig{Partitions: max(1, a.partition), ReplicationFactor: 3, MinISR: int32(a.n), Background: w.background, UncleanElection: w.lossy && a.kind == "unclean"}
	cfg.ReplicationFactor = min(cfg.ReplicationFactor, int32(len(w.brokers)))
	cfg.MinISR = min(max(cfg.MinISR, 1), cfg.ReplicationFactor)
	topic := protocol.Topic{ID: w.uuid(), Name: a.topic, Config: cfg}
	w.administer(via, protocol.Command{Kind: protocol.CreateTopic, Topic: topic})
}

// simCommand is a command that has not been answered, and whose asker lives.
type simCommand struct {
	via     *simBroker
	broker  *Broker // the process it was asked in
	command protocol.Command
	sentAt  time.Duration
	request uint64
	over    bool
}

// administer has the Controller carry out a command: it is sent again, as the handle
// of an application does, until there is an answer that says what came of it.
func (w *simWorld) administer(via *simBroker, cmd protocol.Command) {
	w.noteOrder(&cmd)
	q := &simCommand{via: via, broker: via.broker, command: cmd}
	w.commands = append(w.commands, q)
	w.ask(q)
}

func (w *simWorld) ask(q *simCommand) {
	q.sentAt = w.now
	id := q.broker.controllerID()
	if id < 0 {
		return
	}
	cmd := q.command
	cmd.Request = q.broker.commands.add(id, func(ans protocol.CommandAnswer) {
		switch ans.Code {
		case protocol.NotController, protocol.Disconnected, protocol.Canceled:
			q.sentAt = w.now - q.broker.cfg.ProposalTimeout + retryPause
		case protocol.OK:
			w.check.stats.commands++
			q.over = true
		default:
			q.over = true
		}
	})
	q.request = cmd.Request
	if !q.broker.send(id, &protocol.Payload{Commands: []protocol.Command{cmd}}) {
		q.broker.commands.drop(cmd.Request)
	}
	q.via.run()
}

// askAgain sends again the commands that have waited long enough.
func (w *simWorld) askAgain() {
	w.commands = slices.DeleteFunc(w.commands, func(q *simCommand) bool { return q.over || q.via.broker != q.broker })
	for _, q := range slices.Clone(w.commands) {
		if !q.via.paused && w.now-q.sentAt >= q.broker.cfg.ProposalTimeout {
			q.broker.commands.drop(q.request)
			w.ask(q)
		}
	}
}

// known returns the topic of an action as the broker in between knows it.
func (w *simWorld) known(a *simAction) (via *simBroker, t protocol.Topic, ok bool) {
	if via = w.client(a); via != nil {
		t, ok, _, _ = via.broker.view.topic(a.topic)
	}
	return via, t, ok
}

func (w *simWorld) doAlter(a *simAction) {
	if via, t, ok := w.known(a); ok {
		t.Config.MinISR = int32(a.n)
		w.administer(via, protocol.Command{Kind: protocol.AlterTopic, Topic: t})
	}
}

func (w *simWorld) doGrow(a *simAction) {
	if via, t, ok := w.known(a); ok && t.Config.Partitions < 4 {
		t.Config.Partitions++
		w.administer(via, protocol.Command{Kind: protocol.AddPartitions, Topic: t})
	}
}

func (w *simWorld) doDelete(a *simAction) {
	if via, t, ok := w.known(a); ok {
		w.administer(via, protocol.Command{Kind: protocol.DeleteTopic, Topic: t})
	}
}

func (w *simWorld) doElect(a *simAction) {
	via, t, ok := w.known(a)
	if !ok {
		return
	}
	kind := protocol.ElectPreferred
	if a.kind == "unclean" {
		if kind = protocol.ElectUnclean; !w.lossy && !w.healing {
			return
		}
	}
	w.administer(via, protocol.Command{Kind: kind, Topic: t, Partition: a.partition, Broker: int32(a.n)})
}
