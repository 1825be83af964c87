package etcd

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tidemark-log/tidemark/coordination"
)

// session is a handle on a session that this Store began. A session is a lease, to
// which its ephemeral keys are bound, and a beacon, which every renewal writes. See
// the package documentation for who ends it, and when.
type session struct {
	s    *Store
	id   sessionID
	done chan struct{}
	once sync.Once
	lit  atomic.Bool // its beacon burns, or has burnt

	mu   sync.Mutex
	kept time.Time // when the lease was renewed
}

var _ coordination.Session = (*session)(nil)

func (x *session) ID() string            { return x.id.String() }
func (x *session) Done() <-chan struct{} { return x.done }

// NewSession implements coordination.Store. ttl is rounded up to milliseconds, and at
// most about nine hours.
func (s *Store) NewSession(ctx context.Context, ttl time.Duration) (coordination.Session, error) {
	if ttl <= 0 || ttl > maxTTL {
		return nil, fmt.Errorf("etcd: session ttl must be above 0 and at most %v, not %v", maxTTL, ttl)
	}
	ctx, cancel, err := s.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer cancel()
	x := &session{s: s, id: newSessionID(ttl), done: make(chan struct{}), kept: time.Now()}
	err = s.hedged(ctx, x.id.patience(), func(ctx context.Context) error {
		_, err := s.lease.LeaseGrant(ctx, &etcdserverpb.LeaseGrantRequest{ID: int64(x.id), TTL: int64(x.id.lease() / time.Second)})
		if is(err, rpctypes.ErrLeaseExist) {
			return nil // nobody else draws this id: an earlier try came through
		}
		return err
	})
	if err != nil {
		return nil, s.refusal(ctx, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sessions[x.id] = x
	return x, nil
}

// Renew implements coordination.Session. It tries until it succeeds or ctx ends: to
// renew twice does no harm.
func (x *session) Renew(ctx context.Context) error {
	s := x.s
	ctx, cancel, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer cancel()
	if x.over() {
		return coordination.ErrSessionExpired
	}
	keptErr := x.keep(ctx)
	err = s.hedged(ctx, x.id.patience(), func(ctx context.Context) error {
		resp, err := s.kv.Txn(ctx, &etcdserverpb.TxnRequest{
			Compare: []*etcdserverpb.Compare{modified(s.space.ended(x.id), 0)},
			Success: []*etcdserverpb.RequestOp{put(s.space.beacon(x.id), nil, x.id)},
		})
		if err == nil && !resp.Succeeded {
			return coordination.ErrSessionExpired
		}
		return err
	})
	switch {
	case is(err, rpctypes.ErrLeaseNotFound), errors.Is(err, coordination.ErrSessionExpired):
		x.end()
		return coordination.ErrSessionExpired
	case err != nil:
		return s.refusal(ctx, err)
	}
	x.lit.Store(true)
	if errors.Is(keptErr, coordination.ErrSessionExpired) {
		x.end()
	}
	return keptErr
}

// keep renews the lease, if it is time. An error before it is urgent counts for nothing.
func (x *session) keep(ctx context.Context) error {
	x.mu.Lock()
	age := time.Since(x.kept)
	x.mu.Unlock()
	if age < x.id.lease()/4 {
		return nil
	}
	begun := time.Now()
	_, err := x.s.client.KeepAliveOnce(ctx, clientv3.LeaseID(x.id))
	switch {
	case err == nil:
		x.mu.Lock()
		x.kept = begun
		x.mu.Unlock()
		return nil
	case is(err, rpctypes.ErrLeaseNotFound):
		return coordination.ErrSessionExpired
	case age < x.id.lease()/2:
		return nil
	}
	return x.s.refusal(ctx, err)
}

// Close implements coordination.Session.
func (x *session) Close(ctx context.Context) error {
	ctx, cancel, err := x.s.begin(ctx)
	if err != nil {
		return err
	}
	defer cancel()
	if err := x.s.revoke(ctx, x.id); err != nil {
		return x.s.refusal(ctx, err)
	}
	x.end()
	return nil
}

// revoke ends a lease; all keys that are bound to it go at once. One that has ended
// already is fine.
func (s *Store) revoke(ctx context.Context, id sessionID) error {
	_, err := s.lease.LeaseRevoke(ctx, &etcdserverpb.LeaseRevokeRequest{ID: int64(id)})
	if is(err, rpctypes.ErrLeaseNotFound) {
		return nil
	}
	return err
}

func (x *session) over() bool {
	select {
	case <-x.done:
		return true
	default:
		return false
	}
}

// end notes that the session has ended.
func (x *session) end() {
	x.once.Do(func() {
		close(x.done)
		x.s.mu.Lock()
		defer x.s.mu.Unlock()
		delete(x.s.sessions, x.id)
	})
}
