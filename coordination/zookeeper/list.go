package zookeeper

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/coordination/zookeeper/internal/wire"
)

// List implements coordination.Store.
func (s *Store) List(ctx context.Context, prefix string) ([]coordination.KV, int64, error) {
	if err := s.admit(ctx); err != nil {
		return nil, 0, err
	}
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	kvs, revision, err := s.list(ctx, prefix)
	if err != nil {
		return nil, 0, s.unavailable(err)
	}
	return kvs, revision, nil
}

// list reads the nodes one after the other, while they change, and then takes in what
// the log says has changed meanwhile: that makes it the view of one revision.
func (s *Store) list(ctx context.Context, prefix string) ([]coordination.KV, int64, error) {
	conn, err := s.link.get(ctx)
	if err != nil {
		return nil, 0, err
	}
	for range maxAttempts {
		if err := s.sync(ctx, conn); err != nil {
			return nil, 0, err
		}
		seq, err := s.look(ctx, conn, false)
		if err != nil {
			return nil, 0, err
		}
		view, err := s.walk(ctx, conn, prefix)
		if err != nil {
			return nil, 0, err
		}
		seq, err = s.settle(ctx, conn, prefix, seq, view)
		if errors.Is(err, coordination.ErrCompacted) {
			continue // it took so long that the log has been cut
		}
		if err != nil {
			return nil, 0, err
		}
		kvs := make([]coordination.KV, 0, len(view))
		for _, kv := range view {
			kvs = append(kvs, kv)
		}
		slices.SortFunc(kvs, func(a, b coordination.KV) int { return strings.Compare(a.Key, b.Key) })
		return kvs, seq.logged(), nil
	}
	return nil, 0, errContended
}

// walk reads the keys with the prefix, level by level.
func (s *Store) walk(ctx context.Context, conn *wire.Conn, prefix string) (map[string]coordination.KV, error) {
	view := make(map[string]coordination.KV)
	for parents := s.tree.roots(prefix); len(parents) > 0; {
		names := make([]*wire.Request, len(parents))
		for i, path := range parents {
			names[i] = wire.Children(path)
		}
		if err := s.call(ctx, conn, wire.Reads(names)...); err != nil {
			return nil, err
		}
		var paths []string
		var gets []*wire.Request
		for i, r := range names {
			if r.Err != nil && !errors.Is(r.Err, wire.NoNode) {
				return nil, r.Err
			}
			for _, name := range r.Children {
				if path := parents[i] + "/" + name; s.leads(path, prefix) {
					paths, gets = append(paths, path), append(gets, wire.Get(path, false))
				}
			}
		}
		if err := s.call(ctx, conn, wire.Reads(gets)...); err != nil {
			return nil, err
		}
		parents = nil
		for i, r := range gets {
			kv, ok, err := s.kv(paths[i], r)
			if err != nil {
				return nil, err
			}
			if ok && strings.HasPrefix(kv.Key, prefix) {
				view[kv.Key] = kv
			}
			if r.Stat.Children > 0 {
				parents = append(parents, paths[i])
			}
		}
	}
	return view, nil
}

// leads says whether a node, or what is below it, may be a key with the prefix.
func (s *Store) leads(path, prefix string) bool {
	key, ok := s.tree.key(path)
	return ok && (strings.HasPrefix(key, prefix) || strings.HasPrefix(prefix, key+"/"))
}

// settle brings a view that was read while the store was at seq, or later, to one
// revision, and returns the sequence of that. Sessions that have ended by then have
// no keys in it.
func (s *Store) settle(ctx context.Context, conn *wire.Conn, prefix string, seq *sequence, view map[string]coordination.KV) (*sequence, error) {
	for range maxAttempts {
		var ids []string
		var leases []*wire.Request
		for id := range seq.Sessions {
			ids, leases = append(ids, id), append(leases, wire.Exists(s.tree.lease(id), false))
		}
		now, err := s.look(ctx, conn, false, leases...)
		if err != nil {
			return nil, err
		}
		entries, err := s.entries(ctx, conn, seq.Entry+1, now.Entry)
		if err != nil {
			return nil, err
		}
		for _, en := range entries {
			for _, ev := range en.prefixed(prefix) {
				if ev.Deleted {
					delete(view, ev.Key)
				} else {
					view[ev.Key] = ev.KV
				}
			}
		}
		seq = now
		lost, all := false, true
		for id, nodes := range now.Sessions {
			i := slices.Index(ids, id)
			if all = all && i >= 0; i < 0 {
				continue
			}
			if err := leases[i].Err; err != nil && !errors.Is(err, wire.NoNode) {
				return nil, err
			} else if err != nil {
				lost = lost || s.concerns(nodes, prefix)
			}
		}
		if !all {
			continue // it has keys of a session that was not looked at
		}
		if !lost && s.complete(now, prefix, view) {
			return now, nil
		}
		if err := s.adopt(ctx, conn); err != nil {
			return nil, err
		}
	}
	return nil, errContended
}

// concerns says whether one of the nodes is a key with the prefix.
func (s *Store) concerns(nodes []string, prefix string) bool {
	return slices.ContainsFunc(nodes, func(node string) bool {
		key, ok := s.tree.key(s.tree.chroot + node)
		return ok && strings.HasPrefix(key, prefix)
	})
}

// complete says whether the view has every key that the sequence lists.
func (s *Store) complete(seq *sequence, prefix string, view map[string]coordination.KV) bool {
	for _, nodes := range seq.Sessions {
		for _, node := range nodes {
			key, ok := s.tree.key(s.tree.chroot + node)
			if _, there := view[key]; ok && !there && strings.HasPrefix(key, prefix) {
				return false
			}
		}
	}
	return true
}

// entries reads the log's entries from first to last. It fails with
// coordination.ErrCompacted when one of them has been cut off.
func (s *Store) entries(ctx context.Context, conn *wire.Conn, first, last int64) ([]*entry, error) {
	if first > last {
		return nil, nil
	}
	gets := make([]*wire.Request, 0, last-first+1)
	for n := first; n <= last; n++ {
		gets = append(gets, wire.Get(s.tree.entry(n), false))
	}
	if err := s.call(ctx, conn, wire.Reads(gets)...); err != nil {
		return nil, err
	}
	entries := make([]*entry, len(gets))
	for i, r := range gets {
		en, err := decodeEntry(r)
		if errors.Is(err, wire.NoNode) {
			return nil, coordination.ErrCompacted
		}
		if err != nil {
			return nil, err
		}
		entries[i] = en
	}
	return entries, nil
}
