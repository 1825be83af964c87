package embedded

import (
	"maps"
	"slices"
	"strings"
	"sync"

	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.uber.org/zap/zapcore"
)

// reasons are why each of the other members was last not reached, or refused, as etcd
// has logged it: by the member's ID, or by rejected for those that were not let in.
type reasons struct {
	mu sync.Mutex
	of map[string]string
}

const rejected = "rejected connection on peer endpoint" // etcd's words

func (r *reasons) note(entry zapcore.Entry, fields []zapcore.Field) {
	peer, reason := "", ""
	if entry.Message == rejected {
		peer = rejected
	}
	for _, f := range fields {
		switch {
		case f.Key == "remote-peer-id" || f.Key == "peer-id":
			peer = f.String
		case f.Type == zapcore.ErrorType:
			enc := zapcore.NewMapObjectEncoder() // it can take errors that are nil pointers
			f.AddTo(enc)
			reason, _ = enc.Fields[f.Key].(string)
		}
	}
	if peer == "" || reason == "" {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.of[peer] = reason
}

// text has all of them, with the names that the server knows; "" if there are none.
func (r *reasons) text(s *etcdserver.EtcdServer) string {
	r.mu.Lock()
	of := maps.Clone(r.of)
	r.mu.Unlock()
	var all []string
	for peer, reason := range of {
		if id, err := types.IDFromString(peer); err == nil {
			if m := s.Cluster().Member(id); m != nil {
				peer = strings.TrimSpace(m.Name + " at " + strings.Join(m.PeerURLs, ","))
			}
		}
		all = append(all, peer+": "+reason)
	}
	slices.Sort(all)
	return strings.Join(all, "; ")
}
