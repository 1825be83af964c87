package tidemark

import (
	"time"

	"github.com/tidemark-log/tidemark/protocol"
)

// counters count what happened since the broker was opened.
type counters struct {
	elections, truncations, resets, losses, expansions, shrinks, damaged, unclean uint64

	leading int
}

// LinkStatus is the link to one other broker.
type LinkStatus struct {
	Broker      int32
	BrokerEpoch int64 // the life of it that the link is for
	Up          bool
	Version     uint16 // of the protocol, as negotiated; 0: not up
	Trouble     error  // what ended the last session or attempt, if that is worth knowing; nil once it is up
	Sessions    uint64 // that it had
	InFlight    int    // bytes sent and not yet acknowledged
	// What was sent and received since both brokers registered.
	SentMessages, SentBytes, ReceivedMessages, ReceivedBytes uint64
}

// Status is what a broker knows of itself. Its errors tell what is, not what was,
// unless they say so.
type Status struct {
	Broker          int32
	BrokerEpoch     int64 // of the last registration; 0: none yet
	Controller      int32 // -1: not known
	ControllerEpoch int32 // -1: not known

	NotReady     error        // what Ready would wait for, or fail with; nil: it is ready
	Unfit        error        // why it gave up its roles; nil: it did not
	Registered   bool         // in a session that is not known to have ended
	Registration error        // why the last attempt to register failed; nil: it did not
	Renewal      error        // why the last attempt to renew its session failed; nil: it did not
	Links        []LinkStatus // one per other registered broker, by id

	Store      StoreState
	StoreErr   error         // why it takes no more writes; nil: it does
	StoreAge   time.Duration // how long the oldest write has been under way
	StoreQueue int64         // bytes that wait for the store
	StoreBytes uint64        // that the store takes on disk

	Leading int // partitions that it leads

	// What happened since the broker was opened: leaderships begun here, logs cut and
	// logs emptied, cuts of what was committed, changes of the ISR of partitions led
	// here, logs found damaged, and unclean elections heard of.
	Elections, Truncations, Resets, Losses, Expansions, Shrinks, Damaged, UncleanElections uint64
	// DroppedMessages and DroppedItems count what came and was refused before it
	// was looked at: of another cluster or life, or unsound.
	DroppedMessages, DroppedItems uint64
	// RefusedMessages counts what the transport did not take.
	RefusedMessages uint64
	// ObserverDropped counts events that the Observer was not told of because it was
	// too slow, and ObserverPanics its calls that panicked.
	ObserverDropped, ObserverPanics uint64
}

// Status does not wait, but for the call of Store.Health.
func (b *Broker) Status() Status {
	health := b.cfg.Store.Health()
	_, _, whole, _ := b.view.topic("")
	s := Status{
		Broker: b.cfg.ID, BrokerEpoch: b.epoch.Load(), Controller: b.controllerID(), ControllerEpoch: b.controllerTerm.Load(),
		NotReady: b.notReady(whole), Unfit: b.unfitReason(), Registered: b.attached.Load(), Links: b.links.status(),
		Store: StoreState(b.storeState.Load()), StoreErr: health.Err, StoreBytes: health.Disk, StoreAge: b.storeAge(),
		DroppedMessages: b.links.dropped(), DroppedItems: b.links.unsound.Load(), RefusedMessages: b.links.refused.Load(),
	}
	_, s.StoreQueue = b.writer.load()
	s.ObserverDropped, s.ObserverPanics = b.observer.counts()
	b.mu.Lock()
	defer b.mu.Unlock()
	s.Registration, s.Renewal = b.regError, b.renewError
	c := &b.counts
	s.Leading = c.leading
	s.Elections, s.Truncations, s.Resets, s.Losses = c.elections, c.truncations, c.resets, c.losses
	s.Expansions, s.Shrinks, s.Damaged, s.UncleanElections = c.expansions, c.shrinks, c.damaged, c.unclean
	return s
}

// status describes all links, by the id of the other broker.
func (s *linkSet) status() []LinkStatus {
	var all []LinkStatus
	for _, p := range s.all() {
		p.mu.Lock()
		l, n := p.link, p.link.stats()
		st := LinkStatus{
			Broker: p.peer.ID, BrokerEpoch: l.cfg.peerEpoch, Up: l.isUp(), Trouble: l.trouble, Sessions: n.sessions, InFlight: l.inFlight,
			SentMessages: n.sentMessages, SentBytes: n.sentBytes, ReceivedMessages: n.receivedMessages, ReceivedBytes: n.receivedBytes,
		}
		if st.Up {
			st.Version = l.version
		}
		p.mu.Unlock()
		all = append(all, st)
	}
	return all
}

// noted counts, logs, and tells the Observer, what the core found worth telling.
func (b *Broker) noted(n note) {
	b.count(n.kind)
	topic, ok := b.view.topicName(n.id.Topic)
	if !ok {
		topic = n.id.Topic.String()
	}
	b.logNote(topic, n)
	part := int(n.id.Partition)
	switch n.kind {
	case noteLeader:
		b.observer.leadership(LeadershipEvent{topic, part, true, n.epoch, n.isr})
	case noteResigned:
		b.observer.leadership(LeadershipEvent{topic, part, false, n.epoch, nil})
	case noteExpanded, noteShrunk:
		b.observer.isr(ISREvent{topic, part, n.epoch, n.was, n.isr})
	case noteTruncated, noteReset:
		b.observer.truncated(TruncationEvent{topic, part, n.epoch, n.from, n.to, n.kind == noteReset})
	case noteLost:
		b.observer.lost(LossEvent{topic, part, n.epoch, n.from, n.to})
	case noteUnclean:
		b.observer.uncleanElection(UncleanElectionEvent{topic, part, n.epoch, n.leader})
	case noteDamaged:
		b.observer.damaged(DamageEvent{topic, part, n.err})
	}
}

func (b *Broker) count(kind noteKind) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := &b.counts
	switch kind {
	case noteLeader:
		c.elections++
		c.leading++
	case noteResigned:
		c.leading--
	case noteTruncated:
		c.truncations++
	case noteReset:
		c.resets++
	case noteLost:
		c.losses++
	case noteExpanded:
		c.expansions++
	case noteShrunk:
		c.shrinks++
	case noteDamaged:
		c.damaged++
	case noteUnclean:
		c.unclean++
	}
}

func (b *Broker) logNote(topic string, n note) {
	log := b.log.With("broker", b.cfg.ID, "topic", topic, "partition", n.id.Partition, "leader_epoch", n.epoch)
	switch n.kind {
	case noteLeader:
		log.Info("became leader", "isr", n.isr)
	case noteFollower:
		log.Debug("became follower")
	case noteResigned:
		if n.code == protocol.Unfit || n.code == protocol.StorageFailed {
			log.Warn("leadership ended", "reason", n.code)
		} else {
			log.Info("leadership ended", "reason", n.code)
		}
	case noteTruncated:
		log.Warn("truncated log", "from", n.from, "to", n.to)
	case noteReset:
		log.Warn("reset log", "from", n.from, "to", n.to)
	case noteLost:
		log.Error("lost committed records", "from", n.from, "to", n.to)
	case noteUnclean:
		log.Error("unclean election", "leader", n.leader)
	case noteExpanded:
		log.Info("isr expanded", "was", n.was, "isr", n.isr)
	case noteShrunk:
		log.Warn("isr shrunk", "was", n.was, "isr", n.isr)
	case noteDamaged:
		log.Error("log is damaged", "error", n.err)
	}
}
