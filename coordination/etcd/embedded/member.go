package embedded

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"google.golang.org/grpc"
)

// Errors of members, for use with errors.Is.
var (
	// ErrFailed means that the member had to stop: its disk is full or failed, its
	// directory is damaged, or the like. The others go on while they are a majority.
	ErrFailed = errors.New("embedded: etcd member has failed")
	// ErrAbandoned means that a member did not stop in time. What is left of it stays
	// until the process ends; its directory must not be opened again before.
	ErrAbandoned = errors.New("embedded: etcd member could not be stopped in time")
)

// closeTimeout bounds Close.
const closeTimeout = 15 * time.Second

// Member is one running member.
type Member struct {
	etcd     *embed.Etcd
	endpoint string
	close    func() error
	failed   chan struct{} // closed once failure is set
	fail     sync.Once
	failure  error
	closing  chan struct{}
	election time.Duration

	mu      sync.Mutex
	servers []*grpc.Server
}

// Start runs a member of the quorum in this process. It returns once the member takes
// part, which needs a majority of the cluster, itself included: so the members of a new
// cluster have to be started at the same time. When ctx ends before, the member is
// stopped, and the error has what etcd last said about the others, which takes it about
// five seconds.
//
// The first start fixes Name and Cluster in Dir, also when it fails. Another Name is an
// error from then on; another Cluster is a warning, which the error repeats when ctx
// ends. While nothing has been stored in a new cluster, all members may be stopped and
// all directories removed, to start over.
func Start(ctx context.Context, c Config) (*Member, error) {
	c, err := c.normalized()
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("embedded: %w", err)
	}
	outdated, err := claim(&c)
	if err != nil {
		return nil, err
	}
	if outdated != "" {
		c.Logger.Warn("embedded: "+outdated, "directory", c.Dir)
	}
	m := &Member{failed: make(chan struct{}), closing: make(chan struct{}), election: c.Election}
	m.close = sync.OnceValue(m.shutdown)
	e := c.etcd()
	why := &reasons{of: make(map[string]string)}
	e.ZapLoggerBuilder = embed.NewZapLoggerBuilder(newLogger(c.Logger, why, m.closing, m.fatal))
	e.ServiceRegister = func(s *grpc.Server) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.servers = append(m.servers, s)
	}
	if err := m.start(ctx, e); err != nil {
		return nil, err
	}
	m.endpoint = clientURL(&c, m.etcd)
	go m.look()
	select {
	case <-m.etcd.Server.ReadyNotify():
		return m, nil
	case <-m.failed:
		err = m.failure
	case <-ctx.Done():
		err = noLeader(ctx.Err(), outdated, why.text(m.etcd.Server))
	}
	return nil, errors.Join(err, m.Close())
}

// noLeader is err with what is known of its causes.
func noLeader(err error, causes ...string) error {
	err = fmt.Errorf("embedded: the cluster has no leader yet: %w", err)
	for _, cause := range causes {
		if cause != "" {
			err = fmt.Errorf("%w; %s", err, cause)
		}
	}
	return err
}

// start runs the part of the start that may block on the disk and on other members, in
// a goroutine of its own: a failure there ends it without a return.
func (m *Member) start(ctx context.Context, c *embed.Config) error {
	type result struct {
		etcd *embed.Etcd
		err  error
	}
	done := make(chan result, 1)
	go func() {
		e, err := embed.StartEtcd(c)
		done <- result{e, err}
	}()
	select {
	case r := <-done:
		m.etcd = r.etcd
		return explained(r.err)
	case <-m.failed:
		return m.failure
	case <-ctx.Done():
		close(m.closing)
		go func() { // it comes back: what it waits for has a time limit
			select {
			case r := <-done:
				if r.etcd != nil {
					r.etcd.Close()
				}
			case <-m.failed:
			}
		}()
		return fmt.Errorf("embedded: %w", ctx.Err())
	}
}

// explained says what to do about an error of etcd's start that does not.
func explained(err error) error {
	if err == nil {
		return nil
	}
	if strings.Contains(err.Error(), "has already been bootstrapped") {
		return fmt.Errorf("embedded: %w: its directory is lost or is not the one it had; restore that, or remove the member from the cluster, "+
			"add it again, and start it with an empty directory and Config.Existing", err)
	}
	return fmt.Errorf("embedded: %w", err)
}

func clientURL(c *Config, e *embed.Etcd) string {
	u := at(c.ClientTLS, e.Clients[0].Addr().String())
	return u.String()
}

// Endpoints returns the URL at which clients reach this member, for etcd.Config.
func (m *Member) Endpoints() []string { return []string{m.endpoint} }

// Failed is closed when the member has stopped by itself; Err says why.
func (m *Member) Failed() <-chan struct{} { return m.failed }

// Err returns why the member has stopped by itself (ErrFailed), or nil.
func (m *Member) Err() error {
	select {
	case <-m.failed:
		return m.failure
	default:
		return nil
	}
}

// fatal takes what would have ended the process.
func (m *Member) fatal(what string) {
	m.fail.Do(func() {
		m.failure = fmt.Errorf("%w: %s", ErrFailed, what)
		close(m.failed)
	})
}

// look stops the member when it fails: half of it may be left, and answer.
func (m *Member) look() {
	select {
	case <-m.closing:
		return
	case <-m.failed:
	case err := <-m.etcd.Err():
		m.fatal(fmt.Sprint(err))
	case <-m.etcd.Server.StopNotify():
		m.fatal("it has stopped: it was removed from the cluster, or cannot read its log")
	}
	_ = m.Close()
}

// Close stops the member. It takes at most about 15 seconds (ErrAbandoned). It is
// idempotent, and every call waits for the end of the first one.
func (m *Member) Close() error { return m.close() }

func (m *Member) shutdown() error {
	close(m.closing)
	done := make(chan struct{})
	go func() {
		defer close(done)
		m.stop()
	}()
	select {
	case <-done:
		return nil
	case <-time.After(closeTimeout):
		return ErrAbandoned
	}
}

// stop ends etcd. Its own Close would wait for clients to go, and, before the member
// has taken part, for ever.
func (m *Member) stop() {
	if m.Err() == nil {
		m.handOver()
	}
	m.etcd.Server.HardStop()
	m.mu.Lock()
	servers := m.servers
	m.mu.Unlock()
	for _, s := range servers {
		s.Stop()
	}
	m.etcd.Close()
}

// handOver makes another member the leader, if this one is it and there is one that
// answers: else the others would have to find out first.
func (m *Member) handOver() {
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = m.etcd.Server.TryTransferLeadershipOnShutdown() // ends with the server at the latest
	}()
	select {
	case <-done:
	case <-m.failed:
	case <-time.After(2 * m.election):
	}
}
