package tcp

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/internal/devcert"
	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/transport"
)

func TestConfigIsChecked(t *testing.T) {
	r := newRig(t, true)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	for name, edit := range map[string]func(*Config){
		"ID is -1":                        func(c *Config) { c.ID = -1 },
		`Cluster is ""`:                   func(c *Config) { c.Cluster = "" },
		`Cluster is "a b"`:                func(c *Config) { c.Cluster = "a b" },
		`Cluster is "a/b"`:                func(c *Config) { c.Cluster = "a/b" },
		`Cluster is "a..b"`:               func(c *Config) { c.Cluster = "a..b" },
		`Cluster is ".a"`:                 func(c *Config) { c.Cluster = ".a" },
		`Cluster is "a-"`:                 func(c *Config) { c.Cluster = "a-" },
		`Cluster is "ü"`:                  func(c *Config) { c.Cluster = "ü" },
		"one of Listen and Listener":      func(c *Config) { c.Listen = "" },
		"not both":                        func(c *Config) { c.Listener = l },
		"has no SetDeadline":              func(c *Config) { c.Listen, c.Listener = "", tls.NewListener(l, c.TLS) },
		"one of TLS and Plaintext":        func(c *Config) { c.Plaintext = true },
		"is required":                     func(c *Config) { c.TLS = nil },
		"Roots are for TLS":               func(c *Config) { c.TLS, c.Plaintext, c.Roots = nil, true, r.ca.Pool },
		"MaxMessageBytes is 1000":         func(c *Config) { c.MaxMessageBytes = 1000 },
		"MaxReceiveBytes is 20000":        func(c *Config) { c.MaxReceiveBytes = 20000 },
		"QueueBytes is 1000":              func(c *Config) { c.QueueBytes = 1000 },
		"MaxHandshakes is -1":             func(c *Config) { c.MaxHandshakes = -1 },
		"MaxPeers is -1":                  func(c *Config) { c.MaxPeers = -1 },
		"DialTimeout is -1ns":             func(c *Config) { c.DialTimeout = -1 },
		"HandshakeTimeout is -1ns":        func(c *Config) { c.HandshakeTimeout = -1 },
		"PeerTimeout is 1ms":              func(c *Config) { c.PeerTimeout = time.Millisecond },
		"IdleTimeout is -1ns":             func(c *Config) { c.IdleTimeout = -1 },
		"no certificate, or for one end":  func(c *Config) { c.TLS.Certificates = nil },
		"neither RootCAs nor ClientCAs":   func(c *Config) { c.TLS.RootCAs, c.TLS.ClientCAs = nil, nil },
		"certificate of broker 1, and ID": func(c *Config) { c.ID = 2 },
		"certificate of no broker":        func(c *Config) { c.Cluster = "d" },
		"has an empty certificate":        func(c *Config) { c.TLS.Certificates = make([]tls.Certificate, 1) },
		"certificate that cannot be read": func(c *Config) { c.TLS.Certificates = []tls.Certificate{{Certificate: [][]byte{{1}}}} },
	} {
		tr, err := New(r.config(1, edit))
		require.ErrorIs(t, err, ErrInvalidConfig, name)
		require.ErrorContains(t, err, name)
		require.Nil(t, tr)
	}
	_, err = New(r.config(1, func(c *Config) { c.Listen = l.Addr().String() }))
	require.Error(t, err, "the address is taken")
	require.NotErrorIs(t, err, ErrInvalidConfig)
	for _, name := range []string{"a", "A.b-c_9", "1.2.3.4"} {
		require.True(t, validCluster(name), name)
	}
}

func TestMisuse(t *testing.T) {
	r := newRig(t, false)
	tr, err := New(r.config(1, nil))
	require.NoError(t, err)
	peer := transport.Peer{ID: 2, Address: "127.0.0.1:1"}
	require.ErrorIs(t, tr.Send(peer, message(protocol.Data, 1, 2, 1)), ErrNotStarted)
	require.NoError(t, tr.Start(nobody))
	require.ErrorIs(t, tr.Start(nobody), ErrStarted)
	require.ErrorIs(t, tr.Send(peer, message(protocol.Data, 3, 2, 1)), ErrAddressee)
	require.ErrorIs(t, tr.Send(peer, message(protocol.Data, 1, 3, 1)), ErrAddressee)
	require.NoError(t, tr.Close())
	require.ErrorIs(t, tr.Send(peer, message(protocol.Data, 1, 2, 1)), transport.ErrClosed)
	require.NoError(t, tr.Close())
}

// A message without a binary form is dropped by itself.
func TestInvalidMessage(t *testing.T) {
	r := newRig(t, false)
	got := new(box)
	a, b := r.open(1, nil, nobody), r.open(2, nil, got.handle)
	reach(t, a, peerOf(b), got, 1)
	bad := bulk(1, 2, 2, 10)
	bad.Fragment = []byte{1}
	require.NoError(t, a.Send(peerOf(b), bad))
	reach(t, a, peerOf(b), got, 3)
	require.EqualValues(t, 1, a.Stats().Peers[2].Dropped.Invalid)
	require.EqualValues(t, 1, a.Stats().Peers[2].Connects)
}

// Stats say what went where.
func TestStats(t *testing.T) {
	both(t, func(t *testing.T, r *rig) {
		got := new(box)
		a, b := r.open(1, nil, nobody), r.open(2, nil, got.handle)
		require.Empty(t, a.Stats().Peers)
		bytes := 0
		send := func(m *protocol.Message) {
			bytes += len(frameOf(t, m))
			require.NoError(t, a.Send(peerOf(b), m))
			eventually(t, func() bool { return got.has(m.Seq) }, "it does not come")
		}
		send(message(protocol.Hello, 1, 2, 1))
		send(message(protocol.Welcome, 1, 2, 2))
		send(message(protocol.Heartbeat, 1, 2, 3))
		send(message(protocol.Reset, 1, 2, 4))
		send(message(protocol.Kind(99), 1, 2, 5))
		send(bulk(1, 2, 6, 100_000))
		send(bulk(1, 2, 7, 1000))
		var sent PeerStats
		eventually(t, func() bool { sent = a.Stats().Peers[2]; return sent.QueueMessages == 0 }, "something waits")
		received := b.Stats().Peers[1]
		for k, n := range map[protocol.Kind]uint64{0: 1, protocol.Hello: 1, protocol.Welcome: 1, protocol.Heartbeat: 1, protocol.Reset: 1, protocol.Data: 2} {
			require.Equal(t, n, sent.Sent.Of(k).Messages, "%d", k)
		}
		require.Equal(t, Count{7, uint64(bytes)}, sent.Sent.Total())
		require.Equal(t, sent.Sent, received.Received)
		require.Equal(t, sent.Sent.Of(0), sent.Sent.Of(77))
		require.Zero(t, sent.Dropped)
		require.True(t, sent.Connected && received.Receiving && !received.Connected && !sent.Receiving)
		require.NoError(t, sent.LastError)
		require.WithinDuration(t, time.Now(), sent.Since, time.Minute)
		require.WithinDuration(t, time.Now(), received.ReceivingSince, time.Minute)
		require.Equal(t, 1, a.Stats().Connections)
		require.Equal(t, 1, b.Stats().Connections)
		require.Zero(t, b.Stats().Handshakes)
		for c := range Cause(causes) {
			require.NotContains(t, c.String(), " ")
		}
		require.Equal(t, "cause 200", Cause(200).String())
	})
}

// The host's listener is the host's: Close stops accepting, and leaves it as it was.
func TestHostsListener(t *testing.T) {
	both(t, func(t *testing.T, r *rig) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer l.Close()
		hosts := func(c *Config) { c.Listen, c.Listener = "", l }
		got := new(box)
		a := r.open(1, nil, nobody)
		for seq := range uint64(3) {
			b := r.open(2, hosts, got.handle)
			reach(t, a, peerOf(b), got, seq+1)
			require.NoError(t, b.Close())
		}
		idle, err := New(r.config(2, hosts))
		require.NoError(t, err)
		require.NoError(t, idle.Close()) // never started

		require.NoError(t, l.(*net.TCPListener).SetDeadline(time.Now().Add(soon)))
		go func() {
			if c, err := net.Dial("tcp", l.Addr().String()); err == nil {
				_ = c.Close()
			}
		}()
		c, err := l.Accept()
		require.NoError(t, err)
		require.NoError(t, c.Close())
	})
}

// A listener that fails for a while, as without file descriptors, is asked again.
func TestAcceptFailsForAWhile(t *testing.T) {
	r := newRig(t, false)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var log lines
	faulty := &faultyListener{TCPListener: l.(*net.TCPListener)}
	faulty.left.Store(5)
	got := new(box)
	b := r.open(2, func(c *Config) { c.Listen, c.Listener, c.Logger = "", faulty, log.logger() }, got.handle)
	reach(t, r.open(1, nil, nobody), peerOf(b), got, 1)
	require.Equal(t, 1, log.count("cannot accept connections"))
	require.NoError(t, l.Close()) // the host closes it too early
	eventually(t, func() bool { return log.count("listener was closed") == 1 }, "nobody says so")
	require.NoError(t, b.Close())
}

type faultyListener struct {
	*net.TCPListener
	left atomic.Int64
}

func (l *faultyListener) Accept() (net.Conn, error) {
	if l.left.Add(-1) >= 0 {
		return nil, os.NewSyscallError("accept4", errors.New("too many open files"))
	}
	return l.TCPListener.Accept()
}

// Dial is the host's, if it wants to.
func TestHostsDial(t *testing.T) {
	both(t, func(t *testing.T, r *rig) {
		got := new(box)
		b := r.open(2, nil, got.handle)
		dialing := make(chan struct{}, 1)
		a := r.open(1, func(c *Config) {
			c.Dial = func(ctx context.Context, address string) (net.Conn, error) {
				switch address {
				case "by name":
					return new(net.Dialer).DialContext(ctx, "tcp", b.Addr().String())
				case "hangs":
					dialing <- struct{}{}
					<-ctx.Done()
					return nil, ctx.Err()
				}
				return nil, errors.New("no such host")
			}
		}, nobody)
		require.NoError(t, a.Send(transport.Peer{ID: 3, Address: "nowhere"}, message(protocol.Data, 1, 3, 1)))
		reach(t, a, transport.Peer{ID: 2, Address: "by name"}, got, 1)
		eventually(t, func() bool { return a.Stats().Peers[3].Failures > 0 }, "it does not fail")
		require.NoError(t, a.Send(transport.Peer{ID: 4, Address: "hangs"}, message(protocol.Data, 1, 4, 1)))
		<-dialing
		require.NoError(t, a.Close())
	})
}

// Opening and closing leaves nothing: no goroutine, no descriptor, whatever is under way.
func TestOpenAndCloseManyTimes(t *testing.T) {
	both(t, func(t *testing.T, r *rig) {
		descriptors := func() int {
			all, err := os.ReadDir("/proc/self/fd")
			if err != nil {
				return 0 // no /proc here
			}
			return len(all)
		}
		var goroutines, files int
		for i := range 100 {
			var all []*Transport
			for id := range int32(3) {
				tr, err := New(r.config(id, nil))
				require.NoError(t, err)
				require.NoError(t, tr.Start(nobody))
				all = append(all, tr)
			}
			for _, from := range all {
				for _, to := range all {
					if from != to {
						require.NoError(t, from.Send(peerOf(to), bulk(from.cfg.ID, to.cfg.ID, 1, 100_000)))
					}
				}
				require.NoError(t, from.Send(transport.Peer{ID: 9, Address: "127.0.0.1:1"}, message(protocol.Hello, from.cfg.ID, 9, 1)))
			}
			if i%2 == 0 { // else in the middle of everything
				eventually(t, func() bool { return all[0].Stats().Peers[1].Connected && all[0].Stats().Peers[1].Receiving }, "not connected")
			}
			var closing sync.WaitGroup
			for _, tr := range all {
				closing.Go(func() { _ = tr.Close() })
			}
			closing.Wait()
			if i == 10 {
				goroutines, files = runtime.NumGoroutine(), descriptors()
			}
		}
		eventually(t, func() bool { return runtime.NumGoroutine() <= goroutines }, "goroutines are left")
		eventually(t, func() bool { return descriptors() <= files }, "descriptors are left")
	})
}

// TLS of the host's: what it wants checked is checked, its callbacks are asked, and
// its configuration is not changed.
func TestHostsTLS(t *testing.T) {
	r := newRig(t, true)
	var asked atomic.Int64
	var verified atomic.Int64
	cert, err := r.ca.Certificate(2, nil)
	require.NoError(t, err)
	theirs := &tls.Config{
		RootCAs:              r.ca.Pool(),
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &cert, nil },
		VerifyConnection: func(s tls.ConnectionState) error {
			if len(s.VerifiedChains) == 0 || s.DidResume {
				return errors.New("nothing is verified")
			}
			verified.Add(1)
			return nil
		},
	}
	theirs.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		asked.Add(1)
		c := theirs.Clone() // without any authority for clients, and not asking for a certificate
		c.Certificates, c.ClientAuth, c.RootCAs = []tls.Certificate{cert}, tls.NoClientCert, nil
		return c, nil
	}
	got := new(box)
	b := r.open(2, func(c *Config) { c.TLS = theirs }, got.handle)
	a := r.open(1, nil, got.handle)
	reach(t, a, peerOf(b), got, 1)
	reach(t, b, peerOf(a), got, 2)
	require.EqualValues(t, 1, asked.Load())
	require.EqualValues(t, 2, verified.Load())
	require.False(t, theirs.InsecureSkipVerify)
	require.Nil(t, theirs.ClientCAs)

	c := dial(t, b, &tls.Config{})
	c.send(greeting(1, 2, nil))
	c.ends()
	eventually(t, func() bool { return b.Stats().Refused[CauseHandshake] == 1 }, "no certificate is asked for")
}

// PeerID of the host's may read anything.
func TestHostsPeerID(t *testing.T) {
	r := newRig(t, true)
	byName := func(c *Config) {
		c.PeerID = func(cert *x509.Certificate) (int32, error) {
			switch cert.Subject.CommonName {
			case "broker 1 of c":
				return 101, nil
			case "broker 2 of c":
				return 102, nil
			}
			return 0, errors.New("who is that")
		}
	}
	got := new(box)
	a := r.open(1, func(c *Config) { c.ID = 101; byName(c) }, nobody)
	b := r.open(2, func(c *Config) { c.ID = 102; byName(c) }, got.handle)
	reach(t, a, peerOf(b), got, 1)
	conn := dial(t, b, certificate(nil, 3, nil)(r))
	conn.send(greeting(101, 102, nil))
	conn.ends()
	eventually(t, func() bool { return b.Stats().Refused[CauseIdentity] == 1 }, "%v", logged{b})
}

// Certificates in files change while messages flow: brokers that connect anew get the
// new ones, those who have old ones are refused, and half of a change does no harm.
func TestReloadUnderTraffic(t *testing.T) {
	r := newRig(t, true)
	dir := t.TempDir()
	require.NoError(t, r.ca.WriteFiles(dir, 1))
	require.NoError(t, r.ca.WriteFiles(dir, 2))
	var log lines
	load := func(id int32) *Files {
		ca, cert, key := devcert.Paths(dir, id)
		f, err := LoadFiles(Paths{CA: ca, Certificate: cert, Key: key}, log.logger())
		require.NoError(t, err)
		return f
	}
	one, two := load(1), load(2)
	got := new(box)
	a := r.open(1, func(c *Config) { c.TLS, c.Roots = one.TLS(), one.Roots }, nobody)
	b := r.open(2, func(c *Config) { c.TLS, c.Roots = two.TLS(), two.Roots }, got.handle)
	p := newProxy(t, b.Addr().String())
	reach(t, a, p.peer(2), got, 1)

	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for seq := uint64(1000); ; seq++ {
			select {
			case <-stop:
				return
			case <-time.After(step):
				_ = a.Send(p.peer(2), bulk(1, 2, seq, 1000))
			}
		}
	}()
	old := good(r)
	other, err := devcert.NewAuthority("c")
	require.NoError(t, err)
	require.NoError(t, other.WriteFiles(dir, 1))
	require.NoError(t, other.WriteFiles(dir, 2))
	require.NoError(t, one.Reload())
	<-time.After(lookEvery) // two notices by itself
	connects := a.Stats().Peers[2].Connects
	require.EqualValues(t, 1, connects, "what stands is not touched")
	p.cut()
	reach(t, a, p.peer(2), got, 2)
	require.EqualValues(t, 2, a.Stats().Peers[2].Connects)
	conn := dial(t, b, old)
	conn.send(greeting(2, 2, nil))
	require.Empty(t, conn.ends(), "the old authority is trusted")
	// The handshake during which two notices may have counted too.
	eventually(t, func() bool { return b.Stats().Refused[CauseCertificate] > 0 }, "it is not counted")
	eventually(t, func() bool { return log.count("certificate files were read") == 1 }, "nobody says so: %s", &log)

	// Half a change: another key without its certificate.
	_, _, key := devcert.Paths(dir, 2)
	_, _, foreign := devcert.Paths(dir, 1)
	content, err := os.ReadFile(foreign)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(key, append(content, '\n'), 0o600))
	require.Error(t, two.Reload())
	<-time.After(lookEvery)
	p.cut()
	reach(t, a, p.peer(2), got, 3)
	eventually(t, func() bool { return log.count("certificate files cannot be used") == 1 }, "nobody says so: %s", &log)
	close(stop)
	<-stopped

	_, err = LoadFiles(Paths{CA: key, Certificate: key, Key: key}, nil)
	require.ErrorContains(t, err, "holds no certificate")
	_, err = LoadFiles(Paths{CA: dir + "/none"}, nil)
	require.ErrorIs(t, err, os.ErrNotExist)
}

// What a Handler does takes no lock of the transport's, and one at a time delivers for
// a broker: what came on its connection before comes first.
func TestDeliveryInTurn(t *testing.T) {
	r := newRig(t, false)
	gate := make(chan struct{})
	got := new(box)
	var running atomic.Int64
	victim := r.open(1, nil, func(m *protocol.Message) {
		if running.Add(1) > 1 {
			panic("two at once")
		}
		if m.Seq == 1 {
			<-gate
		}
		running.Add(-1)
		got.handle(m)
	})
	var conns []*connection
	for seq := range uint64(5) { // each takes the place of the one before
		c := dial(t, victim, nil)
		c.greet(2, 1, nil)
		c.send(frameOf(t, message(protocol.Data, 2, 1, seq+1)))
		conns = append(conns, c)
		if seq == 0 {
			eventually(t, func() bool { return running.Load() == 1 }, "nothing came")
		}
	}
	for _, c := range conns[:4] {
		c.ends()
	}
	eventually(t, func() bool { return victim.Stats().Connections == 2 }, "those between stay: %v", logged{victim})
	close(gate)
	eventually(t, func() bool { return got.has(5) }, "the last one's message does not come")
	var order []uint64
	for _, m := range got.all() {
		order = append(order, m.Seq)
	}
	require.Equal(t, []uint64{1, 5}, order)
}
