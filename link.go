package tidemark

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/tidemark-log/tidemark/protocol"
)

// A link is this broker's half of the connection to one other broker (D14). It
// is a pure state machine: time and messages go in, messages and payloads come
// out, and the same calls give the same results.
//
// Sessions. The broker with the lower id opens: its Hello names a random session
// and an attempt number that only rises. The other one accepts any attempt above
// the last one it accepted, is up at once and answers Welcome. A session that
// ended at the acceptor stays dead: a late Hello for it is answered with Reset.
// Within a session each direction numbers its envelopes from 1; nothing is sent
// twice by the link itself, so a number that stays away ends the session.
//
// Why two halves always meet again. Let the network deliver everything from some
// moment on, within less than a hole may stay open, and let what it had kept
// from earlier be gone. The opener is then waiting, opening or up.
//   - Waiting ends after a bounded time, in an attempt above all earlier ones,
//     which the acceptor takes.
//   - Opening N: a Hello comes at least every SessionTimeout/6. The acceptor
//     takes it, has taken it already (Welcome again), or has ended N (Reset,
//     which leads to N+1).
//   - Up in N: so is the acceptor, or the opener's next heartbeat is answered
//     with Reset, which leads to N+1.
//
// A session that begins on such a network has no hole and no silence, so neither
// side ends it; messages of other sessions change nothing in it.
//
// Versions. Hello offers the versions that the opener speaks, and the session has
// the highest that the acceptor speaks too: Welcome, Data and Heartbeat name it, so
// that the opener learns it from whichever comes first. Without a common version
// the Reset says what the acceptor speaks, and the opener asks again slowly.
//
// Why there is no storm. Only Hello, Data and Heartbeat are ever answered, each
// with at most one message. Welcome is never answered; Reset is answered only by
// the Hello of the next attempt, and attempts that keep failing are spaced out.
// A Reset for an unknown session is sent at most every SessionTimeout/12.
type link struct {
	cfg    linkConfig
	opener bool // this side has the lower id
	seed   uint64
	count  linkStats

	phase   linkPhase
	session uint64 // present or, in linkDown, last one
	attempt uint64 // of session
	trouble error  // what ended the last session or attempt, if an operator should know; nil once one is up

	// Opening.
	openAt   time.Duration // linkDown, opener: when the next attempt begins
	helloAt  time.Duration // linkOpening: when Hello is repeated
	helloGap time.Duration
	failures int // sessions in a row that did not live long

	// Within the session.
	upSince   time.Duration
	lastHeard time.Duration
	lastSent  time.Duration // Data or Heartbeat
	sent      uint64        // number of the last envelope sent
	acked     uint64        // highest number that the peer acknowledged
	sizes     []int         // of envelopes, up to the one numbered sent
	settled   int           // how many at the front of sizes are acknowledged
	inFlight  int           // their sum
	pace      pace          // bounds it
	received  uint64        // highest number received in order
	known     uint64        // highest number that the peer is known to have sent
	holeSince time.Duration
	version   uint16                         // that both sides speak
	held      [linkReorder]*protocol.Message // by number modulo its length
	waiting   []waitingMessage               // fragments without credit and what follows them, in order
	queued    int                            // bytes in waiting
	controls  int                            // messages in waiting that are not bulk
	partial   []byte                         // fragments of the payload that is coming in
	owed      int                            // bytes received in order and not yet acknowledged
	told      uint64                         // highest number acknowledged to the peer

	resetAt time.Duration // when a Reset for an unknown session may be sent again
}

// linkConfig is what a link is made from. All fields but planted are required. There is one
// link for a pair of broker epochs: when either registers anew, it is replaced.
type linkConfig struct {
	cluster              protocol.UUID
	self, peer           int32
	selfEpoch, peerEpoch int64         // broker epochs
	sessionTimeout       time.Duration // a heartbeat after a sixth of it, silence is half of it
	maxMessage           int           // bytes, of the transport
	maxPayload           int           // bytes of the largest payload taken in fragments
	window               int           // bytes that may be sent and not yet acknowledged, at most
	planted              planted
}

// linkOut collects what calls produce, until the caller resets it. The caller
// handles down first, then up, then deliver.
type linkOut struct {
	send     []*protocol.Message
	deliver  []protocol.Payload
	down, up bool
	unsound  int // items dropped out of what came in fragments; why: the first
	why      error
	trouble  error // what an operator should know; nil: nothing
}

// linkStats counts since the link was made.
type linkStats struct {
	sessions uint64 // times up
	resets   uint64 // Resets sent
	resetBy  uint64 // sessions that the peer's Reset ended
	gaps     uint64 // sessions ended because an envelope stayed away
	silences uint64 // sessions ended because nothing was heard
	faults   uint64 // sessions ended because the peer acknowledged what was never sent, or sent no payload in fragments
	versions uint64 // attempts without a common version

	foreignCluster uint64 // messages dropped, by cause
	wrongAddressee uint64
	wrongEpoch     uint64
	wrongSession   uint64
	duplicate      uint64
	unexpected     uint64 // of a kind that this side never gets

	sentMessages, sentBytes         uint64
	receivedMessages, receivedBytes uint64 // of this pair of brokers and epochs
}

// dropped is how many messages were of another cluster, broker, life or session.
func (s linkStats) dropped() uint64 {
	return s.foreignCluster + s.wrongAddressee + s.wrongEpoch + s.wrongSession + s.unexpected
}

type linkPhase uint8

const (
	linkDown linkPhase = iota
	linkOpening
	linkUp
)

const (
	linkReorder = 1024 // how far ahead of the first missing envelope others are held

	linkMinVersion uint16 = protocol.Version
	linkMaxVersion uint16 = protocol.Version

	linkNever time.Duration = math.MaxInt64
)

var (
	errNeverSent = errors.New("tidemark: peer acknowledged what was never sent")
	errOversized = errors.New("tidemark: payload in fragments above the limit")
)

// newLink makes a link; the opener's first Hello is due at once. Seed is the
// source of session ids.
func newLink(cfg linkConfig, now time.Duration, seed uint64) *link {
	return &link{cfg: cfg, opener: cfg.self < cfg.peer, seed: seed, openAt: now, resetAt: now}
}

// part is the n-th part of the session timeout; every duration here is one.
func (l *link) part(n int) time.Duration { return max(l.cfg.sessionTimeout/time.Duration(n), 1) }

func (l *link) heartbeatEvery() time.Duration { return l.part(6) }
func (l *link) silenceLimit() time.Duration   { return l.part(2) }
func (l *link) holeLimit() time.Duration      { return l.part(12) }

func (l *link) isUp() bool { return l.phase == linkUp }

func (l *link) stats() linkStats { return l.count }

func (l *link) hole() bool { return l.received < l.known }

// next is when tick is due. Nothing changes by time alone before it.
func (l *link) next() time.Duration {
	switch {
	case l.phase == linkUp:
		due := min(l.lastSent+l.heartbeatEvery(), l.lastHeard+l.silenceLimit())
		if l.hole() {
			due = min(due, l.holeSince+l.holeLimit())
		}
		return due
	case l.phase == linkOpening:
		return l.helloAt
	case l.opener:
		return l.openAt
	}
	return linkNever
}

// tick does what is due.
func (l *link) tick(now time.Duration, out *linkOut) {
	l.expire(now, out)
	switch {
	case l.phase == linkUp:
		if now >= l.lastSent+l.heartbeatEvery() {
			l.heartbeat(now, out)
		}
	case l.phase == linkOpening:
		if now >= l.helloAt {
			l.hello(now, out)
		}
	case l.opener:
		if now >= l.openAt {
			l.open(now, out)
		}
	}
}

// expire ends a session whose time is over. Every call comes through here, so
// that after a sleep of the whole process the first thing noticed is the silence.
func (l *link) expire(now time.Duration, out *linkOut) {
	if l.phase != linkUp {
		return
	}
	switch {
	case now >= l.lastHeard+l.silenceLimit():
		l.count.silences++
	case l.hole() && now >= l.holeSince+l.holeLimit():
		l.count.gaps++
	default:
		return
	}
	l.giveUp(now, out)
}

// receive handles a message of the transport. Messages and their bytes are
// immutable, so payloads are delivered as they came.
func (l *link) receive(now time.Duration, m *protocol.Message, out *linkOut) {
	if !l.admit(m) {
		return
	}
	l.expire(now, out)
	switch m.Kind {
	case protocol.Hello:
		l.onHello(now, m, out)
	case protocol.Welcome:
		l.onWelcome(now, m, out)
	case protocol.Reset:
		l.onReset(now, m, out)
	case protocol.Data, protocol.Heartbeat:
		if l.inSession(now, m, out) {
			l.onEnvelope(now, m, out)
		}
	default:
		l.count.unexpected++
	}
}

// admit drops what is not from this peer's present life to this broker's (D6).
func (l *link) admit(m *protocol.Message) bool {
	switch {
	case m.Cluster != l.cfg.cluster:
		l.count.foreignCluster++
	case m.To != l.cfg.self || m.From != l.cfg.peer:
		l.count.wrongAddressee++
	case m.FromEpoch != l.cfg.peerEpoch || m.ToEpoch != l.cfg.selfEpoch:
		l.count.wrongEpoch++
	default:
		l.count.receivedMessages++
		l.count.receivedBytes += uint64(m.Size())
		return true
	}
	return false
}

// emit completes m, queues it and returns its size.
func (l *link) emit(m *protocol.Message, out *linkOut) int {
	m.Cluster = l.cfg.cluster
	m.From, m.FromEpoch = l.cfg.self, l.cfg.selfEpoch
	m.To, m.ToEpoch = l.cfg.peer, l.cfg.peerEpoch
	size := m.Size()
	l.count.sentMessages++
	l.count.sentBytes += uint64(size)
	out.send = append(out.send, m)
	return size
}

// heartbeat says "alive", returns credit, and shows the last number sent, so
// that the loss of the last envelope is noticed.
func (l *link) heartbeat(now time.Duration, out *linkOut) {
	l.owed, l.told = 0, l.received
	l.lastSent = now
	l.emit(&protocol.Message{Kind: protocol.Heartbeat, Session: l.session, Seq: l.sent, Ack: l.received,
		MinVersion: l.version, MaxVersion: l.version}, out)
}

// open begins the next attempt. Attempts follow the broker's clock, so that they
// rise even if a link of the same two epochs was thrown away and made again.
func (l *link) open(now time.Duration, out *linkOut) {
	l.attempt = max(l.attempt+1, uint64(max(now, 0)/time.Microsecond))
	l.session = l.freshSession()
	l.phase = linkOpening
	l.helloGap = l.part(60)
	l.hello(now, out)
}

func (l *link) hello(now time.Duration, out *linkOut) {
	l.helloAt = now + l.helloGap
	l.helloGap = min(2*l.helloGap, l.heartbeatEvery())
	l.emit(&protocol.Message{Kind: protocol.Hello, Session: l.session, Attempt: l.attempt,
		MinVersion: linkMinVersion, MaxVersion: linkMaxVersion}, out)
}

// freshSession is the next output of splitmix64, which visits every value once
// before it repeats one; 0 names no session.
func (l *link) freshSession() uint64 {
	for {
		l.seed += 0x9e3779b97f4a7c15
		z := l.seed
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		if z ^= z >> 31; z != 0 {
			return z
		}
	}
}

// goUp begins the session that l.session names.
func (l *link) goUp(now time.Duration, version uint16, out *linkOut) {
	l.phase, l.version, l.trouble = linkUp, version, nil
	l.upSince, l.lastHeard, l.lastSent = now, now, now
	l.sent, l.acked, l.inFlight = 0, 0, 0
	l.pace = newPace(now, l.cfg.window, l.holeLimit(), l.part(4))
	l.received, l.known, l.owed, l.told = 0, 0, 0, 0
	l.count.sessions++
	out.up = true
}

// leave ends the session or the attempt at one, on this side. What out still
// holds of it is dropped: the caller sees down and up before deliver, and would
// take those payloads for the next session's.
func (l *link) leave(now, wait time.Duration, out *linkOut) {
	if l.phase == linkUp {
		clear(out.deliver)
		out.deliver = out.deliver[:0]
		out.down, out.up = true, false
	}
	l.phase = linkDown
	l.held = [linkReorder]*protocol.Message{}
	l.sizes, l.settled, l.inFlight = nil, 0, 0
	l.waiting, l.queued, l.controls, l.partial = nil, 0, 0, nil
	if l.opener {
		l.openAt = now + wait
		if wait == 0 {
			l.open(now, out)
		}
	}
}

// fault ends a session in which the peer did what no peer may do.
func (l *link) fault(now time.Duration, why error, out *linkOut) {
	l.count.faults++
	l.trouble, out.trouble = why, why
	l.giveUp(now, out)
}

// giveUp is this side's decision to end the session, and tells the peer.
func (l *link) giveUp(now time.Duration, out *linkOut) {
	l.reset(now, l.session, out)
	l.leave(now, l.backoff(now), out)
}

// backoff is how long to wait after the session that ends now: not at all,
// unless sessions keep ending soon after they began.
func (l *link) backoff(now time.Duration) time.Duration {
	if l.phase == linkUp && now >= l.upSince+l.silenceLimit() {
		l.failures = 0
		return 0
	}
	l.failures++
	if l.failures == 1 {
		return 0
	}
	return min(l.part(60)<<min(l.failures-2, 8), l.part(4))
}

// reset tells the peer that this side has no such session. It names the versions
// spoken, so that a refused opener knows why.
func (l *link) reset(now time.Duration, session uint64, out *linkOut) {
	l.resetAt = now + l.holeLimit()
	l.count.resets++
	l.emit(&protocol.Message{Kind: protocol.Reset, Session: session,
		MinVersion: linkMinVersion, MaxVersion: linkMaxVersion}, out)
}

// refuse answers a message of a session that this side is not in, if no other
// Reset was sent just before: the peer keeps sending, and learns by the next one.
func (l *link) refuse(now time.Duration, session uint64, out *linkOut) {
	l.count.wrongSession++
	if now >= l.resetAt {
		l.reset(now, session, out)
	}
}

// linkSpeaks reports whether the versions min..max include one that is spoken here.
func linkSpeaks(min, max uint16) bool {
	return min <= linkMaxVersion && linkMinVersion <= max && min <= max
}

// noVersion counts an attempt that m showed to be without a common version.
func (l *link) noVersion(m *protocol.Message, out *linkOut) {
	l.count.versions++
	l.trouble = fmt.Errorf("tidemark: no common protocol version: the peer has %d to %d, this broker %d to %d",
		m.MinVersion, m.MaxVersion, linkMinVersion, linkMaxVersion)
	out.trouble = l.trouble
}

// onHello is the acceptor's side of opening. Hello is no sign of life: it comes
// again and again from an opener that does not hear this side.
func (l *link) onHello(now time.Duration, m *protocol.Message, out *linkOut) {
	switch {
	case l.opener:
		l.count.unexpected++
		return
	case m.Attempt < l.attempt, m.Attempt == l.attempt && m.Session != l.session:
		l.count.wrongSession++
		return
	case m.Attempt == l.attempt && l.phase == linkUp:
		l.welcome(out)
		return
	case m.Attempt == l.attempt:
		l.refuse(now, m.Session, out)
		return
	}
	l.leave(now, 0, out) // the opener has left the old session: nobody to tell
	l.attempt, l.session = m.Attempt, m.Session
	if !linkSpeaks(m.MinVersion, m.MaxVersion) {
		l.noVersion(m, out)
		l.reset(now, m.Session, out)
		return
	}
	l.goUp(now, min(m.MaxVersion, linkMaxVersion), out)
	l.welcome(out)
}

// welcome accepts, and names the version of the session.
func (l *link) welcome(out *linkOut) {
	l.emit(&protocol.Message{Kind: protocol.Welcome, Session: l.session, Attempt: l.attempt,
		MinVersion: l.version, MaxVersion: l.version}, out)
}

func (l *link) onWelcome(now time.Duration, m *protocol.Message, out *linkOut) {
	switch {
	case !l.opener:
		l.count.unexpected++
	case m.Session != l.session || l.phase == linkDown:
		l.count.wrongSession++
	case l.phase == linkUp:
		l.count.duplicate++
	default:
		l.accepted(now, m, out)
	}
}

// accepted is the opener's side of opening: m is of the session that it asked for.
func (l *link) accepted(now time.Duration, m *protocol.Message, out *linkOut) bool {
	if m.MinVersion == m.MaxVersion && linkSpeaks(m.MinVersion, m.MaxVersion) {
		l.goUp(now, m.MaxVersion, out)
		return true
	}
	l.noVersion(m, out)
	l.reset(now, l.session, out)
	l.leave(now, l.part(1), out) // only an upgrade helps
	return false
}

func (l *link) onReset(now time.Duration, m *protocol.Message, out *linkOut) {
	if m.Session != l.session || l.phase == linkDown {
		l.count.wrongSession++
		return
	}
	l.count.resetBy++
	wait := l.backoff(now)
	if m.MaxVersion != 0 && !linkSpeaks(m.MinVersion, m.MaxVersion) {
		l.noVersion(m, out)
		wait = l.part(1) // only an upgrade helps
	}
	l.leave(now, wait, out)
}

// inSession reports whether m belongs to the present session. For an opener it
// may be the first message of it, when Welcome was lost or overtaken.
func (l *link) inSession(now time.Duration, m *protocol.Message, out *linkOut) bool {
	if m.Session != l.session || l.phase == linkDown {
		l.refuse(now, m.Session, out)
		return false
	}
	return l.phase == linkUp || l.accepted(now, m, out)
}

// onEnvelope handles Data and Heartbeat of the present session.
func (l *link) onEnvelope(now time.Duration, m *protocol.Message, out *linkOut) {
	l.lastHeard = now
	if m.Ack > l.sent {
		l.fault(now, errNeverSent, out)
		return
	}
	l.acknowledge(now, m.Ack, out)
	if l.cfg.planted.has(bugGapSkipped) {
		l.skip(m)
	}
	if m.Kind == protocol.Heartbeat {
		l.notice(now, m.Seq)
		return
	}
	switch {
	case m.Seq <= l.received:
		l.count.duplicate++
		if l.cfg.planted.has(bugDoubledDelivered) {
			out.deliver = append(out.deliver, m.Payload)
		}
	case m.Seq-l.received > linkReorder:
		l.count.gaps++
		l.giveUp(now, out)
	case l.held[m.Seq%linkReorder] != nil:
		l.count.duplicate++
	default:
		l.notice(now, m.Seq)
		l.held[m.Seq%linkReorder] = m
		l.drain(now, out)
	}
}

// notice learns that the peer has sent seq. The hole that this shows is timed
// from here.
func (l *link) notice(now time.Duration, seq uint64) {
	if seq <= l.known {
		return
	}
	if !l.hole() {
		l.holeSince = now
	}
	l.known = seq
}

// drain delivers what is complete. A hole further on is timed anew.
func (l *link) drain(now time.Duration, out *linkOut) {
	urgent := false
	for {
		slot := &l.held[(l.received+1)%linkReorder]
		m := *slot
		if m == nil {
			break
		}
		urgent = urgent || isFarewell(&m.Payload)
		*slot = nil
		l.owed += m.Size()
		l.received++
		l.holeSince = now
		if err := l.take(m, out); err != nil {
			l.fault(now, err, out)
			return
		}
	}
	// Whoever sends much and gets nothing back needs its credit before the next
	// heartbeat is due. Whoever says farewell waits for this.
	if urgent || l.received-l.told >= linkReorder/4 || l.owed > min(l.cfg.window/4, ackNow) || l.owed > ackSoon && now >= l.lastSent+l.part(96) {
		l.heartbeat(now, out)
	}
}

// take delivers the payload of an envelope, or that of the last of its fragments.
// What came whole was looked at before the link got it; what came in fragments can
// only be looked at here.
func (l *link) take(m *protocol.Message, out *linkOut) error {
	if len(m.Fragment) == 0 {
		out.deliver = append(out.deliver, m.Payload)
		return nil
	}
	if len(l.partial)+len(m.Fragment) > l.cfg.maxPayload {
		return errOversized
	}
	l.partial = append(l.partial, m.Fragment...)
	if m.More {
		return nil
	}
	p, err := protocol.ParsePayload(l.partial)
	l.partial = nil
	if err != nil {
		return fmt.Errorf("tidemark: payload in fragments: %w", err)
	}
	p, n, why := p.Sound()
	if n > 0 {
		out.unsound, out.why = out.unsound+n, why
	}
	out.deliver = append(out.deliver, p)
	return nil
}
