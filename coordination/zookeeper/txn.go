package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/coordination/zookeeper/internal/wire"
)

const (
	// maxAttempts bounds how often a call begins anew because somebody else has written.
	maxAttempts = 200
	// maxPause bounds the pause before another attempt.
	maxPause = 20 * time.Millisecond
	// logBytes is how much the log keeps at most, and trimPerWrite how many entries a
	// transaction cuts off.
	logBytes     = 16 << 20
	trimPerWrite = 4
)

var (
	// errContended means that a call gave up. It has not been applied.
	errContended = errors.New("zookeeper: others write all the time")
	// errEphemeralParent is for a key that would be below an ephemeral one.
	errEphemeralParent = errors.New("zookeeper: a key below an ephemeral key is not possible")
)

// Do implements coordination.Store. One transaction is at work at a time.
func (s *Store) Do(ctx context.Context, t coordination.Txn) (coordination.TxnResult, error) {
	if err := s.admit(ctx); err != nil {
		return coordination.TxnResult{}, err
	}
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	res, err := s.do(ctx, newTxn(s.tree, t))
	if err != nil {
		return coordination.TxnResult{}, s.unavailable(err)
	}
	return res, nil
}

func (s *Store) do(ctx context.Context, t *txn) (coordination.TxnResult, error) {
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return coordination.TxnResult{}, ctx.Err()
	}
	defer func() { <-s.turn }()
	for attempt := range maxAttempts {
		res, err := s.attempt(ctx, t)
		if !errors.Is(err, errAgain) {
			return res, err
		}
		if !pause(ctx, attempt) {
			return coordination.TxnResult{}, ctx.Err()
		}
	}
	return coordination.TxnResult{}, errContended
}

var (
	// errAgain has an attempt begin anew: what it was based on has changed.
	errAgain = errors.New("zookeeper: somebody else was faster")
	// errGone is errAgain where it may be that a session has ended, and nobody told of it.
	errGone = fmt.Errorf("%w: something is gone", errAgain)
)

// pause waits a while that grows with the attempts, and is chance. The first is at once.
func pause(ctx context.Context, attempt int) bool {
	if attempt == 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(rand.N(min(time.Millisecond<<min(attempt, 10), maxPause)))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// attempt makes one attempt. It fails with errAgain only when nothing was applied.
func (s *Store) attempt(ctx context.Context, t *txn) (coordination.TxnResult, error) {
	conn, err := s.link.get(ctx)
	if err != nil {
		return coordination.TxnResult{}, err
	}
	v, err := s.observe(ctx, conn, t)
	if err != nil {
		return coordination.TxnResult{}, err
	}
	res := coordination.TxnResult{Revision: v.seq.logged()}
	involved := v.owners(t)
	if v.missing(t) {
		return res, firstError(s.adopt(ctx, conn), errAgain)
	}
	ops := v.effective(t)
	if holds := v.holds(t.guards); !holds || len(ops) == 0 {
		if err := s.confirm(ctx, conn, v, involved); err != nil {
			return res, err
		}
		res.Applied = holds
		return res, nil
	}
	by, err := s.carrier(t)
	if err != nil {
		return res, err
	}
	p, err := s.plan(ctx, conn, v, ops, by)
	if err != nil {
		return res, err
	}
	for _, g := range t.guards {
		if n := v.nodes[g.path]; n.exists() && !p.written[g.path] {
			p.checks = append(p.checks, wire.Check(g.path, n.stat.Version))
		}
	}
	for _, id := range append(involved, t.sessions...) {
		p.checkLease(s.tree, id)
	}
	res.Revision, err = s.commit(ctx, conn, p, by)
	if errors.Is(err, errGone) {
		err = firstError(s.adopt(ctx, conn), errAgain)
	}
	res.Applied = err == nil
	return res, err
}

// confirm makes sure of a view on which nothing will be written, for a refusal is final: that
// it was so at one moment, that it still is, and that the sessions of its keys are alive.
func (s *Store) confirm(ctx context.Context, conn *wire.Conn, v *view, sessions []string) error {
	checks := []wire.Op{wire.Check(s.tree.sequence(), v.seq.version)}
	for _, id := range sessions {
		checks = append(checks, wire.Check(s.tree.lease(id), -1))
	}
	err := s.agree(ctx, conn, checks...)
	switch {
	case errors.Is(err, wire.NoNode):
		return firstError(s.adopt(ctx, conn), errAgain)
	case errors.Is(err, wire.BadVersion):
		return errAgain
	}
	return err
}

// carrier returns the session on whose connection a transaction goes, so that its
// ephemeral keys are ZooKeeper's: it has to be one of this Store, and the only one in
// it. nil: there is none.
func (s *Store) carrier(t *txn) (*session, error) {
	if len(t.sessions) != 1 {
		return nil, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sessions[t.sessions[0]], nil
}

// commit sends what was planned. It fails with errAgain when that was refused for what
// somebody else did meanwhile.
func (s *Store) commit(ctx context.Context, conn *wire.Conn, p *plan, by *session) (revision int64, err error) {
	multi := wire.Multi(p.ops())
	if multi.Size() > s.cfg.MaxRequest {
		return 0, fmt.Errorf("%w: %d bytes, %d are allowed", ErrTooLarge, multi.Size(), s.cfg.MaxRequest)
	}
	if by != nil {
		if conn, err = by.attach(ctx); err != nil {
			return 0, err
		}
	}
	if err := s.call(ctx, conn, multi); err != nil {
		return 0, err
	}
	switch {
	case multi.Err == nil && len(multi.Results) == len(p.ops()):
		raise(&s.seen.entry, p.seq.Entry)
		return multi.Results[0].Stat.Modified, nil
	case errors.Is(multi.Err, wire.SessionExpired) && by != nil:
		by.end()
		return 0, coordination.ErrSessionExpired
	case errors.Is(multi.Err, wire.SessionMoved):
		conn.Close() // another one has taken its place
		return 0, errAgain
	case p.checkFailed(multi.Results):
		return 0, errGone
	case errors.Is(multi.Err, wire.BadVersion), errors.Is(multi.Err, wire.NoNode),
		errors.Is(multi.Err, wire.NodeExists), errors.Is(multi.Err, wire.NotEmpty):
		return 0, errAgain
	case multi.Err == nil:
		return 0, errMalformed
	}
	return 0, multi.Err
}

// adopt writes into the log that keys are gone which their session took with it, or
// which somebody removed by hand. ZooKeeper removes a session's nodes by itself, at a
// moment that is not in the order of the transactions; this gives it a place there,
// and until then nobody tells of it. Whoever notices first does it.
func (s *Store) adopt(ctx context.Context, conn *wire.Conn) error {
	seq, err := s.look(ctx, conn, false)
	if err != nil {
		return err
	}
	v := &view{tree: s.tree, seq: seq, nodes: make(map[string]node)}
	leases := make(map[string]*wire.Request)
	var reqs []*wire.Request
	gets := make(map[string]*wire.Request)
	for id, nodes := range seq.Sessions {
		leases[id] = wire.Exists(s.tree.lease(id), false)
		reqs = append(reqs, leases[id])
		for _, n := range nodes {
			path := s.tree.chroot + n
			gets[path] = wire.Exists(path, false)
			reqs = append(reqs, gets[path])
		}
	}
	if err := s.call(ctx, conn, reqs...); err != nil {
		return err
	}
	if err := v.fill(gets); err != nil {
		return err
	}
	var ops []op
	for id, nodes := range seq.Sessions {
		if err := leases[id].Err; err != nil && !errors.Is(err, wire.NoNode) {
			return err
		}
		for _, n := range nodes {
			path := s.tree.chroot + n
			if leases[id].Err != nil || !v.nodes[path].key() {
				key, _ := s.tree.key(path)
				ops = append(ops, op{path: path, key: key, delete: true})
			}
		}
	}
	if len(ops) == 0 {
		return nil // somebody else has done it
	}
	sortOps(ops)
	p, err := s.plan(ctx, conn, v, ops, nil)
	if err == nil {
		_, err = s.commit(ctx, conn, p, nil)
	}
	if errors.Is(err, errAgain) {
		return nil // the caller looks again
	}
	return err
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
