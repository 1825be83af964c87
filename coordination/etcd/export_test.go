package etcd

import (
	"context"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"github.com/tidemark-log/tidemark/coordination"
)

// OpenWith opens a Store whose calls go through interceptors of a test.
func OpenWith(c Config, options ...grpc.DialOption) (*Store, error) {
	c.dialOptions = options
	return Open(context.Background(), c)
}

// Fence ends s as if its process had died.
func (s *Store) Fence() { s.end(coordination.ErrUnavailable) }

// EndOf writes that a session's time is over, as an observer does before it revokes the lease.
func (s *Store) EndOf(ctx context.Context, sess coordination.Session, beacon int64) (bool, error) {
	return s.expire(ctx, sess.(*session).id, beacon)
}

// Beacon returns where a session's beacon is.
func (s *Store) Beacon(ctx context.Context, sess coordination.Session) (int64, error) {
	resp, err := s.kv.Range(ctx, &etcdserverpb.RangeRequest{Key: s.space.beacon(sess.(*session).id)})
	if err != nil || len(resp.Kvs) == 0 {
		return 0, err
	}
	return resp.Kvs[0].ModRevision, nil
}

// OpenBlind opens a Store that does not look at the beacons.
func OpenBlind(c Config) (*Store, error) {
	c.blind = true
	return Open(context.Background(), c)
}
