package tidemark

import (
	"fmt"
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
	w.command(via, protocol.Command{Kind: protocol.CreateTopic, Topic: topic}, w.administered)
}

func (w *simWorld) administered(ans protocol.CommandAnswer) {
	if ans.Code == protocol.OK {
		w.check.stats.commands++
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
		w.command(via, protocol.Command{Kind: protocol.AlterTopic, Topic: t}, w.administered)
	}
}

func (w *simWorld) doGrow(a *simAction) {
	if via, t, ok := w.known(a); ok && t.Config.Partitions < 4 {
		t.Config.Partitions++
		w.command(via, protocol.Command{Kind: protocol.AddPartitions, Topic: t}, w.administered)
	}
}

func (w *simWorld) doDelete(a *simAction) {
	if via, t, ok := w.known(a); ok {
		w.command(via, protocol.Command{Kind: protocol.DeleteTopic, Topic: t}, w.administered)
	}
}

func (w *simWorld) doElect(a *simAction) {
	via, t, ok := w.known(a)
	if !ok {
		return
	}
	kind := protocol.ElectPreferred
	if a.kind == "unclean" {
		if kind = protocol.ElectUnclean; !w.lossy {
			return
		}
	}
	w.command(via, protocol.Command{Kind: kind, Topic: t, Partition: a.partition, Broker: int32(a.n)}, w.administered)
}
