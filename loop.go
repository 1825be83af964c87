package tidemark

import (
	"slices"
	"time"

	"github.com/tidemark-log/tidemark/protocol"
)

// eventLoop owns a shard. It is the only goroutine that touches it: everything
// else puts events into its mailbox.
//
// One turn takes everything that is in the mailbox, steps the replicas, and then
// makes one store write for all partitions and one envelope per broker. Load
// makes turns bigger, not queues longer.
type eventLoop struct {
	b     *Broker
	index int
	shard *shard
	inbox *mailbox[loopEvent]
	next  time.Duration // when the shard wants a turn; 0: only with an event
}

// loopEvent is one thing that happened: a payload from a broker, a completed
// group, or a change that needs the shard.
type loopEvent struct {
	from      int32
	fromEpoch int64
	payload   *protocol.Payload
	stored    []storedLog
	step      func(now time.Duration, s *shard)
}

func newEventLoop(b *Broker, index int) *eventLoop {
	return &eventLoop{b: b, index: index, shard: newShard(b.cfg.core(), b.cfg.ID), inbox: newMailbox[loopEvent]()}
}

func (l *eventLoop) run() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	var events []loopEvent
	for {
		if l.next == 0 {
			timer.Stop()
		} else {
			timer.Reset(max(l.next-l.b.now(), 0))
		}
		select {
		case <-l.b.stopping:
			return
		case <-timer.C:
		case <-l.inbox.ready:
		}
		events = l.inbox.take(events)
		l.turn(events)
	}
}

func (l *eventLoop) turn(events []loopEvent) {
	now := l.b.now()
	age, queued := l.b.writer.load()
	l.shard.onStoreLoad(age, queued > l.b.cfg.MemoryBudget/4)
	l.b.links.credits(l.shard.onCredit)
	for i := range events {
		ev := &events[i]
		switch {
		case ev.payload != nil:
			l.shard.onPayload(now, ev.from, ev.fromEpoch, ev.payload)
		case ev.step != nil:
			ev.step(now, l.shard)
		}
		for _, st := range ev.stored {
			if st.loop == l.index {
				l.shard.onStored(st.id, st.n, st.err)
			}
		}
	}
	eff := l.shard.finish(now)
	l.next = l.shard.next(now)
	l.carryOut(&eff)
}

// carryOut does what a turn wants done. The store comes first: it takes longest.
func (l *eventLoop) carryOut(eff *effects) {
	b := l.b
	b.writer.submit(l.index, eff.ops, eff.synced)
	if len(eff.proposals) > 0 || len(eff.replies) > 0 {
		// As the shard knows it: a newer one is told everything anew (D17).
		if c := l.shard.env.controller.id; c >= 0 {
			p := eff.to(c)
			p.Proposals = append(p.Proposals, eff.proposals...)
			p.OrderReplies = append(p.OrderReplies, eff.replies...)
		}
	}
	var room [8]int32 // on the stack: most turns speak to few brokers
	peers := room[:0]
	for peer := range eff.out {
		peers = append(peers, peer)
	}
	slices.Sort(peers)
	for _, peer := range peers {
		if p := eff.out[peer]; !p.Empty() {
			b.sendWith(peer, p, sendOptions{epoch: l.shard.peerLife(peer)})
		}
	}
	for _, c := range eff.reads {
		b.coldRead(l, c)
	}
	for _, id := range eff.lookups {
		b.control.post(func(time.Duration) { b.control.lookup(id) })
	}
	for _, id := range eff.cleared {
		b.control.post(func(time.Duration) { b.control.onCleared(l.index, id) })
	}
	for _, n := range eff.notes {
		b.noted(n)
	}
}

// do has the shard step and waits until it did; false when the broker stopped first.
func (l *eventLoop) do(step func(now time.Duration, s *shard)) bool {
	done := make(chan struct{})
	l.inbox.put(loopEvent{step: func(now time.Duration, s *shard) {
		step(now, s)
		close(done)
	}})
	select {
	case <-done:
		return true
	case <-l.b.stopping:
		return false
	}
}
