package embedded

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver"
)

// TLS names the files, in PEM, with which a member speaks TLS. They are read again
// for every connection, so that they can be replaced while it runs.
//
// A member's certificate needs, among its subject alternative names, the host of its
// address in Config.Cluster (PeerTLS) and the host at which clients reach its
// Config.Client address (ClientTLS): an IP address as an IP address, a name as a DNS
// name. It needs both extended key usages, server and client authentication: members
// are clients of each other.
type TLS struct {
	Cert, Key string
	// CA are the certificates that the other side's must be signed by. Whoever has none
	// is refused.
	CA string
}

// Config says what one member is. Name, Dir, Client, Peer and Cluster have to be set.
type Config struct {
	// Name is this member's, in Cluster.
	Name string
	// Dir is the member's directory, its own alone. It belongs to this member for
	// good: one that is lost must not be replaced by an empty one; see the package
	// documentation.
	Dir string
	// Client is the "host:port" to listen on for clients; port 0 picks one. Peer is the one
	// for the other members. The hosts must be IP addresses (0.0.0.0 and [::] are all of
	// this machine's) or "localhost".
	Client, Peer string
	// Cluster has the "host:port" at which the others reach each member, this one
	// included, by name: the same for all of them. The host may be a name; Peer is only
	// what one listens on. Once the directory has been made, what is there counts.
	Cluster map[string]string
	// Token tells clusters apart that were made with the same names and addresses.
	// Default "tidemark".
	Token string
	// Existing: this member was added to a cluster that exists (MemberAdd), with an
	// empty Dir.
	Existing bool
	// ClientTLS and PeerTLS encrypt what clients and members say. nil: plain text.
	ClientTLS, PeerTLS *TLS
	// Heartbeat is how often the leader says that it is there, and Election how long
	// the others wait for that until they elect another one, which takes between one and
	// two Elections. Election must be at least five Heartbeats, and the same everywhere.
	// Half a SessionTimeout should be two Elections or more: then a new leader is there
	// before anybody's session is in danger. Defaults 50 ms and 500 ms.
	Heartbeat, Election time.Duration
	// Retention is for how long old revisions are kept for watches. Default 10 min.
	Retention time.Duration
	// QuotaBytes is how large the database may become; writes are refused from then on.
	// Default 2 GiB.
	QuotaBytes int64
	// Logger gets etcd's warnings and errors. nil discards them.
	Logger *slog.Logger
}

// maxRequestBytes is far above what Tidemark writes at once: a host may keep more below
// another prefix.
const maxRequestBytes = 32 << 20

func (c Config) normalized() (Config, error) {
	def(&c.Token, "tidemark")
	def(&c.Heartbeat, 50*time.Millisecond)
	def(&c.Election, 500*time.Millisecond)
	def(&c.Retention, 10*time.Minute)
	def(&c.QuotaBytes, 2<<30)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	var faults []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf("embedded: "+format, args...))
		}
	}
	address := func(what, a string) (host string) {
		host, port, err := net.SplitHostPort(a)
		check(err == nil && port != "", "%s must be host:port, not %q", what, a)
		return host
	}
	listen := func(what, a string) {
		host := address(what, a)
		check(host == "localhost" || net.ParseIP(host) != nil, "%s is listened on: its host must be an IP address or \"localhost\", not %q", what, host)
	}
	check(c.Name != "", "Name is empty")
	check(c.Dir != "", "Dir is empty")
	listen("Client", c.Client)
	listen("Peer", c.Peer)
	_, ok := c.Cluster[c.Name]
	check(ok, "Cluster has no member %q", c.Name)
	for name, a := range c.Cluster {
		check(name != "" && !strings.ContainsAny(name, "=,"), "name %q is empty or has one of \"=,\"", name)
		address("the address of "+name, a)
	}
	for what, t := range map[string]*TLS{"ClientTLS": c.ClientTLS, "PeerTLS": c.PeerTLS} {
		check(t == nil || t.Cert != "" && t.Key != "" && t.CA != "", "%s must have Cert, Key and CA", what)
	}
	check(c.Heartbeat >= time.Millisecond && c.Election >= 5*c.Heartbeat, "Election (%v) must be at least five Heartbeats (%v)", c.Election, c.Heartbeat)
	check(c.Election <= 50*time.Second, "Election must be at most 50s, not %v", c.Election)
	check(c.Retention >= time.Second, "Retention must be at least 1s, not %v", c.Retention)
	check(c.QuotaBytes >= 16<<20, "QuotaBytes must be at least 16 MiB, not %d", c.QuotaBytes)
	return c, errors.Join(faults...)
}

func def[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// etcd translates the Config.
func (c *Config) etcd() *embed.Config {
	e := embed.NewConfig()
	e.Name, e.Dir = c.Name, c.Dir
	e.ListenClientUrls = []url.URL{at(c.ClientTLS, c.Client)}
	e.AdvertiseClientUrls = e.ListenClientUrls
	e.ListenPeerUrls = []url.URL{at(c.PeerTLS, c.Peer)}
	e.AdvertisePeerUrls = []url.URL{at(c.PeerTLS, c.Cluster[c.Name])}
	var members []string
	for name, a := range c.Cluster {
		u := at(c.PeerTLS, a)
		members = append(members, name+"="+u.String())
	}
	slices.Sort(members)
	e.InitialCluster, e.InitialClusterToken = strings.Join(members, ","), c.Token
	if c.Existing {
		e.ClusterState = embed.ClusterStateFlagExisting
	}
	e.ClientTLSInfo, e.PeerTLSInfo = c.ClientTLS.info(), c.PeerTLS.info()
	e.TickMs, e.ElectionMs = uint(c.Heartbeat/time.Millisecond), uint(c.Election/time.Millisecond)
	e.AutoCompactionMode, e.AutoCompactionRetention = embed.CompactorModePeriodic, c.Retention.String()
	e.QuotaBackendBytes = c.QuotaBytes
	e.MaxRequestBytes = maxRequestBytes
	e.SnapshotCount = etcdserver.DefaultSnapshotCount
	e.EnableGRPCGateway = false
	e.GRPCKeepAliveMinTime = time.Second
	return e
}

func at(t *TLS, address string) url.URL {
	if t == nil {
		return url.URL{Scheme: "http", Host: address}
	}
	return url.URL{Scheme: "https", Host: address}
}

func (t *TLS) info() transport.TLSInfo {
	if t == nil {
		return transport.TLSInfo{}
	}
	return transport.TLSInfo{CertFile: t.Cert, KeyFile: t.Key, TrustedCAFile: t.CA, ClientCertAuth: true}
}
