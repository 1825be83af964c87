package zookeeper

import (
	"context"
	"slices"
	"strings"

	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/coordination/zookeeper/internal/wire"
)

// plan is a transaction as ZooKeeper's operations. The first one asserts, and moves, the
// version of the sequence: what the plan was made from is what it is applied to.
type plan struct {
	seq             *sequence // as it will be
	sequence, entry wire.Op
	trims, checks   []wire.Op
	deletes, sets   []wire.Op
	creates         []wire.Op
	written         map[string]bool // nodes of keys
	leases          map[string]bool // of which one is checked
}

// ops are the operations in an order that never has a node without its parent.
func (p *plan) ops() []wire.Op {
	return slices.Concat([]wire.Op{p.sequence, p.entry}, p.trims, p.checks, p.deletes, p.sets, p.creates)
}

// checkFailed says whether it was one of the checks that the operations failed of.
func (p *plan) checkFailed(results []wire.Result) bool {
	first := 2 + len(p.trims)
	return slices.ContainsFunc(results[min(first, len(results)):min(first+len(p.checks), len(results))], func(r wire.Result) bool {
		return r.Err != 0 && r.Err != wire.RolledBack
	})
}

// checkLease asserts that a session is alive.
func (p *plan) checkLease(t tree, id string) {
	if !p.leases[id] {
		p.leases[id] = true
		p.checks = append(p.checks, wire.Check(t.lease(id), -1))
	}
}

// spot is a node that a plan is about, as it will be.
type spot struct {
	node
	path     string
	key      bool
	children int32
	made     bool // though there was none
	data     []byte
	// ephemeral is for what is made.
	ephemeral bool
}

// planner turns ops into a plan.
type planner struct {
	s     *Store
	v     *view
	p     *plan
	by    *session
	spots map[string]*spot
}

// plan plans ops, of which each is on another key and changes something. by is the
// session that carries it; nil: none.
func (s *Store) plan(ctx context.Context, conn *wire.Conn, v *view, ops []op, by *session) (*plan, error) {
	sizes, err := s.survey(ctx, conn, v, ops)
	if err != nil {
		return nil, err
	}
	pl := &planner{s: s, v: v, by: by, spots: make(map[string]*spot), p: &plan{
		seq: v.seq.next(), written: make(map[string]bool, len(ops)), leases: make(map[string]bool),
	}}
	for _, o := range ops {
		if !o.delete {
			if err := pl.make(o.path); err != nil {
				return nil, err
			}
			pl.spot(o.path).key = true
		}
	}
	en := entry{before: v.seq.logged()}
	for _, o := range ops {
		ev := coordination.Event{KV: coordination.KV{Key: o.key, Value: o.value, Session: o.session}, Deleted: o.delete}
		en.events = append(en.events, ev)
		pl.p.seq.bind(s.tree.within(o.path), o.session)
		pl.p.written[o.path] = true
		if o.delete {
			pl.spot(o.path).key = false
		} else {
			pl.put(o)
		}
	}
	pl.clear(ops)
	pl.create()
	pl.log(en.encode(), sizes)
	return pl.p, nil
}

// survey looks at what else a plan has to know: the nodes above those that come or go,
// and the sizes of the log's oldest entries if some have to go.
func (s *Store) survey(ctx context.Context, conn *wire.Conn, v *view, ops []op) (sizes []*wire.Request, err error) {
	gets := make(map[string]*wire.Request)
	var reqs []*wire.Request
	for _, o := range ops {
		if v.nodes[o.path].exists() && !o.delete {
			continue
		}
		for _, path := range s.tree.parents(o.path) {
			if _, known := v.nodes[path]; !known && gets[path] == nil {
				gets[path] = wire.Get(path, false)
				reqs = append(reqs, gets[path])
			}
		}
	}
	if s.full(v.seq) {
		for i := range int64(trimPerWrite) {
			sizes = append(sizes, wire.Exists(s.tree.entry(v.seq.First+i), false))
		}
	}
	if len(reqs)+len(sizes) == 0 {
		return nil, nil
	}
	if err := s.call(ctx, conn, append(wire.Reads(reqs), sizes...)...); err != nil {
		return nil, err
	}
	return sizes, v.fill(gets)
}

// full says whether the log is so long that another entry may be too much.
func (s *Store) full(seq *sequence) bool {
	return seq.Entry-seq.First+1 >= int64(s.cfg.History) || seq.Bytes+int64(s.cfg.MaxRequest) > logBytes
}

func (pl *planner) spot(path string) *spot {
	sp := pl.spots[path]
	if sp == nil {
		n := pl.v.nodes[path]
		sp = &spot{node: n, path: path, key: n.key(), children: n.stat.Children}
		pl.spots[path] = sp
	}
	return sp
}

// make has a node and all above it exist.
func (pl *planner) make(path string) error {
	sp := pl.spot(path)
	if sp.exists() || sp.made {
		return nil
	}
	sp.made = true
	if up := parent(path); up != pl.s.tree.chroot {
		if err := pl.make(up); err != nil {
			return err
		}
		above := pl.spot(up)
		if above.stat.Owner != 0 {
			return errEphemeralParent
		}
		above.children++
	}
	return nil
}

// create makes the nodes that are not there, those above first.
func (pl *planner) create() {
	var made []*spot
	for _, sp := range pl.spots {
		if sp.made {
			made = append(made, sp)
		}
	}
	slices.SortFunc(made, func(a, b *spot) int { return strings.Compare(a.path, b.path) })
	for _, sp := range made {
		pl.p.creates = append(pl.p.creates, wire.Create(sp.path, sp.data, pl.s.cfg.acl(), sp.ephemeral))
	}
}

// put writes a key. A session's key is ZooKeeper's ephemeral node if the session
// carries the plan and the node has no children. Else the node says whose it is.
func (pl *planner) put(o op) {
	sp := pl.spot(o.path)
	ephemeral := o.session != "" && pl.by != nil && sp.children == 0
	bound := o.session
	owner := int64(0)
	if ephemeral {
		bound, owner = "", pl.by.sid
	}
	data := encodeValue(o.value, bound)
	switch {
	case !sp.exists():
		sp.data, sp.ephemeral = data, ephemeral
	case sp.stat.Owner == owner:
		pl.p.sets = append(pl.p.sets, wire.Set(o.path, data, sp.stat.Version))
	default:
		pl.p.deletes = append(pl.p.deletes, wire.Delete(o.path, sp.stat.Version))
		sp.made, sp.data, sp.ephemeral = true, data, ephemeral
	}
}

// clear removes the nodes of deleted keys, and those above them that are left without
// use. A node that has children stays, without data.
func (pl *planner) clear(ops []op) {
	for _, o := range ops {
		if o.delete && pl.v.nodes[o.path].exists() {
			for _, path := range append([]string{o.path}, pl.s.tree.parents(o.path)...) {
				pl.spot(path)
			}
		}
	}
	var spots []*spot
	for _, sp := range pl.spots {
		if sp.exists() && !sp.key {
			spots = append(spots, sp)
		}
	}
	// What is longer may be below what is shorter, never the other way round.
	slices.SortFunc(spots, func(a, b *spot) int {
		if d := len(b.path) - len(a.path); d != 0 {
			return d
		}
		return strings.Compare(a.path, b.path)
	})
	for _, sp := range spots {
		switch {
		case sp.children == 0:
			pl.p.deletes = append(pl.p.deletes, wire.Delete(sp.path, sp.stat.Version))
			if up := pl.spots[parent(sp.path)]; up != nil {
				up.children--
			}
		case sp.node.key():
			pl.p.sets = append(pl.p.sets, wire.Set(sp.path, nil, sp.stat.Version))
		}
	}
}

// log adds the entry, cuts off old ones, and writes the sequence.
func (pl *planner) log(data []byte, sizes []*wire.Request) {
	seq, t := pl.p.seq, pl.s.tree
	seq.Bytes += int64(len(data))
	for _, r := range sizes {
		if seq.First >= seq.Entry || seq.Entry-seq.First < int64(pl.s.cfg.History) && seq.Bytes <= logBytes {
			break
		}
		if r.Err == nil {
			seq.Bytes -= int64(r.Stat.Length)
			pl.p.trims = append(pl.p.trims, wire.Delete(t.entry(seq.First), -1))
		}
		seq.First++
	}
	pl.p.sequence = wire.Set(t.sequence(), seq.encode(), pl.v.seq.version)
	pl.p.entry = wire.Create(t.entry(seq.Entry), data, pl.s.cfg.acl(), false)
}
