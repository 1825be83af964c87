package protocol

import (
	"bytes"
	"encoding/binary"
	"math"
)

// coder writes values in their binary form, or reads them. One method of an item
// does both, so that the two cannot differ. Writing changes no value: others may
// read them at the same time. The first error stays, and nothing follows it.
type coder struct {
	reading bool
	owned   bool   // reading: values may keep parts of b
	b       []byte // written so far, or to be read
	at      int    // reading: how much of b was
	items   int    // of all types, so far
	err     error
}

// left is how much is left to read.
func (c *coder) left() int { return len(c.b) - c.at }

// fail keeps the error, and leaves nothing to read.
func (c *coder) fail(err error) { c.err, c.at = err, len(c.b) }

// wrong fails because of what stands here.
func (c *coder) wrong(why string) {
	if c.err != nil {
		return
	}
	at := c.at
	if !c.reading {
		at = len(c.b)
	}
	c.fail(&WireError{At: at, Why: why})
}

// take reads n bytes, at least one. nil: there are not as many.
func (c *coder) take(n int) []byte {
	at := c.at
	if len(c.b)-at < n {
		c.wrong("cut short")
		return nil
	}
	c.at = at + n
	return c.b[at:c.at:c.at]
}

func (c *coder) uint8(v *uint8) {
	if !c.reading {
		c.b = append(c.b, *v)
	} else if p := c.take(1); p != nil {
		*v = p[0]
	}
}

func (c *coder) uint16(v *uint16) {
	if !c.reading {
		c.b = binary.BigEndian.AppendUint16(c.b, *v)
	} else if p := c.take(2); p != nil {
		*v = binary.BigEndian.Uint16(p)
	}
}

func (c *coder) uint32(v *uint32) {
	if !c.reading {
		c.b = binary.BigEndian.AppendUint32(c.b, *v)
	} else if p := c.take(4); p != nil {
		*v = binary.BigEndian.Uint32(p)
	}
}

func (c *coder) int32(v *int32) {
	if !c.reading {
		c.b = binary.BigEndian.AppendUint32(c.b, uint32(*v))
	} else if p := c.take(4); p != nil {
		*v = int32(binary.BigEndian.Uint32(p))
	}
}

func (c *coder) uint64(v *uint64) {
	if !c.reading {
		c.b = binary.BigEndian.AppendUint64(c.b, *v)
	} else if p := c.take(8); p != nil {
		*v = binary.BigEndian.Uint64(p)
	}
}

func (c *coder) int64(v *int64) {
	if !c.reading {
		c.b = binary.BigEndian.AppendUint64(c.b, uint64(*v))
	} else if p := c.take(8); p != nil {
		*v = int64(binary.BigEndian.Uint64(p))
	}
}

// int is 4 bytes wide.
func (c *coder) int(v *int) {
	n := int32(*v)
	if !c.reading && int(n) != *v {
		c.wrong("a number of more than 32 bits")
		return
	}
	if c.int32(&n); c.reading {
		*v = int(n)
	}
}

// enum is a number below 256 that stands for something.
func enum[T ~uint8 | ~int8](c *coder, v *T) {
	if !c.reading {
		c.b = append(c.b, byte(*v))
	} else if p := c.take(1); p != nil {
		*v = T(p[0])
	}
}

func (c *coder) bool(v *bool) {
	var n uint8
	if *v {
		n = 1
	}
	if c.uint8(&n); !c.reading {
		return
	}
	if n > 1 {
		c.wrong("neither yes nor no")
	}
	*v = n == 1
}

func (c *coder) uuid(v *UUID) {
	if !c.reading {
		c.b = append(c.b, v[:]...)
	} else if p := c.take(len(v)); p != nil {
		copy(v[:], p)
	}
}

func (c *coder) partition(v *PartitionID) {
	c.uuid(&v.Topic)
	c.int32(&v.Partition)
}

// length is how many bytes follow: n when writing.
func (c *coder) length(n int) int {
	if n > math.MaxInt32 {
		c.wrong("more than 2 GiB in one piece")
		return 0
	}
	v := uint32(n)
	if c.uint32(&v); !c.reading {
		return n
	}
	if int64(v) > int64(c.left()) {
		c.wrong("cut short")
		return 0
	}
	return int(v)
}

func (c *coder) bytes(v *[]byte) {
	if n := c.length(len(*v)); !c.reading {
		c.b = append(c.b, *v...)
	} else if n > 0 {
		*v = c.keep(c.take(n))
	}
}

func (c *coder) string(v *string) {
	if n := c.length(len(*v)); !c.reading {
		c.b = append(c.b, *v...)
	} else if n > 0 {
		*v = string(c.take(n))
	}
}

// keep returns what a value may have of the bytes read.
func (c *coder) keep(p []byte) []byte {
	if c.owned && len(p) >= len(c.b)/2 {
		return p
	}
	return bytes.Clone(p)
}

// count is how many elements follow, each of at least min bytes: n when writing.
func (c *coder) count(n, min int) int {
	v := uint32(n)
	if c.reading {
		if c.uint32(&v); int64(v) > int64(c.left()/min) {
			c.wrong("fewer elements than announced")
			return 0
		}
		n = int(v)
	}
	if n > MaxMessageItems {
		c.wrong("too many elements")
		return 0
	}
	if !c.reading {
		c.uint32(&v)
	}
	return n
}

// list writes or reads how many items there are, and makes those that are to be
// read. The caller goes through what it returns.
func list[T any](c *coder, items *[]T, min int) []T {
	n := c.count(len(*items), min)
	if c.reading && n > 0 {
		*items = make([]T, n)
	}
	return (*items)[:n]
}

// section is list for the items of one type of a payload, of which there may be none.
func section[T any](c *coder, number byte, items *[]T, min int) []T {
	if c.reading {
		if c.left() == 0 || c.b[c.at] != number {
			return nil
		}
		c.take(1)
	} else {
		if len(*items) == 0 {
			return nil
		}
		c.b = append(c.b, number)
	}
	all := list(c, items, min)
	if len(all) == 0 {
		c.wrong("a section without items")
	}
	if c.items += len(all); c.items > MaxMessageItems {
		c.wrong("too many items")
	}
	return all
}

// optional writes or reads whether there is a value, and makes the one that is to
// be read. The caller goes on if there is.
func optional[T any](c *coder, v **T) bool {
	there := *v != nil
	if c.bool(&there); c.reading && there {
		*v = new(T)
	}
	return there
}
