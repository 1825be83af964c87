package tidemark

import (
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/transport"
)

// linkSet drives the links to all registered brokers: it gives them the clock,
// puts what they send into the transport, and routes what they receive.
type linkSet struct {
	b    *Broker
	kick chan struct{} // an earlier tick than the armed one is due

	mu    sync.RWMutex
	peers map[int32]*peerLink

	armed   atomic.Int64  // when the ticker wakes next, in nanoseconds of the broker's clock
	foreign atomic.Uint64 // messages dropped before they reached a link
	unsound atomic.Uint64 // items dropped out of payloads
	refused atomic.Uint64 // messages that the transport did not take
	past    atomic.Uint64 // messages dropped by links that are gone
}

// peerLink is one link and its lock. The lock is held for a step of the link and
// while what it delivers is put into mailboxes, never while something is sent.
type peerLink struct {
	peer transport.Peer

	mu      sync.Mutex
	link    *link
	out     linkOut
	outbox  []*protocol.Message // in the order of their numbers
	sending bool                // one goroutine at a time empties the outbox
	gone    bool                // replaced: what it still does concerns nobody
	parted  bool                // the peer has said farewell: it takes no appends any more
}

func newLinkSet(b *Broker) *linkSet {
	return &linkSet{b: b, peers: make(map[int32]*peerLink), kick: make(chan struct{}, 1)}
}

func (s *linkSet) get(id int32) *peerLink {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.peers[id]
}

// life is the broker epoch of the life that the link to a broker is for; 0: there is none.
func (s *linkSet) life(id int32) int64 {
	if l := s.get(id); l != nil {
		return l.link.cfg.peerEpoch
	}
	return 0
}

func (s *linkSet) all() []*peerLink {
	s.mu.RLock()
	defer s.mu.RUnlock()
	all := make([]*peerLink, 0, len(s.peers))
	for _, p := range s.peers {
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b *peerLink) int { return int(a.peer.ID - b.peer.ID) })
	return all
}

// rebuild makes the links fit the registrations: one per other broker, for
// exactly this pair of broker epochs.
func (s *linkSet) rebuild(selfEpoch int64, registry map[int32]registered) {
	if s.b.cfg.Transport == nil {
		return
	}
	s.mu.Lock()
	for _, id := range slices.Sorted(maps.Keys(s.peers)) {
		p := s.peers[id]
		r, ok := registry[id]
		if !ok || r.epoch != p.link.cfg.peerEpoch || selfEpoch != p.link.cfg.selfEpoch {
			delete(s.peers, id)
			s.end(p) // before the next one can be up
		}
	}
	now := s.b.now()
	for _, id := range slices.Sorted(maps.Keys(registry)) {
		r := registry[id]
		if id == s.b.cfg.ID || s.peers[id] != nil || selfEpoch == 0 {
			continue
		}
		s.peers[id] = &peerLink{peer: transport.Peer{ID: id, Address: r.Address}, link: newLink(linkConfig{
			cluster: s.b.cluster(), self: s.b.cfg.ID, peer: id, selfEpoch: selfEpoch, peerEpoch: r.epoch,
			sessionTimeout: s.b.cfg.SessionTimeout, maxMessage: s.b.maxMessage, maxPayload: maxPayload(&s.b.cfg), window: linkWindow,
			planted: s.b.planted,
		}, now, s.b.randomUint64())}
	}
	s.mu.Unlock()
	s.wake()
}

// end makes a link that is replaced do nothing any more.
func (s *linkSet) end(p *peerLink) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gone = true
	s.past.Add(p.link.stats().dropped())
	if p.link.isUp() {
		s.b.linkChanged(p.peer.ID, p.link.cfg.peerEpoch, false)
	}
}

func (s *linkSet) wake() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// sendOptions are what a client's request asks of the link.
type sendOptions struct {
	bulk    bool    // an append: refuse when the link has no credit, or the peer takes none
	session *uint64 // see route.append; nil: any
	epoch   int64   // broker epoch of the life that it is for; 0: any
	client  bool    // of a client's goroutine, which must not wait for a transport that blocks
}

// send gives a payload to the link of a broker; false when there is no session,
// or the options forbid it.
func (s *linkSet) send(peer int32, p *protocol.Payload, o sendOptions) bool {
	l := s.get(peer)
	if l == nil {
		return false
	}
	l.mu.Lock()
	ok := o.session == nil || *o.session == 0 || *o.session == l.link.session
	ok = ok && (o.epoch == 0 || o.epoch == l.link.cfg.peerEpoch)
	ok = ok && !(o.bulk && (l.parted || l.link.credit() <= 0)) && l.link.send(s.b.now(), *p, &l.out)
	if ok && o.session != nil {
		*o.session = l.link.session
	}
	s.settle(l, o.client)
	return ok
}

// farewell sends the last payload of all, and returns a function that tells whether it has
// arrived, or never will. It does not wait for a transport that blocks.
func (s *linkSet) farewell(l *peerLink, p protocol.Payload) (arrived func() bool) {
	l.mu.Lock()
	l.link.send(s.b.now(), p, &l.out)
	session, number := l.link.session, l.link.sent+uint64(len(l.link.waiting))
	s.settle(l, true)
	return func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return !l.link.isUp() || l.link.session != session || l.link.acked >= number
	}
}

// receive is the transport's Handler.
func (s *linkSet) receive(m *protocol.Message) {
	if m == nil || m.To != s.b.cfg.ID {
		s.foreign.Add(1)
		return
	}
	l := s.get(m.From)
	if l == nil || m.ValidHeader() != nil {
		s.foreign.Add(1)
		return
	}
	// Before the lock: it looks at every byte of every batch.
	if sound, unsound, err := m.Payload.Sound(); unsound > 0 {
		s.warnUnsound(m.From, unsound, err)
		mended := *m
		mended.Payload = sound
		m = &mended
	}
	l.mu.Lock()
	starved := l.link.credit() <= 0
	l.link.receive(s.b.now(), m, &l.out)
	starved = starved && l.link.credit() > 0
	s.settle(l, false)
	if starved {
		s.b.eachLoop(loopEvent{step: func(time.Duration, *shard) {}})
	}
}

// maxPayload bounds what a broker sends in fragments: one item, above all one
// batch. A link has as much as its window under way in any case.
func maxPayload(c *Config) int { return max(c.largestBatch()+batchSlack, linkWindow) }

func (s *linkSet) warnUnsound(peer int32, items int, why error) {
	s.unsound.Add(uint64(items))
	s.b.warn("dropped unsound items", "peer", peer, "items", items, "error", why)
}

// settle routes what a step of the link brought about, and unlocks it. later leaves
// what is to be sent to the links' own goroutine.
func (s *linkSet) settle(l *peerLink, later bool) {
	out := l.out
	l.out = linkOut{}
	if l.gone {
		l.mu.Unlock()
		return
	}
	epoch := l.link.cfg.peerEpoch
	if out.down {
		s.b.linkChanged(l.peer.ID, epoch, false)
	}
	if out.up {
		s.b.linkChanged(l.peer.ID, epoch, true)
	}
	for i := range out.deliver {
		l.parted = l.parted || isFarewell(&out.deliver[i])
		s.b.deliver(l.peer.ID, epoch, &out.deliver[i])
	}
	next := l.link.next()
	l.outbox = append(l.outbox, out.send...)
	if later {
		later = len(l.outbox) > 0 && !l.sending
		l.mu.Unlock()
	} else {
		s.empty(l)
	}
	if later || int64(next) < s.armed.Load() {
		s.wake()
	}
	if out.unsound > 0 {
		s.warnUnsound(l.peer.ID, out.unsound, out.why)
	}
	if out.trouble != nil {
		s.b.warn("trouble with a link", "peer", l.peer.ID, "error", out.trouble)
	}
}

// empty sends what is in the outbox, in order, and unlocks the link. Whoever
// comes while somebody is at it leaves the rest to him: were each to send its own,
// one that is held up would look like a gap.
func (s *linkSet) empty(l *peerLink) {
	if l.sending {
		l.mu.Unlock()
		return
	}
	l.sending = true
	for len(l.outbox) > 0 {
		messages := l.outbox
		l.outbox = nil
		l.mu.Unlock()
		for _, m := range messages {
			// A message that is refused is a message that is lost: the link notices.
			if err := s.b.cfg.Transport.Send(l.peer, m); err != nil {
				s.refused.Add(1)
				s.b.log.Debug("transport refused a message", "broker", s.b.cfg.ID, "peer", l.peer.ID, "bytes", m.Size(), "error", err)
			}
		}
		l.mu.Lock()
	}
	l.sending = false
	l.mu.Unlock()
}

// credits calls f with what each link still takes.
func (s *linkSet) credits(f func(peer int32, credit int)) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for id, l := range s.peers {
		l.mu.Lock()
		c := l.link.credit()
		l.mu.Unlock()
		f(id, c)
	}
}

// isUp reports whether there is a session with the broker.
func (s *linkSet) isUp(id int32) bool {
	l := s.get(id)
	if l == nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.link.isUp()
}

// run gives the links their ticks until the broker stops.
func (s *linkSet) run() {
	const idle = time.Hour
	timer := time.NewTimer(idle)
	defer timer.Stop()
	for {
		next := min(s.tick(), s.b.now()+idle)
		s.armed.Store(int64(next))
		next = min(next, s.due()) // a step meanwhile did not know what to compare with
		timer.Reset(max(next-s.b.now(), 0))
		select {
		case <-s.b.stopping:
			return
		case <-timer.C:
		case <-s.kick:
		}
	}
}

// due is when the next link wants a tick.
func (s *linkSet) due() time.Duration {
	next := time.Duration(math.MaxInt64)
	for _, l := range s.all() {
		l.mu.Lock()
		next = min(next, l.link.next())
		l.mu.Unlock()
	}
	return next
}

// dropped counts the messages that were of another cluster, broker or life, or of
// another session than the present one.
func (s *linkSet) dropped() uint64 {
	n := s.foreign.Load() + s.past.Load()
	for _, l := range s.all() {
		l.mu.Lock()
		n += l.link.stats().dropped()
		l.mu.Unlock()
	}
	return n
}

// tick steps every link whose time has come, sends what was handed over, and
// returns when the next one is due.
func (s *linkSet) tick() time.Duration {
	now := s.b.now()
	for _, l := range s.all() {
		l.mu.Lock()
		if l.link.next() <= now {
			l.link.tick(now, &l.out)
		}
		s.settle(l, false)
	}
	return s.due()
}
