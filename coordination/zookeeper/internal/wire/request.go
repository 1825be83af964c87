package wire

import (
	"fmt"
	"slices"
)

// Code is an error that the server answers.
type Code int32

// Codes that callers tell apart.
const (
	NoNode         Code = -101
	BadVersion     Code = -103
	NoChildren     Code = -108 // of an ephemeral node
	NodeExists     Code = -110
	NotEmpty       Code = -111
	SessionExpired Code = -112
	SessionMoved   Code = -118
	// RolledBack is what the operations of a failed Multi get that did not fail themselves.
	RolledBack Code = -2
)

var codeNames = map[Code]string{
	NoNode: "node does not exist", BadVersion: "version conflict", NoChildren: "ephemeral nodes may not have children",
	NodeExists: "node exists", NotEmpty: "node has children", SessionExpired: "session expired",
	SessionMoved: "session moved to another server", RolledBack: "rolled back", -5: "server could not read the request", -6: "server is too old for this request",
	-102: "not authorized", -114: "invalid ACL", -115: "authentication failed", -4: "server lost its connection",
	-7: "server took too long", -8: "bad arguments", -119: "server is read-only",
}

// Error implements error.
func (c Code) Error() string {
	if name := codeNames[c]; name != "" {
		return "zookeeper: " + name
	}
	return fmt.Sprintf("zookeeper: error %d", int32(c))
}

// Stat is what ZooKeeper knows of a node beside its data.
type Stat struct {
	Created  int64 // zxid of its creation
	Modified int64 // zxid of the last write of its data
	Version  int32 // number of writes since its creation
	Owner    int64 // session, of an ephemeral node
	Length   int32 // of its data
	Children int32
}

// ACL is one entry of a node's access list.
type ACL struct {
	Perms  int32
	Scheme string
	ID     string
}

// PermAll allows everything.
const PermAll = 31

const (
	opCreate      = 1
	opDelete      = 2
	opExists      = 3
	opGet         = 4
	opSet         = 5
	opSync        = 9
	opPing        = 11
	opGetChildren = 8
	opCheck       = 13
	opMulti       = 14
	opMultiRead   = 22
	opAuth        = 100
	opClose       = -11
	opError       = -1

	xidEvent = -1
	xidPing  = -2
	xidAuth  = -4

	flagEphemeral = 1
)

// Request is one request, and its answer once Conn.Call returned nil.
type Request struct {
	op     int32
	body   []byte
	decode func(*decoder, *Request)

	// Err is a Code when the server refused.
	Err error
	// Zxid is that of the last change that the server had applied by then.
	Zxid     int64
	Data     []byte
	Stat     Stat
	Children []string
	Results  []Result // of a Multi, one for each Op
}

// Result is what became of one Op of a Multi.
type Result struct {
	Err  Code // 0: none
	Stat Stat // of a Set
}

func pathRequest(op int32, path string, watch bool, decode func(*decoder, *Request)) *Request {
	var e encoder
	e.string(path)
	e.bool(watch)
	return &Request{op: op, body: e.b, decode: decode}
}

// Get asks for a node's Data and Stat. With watch its next change is an Event, but
// only if the node exists.
func Get(path string, watch bool) *Request {
	return pathRequest(opGet, path, watch, func(d *decoder, r *Request) { r.Data, r.Stat = d.bytes(), d.stat() })
}

// Exists asks for a node's Stat. With watch its next change, or its creation, is an Event.
func Exists(path string, watch bool) *Request {
	return pathRequest(opExists, path, watch, func(d *decoder, r *Request) { r.Stat = d.stat() })
}

// Children asks for the names of a node's Children.
func Children(path string) *Request {
	return pathRequest(opGetChildren, path, false, func(d *decoder, r *Request) { r.Children = d.strings() })
}

// Sync has the server catch up with the leader before it answers what follows.
func Sync(path string) *Request {
	var e encoder
	e.string(path)
	return &Request{op: opSync, body: e.b}
}

// CloseSession ends the connection's session.
func CloseSession() *Request { return &Request{op: opClose} }

// Op is one operation of a Multi.
type Op struct {
	kind int32
	body []byte
}

func pathVersion(kind int32, path string, version int32) Op {
	var e encoder
	e.string(path)
	e.int32(version)
	return Op{kind, e.b}
}

// Check has the Multi fail unless the node exists in that version; -1: in any.
func Check(path string, version int32) Op { return pathVersion(opCheck, path, version) }

// Delete removes a node of that version that has no children.
func Delete(path string, version int32) Op { return pathVersion(opDelete, path, version) }

// Set writes the data of a node of that version.
func Set(path string, data []byte, version int32) Op {
	var e encoder
	e.string(path)
	e.bytes(data)
	e.int32(version)
	return Op{opSet, e.b}
}

// Create makes a node; an ephemeral one belongs to the connection's session.
func Create(path string, data []byte, acl []ACL, ephemeral bool) Op {
	var e encoder
	e.string(path)
	e.bytes(data)
	e.int32(int32(len(acl)))
	for _, a := range acl {
		e.int32(a.Perms)
		e.string(a.Scheme)
		e.string(a.ID)
	}
	if ephemeral {
		e.int32(flagEphemeral)
	} else {
		e.int32(0)
	}
	return Op{opCreate, e.b}
}

// Multi applies all ops, or none when one fails: then Err is the first one's Code
// that failed, and Results tell which it was.
func Multi(ops []Op) *Request {
	var e encoder
	for _, op := range ops {
		e.int32(op.kind)
		e.bool(false)
		e.int32(-1)
		e.b = append(e.b, op.body...)
	}
	e.int32(-1)
	e.bool(true)
	e.int32(-1)
	return &Request{op: opMulti, body: e.b, decode: decodeMulti}
}

func decodeMulti(d *decoder, r *Request) {
	for d.err == nil {
		kind, done := d.int32(), d.bool()
		d.int32()
		if done {
			return
		}
		var res Result
		switch kind {
		case opCreate:
			_ = d.string()
		case opSet:
			res.Stat = d.stat()
		case opError:
			res.Err = Code(d.int32())
			if res.Err != 0 && res.Err != RolledBack && r.Err == nil {
				r.Err = res.Err
			}
		case opDelete, opCheck:
		default:
			d.err = errShort
		}
		r.Results = append(r.Results, res)
	}
}

// ReadsPerRequest is how many reads Reads puts into one request: few enough that the
// answer, of nodes as large as can be, is no larger than a Conn takes.
const ReadsPerRequest = 32

// Reads makes requests of many Gets without a watch and Childrens, whose answers are in
// these in the end. It spares the server most of the work. It needs ZooKeeper 3.6.
func Reads(reads []*Request) []*Request {
	var all []*Request
	for part := range slices.Chunk(reads, ReadsPerRequest) {
		ops := make([]Op, len(part))
		for i, r := range part {
			ops[i] = Op{r.op, r.body}
		}
		r := Multi(ops)
		r.op = opMultiRead
		r.decode = func(d *decoder, r *Request) { decodeReads(d, r.Zxid, part) }
		all = append(all, r)
	}
	return all
}

func decodeReads(d *decoder, zxid int64, reads []*Request) {
	for _, r := range reads {
		kind := d.int32()
		d.take(5)
		if r.Zxid = zxid; kind == opError {
			r.Err = Code(d.int32())
		} else if kind == r.op {
			r.decode(d, r)
		} else {
			d.err = errShort
		}
		if d.err != nil {
			return
		}
	}
	d.take(9) // that is all
}

// Size is how many bytes the request takes on the wire, as the server's limit on
// requests (jute.maxbuffer) counts them.
func (r *Request) Size() int { return 8 + len(r.body) }

// answer takes the server's answer in.
func (r *Request) answer(zxid int64, code Code, body []byte) error {
	r.Zxid = zxid
	if code != 0 {
		r.Err = code
		return nil
	}
	if r.decode == nil {
		return nil
	}
	d := decoder{b: body}
	r.decode(&d, r)
	return d.err
}
