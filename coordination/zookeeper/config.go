package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tidemark-log/tidemark/coordination/zookeeper/internal/wire"
)

// Config describes a Store. A zero field means the documented default.
type Config struct {
	// Servers are the ZooKeeper servers, each as "host:port". Required. They are tried
	// one after the other, from one that is chosen at random.
	Servers []string
	// Chroot is the node below which everything is kept. It is made if it is missing,
	// with its parents, and must not be the root. Default "/tidemark".
	Chroot string

	// Digest is "user:password" of ZooKeeper's digest scheme. With it everything that
	// is made may be used by that user only; else by anybody.
	Digest string
	// Dial makes network connections: for TLS, or a network of one's own. Default: plain TCP.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// DialTimeout bounds the attempt to connect to one server. Default 2 s.
	DialTimeout time.Duration
	// RequestTimeout is how long a server may be silent while it owes an answer, before
	// another one is tried. Default 5 s.
	RequestTimeout time.Duration

	// History is how many transactions are kept for watches that begin at an earlier
	// revision. All users of a Chroot should agree. 16 MiB of them are kept at most,
	// whatever History is. Default 1,000.
	History int
	// MaxRequest bounds a transaction's size on the wire, in bytes; it must not be above
	// what the servers accept (jute.maxbuffer). Default 1,000,000.
	MaxRequest int

	// Logger receives what an operator should know. Default: silent.
	Logger *slog.Logger
}

// errConfig is what every fault of a Config is.
var errConfig = errors.New("zookeeper: invalid configuration")

// withDefaults returns the configuration with its zero fields filled, or what is wrong with it.
func (c Config) withDefaults() (Config, error) {
	if c.Chroot == "" {
		c.Chroot = "/tidemark"
	}
	if c.Dial == nil {
		c.Dial = new(net.Dialer).DialContext
	}
	if c.DialTimeout == 0 {
		c.DialTimeout = 2 * time.Second
	}
	if c.RequestTimeout == 0 {
		c.RequestTimeout = 5 * time.Second
	}
	if c.History == 0 {
		c.History = 1000
	}
	if c.MaxRequest == 0 {
		c.MaxRequest = 1_000_000
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.Servers = slices.Clone(c.Servers)
	var faults []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	check(len(c.Servers) > 0, "Servers are required")
	for _, server := range c.Servers {
		_, _, err := net.SplitHostPort(server)
		check(err == nil, "server %q: %v", server, err)
	}
	check(validChroot(c.Chroot), "Chroot %q must be a path below the root, such as /tidemark", c.Chroot)
	check(c.Digest == "" || strings.Contains(c.Digest, ":"), "Digest must be user:password")
	check(c.DialTimeout > 0 && c.RequestTimeout >= 10*time.Millisecond, "timeouts must be positive")
	check(c.History > 0, "History must be positive, not %d", c.History)
	check(c.MaxRequest >= 10_000, "MaxRequest must be at least 10,000, not %d", c.MaxRequest)
	if len(faults) > 0 {
		return c, fmt.Errorf("%w: %w", errConfig, errors.Join(faults...))
	}
	return c, nil
}

// validChroot says whether path is one that needs no escapes and is no other one's alias.
func validChroot(path string) bool {
	rest, ok := strings.CutPrefix(path, "/")
	if !ok || !utf8.ValidString(path) || strings.HasPrefix(path, "/zookeeper/") || path == "/zookeeper" {
		return false
	}
	for _, name := range strings.Split(rest, "/") {
		if name == "" || name != escape(name) {
			return false
		}
	}
	return true
}

// acl is who may use what is made.
func (c Config) acl() []wire.ACL {
	if c.Digest != "" {
		return []wire.ACL{{Perms: wire.PermAll, Scheme: "auth"}}
	}
	return []wire.ACL{{Perms: wire.PermAll, Scheme: "world", ID: "anyone"}}
}

// hello is how every connection begins.
func (c Config) hello() wire.Hello {
	h := wire.Hello{AnswerLimit: c.RequestTimeout}
	if c.Digest != "" {
		h.Scheme, h.Auth = "digest", []byte(c.Digest)
	}
	return h
}
