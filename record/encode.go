package record

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"slices"
	"time"
)

// castagnoli is the polynomial of CRC-32C, which processors compute themselves.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

const (
	maxBatch = math.MaxInt32 // so that sizes and counts fit the header and an int of any platform
	// maxSeconds is the first second after the year 9999. It keeps millisecond
	// arithmetic far from overflow.
	maxSeconds = 253402300800
	// maxTimeVarint is the size of the largest difference of two timestamps.
	maxTimeVarint = 7
)

// Encode appends one batch with recs to dst and returns the longer slice; it
// allocates at most once, and not at all when dst has room for
// EncodedSize(recs, now) bytes. All bytes are copied: recs is not needed afterwards.
// Records without a Timestamp get now. The batch has base offset 0, leader epoch -1
// (see [Stamp]) and no producer.
//
// Errors: ErrEmpty, ErrTooLarge, ErrTimestamp; dst is returned as it was given.
func Encode(dst []byte, recs []Record, now time.Time) ([]byte, error) {
	m, err := measureSound(recs, now)
	if err != nil {
		return dst, err
	}
	start := len(dst)
	out := slices.Grow(dst, int(m.size))
	out = append(out, make([]byte, HeaderSize)...)
	out = appendRecords(out, recs, m)
	putHeader(out[start:], m, len(recs), NoCompression)
	return out, nil
}

// EncodeCompressed is Encode with the records compressed, where that makes them
// smaller and they have at most MaxDecompressed bytes; otherwise the batch is the
// one that Encode makes. It is never larger than that, and dst grows by no more
// than the batch needs. The same records may give other bytes with another version
// of this package.
//
// Errors: those of Encode, and ErrUnsupported for a compression that is not one of
// the constants.
func EncodeCompressed(dst []byte, recs []Record, now time.Time, c Compression) ([]byte, error) {
	if !c.Valid() {
		return dst, fmt.Errorf("%w: %v", ErrUnsupported, c)
	}
	if c == NoCompression {
		return Encode(dst, recs, now)
	}
	m, err := measureSound(recs, now)
	if err != nil {
		return dst, err
	}
	if m.size-HeaderSize > MaxDecompressed {
		return Encode(dst, recs, now)
	}
	plain := getBuffer()
	defer plain.free()
	plain.b = appendRecords(slices.Grow(plain.b[:0], int(m.size)-HeaderSize), recs, m)
	return pack(dst, plain.b, m, len(recs), c), nil
}

// EncodedSize is the exact number of bytes that Encode appends for the same
// arguments. (For arguments that Encode refuses it is what the batch would need.)
func EncodedSize(recs []Record, now time.Time) int {
	return int(min(measure(recs, now).size, math.MaxInt))
}

// MaxRecordSize is an upper bound of what r adds to a batch, whichever batch and
// place in it that is, so a batch has at most HeaderSize plus the sum over its
// records. It is at most 11 bytes above the truth: the room for a late place and a
// distant timestamp.
func MaxRecordSize(r *Record) int {
	body := bodySize(r, 0, 0) - 2 + maxTimeVarint + 5
	return int(min(varintSize(body)+body, math.MaxInt))
}

// measures is what must be known of records before the first byte is written.
type measures struct {
	size            int64 // of the whole batch
	now, first, max int64 // milliseconds
	badTime         int   // index of the first record whose time cannot be kept; -1: none
}

// measureSound is measure for records that make a batch.
func measureSound(recs []Record, now time.Time) (measures, error) {
	if len(recs) == 0 {
		return measures{}, ErrEmpty
	}
	m := measure(recs, now)
	if m.badTime >= 0 {
		return m, fmt.Errorf("%w: record %d", ErrTimestamp, m.badTime)
	}
	if m.size > maxBatch {
		return m, fmt.Errorf("%w: %d bytes", ErrTooLarge, m.size)
	}
	return m, nil
}

func measure(recs []Record, now time.Time) measures {
	m := measures{size: HeaderSize, now: now.UnixMilli(), badTime: -1}
	nowOK := validTime(now)
	for i := range recs {
		r := &recs[i]
		ok := nowOK
		if !r.Timestamp.IsZero() {
			ok = validTime(r.Timestamp)
		}
		if !ok && m.badTime < 0 {
			m.badTime = i
		}
		ts := millis(r.Timestamp, m.now)
		if i == 0 {
			m.first, m.max = ts, ts
		}
		m.max = max(m.max, ts)
		body := bodySize(r, ts-m.first, int64(i))
		m.size += varintSize(body) + body
	}
	return m
}

// CheckTime returns ErrTimestamp for a time that a record cannot keep.
func CheckTime(t time.Time) error {
	if !validTime(t) {
		return ErrTimestamp
	}
	return nil
}

func validTime(t time.Time) bool {
	s := t.Unix()
	return s >= 0 && s < maxSeconds
}

func millis(t time.Time, now int64) int64 {
	if t.IsZero() {
		return now
	}
	return t.UnixMilli()
}

// bodySize is the size of a record after its length.
func bodySize(r *Record, timeDelta, offsetDelta int64) int64 {
	n := 1 + varintSize(timeDelta) + varintSize(offsetDelta) + fieldSize(r.Key) + fieldSize(r.Value)
	n += varintSize(int64(len(r.Headers)))
	for i := range r.Headers {
		h := &r.Headers[i]
		n += varintSize(int64(len(h.Key))) + int64(len(h.Key)) + fieldSize(h.Value)
	}
	return n
}

func fieldSize(f []byte) int64 {
	// The length -1 of nil takes one byte, like that of an empty field.
	return varintSize(int64(len(f))) + int64(len(f))
}

func appendRecords(b []byte, recs []Record, m measures) []byte {
	for i := range recs {
		r := &recs[i]
		delta := millis(r.Timestamp, m.now) - m.first
		b = appendRecord(b, r, bodySize(r, delta, int64(i)), delta, int64(i))
	}
	return b
}

// appendRecord appends a record; body is its bodySize.
func appendRecord(b []byte, r *Record, body, timeDelta, offsetDelta int64) []byte {
	b = appendVarint(b, body)
	b = append(b, 0)
	b = appendVarint(b, timeDelta)
	b = appendVarint(b, offsetDelta)
	b = appendField(b, r.Key)
	b = appendField(b, r.Value)
	b = appendVarint(b, int64(len(r.Headers)))
	for i := range r.Headers {
		h := &r.Headers[i]
		b = appendVarint(b, int64(len(h.Key)))
		b = append(b, h.Key...)
		b = appendField(b, h.Value)
	}
	return b
}

func appendField(b, f []byte) []byte {
	if f == nil {
		return appendVarint(b, -1)
	}
	b = appendVarint(b, int64(len(f)))
	return append(b, f...)
}

// putHeader fills in the header of the whole batch b, the checksum last.
func putHeader(b []byte, m measures, count int, c Compression) {
	be := binary.BigEndian
	none := int64(-1)
	be.PutUint64(b[atBase:], 0)
	be.PutUint32(b[atLength:], uint32(len(b)-lengthBias))
	be.PutUint32(b[atEpoch:], uint32(none))
	b[atMagic] = magic
	be.PutUint16(b[atAttributes:], uint16(c))
	be.PutUint32(b[atLastDelta:], uint32(count-1))
	be.PutUint64(b[atFirstTime:], uint64(m.first))
	be.PutUint64(b[atMaxTime:], uint64(m.max))
	be.PutUint64(b[atProducer:], uint64(none))
	be.PutUint16(b[atProducerEpoch:], uint16(none))
	be.PutUint32(b[atSequence:], uint32(none))
	be.PutUint32(b[atCount:], uint32(count))
	be.PutUint32(b[atChecksum:], crc32.Checksum(b[atAttributes:], castagnoli))
}
