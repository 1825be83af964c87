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
	for led > 0 {
		a, _ := b.command(ctx, protocol.Command{Kind: protocol.MoveLeaders})
		if a.Code != protocol.NotController || wait(ctx, nil, b.stopping, retryPause) != nil {
			break
		}
	}
	if !decided {
		_, decided = b.stopAppends()
	}
	if decided {
		b.sayFarewell(ctx)
	}
}

// settleAppends refuses appends from now on, and waits for those that were taken, a
// quarter of a SessionTimeout at most: a replica that hangs must not keep the others
// from electing another leader.
func (b *Broker) settleAppends(ctx context.Context) (led int, decided bool) {
	ctx, cancel := context.WithTimeout(ctx, b.cfg.SessionTimeout/4)
	defer cancel()
	for {
		led, decided = b.stopAppends()
		if decided || wait(ctx, nil, b.stopping, stopPoll) != nil {
			return led, decided
		}
	}
}

// stopAppends has every loop refuse appends. decided: none that was taken is without
// an answer, and the answers are with the links.
func (b *Broker) stopAppends() (led int, decided bool) {
	for range 2 { // the first turn's answers are on their way when the second begins
		led, decided = 0, true
		for _, l := range b.loops {
			ok := l.do(func(_ time.Duration, s *shard) {
				n, waiting := s.onStop()
				led += n
				decided = decided && waiting == 0
			})
			decided = decided && ok
		}
	}
	return led, decided
}

// sayFarewell waits until every broker there is has heard.
func (b *Broker) sayFarewell(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	links := b.links.all()
	heard := make([]func() bool, len(links))
	for i, l := range links {
		b.links.send(l.peer.ID, &protocol.Payload{AppendAnswers: []protocol.AppendAnswer{{
			Code: protocol.NotLeader, Outcome: protocol.NotAppended, Base: -1, Last: -1, LeaderEpoch: noEpoch,
		}}}, sendOptions{})
		session, number := l.position()
		heard[i] = func() bool { return l.arrived(session, number) }
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
