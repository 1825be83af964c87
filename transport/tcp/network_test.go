package tcp

import (
	"io"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/transport"
)

// A connection on which bytes vanish is noticed by both ends within PeerTimeout and a
// little, and replaced as soon as the network is well again.
func TestHalfOpen(t *testing.T) {
	const timeout = 400 * time.Millisecond
	for name, ways := range map[string]func(*proxy) []*way{
		"there": func(p *proxy) []*way { return []*way{&p.there} },
		"back":  func(p *proxy) []*way { return []*way{&p.back} },
		"both":  func(p *proxy) []*way { return []*way{&p.there, &p.back} },
	} {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, r *rig) {
				fast := func(c *Config) { c.PeerTimeout, c.HandshakeTimeout = timeout, timeout }
				got := new(box)
				a, b := r.open(1, fast, nobody), r.open(2, fast, got.handle)
				p := newProxy(t, b.Addr().String())
				reach(t, a, p.peer(2), got, 1)

				for _, w := range ways(p) {
					w.swallow.Store(true)
				}
				began := time.Now()
				require.NoError(t, a.Send(p.peer(2), bulk(1, 2, 2, 1000)))
				eventually(t, func() bool { return !a.Stats().Peers[2].Connected }, "the sender does not notice")
				require.Less(t, time.Since(began), 2*timeout+time.Second)
				eventually(t, func() bool { return !b.Stats().Peers[1].Receiving }, "the receiver does not notice")
				require.Error(t, a.Stats().Peers[2].LastError)

				// It is tried again, also while nothing is answered.
				eventually(t, func() bool { return a.Stats().Peers[2].Failures > 0 }, "it does not try")
				for _, w := range ways(p) {
					w.swallow.Store(false)
				}
				reach(t, a, p.peer(2), got, 3)
				require.EqualValues(t, 2, a.Stats().Peers[2].Connects)
			})
		})
	}
}

// While nothing is sent, a connection stays, and signs of life go on.
func TestQuietConnectionStays(t *testing.T) {
	both(t, func(t *testing.T, r *rig) {
		fast := func(c *Config) { c.PeerTimeout = 100 * time.Millisecond }
		got := new(box)
		a, b := r.open(1, fast, nobody), r.open(2, fast, got.handle)
		p := newProxy(t, b.Addr().String())
		reach(t, a, p.peer(2), got, 1)
		back := p.back.carried.Load()
		eventually(t, func() bool { return p.back.carried.Load() > back+10*ackSize }, "no acks")
		s := a.Stats().Peers[2]
		require.True(t, s.Connected)
		require.EqualValues(t, 1, s.Connects)
		require.Empty(t, b.Stats().Refused)
	})
}

// A peer that takes 1 KB/s is alive, though a message, and a TLS record, is on its way
// for longer than PeerTimeout. It costs QueueBytes, holds up nobody, and Close does not
// wait for it.
func TestSlowPeer(t *testing.T) {
	both(t, func(t *testing.T, r *rig) {
		const timeout = 300 * time.Millisecond
		fast := func(c *Config) { c.PeerTimeout, c.QueueBytes = timeout, 4<<20 }
		slow, other := new(box), new(box)
		a := r.open(1, fast, nobody)
		b, c := r.open(2, fast, slow.handle), r.open(3, fast, other.handle)
		p := newProxy(t, b.Addr().String())
		reach(t, a, p.peer(2), slow, 1)
		reach(t, a, peerOf(c), other, 1)
		p.there.rate.Store(1000)
		busy := 0
		for seq := uint64(2); busy < 10; seq++ {
			if err := a.Send(p.peer(2), bulk(1, 2, seq, 100<<10)); err != nil {
				require.ErrorIs(t, err, transport.ErrBusy)
				busy++
			}
			require.LessOrEqual(t, a.Stats().Peers[2].QueueBytes, 4<<20)
		}
		began := time.Now()
		for seq := uint64(10); time.Since(began) < 5*timeout; seq++ {
			sent := time.Now()
			require.NoError(t, a.Send(peerOf(c), bulk(1, 3, seq, 100<<10)))
			eventually(t, func() bool { return other.has(seq) }, "another peer is held up")
			require.Less(t, time.Since(sent), timeout)
		}
		s := a.Stats().Peers[2]
		require.True(t, s.Connected, "%v", s.LastError)
		require.EqualValues(t, 1, s.Connects)
		require.GreaterOrEqual(t, s.Dropped.Busy, uint64(busy))
		require.Greater(t, s.Unacked, uint64(0))
		require.LessOrEqual(t, s.Unacked, uint64(8<<20), "the kernel hides much")

		closing := time.Now()
		require.NoError(t, a.Close())
		require.Less(t, time.Since(closing), 200*time.Millisecond)
	})
}

// Link control does not wait behind bulk, and what a session that is over has queued
// goes.
func TestControlOvertakes(t *testing.T) {
	r := newRig(t, false)
	got := new(box)
	a, b := r.open(1, nil, nobody), r.open(2, nil, got.handle)
	p := newProxy(t, b.Addr().String())
	reach(t, a, p.peer(2), got, 1)
	p.there.rate.Store(1 << 20)
	const old = 80
	for seq := range uint64(old) {
		require.NoError(t, a.Send(p.peer(2), bulk(1, 2, 100+seq, 256<<10)))
	}
	hello := message(protocol.Hello, 1, 2, 2)
	hello.Session = 2
	began := time.Now()
	require.NoError(t, a.Send(p.peer(2), hello))
	next := bulk(1, 2, 3, 1000)
	next.Session = 2
	require.NoError(t, a.Send(p.peer(2), next))
	eventually(t, func() bool { return got.has(2) && got.has(3) }, "it does not come")
	require.Less(t, time.Since(began), 8*time.Second, "20 MiB take 20 s")
	require.Less(t, len(got.all()), old/2)
	require.Greater(t, a.Stats().Peers[2].Dropped.Superseded, uint64(old/2))
}

// A broker that restarts is reached again within a second or so, at the same address,
// and at another one at once; the connection to the old one goes.
func TestRestartAtTheSameAndAnotherAddress(t *testing.T) {
	both(t, func(t *testing.T, r *rig) {
		got := new(box)
		a, b := r.open(1, nil, nobody), r.open(2, nil, got.handle)
		reach(t, a, peerOf(b), got, 1)
		same := peerOf(b)
		require.NoError(t, b.Close())
		eventually(t, func() bool { return a.Stats().Peers[2].Failures > 3 }, "it does not try")
		require.False(t, a.Stats().Peers[2].Connected)
		require.NoError(t, a.Send(same, message(protocol.Heartbeat, 1, 2, 2))) // into the void

		b = r.open(2, func(c *Config) { c.Listen = same.Address }, got.handle)
		began := time.Now()
		reach(t, a, same, got, 3)
		require.Less(t, time.Since(began), 3*time.Second)

		old := b
		b = r.open(2, nil, got.handle) // as if old were still there
		eventually(t, func() bool { return a.Stats().Peers[2].QueueMessages == 0 }, "something waits")
		before := a.Stats().Peers[2].Dropped
		require.NoError(t, a.Send(peerOf(b), message(protocol.Data, 1, 2, 4)))
		eventually(t, func() bool { return got.has(4) || a.Stats().Peers[2].Dropped.Stale > before.Stale }, "it does not come")
		require.Equal(t, before.Disconnected, a.Stats().Peers[2].Dropped.Disconnected, "what is for the new address goes with the old connection")
		eventually(t, func() bool { return !old.Stats().Peers[1].Receiving }, "the old connection stays")
		require.Equal(t, peerOf(b).Address, a.Stats().Peers[2].Address)
	})
}

// A peer at an address where nothing is answered does not delay the same peer's next.
func TestMoveWhileConnecting(t *testing.T) {
	both(t, func(t *testing.T, r *rig) {
		got := new(box)
		a := r.open(1, func(c *Config) { c.HandshakeTimeout, c.DialTimeout = time.Minute, time.Minute }, nobody)
		b := r.open(2, nil, got.handle)
		void := newProxy(t, b.Addr().String())
		void.there.swallow.Store(true)
		require.NoError(t, a.Send(void.peer(2), message(protocol.Heartbeat, 1, 2, 1)))
		eventually(t, func() bool { return void.dialled.Load() > 0 }, "it does not dial")
		reach(t, a, peerOf(b), got, 2)
	})
}

// What is sent while a peer is away does not wait for it: at most a second.
func TestNothingPilesUp(t *testing.T) {
	r := newRig(t, false)
	a := r.open(1, nil, nobody)
	gone := r.open(2, nil, nobody)
	peer := peerOf(gone)
	require.NoError(t, gone.Close())
	began := time.Now()
	for seq := uint64(1); time.Since(began) < 2*staleAfter; seq++ {
		require.NoError(t, a.Send(peer, bulk(1, 2, seq, 1000)))
		<-time.After(step)
	}
	s := a.Stats().Peers[2]
	require.Greater(t, s.Dropped.Stale, uint64(0))
	require.LessOrEqual(t, s.QueueMessages, int(staleAfter/step)+10)
	eventually(t, func() bool { return a.Stats().Peers[2].QueueMessages == 0 }, "something waits though nothing is sent")
	require.Zero(t, a.Stats().Peers[2].QueueBytes)
}

// A peer to which nothing is sent any more has neither a goroutine nor a connection.
func TestIdlePeer(t *testing.T) {
	both(t, func(t *testing.T, r *rig) {
		got := new(box)
		a := r.open(1, func(c *Config) { c.IdleTimeout, c.PeerTimeout = 300*time.Millisecond, 100*time.Millisecond }, nobody)
		b := r.open(2, nil, got.handle)
		before := runtime.NumGoroutine()
		reach(t, a, peerOf(b), got, 1)
		absent := transport.Peer{ID: 3, Address: "127.0.0.1:1"}
		require.NoError(t, a.Send(absent, message(protocol.Heartbeat, 1, 3, 1)))
		eventually(t, func() bool { return a.Stats().Connections+b.Stats().Connections == 0 }, "the connection stays")
		eventually(t, func() bool { return runtime.NumGoroutine() <= before }, "goroutines stay")
		failures := a.Stats().Peers[3].Failures
		require.NotZero(t, failures)
		require.Empty(t, b.Stats().Refused)
		reach(t, a, peerOf(b), got, 2)
		require.EqualValues(t, 2, a.Stats().Peers[2].Connects)
		require.Equal(t, failures, a.Stats().Peers[3].Failures)
	})
}

// A network that cuts every connection soon after it was made does not make brokers
// dial as fast as they can, nor fill the log.
func TestFlappingPeer(t *testing.T) {
	r := newRig(t, false)
	var log lines
	got := new(box)
	a := r.open(1, func(c *Config) { c.Logger = log.logger() }, nobody)
	b := r.open(2, nil, got.handle)
	p := newProxy(t, b.Addr().String())
	for seq, began := uint64(1), time.Now(); time.Since(began) < 2*time.Second; seq++ {
		_ = a.Send(p.peer(2), message(protocol.Heartbeat, 1, 2, seq))
		if a.Stats().Peers[2].Connected {
			p.cut()
		}
		<-time.After(step)
	}
	require.Less(t, p.dialled.Load(), int64(15))
	require.LessOrEqual(t, log.count("\n"), burstLines+1)
}

// Dead peers and strangers are told of once, not all the time.
func TestLogStaysQuiet(t *testing.T) {
	r := newRig(t, false)
	var log lines
	got := new(box)
	a := r.open(1, func(c *Config) { c.Logger = log.logger() }, nobody)
	b := r.open(2, nil, got.handle)
	reach(t, a, peerOf(b), got, 1)
	require.Equal(t, 1, log.count("peer is connected"))
	require.NoError(t, b.Close())
	for range 20 {
		c := dial(t, a, nil)
		c.send([]byte("SSH-2.0-OpenSSH\r\n"))
		c.ends()
	}
	eventually(t, func() bool { return a.Stats().Peers[2].Failures > 4 }, "it does not try")
	require.Equal(t, 1, log.count("connection to peer is lost"), "%s", &log)
	require.Equal(t, 1, log.count("peer cannot be reached"))
	require.Equal(t, 1, log.count("cause=garbage"))
}

// What waited for a connection that broke is not sent on the next one.
func TestWhatWaitedIsLostWithTheConnection(t *testing.T) {
	r := newRig(t, false)
	got := new(box)
	a, b := r.open(1, nil, nobody), r.open(2, nil, got.handle)
	p := newProxy(t, b.Addr().String())
	reach(t, a, p.peer(2), got, 1)
	p.there.rate.Store(1 << 20)
	for seq := range uint64(20) {
		require.NoError(t, a.Send(p.peer(2), bulk(1, 2, 100+seq, 512<<10)))
	}
	p.there.rate.Store(0)
	p.cut()
	eventually(t, func() bool { return a.Stats().Peers[2].Connects == 2 }, "no new connection")
	require.NoError(t, a.Send(p.peer(2), message(protocol.Data, 1, 2, 200)))
	eventually(t, func() bool { return got.has(200) }, "what is sent then does not come")
	require.False(t, got.has(119))
	require.Greater(t, a.Stats().Peers[2].Dropped.Disconnected, uint64(10))
}

// Who answers in another way than a broker does gets nothing.
func TestPeerAnswersWrong(t *testing.T) {
	answer := func(edit func(*hello)) []byte { return greeting(2, 1, edit) }
	for name, tt := range map[string]struct {
		answer []byte
		cause  Cause // causes: none of this side's
		err    string
	}{
		"garbage":           {[]byte("220 mail ready\r\n"), CauseGarbage, "not a hello"},
		"TLS":               {[]byte{tlsAlert, 3, 1, 0, 2, 2, 10, 0, 0}, CauseGarbage, "perhaps TLS"},
		"another version":   {answer(func(h *hello) { h.version = 7 }), CauseVersion, "unknown version 7"},
		"another cluster":   {answer(func(h *hello) { h.cluster = "d" }), CauseCluster, `of cluster "d"`},
		"another broker":    {answer(func(h *hello) { h.from = 3 }), CauseAddressee, "broker 3 answers"},
		"to another broker": {answer(func(h *hello) { h.to = 3 }), CauseAddressee, "answers broker 3"},
		"a refusal":         {answer(func(h *hello) { h.status = badCrowd }), causes, "too many peers"},
		"an early end":      {answer(nil)[:20], causes, "no answer"},
		"too many acks":     {append(answer(nil), 0, 0, 0, 0, 0, 1, 0, 0), causes, errAck.Error()},
		"fewer acks":        {append(answer(nil), 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1), causes, errAck.Error()},
		"half an ack":       {append(answer(nil), 0, 0, 0), causes, "unexpected EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			done := make(chan struct{})
			go func() { // somebody
				defer close(done)
				c, err := l.Accept()
				_ = l.Close()
				if err != nil {
					return
				}
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(soon))
				if _, err := readHello(c); err == nil && len(tt.answer) > len(answer(nil)) {
					_, _ = c.Write(tt.answer[:len(answer(nil))])
					_, _ = io.ReadFull(c, make([]byte, 10)) // there is something to acknowledge
					_, _ = c.Write(tt.answer[len(answer(nil)):])
				} else if err == nil {
					_, _ = c.Write(tt.answer)
				}
				if tcp, ok := c.(*net.TCPConn); ok {
					_ = tcp.CloseWrite()
				}
				_, _ = io.Copy(io.Discard, c)
			}()
			var log lines
			a := newRig(t, false).open(1, func(c *Config) { c.Logger = log.logger() }, nobody)
			require.NoError(t, a.Send(transport.Peer{ID: 2, Address: l.Addr().String()}, message(protocol.Hello, 1, 2, 1)))
			eventually(t, func() bool { return strings.Contains(log.text(), tt.err) }, "it is not told: %s", &log)
			require.NoError(t, a.Close())
			<-done
			want := map[Cause]uint64{}
			if tt.cause != causes {
				want[tt.cause] = 1
			}
			require.Equal(t, want, a.Stats().Refused)
		})
	}
}
