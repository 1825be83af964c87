package wire

import (
	"encoding/binary"
	"errors"
)

// errShort is for an answer that ends too early, or says lengths that cannot be.
var errShort = errors.New("zookeeper: malformed answer")

// encoder appends values in ZooKeeper's encoding, which is called jute.
type encoder struct{ b []byte }

func (e *encoder) int32(v int32) { e.b = binary.BigEndian.AppendUint32(e.b, uint32(v)) }
func (e *encoder) int64(v int64) { e.b = binary.BigEndian.AppendUint64(e.b, uint64(v)) }

func (e *encoder) bool(v bool) {
	if v {
		e.b = append(e.b, 1)
	} else {
		e.b = append(e.b, 0)
	}
}

func (e *encoder) string(v string) {
	e.int32(int32(len(v)))
	e.b = append(e.b, v...)
}

func (e *encoder) bytes(v []byte) {
	e.int32(int32(len(v)))
	e.b = append(e.b, v...)
}

// decoder takes values off b. After the first fault all values are zero.
type decoder struct {
	b   []byte
	err error
}

func (d *decoder) take(n int) []byte {
	if d.err != nil || n < 0 || n > len(d.b) {
		d.err = errShort
		return nil
	}
	v := d.b[:n]
	d.b = d.b[n:]
	return v
}

func (d *decoder) int32() int32 {
	if v := d.take(4); v != nil {
		return int32(binary.BigEndian.Uint32(v))
	}
	return 0
}

func (d *decoder) int64() int64 {
	if v := d.take(8); v != nil {
		return int64(binary.BigEndian.Uint64(v))
	}
	return 0
}

func (d *decoder) bool() bool {
	v := d.take(1)
	return v != nil && v[0] != 0
}

// bytes returns a copy, never nil; the null that ZooKeeper knows is empty, too.
func (d *decoder) bytes() []byte {
	n := d.int32()
	if n < 0 {
		return []byte{}
	}
	return append([]byte{}, d.take(int(n))...)
}

func (d *decoder) string() string {
	n := d.int32()
	if n < 0 {
		return ""
	}
	return string(d.take(int(n)))
}

func (d *decoder) strings() []string {
	n := d.int32()
	if n < 0 {
		return nil
	}
	if int(n) > len(d.b)/4 { // each has its length at least
		d.err = errShort
		return nil
	}
	v := make([]string, 0, n)
	for range n {
		v = append(v, d.string())
	}
	return v
}

func (d *decoder) stat() Stat {
	var s Stat
	s.Created = d.int64()
	s.Modified = d.int64()
	d.take(16) // times of creation and change
	s.Version = d.int32()
	d.take(8) // versions of children and ACL
	s.Owner = d.int64()
	s.Length = d.int32()
	s.Children = d.int32()
	d.take(8) // last change of the children
	return s
}
