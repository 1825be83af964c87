package record

import (
	"bytes"
	"iter"
	"time"
)

// All gives every record of a run of batches, in order. It stops after the first
// error, which comes with a zero Record; records before it are good. The checksum
// is not computed (see [Check]); the structure is verified as it is read.
//
// Keys, values and header values are parts of batches, so they stay valid as long as nobody
// changes those bytes, and they keep the whole run in memory; copy what is kept
// for long. Those of a compressed batch are parts of one fresh allocation instead;
// it is made when the batch is reached.
// Appending to them does not touch their neighbours. Header slices and header keys
// are the caller's.
//
// Errors: ErrTruncated (also when the run ends within a batch), ErrCorrupt,
// ErrUnsupported, ErrTooLarge.
func All(batches []byte) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		var keys keyCache
		for rest := batches; len(rest) > 0; {
			info, err := peekWhole(rest)
			if err != nil {
				yield(Record{}, err)
				return
			}
			records, err := recordsOf(rest[:info.Size], info)
			if err != nil {
				yield(Record{}, err)
				return
			}
			if !yieldBatch(records, info, &keys, yield) {
				return
			}
			rest = rest[info.Size:]
		}
	}
}

// recordsOf is the part of a whole batch behind its header, decompressed.
func recordsOf(b []byte, info Info) ([]byte, error) {
	if info.Compression == NoCompression {
		return b[HeaderSize:], nil
	}
	buf := getBuffer()
	defer buf.free()
	records, err := unpack(buf, b, info)
	return bytes.Clone(records), err
}

// yieldBatch gives the records of one batch and reports whether to go on.
func yieldBatch(records []byte, info Info, keys *keyCache, yield func(Record, error) bool) bool {
	w := startWalk(records, info)
	for w.index < info.Count {
		offset := info.Base + int64(w.index)
		if what := w.next(); what != "" {
			yield(Record{}, w.corrupt(what))
			return false
		}
		ms := info.FirstTimestamp + w.timeDelta
		if info.Attributes&logAppendTime != 0 {
			ms = info.MaxTimestamp
		}
		rec := Record{Offset: offset, LeaderEpoch: info.Epoch, Key: w.key, Value: w.value}
		if ms != noTimestamp {
			rec.Timestamp = time.UnixMilli(ms).UTC()
		}
		if w.headerCount > 0 {
			rec.Headers = w.readHeaders(keys)
		}
		if !yield(rec, nil) {
			return false
		}
	}
	if w.at != len(records) {
		yield(Record{}, &CorruptError{Offset: info.Base, What: "bytes after the last record"})
		return false
	}
	return true
}

// walk goes over the records of one batch without copying anything.
type walk struct {
	b     []byte // the records, decompressed
	base  int64
	at    int // where the next record begins
	index int // number of records passed

	// The record passed last.
	timeDelta   int64
	key, value  []byte
	headers     []byte // verified to hold headerCount headers
	headerCount int
}

func startWalk(records []byte, info Info) walk {
	return walk{b: records, base: info.Base}
}

// corrupt is the error for a fault in the record that next did not pass.
func (w *walk) corrupt(what string) error {
	return &CorruptError{Offset: w.base + int64(w.index), What: what}
}

// next passes one record and leaves its parts in w. It returns what is wrong with it, or "".
func (w *walk) next() string {
	n, at := varint(w.b, w.at, 32)
	if at < 0 || n < minRecordBody || n > int64(len(w.b)-at) {
		return "record length"
	}
	end := at + int(n)
	r := w.b[at:end]
	// r[0] is the attribute byte, which has no meaning yet.
	timeDelta, at := varint(r, 1, 64)
	offsetDelta, at := varint(r, at, 32)
	if at < 0 {
		return "record timestamp or offset"
	}
	if offsetDelta != int64(w.index) {
		return "record offset is not consecutive"
	}
	key, at := field(r, at)
	if at < 0 {
		return "key length"
	}
	value, at := field(r, at)
	if at < 0 {
		return "value length"
	}
	count, at := varint(r, at, 32)
	if at < 0 || count < 0 || count > int64(len(r)-at)/minHeader {
		return "number of headers"
	}
	headers := r[at:]
	if !passHeaders(headers, int(count)) {
		return "headers"
	}
	w.timeDelta, w.key, w.value, w.headers, w.headerCount = timeDelta, key, value, headers, int(count)
	w.at = end
	w.index++
	return ""
}

// passHeaders reports whether count headers fill b exactly.
func passHeaders(b []byte, count int) bool {
	at := 0
	var key []byte
	for range count {
		if key, at = field(b, at); at < 0 || key == nil {
			return false
		}
		if _, at = field(b, at); at < 0 {
			return false
		}
	}
	return at == len(b)
}

// readHeaders reads what passHeaders has verified, so memory is taken only for headers that exist.
func (w *walk) readHeaders(keys *keyCache) []Header {
	headers := make([]Header, w.headerCount)
	at := 0
	var key []byte
	for i := range headers {
		key, at = field(w.headers, at)
		headers[i].Key = keys.get(i, key)
		headers[i].Value, at = field(w.headers, at)
	}
	return headers
}

// field reads a length and as many bytes at b[at]: nil for the length -1, never
// nil otherwise. next is where it ends, negative when there is none.
func field(b []byte, at int) (f []byte, next int) {
	n, at := varint(b, at, 32)
	if at < 0 || n < -1 || n > int64(len(b)-at) {
		return nil, -1
	}
	if n == -1 {
		return nil, at
	}
	end := at + int(n)
	return b[at:end:end], end
}

// keyCache saves the allocation of a header key that equals the one at the same
// place of an earlier record, as it does in most batches.
type keyCache [8]string

func (c *keyCache) get(i int, key []byte) string {
	if i >= len(c) {
		return string(key)
	}
	if c[i] != string(key) {
		c[i] = string(key)
	}
	return c[i]
}
