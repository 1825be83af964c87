package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/coordination/zookeeper/internal/wire"
)

// txn is a transaction in terms of nodes.
type txn struct {
	guards   []guard
	ops      []op     // the last one of each key
	sessions []string // that puts name
}

type guard struct {
	path     string
	revision int64
}

type op struct {
	path, key string
	value     []byte
	session   string
	delete    bool
}

func newTxn(t tree, from coordination.Txn) *txn {
	x := &txn{}
	for _, g := range from.Guards {
		x.guards = append(x.guards, guard{t.path(g.Key), g.Revision})
	}
	last := make(map[string]int, len(from.Ops))
	for i, o := range from.Ops {
		last[o.Key] = i
		if !o.Delete && o.Session != "" && !slices.Contains(x.sessions, o.Session) {
			x.sessions = append(x.sessions, o.Session)
		}
	}
	for i, o := range from.Ops {
		if last[o.Key] != i {
			continue
		}
		if o.Delete {
			o.Value, o.Session = nil, ""
		}
		x.ops = append(x.ops, op{path: t.path(o.Key), key: o.Key, value: o.Value, session: o.Session, delete: o.Delete})
	}
	return x
}

func sortOps(ops []op) {
	slices.SortFunc(ops, func(a, b op) int { return strings.Compare(a.key, b.key) })
}

// node is what was seen of one.
type node struct {
	there bool
	stat  wire.Stat
}

func (n node) exists() bool { return n.there }

// key says whether the node is a key, and not only the parent of some.
func (n node) key() bool { return n.there && n.stat.Length > 0 }

func (n node) revision() int64 {
	if !n.key() {
		return 0
	}
	return n.stat.Modified
}

// view is what was seen of the store since a sequence.
type view struct {
	tree  tree
	seq   *sequence
	nodes map[string]node
}

// observe looks at all that a transaction is about. It is so at one moment if the sequence is
// still the same afterwards. It fails with coordination.ErrSessionExpired when a put
// names a session that is over.
func (s *Store) observe(ctx context.Context, conn *wire.Conn, t *txn) (*view, error) {
	for _, id := range t.sessions {
		if !validSession(id) {
			return nil, coordination.ErrSessionExpired // never was one
		}
	}
	gets := make(map[string]*wire.Request, len(t.ops)+len(t.guards))
	var reads []*wire.Request
	ask := func(path string) {
		if gets[path] == nil {
			gets[path] = wire.Get(path, false)
			reads = append(reads, gets[path])
		}
	}
	for _, g := range t.guards {
		ask(g.path)
	}
	for _, o := range t.ops {
		ask(o.path)
	}
	leases := make([]*wire.Request, len(t.sessions))
	for i, id := range t.sessions {
		leases[i] = wire.Get(s.tree.lease(id), false)
	}
	seen, zxid := s.seen.entry.Load(), s.seen.zxid.Load()
	sync, get := wire.Sync(s.tree.chroot), wire.Get(s.tree.sequence(), false)
	reqs := append([]*wire.Request{sync, get}, wire.Reads(append(reads, leases...))...)
	if err := s.call(ctx, conn, reqs...); err != nil {
		return nil, err
	}
	if sync.Zxid < zxid {
		return nil, errAgain
	}
	for i, r := range leases {
		if errors.Is(r.Err, wire.NoNode) {
			return nil, s.expired(ctx, conn, t.sessions[i])
		} else if r.Err != nil {
			return nil, r.Err
		}
	}
	seq, err := s.accept(get, seen)
	if err != nil {
		return nil, err
	}
	v := &view{tree: s.tree, seq: seq, nodes: make(map[string]node, len(gets))}
	if err := v.fill(gets); err != nil {
		return nil, err
	}
	return v, nil
}

// expired returns coordination.ErrSessionExpired when a session that seems to be over is
// so for the leader, too.
func (s *Store) expired(ctx context.Context, conn *wire.Conn, id string) error {
	err := s.agree(ctx, conn, wire.Check(s.tree.lease(id), -1))
	switch {
	case errors.Is(err, wire.NoNode):
		s.forget(id)
		return coordination.ErrSessionExpired
	case err == nil:
		return errAgain
	}
	return err
}

// agree asks the leader, and a majority with it, whether checks hold. What a server has been
// read to have may be a moment old, even after a sync; this is not.
func (s *Store) agree(ctx context.Context, conn *wire.Conn, checks ...wire.Op) error {
	multi := wire.Multi(checks)
	if err := s.call(ctx, conn, multi); err != nil {
		return err
	}
	return multi.Err
}

// fill takes in what was asked for about nodes.
func (v *view) fill(gets map[string]*wire.Request) error {
	for path, r := range gets {
		if r.Err != nil && !errors.Is(r.Err, wire.NoNode) {
			return fmt.Errorf("%s: %w", path, r.Err)
		}
		v.nodes[path] = node{there: r.Err == nil, stat: r.Stat}
	}
	return nil
}

// owners returns the sessions whose keys a transaction is about.
func (v *view) owners(t *txn) (ids []string) {
	for id, nodes := range v.seq.Sessions {
		for _, n := range nodes {
			if _, about := v.nodes[v.tree.chroot+n]; about {
				ids = append(ids, id)
				break
			}
		}
	}
	return ids
}

// missing says whether one of these keys is gone, though nobody has told of it.
func (v *view) missing(t *txn) bool {
	for _, nodes := range v.seq.Sessions {
		for _, n := range nodes {
			if seen, about := v.nodes[v.tree.chroot+n]; about && !seen.key() {
				return true
			}
		}
	}
	return false
}

// holds says whether all guards hold.
func (v *view) holds(guards []guard) bool {
	for _, g := range guards {
		if v.nodes[g.path].revision() != g.revision {
			return false
		}
	}
	return true
}

// effective returns the ops without deletions of what is not there.
func (v *view) effective(t *txn) []op {
	var ops []op
	for _, o := range t.ops {
		if !o.delete || v.nodes[o.path].key() {
			ops = append(ops, o)
		}
	}
	return ops
}
