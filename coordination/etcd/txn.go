package etcd

import (
	"context"
	"fmt"
	"strconv"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/tidemark-log/tidemark/coordination"
)

// Do implements coordination.Store. A transaction is one request to etcd, and one
// revision, however many guards and ops it has.
func (s *Store) Do(ctx context.Context, t coordination.Txn) (coordination.TxnResult, error) {
	ops, sessions, ok := s.ops(t.Ops)
	if !ok {
		return coordination.TxnResult{}, coordination.ErrSessionExpired
	}
	req, err := pack(s.guards(t.Guards), ops, s.space)
	if err != nil {
		return coordination.TxnResult{}, err
	}
	ctx, cancel, err := s.begin(ctx)
	if err != nil {
		return coordination.TxnResult{}, err
	}
	defer cancel()
	floor := s.highest.Load()
	resp, err := s.kv.Txn(ctx, req)
	switch {
	case err == nil && resp.Succeeded:
		s.lit(sessions...)
		return coordination.TxnResult{Applied: true, Revision: resp.Header.Revision}, s.checked(floor, resp.Header)
	case err == nil:
		return coordination.TxnResult{Revision: resp.Header.Revision}, s.refused(ctx, floor, resp.Header, sessions)
	case is(err, rpctypes.ErrLeaseNotFound):
		return coordination.TxnResult{}, coordination.ErrSessionExpired
	case is(err, rpctypes.ErrKeyNotFound):
		return s.aborted(ctx, sessions)
	default:
		return coordination.TxnResult{}, s.refusal(ctx, err)
	}
}

// refused is what there is to say of a transaction whose guards do not hold: that a
// session of its puts has ended comes first.
func (s *Store) refused(ctx context.Context, floor int64, h *etcdserverpb.ResponseHeader, sessions []sessionID) error {
	if err := s.checked(floor, h); err != nil {
		return err
	}
	for _, id := range sessions {
		resp, err := s.lease.LeaseTimeToLive(ctx, &etcdserverpb.LeaseTimeToLiveRequest{ID: int64(id)})
		if err != nil && !is(err, rpctypes.ErrLeaseNotFound) {
			return s.refusal(ctx, err)
		}
		if err != nil || resp.TTL < 0 {
			return coordination.ErrSessionExpired
		}
	}
	return nil
}

// aborted is the result of a packed transaction whose guards do not hold: etcd then
// gives an error, which has no revision.
func (s *Store) aborted(ctx context.Context, sessions []sessionID) (coordination.TxnResult, error) {
	floor := s.highest.Load()
	resp, err := s.kv.Range(ctx, &etcdserverpb.RangeRequest{Key: s.space.key(""), CountOnly: true})
	if err != nil {
		return coordination.TxnResult{}, s.refusal(ctx, err)
	}
	return coordination.TxnResult{Revision: resp.Header.Revision}, s.refused(ctx, floor, resp.Header, sessions)
}

func (s *Store) guards(guards []coordination.Guard) []*etcdserverpb.Compare {
	out := make([]*etcdserverpb.Compare, len(guards))
	for i, g := range guards {
		out[i] = modified(s.space.key(g.Key), g.Revision)
	}
	return out
}

// modified holds when the key's last write was at the revision; 0: it does not exist.
func modified(key []byte, revision int64) *etcdserverpb.Compare {
	return &etcdserverpb.Compare{
		Key: key, Target: etcdserverpb.Compare_MOD, Result: etcdserverpb.Compare_EQUAL,
		TargetUnion: &etcdserverpb.Compare_ModRevision{ModRevision: revision},
	}
}

// ops translates ops; of several on one key the last one counts. The sessions are
// those that puts name. False means that one of them never was a session.
func (s *Store) ops(ops []coordination.Op) (out []*etcdserverpb.RequestOp, sessions []sessionID, ok bool) {
	last := make(map[string]int, len(ops))
	for i, op := range ops {
		last[op.Key] = i
	}
	named := make(map[sessionID]bool)
	for i, op := range ops {
		var id sessionID
		if op.Session != "" && !op.Delete {
			if id, ok = parseSessionID(op.Session); !ok {
				return nil, nil, false
			}
			if !named[id] {
				named[id] = true
				sessions = append(sessions, id)
				out = append(out, s.firstBeacon(id))
			}
		}
		if last[op.Key] != i {
			continue
		}
		if op.Delete {
			out = append(out, deletion(s.space.key(op.Key)))
		} else {
			out = append(out, put(s.space.key(op.Key), op.Value, id))
		}
	}
	return out, sessions, true
}

// firstBeacon lights a session's beacon, if nothing has yet: from the first ephemeral
// key on it has to be seen when the session is not renewed any more.
func (s *Store) firstBeacon(id sessionID) *etcdserverpb.RequestOp {
	return nested(&etcdserverpb.TxnRequest{
		Compare: []*etcdserverpb.Compare{modified(s.space.beacon(id), 0)},
		Success: []*etcdserverpb.RequestOp{put(s.space.beacon(id), nil, id)},
	})
}

func put(key, value []byte, session sessionID) *etcdserverpb.RequestOp {
	return &etcdserverpb.RequestOp{Request: &etcdserverpb.RequestOp_RequestPut{
		RequestPut: &etcdserverpb.PutRequest{Key: key, Value: value, Lease: int64(session)},
	}}
}

func deletion(key []byte) *etcdserverpb.RequestOp {
	return &etcdserverpb.RequestOp{Request: &etcdserverpb.RequestOp_RequestDeleteRange{
		RequestDeleteRange: &etcdserverpb.DeleteRangeRequest{Key: key},
	}}
}

func nested(t *etcdserverpb.TxnRequest) *etcdserverpb.RequestOp {
	return &etcdserverpb.RequestOp{Request: &etcdserverpb.RequestOp_RequestTxn{RequestTxn: t}}
}

const (
	// maxFlat is how many guards and how many ops fit into one plain transaction: what
	// etcd takes by default (--max-txn-ops 128), less what a beacon's needs.
	maxFlat = 120
	// fan is how many entries each level of a packed transaction has. etcd allows 128
	// on each way from the top to the bottom, and a beacon's needs one more level.
	fan = 40
)

// pack makes one request of a transaction. One with more guards or ops than etcd
// takes becomes a tree: etcd evaluates the comparisons of all its leaves before it
// writes anything. A leaf whose guards do not hold is to write a key in a way that
// etcd refuses (to keep the value of a key that does not exist); that is checked
// before anything is written, too, and refuses the whole request.
func pack(guards []*etcdserverpb.Compare, ops []*etcdserverpb.RequestOp, space keyspace) (*etcdserverpb.TxnRequest, error) {
	if len(ops) == 0 {
		// Without a read that must be up to date etcd answers from what one member has.
		ops = []*etcdserverpb.RequestOp{{Request: &etcdserverpb.RequestOp_RequestRange{
			RequestRange: &etcdserverpb.RangeRequest{Key: space.key(""), CountOnly: true},
		}}}
	}
	if len(guards) <= maxFlat && len(ops) <= maxFlat {
		return &etcdserverpb.TxnRequest{Compare: guards, Success: ops}, nil
	}
	var leaves []*etcdserverpb.RequestOp
	for _, group := range chunks(ops) { // first: a session that has ended shows before a guard
		leaves = append(leaves, nested(&etcdserverpb.TxnRequest{Success: group}))
	}
	for i, group := range chunks(guards) {
		abort := put([]byte(space.abort+strconv.Itoa(i)), nil, 0)
		abort.GetRequestPut().IgnoreValue = true
		leaves = append(leaves, nested(&etcdserverpb.TxnRequest{Compare: group, Failure: []*etcdserverpb.RequestOp{abort}}))
	}
	if len(leaves) > fan*fan {
		return nil, fmt.Errorf("%w: %d guards and %d ops", ErrTooLarge, len(guards), len(ops))
	}
	top := leaves
	if len(leaves) > fan {
		top = nil
		for _, group := range chunks(leaves) {
			top = append(top, nested(&etcdserverpb.TxnRequest{Success: group}))
		}
	}
	return &etcdserverpb.TxnRequest{Success: top}, nil
}

// chunks cuts s into pieces of at most fan.
func chunks[T any](s []T) (out [][]T) {
	for len(s) > fan {
		out = append(out, s[:fan])
		s = s[fan:]
	}
	if len(s) > 0 {
		out = append(out, s)
	}
	return out
}
