package record

import (
	"errors"
	"fmt"
	"sync"
)

// Compression is how the records of a batch are packed. Its numbers are Kafka's.
type Compression int8

const (
	NoCompression Compression = iota
	Gzip                      // small and slow
	Snappy                    // in the framing of Kafka's Java client; read also without
	LZ4                       // fast
	Zstd                      // small, and faster than Gzip
)

// MaxDecompressed is the most bytes that the records of one compressed batch may
// take when decompressed. A batch beyond it is refused with ErrTooLarge when
// read, and left uncompressed when written. Refused as well is a Zstandard frame
// that asks for a window beyond it, as one of level 22 can.
const MaxDecompressed = 64 << 20

var compressionNames = [...]string{NoCompression: "none", Gzip: "gzip", Snappy: "snappy", LZ4: "lz4", Zstd: "zstd"}

// String is the name that Kafka's configuration uses: none, gzip, snappy, lz4 or zstd.
func (c Compression) String() string {
	if !c.Valid() {
		return fmt.Sprintf("Compression(%d)", int8(c))
	}
	return compressionNames[c]
}

// Valid tells whether c is one of the constants.
func (c Compression) Valid() bool { return c >= NoCompression && c <= Zstd }

// errTooLong: decompressing was given up at the limit.
var errTooLong = errors.New("too long")

// errNoGain: compressing was given up because the result is not smaller.
var errNoGain = errors.New("no gain")

// compress appends src, compressed, to dst, which must be empty. It reports
// whether the result is smaller than src; if not it is of no use.
func (c Compression) compress(dst, src []byte) ([]byte, bool) {
	w := shorter{b: dst, limit: len(src) - 1}
	var err error
	switch c {
	case Gzip:
		err = gzipCompress(&w, src)
	case Snappy:
		err = snappyCompress(&w, src)
	case LZ4:
		err = lz4Compress(&w, src)
	case Zstd:
		err = zstdCompress(&w, src)
	default:
		return dst, false
	}
	return w.b, err == nil
}

// decompress appends src, decompressed, to dst, which must be empty. It takes
// memory only in proportion to what src can really hold, and when that is more
// than MaxDecompressed it stops with errTooLong soon after (a block of 4 MiB at most).
func (c Compression) decompress(dst, src []byte) ([]byte, error) {
	var err error
	switch c {
	case Gzip:
		dst, err = gzipDecompress(dst, src)
	case Snappy:
		dst, err = snappyDecompress(dst, src)
	case LZ4:
		dst, err = lz4Decompress(dst, src)
	case Zstd:
		dst, err = zstdDecompress(dst, src)
	}
	return dst, err
}

// unpack decompresses the records of the batch b into the buffer. What it
// returns is the buffer's.
func unpack(into *buffer, b []byte, info Info) ([]byte, error) {
	section, err := info.Compression.decompress(into.b[:0], b[HeaderSize:])
	into.b = section
	if errors.Is(err, errTooLong) {
		return nil, &TooLargeError{Offset: info.Base}
	}
	if err != nil {
		return nil, &CorruptError{Offset: info.Base, What: fmt.Sprintf("%v records: %v", info.Compression, err)}
	}
	return section, nil
}

// shorter is a writer that takes limit bytes and no more.
type shorter struct {
	b     []byte
	limit int
}

func (s *shorter) Write(p []byte) (int, error) {
	if len(p) > s.limit-len(s.b) {
		return 0, errNoGain
	}
	s.b = append(s.b, p...)
	return len(p), nil
}

// buffer is memory for one batch's records while they are packed or unpacked.
type buffer struct{ b []byte }

// maxPooled is the largest buffer that is kept for the next batch.
const maxPooled = 4 << 20

// Nothing in this package may keep a channel in a pool: one that was made in a
// testing/synctest bubble cannot be used outside.
var buffers = sync.Pool{New: func() any { return new(buffer) }}

func getBuffer() *buffer { return buffers.Get().(*buffer) }

func (b *buffer) free() {
	if cap(b.b) <= maxPooled {
		buffers.Put(b)
	}
}
