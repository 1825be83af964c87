package zookeeper

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Names of what is kept beside the keys. A key's names never begin with a dot.
const (
	sequenceName = ".sequence"
	logName      = ".log"
	sessionsName = ".sessions"
	relativeName = ".relative"
)

// tree maps keys to nodes. The key "/a/b" is the node CHROOT/a/b. What a node's name
// cannot be is escaped: bytes as %XX, an empty name as a bare %. Keys that do not
// begin with a slash are below CHROOT/.relative.
type tree struct{ chroot string }

func (t tree) sequence() string          { return t.chroot + "/" + sequenceName }
func (t tree) log() string               { return t.chroot + "/" + logName }
func (t tree) entry(n int64) string      { return fmt.Sprintf("%s/%012d", t.log(), n) }
func (t tree) sessions() string          { return t.chroot + "/" + sessionsName }
func (t tree) lease(id string) string    { return t.sessions() + "/" + id }
func (t tree) relative() string          { return t.chroot + "/" + relativeName }
func (t tree) within(path string) string { return strings.TrimPrefix(path, t.chroot) }

// path returns the node of a key.
func (t tree) path(key string) string {
	base, rest := t.relative(), key
	if abs, ok := strings.CutPrefix(key, "/"); ok {
		base, rest = t.chroot, abs
	}
	var b strings.Builder
	b.WriteString(base)
	for name := range strings.SplitSeq(rest, "/") {
		b.WriteByte('/')
		b.WriteString(escape(name))
	}
	return b.String()
}

// key returns the key of a node, or false when it is none's.
func (t tree) key(path string) (string, bool) {
	rest, ok := strings.CutPrefix(path, t.relative()+"/")
	lead := ""
	if !ok {
		if rest, ok = strings.CutPrefix(path, t.chroot+"/"); !ok {
			return "", false
		}
		lead = "/"
	}
	var b strings.Builder
	for i, name := range strings.Split(rest, "/") {
		plain, ok := unescape(name)
		if !ok {
			return "", false
		}
		if i == 0 {
			b.WriteString(lead)
		} else {
			b.WriteByte('/')
		}
		b.WriteString(plain)
	}
	return b.String(), true
}

// roots returns the nodes below which the keys with the prefix are, other than the
// nodes themselves.
func (t tree) roots(prefix string) []string {
	if prefix == "" {
		return []string{t.chroot, t.relative()}
	}
	i := strings.LastIndexByte(prefix, '/')
	switch {
	case i < 0:
		return []string{t.relative()}
	case i == 0:
		return []string{t.chroot}
	}
	return []string{t.path(prefix[:i])}
}

// parents returns the nodes above one, the nearest first, without the chroot.
func (t tree) parents(path string) []string {
	var above []string
	for {
		path = parent(path)
		if len(path) <= len(t.chroot) {
			return above
		}
		above = append(above, path)
	}
}

func parent(path string) string { return path[:strings.LastIndexByte(path, '/')] }

// escape makes a node's name of a part of a key.
func escape(name string) string {
	if name == "" {
		return "%"
	}
	var b strings.Builder
	for i := 0; i < len(name); {
		r, n := utf8.DecodeRuneInString(name[i:])
		if r == '%' || r == '.' && i == 0 || r == utf8.RuneError && n == 1 || forbidden(r) {
			for _, c := range []byte(name[i : i+n]) {
				fmt.Fprintf(&b, "%%%02X", c)
			}
		} else {
			b.WriteString(name[i : i+n])
		}
		i += n
	}
	return b.String()
}

// forbidden says whether ZooKeeper refuses names with r. It counts in UTF-16, so
// whatever takes two units there is out.
func forbidden(r rune) bool {
	return r <= 0x1f || r >= 0x7f && r <= 0x9f || r >= 0xd800 && r <= 0xf8ff || r >= 0xfff0
}

// unescape undoes escape. It refuses what escape would not have made, so that no two
// nodes are the same key.
func unescape(name string) (string, bool) {
	if name == "%" {
		return "", true
	}
	var b strings.Builder
	for i := 0; i < len(name); i++ {
		if name[i] != '%' {
			b.WriteByte(name[i])
			continue
		}
		if i+2 >= len(name) {
			return "", false
		}
		v, err := strconv.ParseUint(name[i+1:i+3], 16, 8)
		if err != nil {
			return "", false
		}
		b.WriteByte(byte(v))
		i += 2
	}
	plain := b.String()
	return plain, escape(plain) == name
}
