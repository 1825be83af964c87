package zookeeper

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/coordination/zookeeper/internal/wire"
)

// A node's data is the key's value as it is, so that an operator can read it. A node
// without data is no key, only the parent of some. What could be mistaken for that, or
// has to say more, has a head instead: a zero byte, a session's id, a zero byte. A
// value that is empty or begins with a zero byte gets one, and so does the value of
// a key that is bound to a session by that alone (see plan.go).

func encodeValue(value []byte, session string) []byte {
	if session == "" && len(value) > 0 && value[0] != 0 {
		return bytes.Clone(value)
	}
	b := make([]byte, 0, len(value)+len(session)+2)
	b = append(b, 0)
	b = append(b, session...)
	b = append(b, 0)
	return append(b, value...)
}

// decodeValue is the reverse of encodeValue for a node that has data.
func decodeValue(data []byte) (value []byte, session string, err error) {
	if data[0] != 0 {
		return data, "", nil
	}
	id, value, ok := bytes.Cut(data[1:], []byte{0})
	if !ok {
		return nil, "", errMalformed
	}
	return value, string(id), nil
}

// errMalformed is for nodes that this package did not write.
var errMalformed = errors.New("zookeeper: node is not Tidemark's")

// sessionID is a ZooKeeper session's id as a coordination.Session has it.
func sessionID(id int64) string { return fmt.Sprintf("0x%x", uint64(id)) }

// format is the version of what this package writes beside the values.
const format = 1

// sequence is the data of CHROOT/.sequence. Every transaction writes it, and with it
// asserts that nobody else has written since it was read.
type sequence struct {
	Format int   `json:"format"`
	Entry  int64 `json:"entry"` // number of the last transaction, and of its entry in the log
	First  int64 `json:"first"` // oldest entry that is kept
	Bytes  int64 `json:"bytes"` // of all entries that are kept
	// Sessions are the sessions that have keys, with the nodes of these, below the chroot.
	Sessions map[string][]string `json:"sessions,omitempty"`

	version  int32
	revision int64 // of the last transaction; before the first: of the node's creation
}

// logged is the revision of the last entry; 0: there was none.
func (s *sequence) logged() int64 {
	if s.Entry == 0 {
		return 0
	}
	return s.revision
}

func (s *sequence) owner(node string) string {
	for id, nodes := range s.Sessions {
		if slices.Contains(nodes, node) {
			return id
		}
	}
	return ""
}

// bind makes session the owner of a node's key; "": nobody.
func (s *sequence) bind(node, session string) {
	if old := s.owner(node); old != "" {
		s.Sessions[old] = slices.DeleteFunc(slices.Clone(s.Sessions[old]), func(n string) bool { return n == node })
		if len(s.Sessions[old]) == 0 {
			delete(s.Sessions, old)
		}
	}
	if session != "" {
		s.Sessions[session] = append(slices.Clone(s.Sessions[session]), node)
	}
}

// next is the sequence that a transaction begins with.
func (s *sequence) next() *sequence {
	n := *s
	n.Entry++
	if n.Sessions = maps.Clone(s.Sessions); n.Sessions == nil {
		n.Sessions = make(map[string][]string)
	}
	return &n
}

func (s *sequence) encode() []byte {
	b, _ := json.Marshal(s) // numbers and strings only
	return b
}

func decodeSequence(r *wire.Request) (*sequence, error) {
	if r.Err != nil {
		return nil, fmt.Errorf("sequence: %w", r.Err)
	}
	s := &sequence{version: r.Stat.Version, revision: r.Stat.Modified}
	if err := json.Unmarshal(r.Data, s); err != nil {
		return nil, fmt.Errorf("%w: sequence: %w", errMalformed, err)
	}
	if s.Format != format {
		return nil, fmt.Errorf("zookeeper: format %d is unknown, this version knows %d", s.Format, format)
	}
	return s, nil
}

// entry is a transaction in the log.
type entry struct {
	revision int64 // not in the data: that of the node's creation
	before   int64 // revision of the entry before it; 0: there is none
	events   []coordination.Event
}

const (
	plainEntry    = 1
	deflatedEntry = 2

	deflateAbove = 512      // bytes of an entry
	maxEntry     = 32 << 20 // when it is inflated

	eventPut     = 0
	eventDeleted = 1
)

func (en *entry) encode() []byte {
	b := binary.AppendUvarint([]byte{plainEntry}, uint64(en.before))
	for _, ev := range en.events {
		kind := byte(eventPut)
		if ev.Deleted {
			kind = eventDeleted
		}
		b = append(b, kind)
		for _, field := range [...]string{ev.Key, ev.Session, string(ev.Value)} {
			b = binary.AppendUvarint(b, uint64(len(field)))
			b = append(b, field...)
		}
	}
	if len(b) <= deflateAbove {
		return b
	}
	var out bytes.Buffer
	out.WriteByte(deflatedEntry)
	w, _ := flate.NewWriter(&out, flate.BestSpeed) // the level is valid
	_, _ = w.Write(b[1:])                          // into memory
	_ = w.Close()
	if out.Len() >= len(b) {
		return b
	}
	return out.Bytes()
}

func decodeEntry(r *wire.Request) (*entry, error) {
	if r.Err != nil {
		return nil, r.Err
	}
	fault := func() (*entry, error) { return nil, fmt.Errorf("%w: log entry", errMalformed) }
	if len(r.Data) == 0 {
		return fault()
	}
	b := r.Data[1:]
	switch r.Data[0] {
	case plainEntry:
	case deflatedEntry:
		var err error
		b, err = io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(b)), maxEntry))
		if err != nil || len(b) == maxEntry {
			return fault()
		}
	default:
		return fault()
	}
	before, n := binary.Uvarint(b)
	if n <= 0 {
		return fault()
	}
	en := &entry{revision: r.Stat.Created, before: int64(before)}
	for b = b[n:]; len(b) > 0; {
		ev := coordination.Event{KV: coordination.KV{Revision: en.revision}, Deleted: b[0] == eventDeleted}
		b = b[1:]
		var fields [3]string
		for i := range fields {
			size, n := binary.Uvarint(b)
			if n <= 0 || size > uint64(len(b)-n) {
				return fault()
			}
			fields[i] = string(b[n : n+int(size)])
			b = b[n+int(size):]
		}
		ev.Key, ev.Session = fields[0], fields[1]
		if !ev.Deleted {
			ev.Value = []byte(fields[2])
		}
		en.events = append(en.events, ev)
	}
	return en, nil
}

// prefixed returns the events about keys with the prefix.
func (en *entry) prefixed(prefix string) []coordination.Event {
	var mine []coordination.Event
	for _, ev := range en.events {
		if strings.HasPrefix(ev.Key, prefix) {
			mine = append(mine, ev)
		}
	}
	return mine
}
