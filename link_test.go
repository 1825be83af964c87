package tidemark

import (
	"container/heap"
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/protocol"
)

const (
	linkT      = 6 * time.Second // SessionTimeout in these tests
	linkDelay  = 20 * time.Millisecond
	linkWin    = 64 << 10
	linkMaxMsg = 16 << 10

	linkMaxPayload = 4 << 20
)

func linkPairConfig(self int32) linkConfig {
	epochs := map[int32]int64{1: 101, 2: 202}
	peer := 3 - self
	return linkConfig{cluster: protocol.UUID{7}, self: self, peer: peer, selfEpoch: epochs[self], peerEpoch: epochs[peer],
		sessionTimeout: linkT, maxMessage: linkMaxMsg, maxPayload: linkMaxPayload, window: linkWin}
}

// linkEnd is a link and what its broker remembers about the present session.
type linkEnd struct {
	*link
	sent, got  uint64 // payloads of the present session
	ups, downs int
	byKind     [protocol.Reset + 1]int
	recent     []time.Duration // when messages other than Data were sent
	busiest    int             // most of them within linkT
	asleep     time.Duration   // handles nothing before
	queue      []*protocol.Message
	downAt     time.Duration
}

var linkBulk [1 << 20]byte

// linkTag marks a payload with the session that it was sent in.
func linkTag(session uint64) (u protocol.UUID) {
	binary.BigEndian.PutUint64(u[:], session)
	return u
}

type linkEvent struct {
	at   time.Duration
	n    int
	to   int
	m    *protocol.Message
	call func()
}

type linkEvents []linkEvent

func (e linkEvents) Len() int { return len(e) }
func (e linkEvents) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].n < e[j].n
}
func (e linkEvents) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *linkEvents) Push(x any)   { *e = append(*e, x.(linkEvent)) }
func (e *linkEvents) Pop() any {
	old := *e
	x := old[len(old)-1]
	*e = old[:len(old)-1]
	return x
}

// linkSim is two links and a network between them, in one goroutine.
type linkSim struct {
	t      *testing.T
	now    time.Duration
	rng    *rand.Rand
	events linkEvents
	n      int
	ends   [2]*linkEnd
	seed   uint64

	cut     [2]bool // nothing reaches this end
	drop    float64
	double  float64
	late    float64 // probability of a long delay
	lateMax time.Duration
	jitter  time.Duration
	big     int     // when not 0, size of some payloads of one item
	replay  float64 // probability that a message of the past comes again
	past    []linkEvent
	lose    func(to int, m *protocol.Message) bool
}

func newLinkSim(t *testing.T, seed uint64) *linkSim {
	s := &linkSim{t: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 1))}
	for i := range s.ends {
		s.ends[i] = &linkEnd{link: newLink(linkPairConfig(int32(i+1)), 0, seed<<8+uint64(i))}
	}
	return s
}

func (s *linkSim) at(d time.Duration, e linkEvent) {
	e.at, e.n = s.now+d, s.n
	s.n++
	heap.Push(&s.events, e)
}

func (s *linkSim) transmit(to int, m *protocol.Message) {
	if s.cut[to] || s.rng.Float64() < s.drop || s.lose != nil && s.lose(to, m) {
		return
	}
	copies := 1
	if s.rng.Float64() < s.double {
		copies = 2
	}
	for range copies {
		d := linkDelay
		if s.jitter > 0 {
			d += time.Duration(s.rng.Int64N(int64(s.jitter)))
		}
		if s.rng.Float64() < s.late {
			d += time.Duration(s.rng.Int64N(int64(s.lateMax)))
		}
		s.at(d, linkEvent{to: to, m: m})
	}
	if s.replay > 0 {
		s.past = append(s.past, linkEvent{to: to, m: m})
		if s.rng.Float64() < s.replay {
			s.at(linkDelay, s.past[s.rng.IntN(len(s.past))])
		}
	}
}

// handle is what a broker does with the output of one or more calls.
func (s *linkSim) handle(i int, out *linkOut) {
	e := s.ends[i]
	if out.down {
		e.downs++
		e.downAt = s.now
	}
	if out.up {
		e.ups++
		e.sent, e.got = 0, 0
	}
	for _, p := range out.deliver {
		e.got++
		c := p.Commands[0]
		if !e.isUp() || c.Topic.ID != linkTag(e.session) || c.Request != e.got || len(c.Topic.Name) != int(c.Level) {
			require.Fail(s.t, "delivery while down, across sessions, twice or out of order",
				"seed %d: up %v, session %x, payload %d of %v, expected %d", s.seed, e.isUp(), e.session, c.Request, c.Topic.ID, e.got)
		}
	}
	for _, m := range out.send {
		e.byKind[m.Kind]++
		if m.Kind != protocol.Data {
			e.recent = append(e.recent, s.now)
			for e.recent[0] <= s.now-linkT {
				e.recent = e.recent[1:]
			}
			e.busiest = max(e.busiest, len(e.recent))
		}
		s.transmit(1-i, m)
	}
}

// put sends one numbered payload of about size bytes.
func (s *linkSim) put(i, size int) bool {
	e, out := s.ends[i], &linkOut{}
	p := protocol.Payload{Commands: []protocol.Command{{Request: e.sent + 1, Kind: protocol.CreateTopic,
		Topic: protocol.Topic{ID: linkTag(e.session)}}}}
	if size > e.cfg.maxMessage/2 { // all of it in one item
		p.Commands[0].Topic.Name, p.Commands[0].Level = string(linkBulk[:size]), int32(size)
	} else if size > 0 {
		p.Appends = []protocol.Append{{Batch: linkBulk[:size]}}
	}
	ok := e.send(s.now, p, out)
	if ok {
		e.sent++
	}
	s.handle(i, out)
	return ok
}

// run goes on until the given time. Ticks come exactly when they are due.
func (s *linkSim) run(until time.Duration) {
	for {
		at, who := until, -1
		if len(s.events) > 0 && s.events[0].at <= at {
			at, who = s.events[0].at, 2
		}
		for i, e := range s.ends {
			if due := max(e.next(), e.asleep, s.now); due < at {
				at, who = due, i
			}
		}
		if who < 0 {
			s.now = until
			return
		}
		s.early(at)
		s.now = at
		if who < 2 {
			s.wake(who)
			continue
		}
		ev := heap.Pop(&s.events).(linkEvent)
		if ev.call != nil {
			ev.call()
			continue
		}
		e := s.ends[ev.to]
		e.queue = append(e.queue, ev.m)
		if s.now >= e.asleep {
			s.drainQueue(ev.to)
		}
	}
}

// early checks that nothing happens before its time.
func (s *linkSim) early(at time.Duration) {
	for _, e := range s.ends {
		if t := min(at, e.next()) - 1; t >= s.now && e.asleep <= t {
			out := &linkOut{}
			due := e.next()
			e.tick(t, out)
			if len(out.send) > 0 || out.down || out.up || e.next() != due {
				require.Fail(s.t, "a tick too early did something", "seed %d", s.seed)
			}
		}
	}
}

func (s *linkSim) wake(i int) {
	e := s.ends[i]
	s.drainQueue(i)
	if e.next() <= s.now {
		out := &linkOut{}
		e.tick(s.now, out)
		if e.next() <= s.now {
			require.Fail(s.t, "a tick is due again at once", "seed %d", s.seed)
		}
		s.handle(i, out)
	}
}

// drainQueue hands over what has come, all of it into one linkOut.
func (s *linkSim) drainQueue(i int) {
	e, out := s.ends[i], &linkOut{}
	for _, m := range e.queue {
		e.receive(s.now, m, out)
	}
	e.queue = nil
	s.handle(i, out)
}

func (s *linkSim) agree() bool {
	a, b := s.ends[0], s.ends[1]
	return a.isUp() && b.isUp() && a.session == b.session
}

func upLinks(t *testing.T) *linkSim {
	s := newLinkSim(t, 1)
	s.run(linkT / 60)
	require.True(t, s.agree())
	return s
}

// traffic makes both brokers send now and then, within their credit.
func (s *linkSim) traffic(until time.Duration) {
	for i, e := range s.ends {
		var step func()
		step = func() {
			if s.now >= e.asleep {
				for range s.rng.IntN(6) {
					size := 0
					if s.rng.IntN(3) == 0 && e.credit() > 0 {
						size = s.rng.IntN(8 << 10)
						if s.big > 0 && s.rng.IntN(4) == 0 {
							size = s.big/2 + s.rng.IntN(s.big/2)
						}
					}
					s.put(i, size)
				}
			}
			if s.now < until {
				s.at(time.Duration(s.rng.Int64N(int64(linkT/20))), linkEvent{call: step})
			}
		}
		s.at(0, linkEvent{call: step})
	}
}

func TestLinkChaosThenAgreement(t *testing.T) {
	busiest := linkChaos(t, 60, func(*linkSim) {})
	require.Less(t, busiest, 60, "messages of the link itself within a SessionTimeout")
}

// linkChaos returns how many messages of the link itself there were at most within
// a SessionTimeout.
func linkChaos(t *testing.T, seeds uint64, tune func(*linkSim)) (busiest int) {
	var sessions, delivered, gaps, silences, stale uint64
	for seed := range seeds {
		s := newLinkSim(t, seed)
		tune(s)
		s.drop = []float64{0, 0.002, 0.05, 0.4}[s.rng.IntN(4)]
		s.double = s.rng.Float64() * 0.2
		s.jitter = []time.Duration{0, linkDelay, linkT / 10}[s.rng.IntN(3)]
		s.late, s.lateMax = []float64{0, 0.02, 0.3}[s.rng.IntN(3)], 2*linkT
		s.replay = []float64{0, 0.1}[s.rng.IntN(2)]
		heal := 15 * linkT
		s.traffic(heal + 6*linkT)
		for at := time.Duration(0); at < heal; at += linkT / 2 {
			switch s.rng.IntN(8) {
			case 0, 1:
				s.cut = [2]bool{s.rng.IntN(2) == 0, s.rng.IntN(2) == 0}
			case 2:
				s.ends[s.rng.IntN(2)].asleep = s.now + time.Duration(s.rng.Int64N(int64(linkT)))
			default:
				s.cut = [2]bool{}
			}
			s.run(at)
		}
		s.cut, s.drop, s.double, s.late, s.replay = [2]bool{}, 0, 0, 0, 0
		s.jitter = linkDelay
		calm := heal + 3*linkT // the latest message of the bad time has come
		s.run(calm + 3*linkT/4)
		require.True(t, s.agree(), "seed %d: not up after the network healed", seed)
		before := [2]int{s.ends[0].downs, s.ends[1].downs}
		s.run(heal + 10*linkT)
		require.True(t, s.agree(), "seed %d", seed)
		require.Equal(t, before, [2]int{s.ends[0].downs, s.ends[1].downs}, "seed %d: down on a sound network", seed)
		for i, e := range s.ends {
			require.Equal(t, s.ends[1-i].sent, e.got, "seed %d: all that was sent arrived", seed)
			require.Equal(t, linkWin, e.credit(), "seed %d: credit returns when idle", seed)
			// Several sessions within one linkOut show as one, or as a down alone.
			require.LessOrEqual(t, e.ups, e.downs+1, "seed %d", seed)
			busiest = max(busiest, e.busiest)
			c := e.stats()
			sessions, gaps, silences = sessions+c.sessions, gaps+c.gaps, silences+c.silences
			stale += c.wrongSession
			delivered += e.got
		}
	}
	t.Logf("sessions %d, gaps %d, silences %d, messages of other sessions %d, delivered in last sessions %d, busiest %d",
		sessions, gaps, silences, stale, delivered, busiest)
	require.NotZero(t, gaps)
	require.NotZero(t, silences)
	require.NotZero(t, stale)
	return busiest
}

// The same run gives the same messages.
func TestLinkDeterministic(t *testing.T) {
	run := func() [2]linkStats {
		s := newLinkSim(t, 42)
		s.drop, s.jitter, s.double = 0.05, linkT/10, 0.1
		s.traffic(10 * linkT)
		s.run(12 * linkT)
		return [2]linkStats{s.ends[0].stats(), s.ends[1].stats()}
	}
	require.Equal(t, run(), run())
}

func TestLinkIdleHeartbeats(t *testing.T) {
	s := upLinks(t)
	const periods = 600
	before := [2]linkStats{s.ends[0].stats(), s.ends[1].stats()}
	s.run(s.now + periods*linkT/6)
	for i, e := range s.ends {
		require.InDelta(t, periods, e.stats().sentMessages-before[i].sentMessages, 1)
		require.InDelta(t, periods, e.byKind[protocol.Heartbeat], 1)
		require.Equal(t, 1, e.ups)
		require.Zero(t, e.downs)
	}
	require.LessOrEqual(t, s.ends[0].stats().sentBytes/s.ends[0].stats().sentMessages, uint64(100))
}

func TestLinkSilence(t *testing.T) {
	for _, cut := range [][2]bool{{true, true}, {true, false}, {false, true}} {
		s := upLinks(t)
		s.run(s.now + 3*linkT + linkT/7)
		at := s.now
		s.cut = cut
		s.run(at + linkT/2 + 2*linkDelay)
		for i, e := range s.ends {
			require.Equal(t, 1, e.downs, "cut %v", cut)
			require.LessOrEqual(t, e.downAt, at+linkT/2+2*linkDelay, "cut %v end %d", cut, i)
			require.GreaterOrEqual(t, e.downAt, at+linkT/2-linkT/6-linkDelay, "cut %v end %d", cut, i)
		}
		require.Equal(t, uint64(1), max(s.ends[0].stats().silences, s.ends[1].stats().silences))
		// An acceptor that the opener cannot hear is up once more, for the time of
		// a silence, and then stays down.
		s.run(s.now + linkT)
		downs := s.ends[1].downs
		require.LessOrEqual(t, downs, 2)
		s.run(s.now + 20*linkT)
		require.Equal(t, downs, s.ends[1].downs)
		require.False(t, s.ends[0].isUp() || s.ends[1].isUp(), "cut %v", cut)
		for _, e := range s.ends {
			require.Less(t, e.busiest, 30)
		}
		s.cut = [2]bool{}
		s.run(s.now + linkT/2)
		require.True(t, s.agree(), "cut %v", cut)
	}
}

// A process that slept finds the silence first, whatever waits in its queue.
func TestLinkSleep(t *testing.T) {
	for who := range 2 {
		s := upLinks(t)
		s.ends[who].asleep = s.now + 3*linkT
		s.run(s.now + 3*linkT - 1)
		require.False(t, s.ends[1-who].isUp())
		s.run(s.now + linkT)
		require.True(t, s.agree())
		require.Equal(t, 1, s.ends[who].downs)
		require.Equal(t, uint64(1), s.ends[who].stats().silences)
	}
	s := upLinks(t)
	out := &linkOut{}
	require.False(t, s.ends[0].send(s.now+linkT, protocol.Payload{Reports: []protocol.Report{{}}}, out), "send after a sleep")
	require.True(t, out.down)
}

func TestLinkCredit(t *testing.T) {
	s := upLinks(t)
	a := s.ends[0]
	const rounds = 100
	start, total := s.now, 0
	var step func()
	step = func() {
		for a.credit() > 0 && total < rounds*linkWin {
			require.True(t, s.put(0, 2<<10))
			total += 2 << 10
		}
		if total < rounds*linkWin {
			s.at(time.Millisecond, linkEvent{call: step})
		}
	}
	step()
	require.LessOrEqual(t, a.credit(), 0)
	require.Greater(t, a.credit(), -linkMaxMsg)
	for total < rounds*linkWin {
		s.run(s.now + time.Millisecond)
	}
	// One-way traffic: the window turns over about once per round trip, not once per heartbeat.
	require.Less(t, s.now-start, rounds*3*linkDelay)
	require.Less(t, s.ends[1].byKind[protocol.Heartbeat], 6*rounds, "credit is returned in quarters")
	s.run(s.now + linkT/6 + 3*linkDelay)
	require.Equal(t, linkWin, a.credit())
	require.Equal(t, a.sent, s.ends[1].got)
	require.Empty(t, a.sizes)

	for range 20 { // small control payloads pass without credit
		require.True(t, s.put(0, 8<<10))
	}
	require.Negative(t, a.credit())
	require.True(t, s.put(0, 0))
	s.cut = [2]bool{true, true}
	s.run(s.now + linkT)
	require.Zero(t, a.credit())
	require.False(t, s.put(0, 0))
	s.cut = [2]bool{}
	s.run(s.now + linkT)
	require.Equal(t, linkWin, a.credit(), "a new session has its whole window")
}

func TestLinkLostLastEnvelope(t *testing.T) {
	s := upLinks(t)
	s.put(0, 0)
	s.run(s.now + 2*linkDelay)
	s.lose = func(to int, m *protocol.Message) bool { return m.Kind == protocol.Data }
	s.put(0, 0)
	at := s.now
	s.lose = nil
	s.run(at + linkT/6 + linkT/12 - 1)
	require.True(t, s.ends[1].isUp())
	s.run(at + linkT/6 + linkT/12 + linkDelay + 1)
	require.Equal(t, uint64(1), s.ends[1].stats().gaps)
	s.run(s.now + 4*linkDelay)
	require.True(t, s.agree())
	require.Equal(t, 2, s.ends[0].ups, "the opener opened again at once")
	require.Equal(t, uint64(1), s.ends[0].stats().resetBy)
}

// A peer that speaks no common version is asked rarely; one that breaks every
// session quickly is not asked in a storm.
func TestLinkFailingSessionsAreSpaced(t *testing.T) {
	s := newLinkSim(t, 3)
	s.lose = func(to int, m *protocol.Message) bool { return m.Kind == protocol.Data }
	var step func()
	step = func() { s.put(0, 0); s.put(1, 0); s.put(1, 0); s.at(linkT/100, linkEvent{call: step}) }
	step()
	s.run(100 * linkT)
	for _, e := range s.ends {
		require.Less(t, e.busiest, 40)
		require.Less(t, e.ups, 1000)
		require.Greater(t, e.ups, 50)
	}
}

// A link that was made again for the same epochs, on either side, comes up.
func TestLinkMadeAgain(t *testing.T) {
	for who := range 2 {
		s := upLinks(t)
		s.run(5 * linkT)
		s.ends[who].link = newLink(linkPairConfig(int32(who+1)), s.now, 99)
		s.run(s.now + linkT/2)
		require.True(t, s.agree(), "end %d", who)
	}
}

// linkPeer writes messages as the other broker would.
func linkPeer(l *link, m protocol.Message) *protocol.Message {
	m.Cluster = l.cfg.cluster
	m.From, m.To, m.FromEpoch, m.ToEpoch = l.cfg.peer, l.cfg.self, l.cfg.peerEpoch, l.cfg.selfEpoch
	return &m
}

func linkHello(l *link, attempt, session uint64) *protocol.Message {
	return linkPeer(l, protocol.Message{Kind: protocol.Hello, Attempt: attempt, Session: session, MinVersion: 1, MaxVersion: 1})
}

func linkKinds(out *linkOut) (kinds []protocol.Kind) {
	for _, m := range out.send {
		kinds = append(kinds, m.Kind)
	}
	return kinds
}

func TestLinkGateway(t *testing.T) {
	for name, c := range map[string]struct {
		spoil   func(*protocol.Message)
		counter func(linkStats) uint64
	}{
		"cluster":    {func(m *protocol.Message) { m.Cluster[3]++ }, func(c linkStats) uint64 { return c.foreignCluster }},
		"to":         {func(m *protocol.Message) { m.To = 9 }, func(c linkStats) uint64 { return c.wrongAddressee }},
		"from":       {func(m *protocol.Message) { m.From = 9 }, func(c linkStats) uint64 { return c.wrongAddressee }},
		"from epoch": {func(m *protocol.Message) { m.FromEpoch-- }, func(c linkStats) uint64 { return c.wrongEpoch }},
		"to epoch":   {func(m *protocol.Message) { m.ToEpoch++ }, func(c linkStats) uint64 { return c.wrongEpoch }},
		"kind":       {func(m *protocol.Message) { m.Kind = 77 }, func(c linkStats) uint64 { return c.unexpected }},
		"welcome":    {func(m *protocol.Message) { m.Kind = protocol.Welcome }, func(c linkStats) uint64 { return c.unexpected }},
		"attempt 0":  {func(m *protocol.Message) { m.Attempt = 0 }, func(c linkStats) uint64 { return c.wrongSession }},
	} {
		t.Run(name, func(t *testing.T) {
			l, out := newLink(linkPairConfig(2), 0, 1), &linkOut{}
			m := linkHello(l, 1, 5)
			c.spoil(m)
			l.receive(0, m, out)
			require.Equal(t, &linkOut{}, out)
			require.Equal(t, uint64(1), c.counter(l.stats()))
			require.Equal(t, linkNever, l.next())
			l.receive(0, linkHello(l, 1, 5), out)
			require.True(t, out.up)
		})
	}
	l, out := newLink(linkPairConfig(1), 0, 1), &linkOut{}
	l.receive(0, linkHello(l, 1, 5), out)
	require.Equal(t, &linkOut{}, out, "the lower id answers no Hello")
	require.Equal(t, uint64(1), l.stats().unexpected)
}

func TestLinkAcceptor(t *testing.T) {
	l := newLink(linkPairConfig(2), 0, 1)
	now := time.Duration(0)
	step := func(m *protocol.Message) *linkOut {
		out := &linkOut{}
		l.receive(now, m, out)
		return out
	}
	data := func(session, seq uint64) *protocol.Message {
		return linkPeer(l, protocol.Message{Kind: protocol.Data, Session: session, Seq: seq})
	}
	out := step(linkHello(l, 7, 70))
	require.True(t, out.up && !out.down)
	require.Equal(t, []protocol.Kind{protocol.Welcome}, linkKinds(out))
	require.Equal(t, uint64(7), out.send[0].Attempt)
	require.Len(t, step(data(70, 1)).deliver, 1)

	require.Equal(t, &linkOut{}, step(linkHello(l, 6, 60)), "an older attempt")
	require.Equal(t, &linkOut{}, step(linkHello(l, 7, 71)), "the same attempt under another name")
	out = step(linkHello(l, 7, 70))
	require.Equal(t, []protocol.Kind{protocol.Welcome}, linkKinds(out))
	require.False(t, out.up || out.down, "answered again without any effect")
	require.Len(t, step(data(70, 2)).deliver, 1, "numbering goes on")

	out = step(linkHello(l, 8, 80))
	require.True(t, out.up && out.down, "a newer attempt ends the old session")
	out = step(data(70, 3))
	require.Empty(t, out.deliver)
	require.Equal(t, []protocol.Kind{protocol.Reset}, linkKinds(out))
	require.Equal(t, uint64(70), out.send[0].Session)
	require.Empty(t, step(data(70, 4)).send, "at most one Reset per SessionTimeout/12")
	now += linkT / 12
	require.Len(t, step(data(70, 4)).send, 1)
	require.True(t, l.isUp())
	require.Equal(t, &linkOut{}, step(linkPeer(l, protocol.Message{Kind: protocol.Reset, Session: 70})), "a Reset of another session")

	out = step(linkPeer(l, protocol.Message{Kind: protocol.Reset, Session: 80}))
	require.Equal(t, &linkOut{down: true}, out)
	require.Equal(t, linkNever, l.next(), "an acceptor that is down waits without a timer")
	now += linkT
	require.Equal(t, []protocol.Kind{protocol.Reset}, linkKinds(step(linkHello(l, 8, 80))), "a dead session stays dead")
	require.False(t, l.isUp())
	require.Equal(t, []protocol.Kind{protocol.Welcome}, linkKinds(step(linkHello(l, 9, 90))))
}

func TestLinkReorderWindow(t *testing.T) {
	l := newLink(linkPairConfig(2), 0, 1)
	l.receive(0, linkHello(l, 1, 5), &linkOut{})
	data := func(now time.Duration, seq uint64) *linkOut {
		out := &linkOut{}
		l.receive(now, linkPeer(l, protocol.Message{Kind: protocol.Data, Session: 5, Seq: seq,
			Payload: protocol.Payload{Commands: []protocol.Command{{Request: seq}}}}), out)
		return out
	}
	for seq := uint64(linkReorder); seq >= 2; seq-- {
		require.Empty(t, data(1, seq).deliver)
	}
	data(1, 9)
	require.Equal(t, uint64(1), l.stats().duplicate, "held twice")
	out := data(linkT/12, 1)
	require.Len(t, out.deliver, linkReorder)
	for i, p := range out.deliver {
		require.Equal(t, uint64(i+1), p.Commands[0].Request)
	}
	data(linkT/12, linkReorder)
	require.Equal(t, uint64(2), l.stats().duplicate, "delivered twice")

	// Two holes: the second is timed from the moment the first closed.
	at := linkT / 12
	data(at, linkReorder+2)
	data(at, linkReorder+4)
	require.Len(t, data(at+linkT/12-1, linkReorder+1).deliver, 2)
	require.Len(t, data(at+linkT/6-2, linkReorder+3).deliver, 2)
	out = &linkOut{}
	l.tick(at+linkT/3, out)
	require.False(t, out.down)

	out = data(at+linkT/3, linkReorder+4+linkReorder+1)
	require.True(t, out.down, "the window overflows")
	require.Equal(t, []protocol.Kind{protocol.Reset}, linkKinds(out))
	require.Equal(t, uint64(1), l.stats().gaps)
}

func TestLinkAckOfWhatWasNeverSent(t *testing.T) {
	l, out := newLink(linkPairConfig(2), 0, 1), &linkOut{}
	l.receive(0, linkHello(l, 1, 5), out)
	require.True(t, l.send(0, protocol.Payload{Reports: []protocol.Report{{}}}, out))
	*out = linkOut{}
	l.receive(0, linkPeer(l, protocol.Message{Kind: protocol.Data, Session: 5, Seq: 1, Ack: 2}), out)
	require.True(t, out.down)
	require.Empty(t, out.deliver)
	require.Equal(t, []protocol.Kind{protocol.Reset}, linkKinds(out))
	require.Equal(t, uint64(1), l.stats().faults)
}

func TestLinkVersions(t *testing.T) {
	// The acceptor speaks none of the versions offered.
	l, out := newLink(linkPairConfig(2), 0, 1), &linkOut{}
	m := linkHello(l, 1, 5)
	m.MinVersion, m.MaxVersion = linkMaxVersion+1, linkMaxVersion+3
	l.receive(0, m, out)
	require.False(t, out.up || l.isUp())
	require.Equal(t, []protocol.Kind{protocol.Reset}, linkKinds(out))
	require.Equal(t, uint64(1), l.stats().versions)
	require.ErrorContains(t, out.trouble, "no common protocol version: the peer has 2 to 4, this broker 1 to 1")
	m = linkHello(l, 2, 6)
	m.MaxVersion = linkMaxVersion + 3
	*out = linkOut{}
	l.receive(1, m, out)
	require.True(t, out.up)
	require.NoError(t, out.trouble)
	require.Equal(t, linkMaxVersion, out.send[0].MaxVersion, "the highest version that both speak")
	require.True(t, l.send(1, protocol.Payload{Reports: []protocol.Report{{}}}, out))
	l.tick(1+linkT/6, out)
	require.Equal(t, []protocol.Kind{protocol.Welcome, protocol.Data, protocol.Heartbeat}, linkKinds(out))
	for _, m := range out.send {
		require.Equal(t, [2]uint16{linkMaxVersion, linkMaxVersion}, [2]uint16{m.MinVersion, m.MaxVersion}, "everything in a session names its version")
	}

	// The opener is refused: by Reset, or by something of its session with a version it does not speak.
	for _, kind := range []protocol.Kind{protocol.Reset, protocol.Welcome, protocol.Data, protocol.Heartbeat} {
		l, out := newLink(linkPairConfig(1), 0, 1), &linkOut{}
		l.tick(0, out)
		for range 5 {
			now := l.next()
			l.receive(now, linkPeer(l, protocol.Message{Kind: kind, Session: l.session, MinVersion: 9, MaxVersion: 9}), out)
			require.ErrorContains(t, out.trouble, "no common protocol version: the peer has 9 to 9, this broker 1 to 1")
			require.Equal(t, now+linkT, l.next(), "asked again slowly")
			l.tick(l.next(), out)
		}
		require.False(t, out.up || out.down)
		require.Equal(t, uint64(5), l.stats().versions)
	}
}

func TestLinkOpener(t *testing.T) {
	l, out := newLink(linkPairConfig(1), 0, 1), &linkOut{}
	var at []time.Duration
	for l.next() < linkT {
		at = append(at, l.next())
		l.tick(l.next(), out)
	}
	require.Equal(t, []time.Duration{0, linkT / 60, linkT / 20, 7 * linkT / 60, 15 * linkT / 60}, at[:5])
	require.Equal(t, linkT/6, at[len(at)-1]-at[len(at)-2])
	for _, m := range out.send {
		require.Equal(t, protocol.Hello, m.Kind)
		require.Equal(t, out.send[0].Session, m.Session)
		require.Equal(t, out.send[0].Attempt, m.Attempt)
	}
	// Up by the first envelope of the session, though Welcome never came.
	*out = linkOut{}
	l.receive(linkT, linkPeer(l, protocol.Message{Kind: protocol.Data, Session: l.session, Seq: 1, MinVersion: 1, MaxVersion: 1}), out)
	require.True(t, out.up)
	require.Equal(t, uint16(1), l.version)
	require.Len(t, out.deliver, 1)

	// Sessions that the peer ends at once are spaced out, up to SessionTimeout/4.
	var gaps []time.Duration
	now := linkT
	for range 12 {
		*out = linkOut{}
		before := l.attempt
		l.receive(now, linkPeer(l, protocol.Message{Kind: protocol.Reset, Session: l.session}), out)
		gap := time.Duration(0)
		if l.attempt == before {
			gap = l.next() - now
			now = l.next()
			l.tick(now, out)
		}
		require.Greater(t, l.attempt, before)
		gaps = append(gaps, gap)
	}
	require.Equal(t, []time.Duration{0, linkT / 60, linkT / 30, linkT / 15, 2 * linkT / 15, linkT / 4, linkT / 4}, gaps[:7])
	// One that lived is replaced at once.
	l.receive(now, linkPeer(l, protocol.Message{Kind: protocol.Welcome, Session: l.session, MinVersion: 1, MaxVersion: 1}), out)
	for range 4 {
		now += linkT / 6
		l.receive(now, linkPeer(l, protocol.Message{Kind: protocol.Heartbeat, Session: l.session}), out)
	}
	before := l.session
	l.receive(now, linkPeer(l, protocol.Message{Kind: protocol.Reset, Session: l.session}), out)
	require.NotEqual(t, before, l.session)
	require.Equal(t, linkOpening, l.phase)
}

// What one linkOut collects never shows a payload of an ended session.
func TestLinkOutOverSeveralSessions(t *testing.T) {
	l, out := newLink(linkPairConfig(2), 0, 1), &linkOut{}
	data := func(session, seq uint64) *protocol.Message {
		return linkPeer(l, protocol.Message{Kind: protocol.Data, Session: session, Seq: seq,
			Payload: protocol.Payload{Commands: []protocol.Command{{Request: session}}}})
	}
	l.receive(0, linkHello(l, 1, 5), out)
	l.receive(0, data(5, 1), out)
	require.Len(t, out.deliver, 1)
	l.receive(0, linkHello(l, 2, 6), out)
	require.True(t, out.down && out.up)
	require.Empty(t, out.deliver)
	l.receive(0, data(6, 1), out)
	require.Equal(t, uint64(6), out.deliver[0].Commands[0].Request)
	l.receive(0, linkPeer(l, protocol.Message{Kind: protocol.Reset, Session: 6}), out)
	require.True(t, out.down && !out.up)
	require.Empty(t, out.deliver)
}

func TestLinkSplitsLargePayloads(t *testing.T) {
	s := upLinks(t)
	var p protocol.Payload
	for i := range uint64(40) {
		p.Appends = append(p.Appends, protocol.Append{Request: i, Batch: linkBulk[:3<<10]})
	}
	p.Verdicts = []protocol.Verdict{{}}
	out := &linkOut{}
	require.True(t, s.ends[0].send(s.now, p, out))
	require.Greater(t, len(out.send), 5)
	var next uint64
	in := &linkOut{}
	for i, m := range out.send {
		require.LessOrEqual(t, m.Size(), linkMaxMsg)
		require.Equal(t, uint64(i+1), m.Seq)
		s.ends[1].receive(s.now, m, in)
	}
	for _, part := range in.deliver {
		for _, a := range part.Appends {
			require.Equal(t, next, a.Request)
			next++
		}
	}
	require.Equal(t, uint64(40), next)
	require.Len(t, in.deliver[0].Verdicts, 1)

	*out = linkOut{}
	require.True(t, s.ends[0].send(s.now, protocol.Payload{}, out))
	require.Empty(t, out.send, "an empty payload is no envelope")
}
