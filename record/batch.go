package record

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
)

// Info is what a batch's header says.
type Info struct {
	Base, Last     int64 // offsets of the first and the last record
	Epoch          int32 // partition leader epoch; -1: not yet stamped
	Count          int   // records
	Size           int   // bytes, header included
	FirstTimestamp int64 // milliseconds since 1970 UTC, of the first record
	MaxTimestamp   int64 // milliseconds since 1970 UTC, the latest of all records
	Attributes     int16
	Compression    Compression // of the records; one of the attributes
	ProducerID     int64       // -1: none
	ProducerEpoch  int16       // -1: none
	BaseSequence   int32       // -1: none
}

// End is the offset after the batch.
func (i Info) End() int64 { return i.Last + 1 }

// Peek reads the header of the batch at the start of b, which need not hold the
// rest of it. What it returns is consistent in itself (the size, or MaxDecompressed
// for compressed records, has room for them, the count is at least 1, the offsets
// fit and are consecutive) but not proved by the checksum. It allocates only for an
// error.
//
// Errors: ErrTruncated when b is shorter than HeaderSize, ErrCorrupt, ErrUnsupported.
func Peek(b []byte) (Info, error) {
	// Older formats are shorter: do not ask for more of what cannot be read anyway.
	if len(b) > atMagic && b[atMagic] != magic {
		return Info{}, &UnsupportedError{Magic: int8(b[atMagic])}
	}
	if len(b) < HeaderSize {
		return Info{}, &TruncatedError{Have: len(b), Need: HeaderSize}
	}
	be, h := binary.BigEndian, b[:HeaderSize]
	length := int32(be.Uint32(h[atLength:]))
	count := int32(be.Uint32(h[atCount:]))
	info := Info{
		Base:           int64(be.Uint64(h[atBase:])),
		Epoch:          int32(be.Uint32(h[atEpoch:])),
		Count:          int(count),
		FirstTimestamp: int64(be.Uint64(h[atFirstTime:])),
		MaxTimestamp:   int64(be.Uint64(h[atMaxTime:])),
		Attributes:     int16(be.Uint16(h[atAttributes:])),
		ProducerID:     int64(be.Uint64(h[atProducer:])),
		ProducerEpoch:  int16(be.Uint16(h[atProducerEpoch:])),
		BaseSequence:   int32(be.Uint32(h[atSequence:])),
	}
	info.Compression = Compression(info.Attributes & compressionBits)
	if info.Attributes&^(compressionBits|logAppendTime) != 0 || !info.Compression.Valid() {
		return Info{}, &UnsupportedError{Magic: magic, Attributes: info.Attributes}
	}
	delta := int32(be.Uint32(h[atLastDelta:]))
	room := int(length) + lengthBias - HeaderSize
	if info.Compression != NoCompression {
		room = MaxDecompressed
	}
	what := ""
	switch {
	case length < HeaderSize-lengthBias || length > maxBatch-lengthBias:
		what = fmt.Sprintf("batch length %d", length)
	case count < 1 || int(count) > room/minRecord:
		what = fmt.Sprintf("%d records in a batch of length %d", count, length)
	case delta != count-1:
		what = fmt.Sprintf("last offset delta %d with %d records", delta, count)
	case info.Base < 0 || info.Base > math.MaxInt64-int64(count):
		what = "base offset out of range"
	case info.Epoch < -1:
		what = fmt.Sprintf("leader epoch %d", info.Epoch)
	}
	if what != "" {
		return Info{}, &CorruptError{Offset: info.Base, What: what}
	}
	info.Size = int(length) + lengthBias
	info.Last = info.Base + int64(delta)
	return info, nil
}

// Verify is Peek for a batch that is there to its end and whose checksum holds. So
// its bytes are those that somebody passed on; Check proves what they mean. It is
// for batches that were checked when they entered a log.
//
// Errors: ErrTruncated, ErrCorrupt, ErrUnsupported.
func Verify(b []byte) (Info, error) {
	info, err := peekWhole(b)
	if err != nil {
		return Info{}, err
	}
	b = b[:info.Size]
	want, got := binary.BigEndian.Uint32(b[atChecksum:]), crc32.Checksum(b[atAttributes:], castagnoli)
	if got != want {
		return Info{}, &CorruptError{Offset: info.Base, What: fmt.Sprintf("checksum is %08x, header says %08x", got, want)}
	}
	return info, nil
}

// Check proves the batch at the start of b; b may be longer than that. Beyond
// Verify: its records fill it exactly,
// are well-formed and as many as the header says, their offsets are consecutive,
// and the max timestamp is that of the latest record. Compressed records are
// decompressed for that, after the checksum, into memory that is used again.
// Otherwise it allocates only for an error.
//
// Errors: ErrTruncated, ErrCorrupt, ErrUnsupported, ErrTooLarge.
func Check(b []byte) (Info, error) {
	info, err := Verify(b)
	if err != nil {
		return Info{}, err
	}
	b = b[:info.Size]
	if info.Compression == NoCompression {
		err = checkRecords(b[HeaderSize:], info)
	} else {
		buf := getBuffer()
		defer buf.free()
		var records []byte
		if records, err = unpack(buf, b, info); err == nil {
			err = checkRecords(records, info)
		}
	}
	if err != nil {
		return Info{}, err
	}
	return info, nil
}

// checkRecords proves the records of a batch against its header.
func checkRecords(records []byte, info Info) error {
	w, latest := startWalk(records, info), int64(math.MinInt64)
	for w.index < info.Count {
		if what := w.next(); what != "" {
			return w.corrupt(what)
		}
		latest = max(latest, info.FirstTimestamp+w.timeDelta)
	}
	if w.at != len(records) {
		return &CorruptError{Offset: info.Base, What: "bytes after the last record"}
	}
	if info.Attributes&logAppendTime == 0 && latest != info.MaxTimestamp {
		return &CorruptError{Offset: info.Base, What: fmt.Sprintf("max timestamp is %d, header says %d", latest, info.MaxTimestamp)}
	}
	return nil
}

// Stamp writes base offset and partition leader epoch into the batch at the
// start of b, in place. Both lie outside the checksum, which stays valid. The
// batch must come from Encode or have passed Peek or Check, base+Count must not
// exceed the range of int64, and neither may be negative (an epoch of -1 excepted).
func Stamp(b []byte, base int64, epoch int32) {
	_ = b[HeaderSize-1] // nothing shorter is a batch, whatever its capacity
	binary.BigEndian.PutUint64(b[atBase:], uint64(base))
	binary.BigEndian.PutUint32(b[atEpoch:], uint32(epoch))
}

// Split cuts the first whole batch off a run of batches. Both results are parts of b.
//
// Errors: those of Peek, and ErrTruncated when b, which may be empty, does not hold a whole batch.
func Split(b []byte) (first, rest []byte, err error) {
	info, err := peekWhole(b)
	if err != nil {
		return nil, nil, err
	}
	return b[:info.Size:info.Size], b[info.Size:], nil
}

// peekWhole is Peek for a batch that must be there to its end.
func peekWhole(b []byte) (Info, error) {
	info, err := Peek(b)
	if err != nil {
		return Info{}, err
	}
	if info.Size > len(b) {
		return Info{}, &TruncatedError{Have: len(b), Need: info.Size}
	}
	return info, nil
}
