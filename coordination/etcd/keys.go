package etcd

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tidemark-log/tidemark/coordination"
)

// keyspace is where things are below the prefix:
//
//	keys/<key>           the keys of the contract, one for one
//	sessions/<id>        a session's beacon, which every renewal writes
//	sessions/<id>/ended  its time is over: who finds this revokes its lease
//	abort/<n>            never exists; see pack
type keyspace struct{ keys, sessions, abort string }

func newKeyspace(prefix string) keyspace {
	return keyspace{keys: prefix + "keys/", sessions: prefix + "sessions/", abort: prefix + "abort/"}
}

func (k keyspace) key(key string) []byte { return []byte(k.keys + key) }

func (k keyspace) beacon(id sessionID) []byte { return []byte(k.sessions + id.String()) }

func (k keyspace) ended(id sessionID) []byte { return []byte(k.sessions + id.String() + endedSuffix) }

const endedSuffix = "/ended"

// parseSession takes a key below sessions apart.
func (k keyspace) parseSession(key []byte) (id sessionID, ended, ok bool) {
	rest, ok := strings.CutPrefix(string(key), k.sessions)
	if !ok {
		return 0, false, false
	}
	rest, ended = strings.CutSuffix(rest, endedSuffix)
	id, ok = parseSessionID(rest)
	return id, ended, ok
}

// kv translates a key of the contract.
func (k keyspace) kv(kv *mvccpb.KeyValue) coordination.KV {
	out := coordination.KV{
		Key: strings.TrimPrefix(string(kv.Key), k.keys), Value: kv.Value, Revision: kv.ModRevision,
	}
	if out.Value == nil {
		out.Value = []byte{}
	}
	if kv.Lease != 0 {
		out.Session = sessionID(kv.Lease).String()
	}
	return out
}

// rangeEnd ends the range of the keys that begin with prefix.
func rangeEnd(prefix []byte) []byte { return []byte(clientv3.GetPrefixRangeEnd(string(prefix))) }

// sessionID is the id of a session's lease. Its low bits are the session's ttl in
// milliseconds: so everybody who sees an ephemeral key, or a beacon, knows it.
type sessionID int64

const (
	ttlBits = 25
	maxTTL  = (1<<ttlBits - 1) * time.Millisecond // more than nine hours
)

// newSessionID draws an id; ttl is rounded up to milliseconds.
func newSessionID(ttl time.Duration) sessionID {
	var b [8]byte
	for {
		rand.Read(b[:]) // never fails
		if random := int64(binary.BigEndian.Uint64(b[:]) >> (ttlBits + 1)); random != 0 {
			return sessionID(random<<ttlBits | int64((ttl+time.Millisecond-1)/time.Millisecond))
		}
	}
}

func (id sessionID) ttl() time.Duration {
	return time.Duration(id&(1<<ttlBits-1)) * time.Millisecond
}

// lease is for how long etcd itself keeps the session's lease, in seconds. It only
// has to clear away what was left behind when nobody is there to end the session,
// and must not end it when all of etcd stood still for a while.
func (id sessionID) lease() time.Duration {
	return max(time.Minute, (10*id.ttl() + time.Second - 1).Truncate(time.Second))
}

// patience is how long a call about the session waits until it is made once more.
func (id sessionID) patience() time.Duration {
	return min(max(id.ttl()/16, 20*time.Millisecond), 500*time.Millisecond)
}

func (id sessionID) String() string { return fmt.Sprintf("%016x", int64(id)) }

func parseSessionID(s string) (sessionID, bool) {
	if len(s) != 16 {
		return 0, false
	}
	n, err := strconv.ParseInt(s, 16, 64)
	return sessionID(n), err == nil && n > 0 && sessionID(n).ttl() > 0
}
