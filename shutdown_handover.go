package tidemark

import (
	"context"
	"time"

	"github.com/tidemark-log/tidemark/protocol"
)

// A broker that stops hands over what it leads, so that nobody hears of it but by
// a pause (EL-10):
//
//  1. It takes no appends any more, and those it took are decided.
//  2. The Controller moves its leaderships.
//  3. It tells every broker that whatever of theirs has no answer was not taken and
//     will not be: so nothing that was on its way ends as Unknown.
//
// Each step is bounded, and a step that fails costs the certainty that it gives,
// nothing else.

// stopPoll is how often a broker that stops looks whether it may go on.
const stopPoll = 2 * time.Millisecond

// handOver takes at most SessionTimeout.
func (b *Broker) handOver(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, b.cfg.SessionTimeout)
	defer cancel()
	if b.cfg.Transport == nil || b.unfitReason() != nil {
		return
	}
	led, decided := b.settleAppends(ctx)
	b.moveLeaders(ctx, led)
	if !decided {
		_, decided = b.stopAppends(ctx)
	}
	if decided {
		b.sayFarewell(ctx)
	}
}

// moveLeaders says that this broker is about to stop, until a Controller has heard it and
// has moved what it leads. Whoever leads nothing says it once: nothing is to move to it.
func (b *Broker) moveLeaders(ctx context.Context, led int) {
	if led == 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, b.cfg.SessionTimeout/4)
		defer cancel()
	}
	for {
		a, _ := b.command(ctx, protocol.Command{Kind: protocol.MoveLeaders})
		if a.Code != protocol.NotController || led == 0 || wait(ctx, nil, b.stopping, retryPause) != nil {
			return
		}
	}
}

// settleAppends refuses appends from now on, and waits for those that were taken, a
// quarter of a SessionTimeout at most: a replica that hangs must not keep the others
// from electing another leader.
func (b *Broker) settleAppends(ctx context.Context) (led int, decided bool) {
	ctx, cancel := context.WithTimeout(ctx, b.cfg.SessionTimeout/4)
	defer cancel()
	for {
		led, decided = b.stopAppends(ctx)
		if decided || wait(ctx, nil, b.stopping, stopPoll) != nil {
			return led, decided
		}
	}
}

// stopAppends has every loop refuse appends. decided: none that was taken is without
// an answer, and the answers are with the links. A loop that has no turn until ctx
// ends counts as one that leads something.
func (b *Broker) stopAppends(ctx context.Context) (led int, decided bool) {
	type found struct{ led, waiting int }
	decided = true
	// What the first turn finds answered is with the links when the second begins. What
	// only the second does may be answered by that turn itself, and still be on its way.
	for range 2 {
		led = 0
		for _, l := range b.loops {
			is := make(chan found, 1)
			l.inbox.put(loopEvent{step: func(_ time.Duration, s *shard) {
				n, waiting := s.onStop()
				is <- found{n, waiting}
			}})
			select {
			case f := <-is:
				led += f.led
				decided = decided && f.waiting == 0
			case <-ctx.Done():
				return led + 1, false
			case <-b.stopping:
				return led, false
			}
		}
	}
	return led, decided
}

// sayFarewell waits until every broker there is has heard.
func (b *Broker) sayFarewell(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	var heard []func() bool
	for _, l := range b.links.all() {
		heard = append(heard, b.links.farewell(l, protocol.Payload{AppendAnswers: []protocol.AppendAnswer{{
			Code: protocol.NotLeader, Outcome: protocol.NotAppended, Base: -1, Last: -1, LeaderEpoch: noEpoch,
		}}}))
	}
	for _, has := range heard {
		for !has() && wait(ctx, nil, b.stopping, stopPoll) == nil {
		}
	}
}

// isFarewell recognises what a broker says last: see protocol.AppendAnswer.
func isFarewell(p *protocol.Payload) bool {
	return len(p.AppendAnswers) == 1 && p.AppendAnswers[0].Request == 0
}
