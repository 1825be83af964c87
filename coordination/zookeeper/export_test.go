package zookeeper

import (
	"context"
	"fmt"

	"github.com/tidemark-log/tidemark/coordination/zookeeper/internal/wire"
)

// Expire ends a session as if its time were over, behind the back of its holder.
func (s *Store) Expire(ctx context.Context, id string) error {
	s.mu.Lock()
	x := s.sessions[id]
	s.mu.Unlock()
	if x == nil {
		return nil
	}
	h := s.cfg.hello()
	h.Timeout, h.SessionID, h.Password = x.ttl, x.sid, x.password
	conn, err := s.connect(ctx, h)
	if err != nil {
		return fmt.Errorf("expire %s: %w", id, err)
	}
	defer conn.Close()
	return conn.Call(ctx, wire.CloseSession())
}

// Ahead makes it seem that the Store has seen more than the server that it is connected to.
func (s *Store) Ahead(by int64) { s.seen.zxid.Add(by) }
