package etcd

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"google.golang.org/grpc"
)

// DefaultPrefix is where a Store keeps its keys unless it is told otherwise.
const DefaultPrefix = "/tidemark/"

// Config says which etcd to use, and how. Only Endpoints has to be set.
type Config struct {
	// Endpoints are the client addresses of the members: "host:port", or URLs with
	// http:// or https://. Name all that this process can reach: calls are spread over
	// those that answer. Required.
	Endpoints []string
	// Prefix is what all keys begin with; a "/" is added when it does not end in one.
	// Clusters that share an etcd need different ones, and no one else may write below
	// it. Default DefaultPrefix.
	Prefix string
	// TLS encrypts the connections, and proves who this client is when it has a
	// certificate. nil: plain text, or the system's roots when the endpoints say https.
	TLS *tls.Config
	// Username and Password are for an etcd with authentication. The user needs read
	// and write access to the keys below Prefix. Default none.
	Username, Password string
	// DialTimeout bounds one attempt to connect to one endpoint. Default 2 s.
	DialTimeout time.Duration
	// RequestTimeout bounds a call whose context has no earlier deadline. Default 5 s.
	RequestTimeout time.Duration
	// StallLimit is for how long a connection may leave unanswered what was written to
	// it until it is replaced: the way to notice a peer that vanished without a word.
	// Default 3 s; at least 1 s.
	StallLimit time.Duration
	// Logger gets a line when the store goes out of reach and when it comes back, and
	// what else needs attention. nil discards it.
	Logger *slog.Logger

	dialOptions []grpc.DialOption // of tests
	blind       bool              // in tests: it ends no sessions
}

// normalized returns the Config with its defaults, or every fault that it has.
func (c Config) normalized() (Config, error) {
	def(&c.Prefix, DefaultPrefix)
	def(&c.DialTimeout, 2*time.Second)
	def(&c.RequestTimeout, 5*time.Second)
	def(&c.StallLimit, 3*time.Second)
	if !strings.HasSuffix(c.Prefix, "/") {
		c.Prefix += "/"
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	var faults []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf("etcd: "+format, args...))
		}
	}
	check(len(c.Endpoints) > 0, "Endpoints is empty")
	secure := 0
	for _, e := range c.Endpoints {
		check(e != "", "an endpoint is empty")
		if strings.HasPrefix(e, "https://") {
			secure++
		}
	}
	check(secure == 0 || secure == len(c.Endpoints), "some endpoints are https and some are not")
	check((c.Username == "") == (c.Password == ""), "Username and Password go together")
	check(c.DialTimeout > 0, "DialTimeout must be positive, not %v", c.DialTimeout)
	check(c.RequestTimeout > 0, "RequestTimeout must be positive, not %v", c.RequestTimeout)
	check(c.StallLimit >= time.Second, "StallLimit must be at least 1s, not %v", c.StallLimit)
	return c, errors.Join(faults...)
}

func def[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}
