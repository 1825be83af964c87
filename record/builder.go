package record

import (
	"fmt"
	"slices"
	"time"
)

// Builder makes a batch of records as they come: each is encoded, and its bytes are
// copied, when it is added. The zero value is ready. One goroutine at a time may use it.
type Builder struct {
	records []byte // encoded
	first   int64  // milliseconds: timestamp of the first, and
	max     int64  // the latest
	count   int
}

// Add adds a copy of r; one without a Timestamp gets now.
//
// Errors: ErrTimestamp, and ErrTooLarge when the batch would be; nothing was added then.
func (b *Builder) Add(r *Record, now time.Time) error {
	t := r.Timestamp
	if t.IsZero() {
		t = now
	}
	if !validTime(t) {
		return fmt.Errorf("%w: record %d", ErrTimestamp, b.count)
	}
	ts := t.UnixMilli()
	if b.count == 0 {
		b.first, b.max = ts, ts
	}
	body := bodySize(r, ts-b.first, int64(b.count))
	if size := int64(b.Size()) + varintSize(body) + body; size > maxBatch {
		return fmt.Errorf("%w: %d bytes", ErrTooLarge, size)
	}
	b.max = max(b.max, ts)
	b.records = appendRecord(b.records, r, body, ts-b.first, int64(b.count))
	b.count++
	return nil
}

// Count is the number of records.
func (b *Builder) Count() int { return b.count }

// Size is the number of bytes that Encode appends without compression.
func (b *Builder) Size() int { return HeaderSize + len(b.records) }

// Encode appends the batch to dst, like [Encode] and, with a compression,
// [EncodeCompressed] of the records. The Builder stays as it is.
//
// Errors: ErrEmpty, ErrUnsupported; dst is returned as it was given.
func (b *Builder) Encode(dst []byte, c Compression) ([]byte, error) {
	switch {
	case !c.Valid():
		return dst, fmt.Errorf("%w: %v", ErrUnsupported, c)
	case b.count == 0:
		return dst, ErrEmpty
	}
	return pack(dst, b.records, measures{first: b.first, max: b.max}, b.count, c), nil
}

// Reset empties the Builder. It keeps its memory if most of that was of use, so that one
// large batch does not make all later ones large.
func (b *Builder) Reset() {
	kept := b.records[:0]
	if cap(kept) > 4*len(b.records) {
		kept = nil
	}
	*b = Builder{records: kept}
}

// pack appends a batch of encoded records, compressed where that makes them smaller.
func pack(dst, records []byte, m measures, count int, c Compression) []byte {
	if c != NoCompression && len(records) <= MaxDecompressed {
		packed := getBuffer()
		defer packed.free()
		smaller := false
		if packed.b, smaller = c.compress(packed.b[:0], records); smaller {
			records = packed.b
		} else {
			c = NoCompression
		}
	} else {
		c = NoCompression
	}
	start := len(dst)
	out := slices.Grow(dst, HeaderSize+len(records))[:start+HeaderSize]
	out = append(out, records...)
	putHeader(out[start:], m, count, c)
	return out
}
