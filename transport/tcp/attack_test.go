package tcp

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"net"
	"net/url"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/internal/devcert"
	"github.com/tidemark-log/tidemark/protocol"
)

// attack is what somebody does to the port of broker 1.
type attack struct {
	name   string
	cause  Cause
	tls    func(r *rig) *tls.Config // nil: none is spoken
	do     func(c *connection)
	config func(*Config)
}

// certificate is what a client with that certificate speaks. It shows it also where it
// is told that its authority is not wanted.
func certificate(ca *devcert.Authority, id int32, edit func(*x509.Certificate)) func(*rig) *tls.Config {
	return func(r *rig) *tls.Config {
		if ca == nil {
			ca = r.ca
		}
		cert, err := ca.Certificate(id, edit)
		require.NoError(r.t, err)
		return &tls.Config{GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &cert, nil }}
	}
}

func good(r *rig) *tls.Config { return certificate(nil, 2, nil)(r) }

func sends(b []byte) func(*connection) { return func(c *connection) { c.send(b) } }

// then greets as broker 2, and sends.
func then(b ...byte) func(*connection) {
	return func(c *connection) {
		c.greet(2, 1, nil)
		c.send(b)
	}
}

func length(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }

func quick(c *Config) {
	c.HandshakeTimeout, c.PeerTimeout = 100*time.Millisecond, 100*time.Millisecond
}

func leave(c *connection) { _ = c.Close() }

// plainAttacks are possible with TLS too, by whoever has a certificate: then they
// are made with that of broker 2.
func plainAttacks(t *testing.T) []attack {
	forged := func(m *protocol.Message) func(*connection) { return then(frameOf(t, m)...) }
	whole := frameOf(t, message(protocol.Heartbeat, 2, 1, 1))
	hello2 := greeting(2, 1, nil)
	return []attack{
		{name: "other cluster", cause: CauseCluster, do: sends(greeting(2, 1, func(h *hello) { h.cluster = "d" }))},
		{name: "no cluster", cause: CauseCluster, do: sends(greeting(2, 1, func(h *hello) { h.cluster = "" }))},
		{name: "for another broker", cause: CauseAddressee, do: sends(greeting(2, 3, nil))},
		{name: "another version", cause: CauseVersion, do: sends(greeting(2, 1, func(h *hello) { h.version = 2 }))},
		{name: "larger messages", cause: CauseLimit, do: sends(greeting(2, 1, func(h *hello) { h.limit = DefaultMaxMessageBytes + 1 }))},
		{name: "no time at all", cause: CauseGarbage, do: sends(greeting(2, 1, func(h *hello) { h.timeout = 0 }))},
		{name: "no end of time", cause: CauseGarbage, do: sends(greeting(2, 1, func(h *hello) { h.timeout = maxPeerTimeout + time.Second }))},
		{name: "HTTP", cause: CauseGarbage, do: sends([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"))},
		{name: "short garbage", cause: CauseGarbage, do: func(c *connection) { c.send([]byte{1, 2, 3}); leave(c) }},
		{name: "half a hello", cause: CauseBroken, do: func(c *connection) { c.send(hello2[:20]); leave(c) }},
		{name: "silence before hello", cause: CauseTimeout, do: func(*connection) {}, config: quick},
		{name: "silence within hello", cause: CauseTimeout, do: sends(hello2[:len(hello2)-1]), config: quick},
		{name: "drops of a hello", cause: CauseTimeout, config: quick, do: func(c *connection) {
			for i := range hello2 {
				c.send(hello2[i : i+1])
				<-time.After(10 * time.Millisecond)
			}
		}},
		{name: "silence", cause: CauseSilence, config: quick, do: func(c *connection) {
			c.greet(2, 1, func(h *hello) { h.timeout = minPeerTimeout })
		}},
		{name: "part of a frame's length", cause: CauseBroken, do: func(c *connection) { then(0, 0)(c); leave(c) }},
		{name: "part of a frame", cause: CauseBroken, do: func(c *connection) { then(whole[:len(whole)-1]...)(c); leave(c) }},
		{name: "part of a large frame", cause: CauseBroken, do: func(c *connection) {
			then(append(length(1<<20), make([]byte, 300_000)...)...)(c)
			leave(c)
		}},
		{name: "oversized frame", cause: CauseFrame, do: then(length(DefaultMaxMessageBytes + 1)...)},
		{name: "huge frame", cause: CauseFrame, do: then(length(1<<32 - 1)...)},
		{name: "undersized frame", cause: CauseFrame, do: then(length(uint32(leastFrame() - 1))...)},
		{name: "frame of garbage", cause: CauseFrame, do: then(append(length(1000), bytes.Repeat([]byte{0xa5}, 1000)...)...)},
		{name: "large frame of garbage", cause: CauseFrame, do: then(append(length(1<<20), make([]byte, 1<<20)...)...)},
		{name: "sender forged", cause: CauseForged, do: forged(message(protocol.Data, 3, 1, 1))},
		{name: "own sender forged", cause: CauseForged, do: forged(message(protocol.Data, 1, 1, 1))},
		{name: "addressee forged", cause: CauseForged, do: forged(message(protocol.Data, 2, 3, 1))},
	}
}

func tlsAttacks(t *testing.T) []attack {
	other, err := devcert.NewAuthority("c")
	require.NoError(t, err)
	hello2 := sends(greeting(2, 1, nil))
	uris := func(all ...string) func(*rig) *tls.Config {
		return certificate(nil, 2, func(c *x509.Certificate) {
			c.URIs = nil
			for _, s := range all {
				u, err := url.Parse(s)
				require.NoError(t, err)
				c.URIs = append(c.URIs, u)
			}
		})
	}
	uses := func(u ...x509.ExtKeyUsage) func(*rig) *tls.Config {
		return certificate(nil, 2, func(c *x509.Certificate) { c.ExtKeyUsage = u })
	}
	attacks := []attack{
		{name: "no TLS", cause: CauseHandshake, do: hello2},
		{name: "garbage for TLS", cause: CauseHandshake, do: sends(bytes.Repeat([]byte{0x16, 3, 3, 0xff}, 5000))},
		{name: "no TLS and silence", cause: CauseTimeout, do: func(*connection) {}, config: quick},
		{name: "part of TLS", cause: CauseTimeout, do: sends([]byte{0x16, 3, 1, 2, 0, 1, 0, 1}), config: quick},
		{name: "look and leave", cause: CauseBroken, do: leave},
		{name: "no certificate", cause: CauseHandshake, tls: func(*rig) *tls.Config { return &tls.Config{} }, do: hello2},
		{name: "TLS 1.2", cause: CauseHandshake, do: hello2, tls: func(r *rig) *tls.Config {
			c := good(r)
			c.MaxVersion = tls.VersionTLS12
			return c
		}, config: func(c *Config) { c.TLS.MinVersion = 0 }},
		{name: "other authority", cause: CauseCertificate, tls: certificate(other, 2, nil), do: hello2},
		{name: "expired", cause: CauseCertificate, do: hello2, tls: certificate(nil, 2, func(c *x509.Certificate) {
			c.NotAfter = time.Now().Add(-time.Second)
		})},
		{name: "not valid yet", cause: CauseCertificate, do: hello2, tls: certificate(nil, 2, func(c *x509.Certificate) {
			c.NotBefore = time.Now().Add(time.Hour)
		})},
		{name: "for servers only", cause: CauseCertificate, tls: uses(x509.ExtKeyUsageServerAuth), do: hello2},
		{name: "for mail", cause: CauseCertificate, tls: uses(x509.ExtKeyUsageEmailProtection), do: hello2},
		{name: "of another broker", cause: CauseIdentity, tls: certificate(nil, 3, nil), do: hello2},
		{name: "of the broker itself", cause: CauseIdentity, tls: certificate(nil, 1, nil), do: hello2},
		{name: "of nobody", cause: CauseIdentity, tls: uris(), do: hello2},
		{name: "of another cluster", cause: CauseIdentity, tls: uris("tidemark://d/broker/2"), do: hello2},
		{name: "of two brokers", cause: CauseIdentity, tls: uris("tidemark://c/broker/3", "tidemark://c/broker/2"), do: hello2},
		{name: "of another scheme", cause: CauseIdentity, tls: uris("https://c/broker/2"), do: hello2},
	}
	for _, path := range []string{"/broker/02", "/broker/+2", "/broker/", "/broker/2/", "/broker/2?x", "/broker/2#x", "/broker/-2", "/broker/4294967298",
		"//broker/2", "/broker/%32", "/Broker/2", "", "/broker/2/broker/2"} {
		attacks = append(attacks, attack{name: "URI " + strings.ReplaceAll(path, "/", "|"), cause: CauseIdentity, tls: uris("tidemark://c" + path), do: hello2})
	}
	for _, a := range plainAttacks(t) {
		a.tls = good
		attacks = append(attacks, a)
	}
	return attacks
}

// Whoever is no broker of the cluster, or does what none does, is refused, counted
// by cause, and leaves nothing behind.
func TestAttacks(t *testing.T) {
	t.Run("plain", func(t *testing.T) {
		for _, a := range append(plainAttacks(t), attack{name: "look and leave", cause: CauseBroken, do: leave}) {
			t.Run(a.name, func(t *testing.T) { a.run(t, newRig(t, false)) })
		}
	})
	t.Run("TLS", func(t *testing.T) {
		for _, a := range tlsAttacks(t) {
			t.Run(a.name, func(t *testing.T) { a.run(t, newRig(t, true)) })
		}
	})
}

func (a *attack) run(t *testing.T, r *rig) {
	const times = 3
	got := new(box)
	victim := r.open(1, a.config, got.handle)
	goroutines := runtime.NumGoroutine()
	for i := range uint64(times) {
		var c *tls.Config
		if a.tls != nil {
			c = a.tls(r)
		}
		conn := dial(t, victim, c)
		a.do(conn)
		conn.ends()
		eventually(t, func() bool { return victim.Stats().Refused[a.cause] > i }, "%v is not counted: %v", a.cause, logged{victim})
	}
	eventually(t, func() bool { return victim.Stats().Connections == 0 && victim.Stats().Handshakes == 0 }, "connections stay")
	eventually(t, func() bool { return runtime.NumGoroutine() <= goroutines }, "goroutines stay")
	require.Equal(t, map[Cause]uint64{a.cause: times}, victim.Stats().Refused)
	require.Empty(t, got.all())

	// A broker is welcome all the same.
	reach(t, r.open(2, nil, nobody), peerOf(victim), got, 99)
}

// A refused hello is told why, so that its sender can say so.
func TestRefusalsAreAnswered(t *testing.T) {
	victim := newRig(t, false).open(1, nil, nobody)
	for status, edit := range map[status]func(*hello){
		badCluster:   func(h *hello) { h.cluster = "d" },
		badAddressee: func(h *hello) { h.to = 7 },
		badVersion:   func(h *hello) { h.version = 9 },
		badLimit:     func(h *hello) { h.limit = 1 << 30 },
		badIdentity:  func(h *hello) { h.from = -1 },
		badTimeout:   func(h *hello) { h.timeout = 0 },
	} {
		c := dial(t, victim, nil)
		c.send(greeting(2, 1, edit))
		answer, err := readHello(bytes.NewReader(c.ends()))
		require.NoError(t, err)
		require.Equal(t, status, answer.status)
		require.NotContains(t, status.String(), "status ")
	}
}

// Claims cost nothing: memory is taken for what has come.
func TestMemoryFollowsWhatHasCome(t *testing.T) {
	var before, after runtime.MemStats
	claim := func(claimed uint32, sent int) uint64 {
		f := newFrameReader(bytes.NewReader(append(length(claimed), make([]byte, sent)...)), 1<<30)
		runtime.ReadMemStats(&before)
		_, _, err := f.next()
		runtime.ReadMemStats(&after)
		require.Error(t, err)
		return after.TotalAlloc - before.TotalAlloc
	}
	require.Less(t, claim(1<<29, 0), uint64(200<<10))
	require.Less(t, claim(1<<29, 1<<20), uint64(48<<20))
	require.Less(t, claim(1<<30+1, 1<<20), uint64(10<<10))
}

// A thousand strangers that say nothing do not keep a broker out, nor do they cost more
// than a bounded number of connections.
func TestManyStrangers(t *testing.T) {
	both(t, func(t *testing.T, r *rig) {
		const strangers, limit = 1000, 32
		got := new(box)
		victim := r.open(1, func(c *Config) { c.MaxHandshakes, c.HandshakeTimeout = limit, time.Minute }, got.handle)
		friend := r.open(2, nil, nobody)
		reach(t, friend, peerOf(victim), got, 1)
		goroutines := runtime.NumGoroutine()
		conns := make([]net.Conn, strangers)
		for i := range conns {
			var err error
			conns[i], err = net.Dial("tcp", victim.Addr().String())
			require.NoError(t, err)
			defer conns[i].Close()
			require.LessOrEqual(t, victim.Stats().Handshakes, limit)
			if i%100 == 50 {
				reach(t, friend, peerOf(victim), got, uint64(i)) // on the connection that there is
			}
		}
		eventually(t, func() bool { return victim.Stats().Refused[CauseCrowded] == strangers-limit }, "strangers are kept")
		eventually(t, func() bool { return runtime.NumGoroutine() <= goroutines+limit }, "goroutines")
		require.Equal(t, limit, victim.Stats().Handshakes)
		late := r.open(3, nil, nobody)
		reach(t, late, peerOf(victim), got, 5000)
		require.EqualValues(t, 1, friend.Stats().Peers[1].Connects)
	})
}

// Where the port of a peer is answered by somebody else, nothing is sent.
func TestWrongBrokerAnswers(t *testing.T) {
	other, err := devcert.NewAuthority("c")
	require.NoError(t, err)
	for _, tt := range []struct {
		name  string
		cause Cause
		tls   func(r *rig) *tls.Config
		as    func(*Config)
	}{
		{"other authority", CauseCertificate, certificate(other, 2, nil), nil},
		{"of a client only", CauseCertificate, certificate(nil, 2, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }), nil},
		{"expired", CauseCertificate, certificate(nil, 2, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Second) }), nil},
		{"of another broker", CauseIdentity, nil, func(c *Config) { c.ID = 3 }},
		{"of another cluster", CauseIdentity, certificate(nil, 2, func(c *x509.Certificate) { c.URIs[0].Host = "d" }), nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, true)
			got := new(box)
			imposter := r.open(2, func(c *Config) {
				if tt.tls != nil {
					c.TLS = tt.tls(r)
					c.TLS.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.TLS.GetClientCertificate(nil) }
					c.TLS.RootCAs = r.ca.Pool()
					c.PeerID = func(*x509.Certificate) (int32, error) { return 2, nil } // else New refuses what is its own
				} else {
					*c = r.config(3, nil)
				}
			}, got.handle)
			tr := r.open(1, nil, nobody)
			peer := peerOf(imposter)
			peer.ID = 2
			require.NoError(t, tr.Send(peer, message(protocol.Hello, 1, 2, 1)))
			eventually(t, func() bool { return tr.Stats().Refused[tt.cause] >= 2 }, "it is not refused: %v", logged{tr})
			p := tr.Stats().Peers[2]
			require.False(t, p.Connected)
			require.Error(t, p.LastError)
			require.Zero(t, p.Sent.Total())
			require.Empty(t, got.all())
		})
	}
	t.Run("plain", func(t *testing.T) {
		r := newRig(t, false)
		third := r.open(3, nil, nobody)
		tr := r.open(1, nil, nobody)
		require.NoError(t, tr.Send(peerOf(third), message(protocol.Hello, 1, 3, 1)))
		peer := peerOf(third)
		peer.ID = 2
		require.NoError(t, tr.Send(peer, message(protocol.Hello, 1, 2, 1)))
		eventually(t, func() bool { return third.Stats().Refused[CauseAddressee] > 0 }, "it is not refused: %v", logged{tr})
		eventually(t, func() bool { return tr.Stats().Peers[2].LastError != nil }, "no error")
		require.ErrorContains(t, tr.Stats().Peers[2].LastError, "it is another broker")
	})
}

// No session is resumed: each connection shows a certificate.
func TestSessionsAreNotResumed(t *testing.T) {
	r := newRig(t, true)
	victim := r.open(1, nil, nobody)
	c := good(r)
	c.ClientSessionCache = tls.NewLRUClientSessionCache(10)
	c.ServerName = "x"
	for range 3 {
		conn := dial(t, victim, c)
		conn.greet(2, 1, nil)
		require.False(t, conn.Conn.(*tls.Conn).ConnectionState().DidResume)
		conn.send(frameOf(t, message(protocol.Heartbeat, 2, 1, 1)))
		leave(conn)
	}
}

// The newest connection of a broker counts; whoever only says that he is it, does not
// end the one there is.
func TestNewestConnectionCounts(t *testing.T) {
	r := newRig(t, true)
	got := new(box)
	victim := r.open(1, nil, got.handle)
	first := dial(t, victim, good(r))
	first.greet(2, 1, nil)
	first.send(frameOf(t, message(protocol.Data, 2, 1, 1)))
	eventually(t, func() bool { return got.has(1) }, "nothing came")

	liar := dial(t, victim, certificate(nil, 3, nil)(r))
	liar.send(greeting(2, 1, nil))
	liar.ends()
	first.send(frameOf(t, message(protocol.Data, 2, 1, 2)))
	eventually(t, func() bool { return got.has(2) }, "the connection is gone")

	second := dial(t, victim, good(r))
	second.greet(2, 1, nil)
	first.ends()
	second.send(frameOf(t, message(protocol.Data, 2, 1, 3)))
	eventually(t, func() bool { return got.has(3) }, "the new connection does not count")
	require.Equal(t, map[Cause]uint64{CauseIdentity: 1}, victim.Stats().Refused)
	require.True(t, victim.Stats().Peers[2].Receiving)
}

// MaxPeers bounds who is connected, and those that left make room.
func TestMaxPeers(t *testing.T) {
	victim := newRig(t, false).open(1, func(c *Config) { c.MaxPeers = 2 }, nobody)
	var conns []*connection
	for id := range int32(2) {
		c := dial(t, victim, nil)
		c.greet(id+2, 1, nil)
		conns = append(conns, c)
	}
	c := dial(t, victim, nil)
	c.send(greeting(9, 1, nil))
	answer, err := readHello(bytes.NewReader(c.ends()))
	require.NoError(t, err)
	require.Equal(t, badCrowd, answer.status)
	require.EqualValues(t, 1, victim.Stats().Refused[CausePeers])

	leave(conns[0])
	eventually(t, func() bool { return !victim.Stats().Peers[2].Receiving }, "it stays")
	dial(t, victim, nil).greet(9, 1, nil)
	require.Len(t, victim.Stats().Peers, 2)
}
