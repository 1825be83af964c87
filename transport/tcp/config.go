package tcp

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"
)

// Defaults of Config.
const (
	DefaultMaxMessageBytes  = 1<<20 + 64<<10
	DefaultQueueBytes       = 32 << 20
	DefaultMaxHandshakes    = 128
	DefaultMaxPeers         = 1024
	DefaultDialTimeout      = 2 * time.Second
	DefaultHandshakeTimeout = 3 * time.Second
	DefaultPeerTimeout      = 3 * time.Second
	DefaultIdleTimeout      = time.Minute
)

// Bounds of what a Config may say.
const (
	minMessageBytes = 16 << 10 // what a Broker needs
	maxMessageBytes = 1 << 30
	minPeerTimeout  = 10 * time.Millisecond
	maxPeerTimeout  = 5 * time.Minute
	maxClusterName  = 63
)

// ErrInvalidConfig is wrapped by what New returns for a Config that cannot work.
var ErrInvalidConfig = errors.New("tcp: invalid configuration")

// Config describes the transport of one broker. A zero field means the documented
// default.
type Config struct {
	// ID is this broker's. Required to be what its certificate says.
	ID int32
	// Cluster is a name that all brokers of the cluster share: connections of
	// another one are refused. Required: 1 to 63 letters, digits, ".", "-" and
	// "_", with a letter or digit at both ends and no two dots in a row.
	Cluster string

	// Listen is the "host:port" to accept connections at; port 0 picks one (Addr
	// tells which). Required unless there is a Listener.
	Listen string
	// Listener is one of the host's own, without TLS. It must have the method
	// SetDeadline, as those of package net do, which wakes an Accept that is running:
	// that is how Close stops accepting. It stays open, and may be used again after
	// Close. If the host closes it before, nothing is accepted any more, for good. For
	// its connections see Dial.
	Listener net.Listener
	// Dial opens a connection to the Address of a Peer, without TLS. It must end with
	// its context. The connection must support deadlines, set while it reads and
	// writes too, and be usable after a read that met one; its Close must unblock both.
	// The Transport closes it. Default: net.Dialer, for "host:port" over TCP.
	Dial func(ctx context.Context, address string) (net.Conn, error)

	// TLS authenticates brokers to each other, both ways. Required unless Plaintext.
	// It has a certificate for both ends (Certificates, or GetCertificate and
	// GetClientCertificate), and the authorities of the brokers in RootCAs and
	// ClientCAs, of which either stands for both; the system's are never used. New
	// takes a copy, and sets what identity rests on: see "Who speaks".
	TLS *tls.Config
	// Roots, if not nil, is asked at every handshake for the authorities, in place
	// of those in TLS, so that they may change. See Files.
	Roots func() *x509.CertPool
	// PeerID says which broker a verified certificate belongs to. It may be called
	// from any goroutine. Default: the one whose URI among the subject alternative
	// names is tidemark://CLUSTER/broker/ID.
	PeerID func(*x509.Certificate) (int32, error)
	// Plaintext is for a network that only brokers can reach: nothing is encrypted,
	// and whoever says so is a broker of the cluster.
	Plaintext bool

	// MaxMessageBytes is the largest Message.Size that Send takes, at least 16 KiB.
	// Batches above it travel in fragments. The slowest network between two brokers
	// should carry one in much less than SessionTimeout/2: until it is there, a link
	// hears nothing. Default 1 MiB and 64 KiB.
	MaxMessageBytes int
	// MaxReceiveBytes is the largest message that is taken from peers; a peer that
	// might send larger ones is refused as it connects. To raise MaxMessageBytes in
	// a running cluster, raise this at every broker first. Default MaxMessageBytes.
	MaxReceiveBytes int
	// QueueBytes bounds what waits for one peer, in memory that it takes; at least
	// MaxMessageBytes. Default 32 MiB; less than 18 MiB loses what links send ahead.
	QueueBytes int
	// MaxHandshakes bounds the connections that have not yet shown who they are; a
	// newer one ends the oldest of them. Default 128.
	MaxHandshakes int
	// MaxPeers bounds the brokers that are connected to this one. Default 1024.
	MaxPeers int

	// DialTimeout bounds the opening of a connection, with looking up the name. Default 2 s.
	DialTimeout time.Duration
	// HandshakeTimeout bounds what follows until both sides know each other. Default 3 s.
	HandshakeTimeout time.Duration
	// PeerTimeout is how long a connection may show no sign of life before it is
	// replaced; a sign is asked for every quarter of it. Where two brokers differ, the
	// receiver waits for the larger of both. From 10 ms to 5 minutes. Default 3 s.
	PeerTimeout time.Duration
	// IdleTimeout is how long a connection stays to which nothing is sent. It should be
	// above SessionTimeout, within which links send several times. Default 1 minute.
	IdleTimeout time.Duration

	// Logger receives what an operator should know. Default: silent.
	Logger *slog.Logger
}

func def[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

func (c Config) withDefaults() Config {
	def(&c.MaxMessageBytes, DefaultMaxMessageBytes)
	def(&c.MaxReceiveBytes, c.MaxMessageBytes)
	def(&c.QueueBytes, max(DefaultQueueBytes, c.MaxMessageBytes))
	def(&c.MaxHandshakes, DefaultMaxHandshakes)
	def(&c.MaxPeers, DefaultMaxPeers)
	def(&c.DialTimeout, DefaultDialTimeout)
	def(&c.HandshakeTimeout, DefaultHandshakeTimeout)
	def(&c.PeerTimeout, DefaultPeerTimeout)
	def(&c.IdleTimeout, DefaultIdleTimeout)
	if c.Dial == nil {
		// Signs of life are the transport's own: TCP's would come later.
		d := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: false}, KeepAlive: -1}
		c.Dial = func(ctx context.Context, address string) (net.Conn, error) { return d.DialContext(ctx, "tcp", address) }
	}
	if c.PeerID == nil {
		c.PeerID = peerIDByURI(c.Cluster)
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// deadliner is what Close needs of a listener that it must not close.
type deadliner interface{ SetDeadline(time.Time) error }

// validate checks a Config with defaults. All that is wrong is in the error.
func (c *Config) validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf("%w: %s", ErrInvalidConfig, fmt.Sprintf(format, args...)))
		}
	}
	check(c.ID >= 0, "ID is %d", c.ID)
	check(validCluster(c.Cluster), "Cluster is %q: it takes 1 to %d letters, digits, dots, dashes and underscores", c.Cluster, maxClusterName)
	check((c.Listen == "") != (c.Listener == nil), "one of Listen and Listener is required, not both")
	if c.Listener != nil {
		_, ok := c.Listener.(deadliner)
		check(ok, "Listener has no SetDeadline")
	}
	check(c.Plaintext != (c.TLS != nil), "one of TLS and Plaintext is required, not both")
	check(c.Roots == nil || c.TLS != nil, "Roots are for TLS")
	check(c.MaxMessageBytes >= minMessageBytes && c.MaxMessageBytes <= maxMessageBytes,
		"MaxMessageBytes is %d, not from %d to %d", c.MaxMessageBytes, minMessageBytes, maxMessageBytes)
	check(c.MaxReceiveBytes >= c.MaxMessageBytes && c.MaxReceiveBytes <= maxMessageBytes,
		"MaxReceiveBytes is %d, not from MaxMessageBytes to %d", c.MaxReceiveBytes, maxMessageBytes)
	check(c.QueueBytes >= c.MaxMessageBytes, "QueueBytes is %d, less than MaxMessageBytes", c.QueueBytes)
	check(c.MaxHandshakes > 0, "MaxHandshakes is %d", c.MaxHandshakes)
	check(c.MaxPeers > 0, "MaxPeers is %d", c.MaxPeers)
	check(c.DialTimeout > 0, "DialTimeout is %v", c.DialTimeout)
	check(c.HandshakeTimeout > 0, "HandshakeTimeout is %v", c.HandshakeTimeout)
	check(c.PeerTimeout >= minPeerTimeout && c.PeerTimeout <= maxPeerTimeout,
		"PeerTimeout is %v, not from %v to %v", c.PeerTimeout, minPeerTimeout, maxPeerTimeout)
	check(c.IdleTimeout > 0, "IdleTimeout is %v", c.IdleTimeout)
	return errors.Join(errs...)
}

// validCluster reports whether the name can be the host of a URI in a certificate.
func validCluster(name string) bool {
	if name == "" || len(name) > maxClusterName {
		return false
	}
	before := byte('.')
	for i := range len(name) {
		b := name[i]
		switch {
		case 'a' <= b && b <= 'z', 'A' <= b && b <= 'Z', '0' <= b && b <= '9':
		case b == '-' || b == '_':
			if i == 0 || i == len(name)-1 {
				return false
			}
		case b == '.':
			if before == '.' || i == len(name)-1 {
				return false
			}
		default:
			return false
		}
		before = b
	}
	return true
}
