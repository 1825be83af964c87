package tidemark

import "time"

// pace is how much a link may have under way. What is under way delays all that is
// sent after it, orders of the Controller and answers to small fetches too, so it is
// kept to what the peer takes within a short time, the target, however slow the way
// to it is; the rest waits where it is still to be chosen from. (The idea is that of
// BBR: Cardwell et al., ACM Queue 14(5), 2016.)
//
// The window is the peer's rate times the target. A rate is measured over a quarter
// of the target. It may be too low, when there was too little to send; so it lowers
// the window only if that was used up, in this measurement and in the one before.
// Where bulk comes in bursts, one that is over earlier is a measurement too, if it was
// as much as the window allows for a quarter of the target; so short a one may be too
// high, and at most doubles the window. Bursts need not use up the window: more under way
// than twice what fits the target shows as well that the rate is no lower than could be.
type pace struct {
	window int // bytes
	most   int // the window never exceeds it, and
	least  int // never falls below it: a peer acknowledges that much without delay
	target time.Duration

	shortest time.Duration // target at least, and
	longest  time.Duration // at most
	began    time.Duration // the present measurement
	acked    int           // bytes in it
	peak     int           // the most that was under way in it
	usedUp   bool          // the window, in it,
	before   bool          // and in the one before

	probe   uint64 // the envelope that times the way there and back; 0: none is under way
	probeAt time.Duration
	way     time.Duration // the shortest time seen; 0: none was
}

const (
	firstWindow = 1 << 20
	leastWindow = 256 << 10
	// Bytes that come in before an acknowledgement is due by itself: soon, and at once.
	// The latter is less than any window, or its sender would wait for a heartbeat.
	ackSoon = 64 << 10
	ackNow  = leastWindow / 2
)

func newPace(now time.Duration, most int, shortest, longest time.Duration) pace {
	return pace{window: min(firstWindow, most), most: most, least: min(leastWindow, most),
		target: shortest, shortest: shortest, longest: longest, began: now}
}

// left notes that an envelope of so many bytes left under a number; inFlight includes it.
func (p *pace) left(now time.Duration, seq uint64, size, inFlight int) {
	if inFlight == size { // nothing was: what passed says nothing of the way
		p.measure(now, false)
		p.before = false
		if p.probe == 0 { // behind others it would time their queue
			p.probe, p.probeAt = seq, now
		}
	}
	p.usedUp = p.usedUp || inFlight >= p.window
	p.peak = max(p.peak, inFlight)
}

// took notes that the peer took bytes, with all envelopes up to seq; inFlight still
// includes them.
func (p *pace) took(now time.Duration, seq uint64, bytes, inFlight int) {
	p.time(now, seq)
	p.acked += bytes
	passed, burst := now-p.began, inFlight == bytes && p.acked >= p.window/4
	full := passed >= max(p.target/4, 1)
	if !full && !burst {
		return
	}
	fits := int(min(float64(p.acked)/float64(max(passed, 1))*float64(p.target), float64(p.most)))
	if !full {
		p.window = max(p.window, min(fits, 2*p.window))
		p.measure(now, false)
		return
	}
	if fits > p.window {
		p.window = fits
	} else if p.usedUp && p.before || p.peak > 2*fits {
		p.window = max(fits, p.window/2, p.least)
	}
	p.before = p.usedUp
	p.measure(now, inFlight-bytes >= p.window)
	p.peak = inFlight - bytes
}

func (p *pace) measure(now time.Duration, usedUp bool) {
	p.began, p.acked, p.usedUp, p.peak = now, 0, usedUp, 0
}

// time learns how long the way is; over a long one the target must be longer, for a
// rate cannot be seen to rise with less under way than fills it.
func (p *pace) time(now time.Duration, seq uint64) {
	if p.probe == 0 || seq < p.probe {
		return
	}
	p.probe = 0
	if way := max(now-p.probeAt, 1); p.way == 0 || way < p.way {
		p.way = way
		p.target = min(max(2*way, p.shortest), p.longest)
	}
}
