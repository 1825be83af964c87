package record

import (
	"bytes"
	"encoding/binary"
	"io"
	"slices"
	"sync"

	"github.com/klauspost/compress/gzip"
)

// gzipRatio is how many bytes one compressed byte can stand for at most.
const gzipRatio = 1032

type gzipReader struct {
	src bytes.Reader
	r   gzip.Reader
}

var (
	gzipWriters = sync.Pool{New: func() any { return gzip.NewWriter(nil) }}
	gzipReaders = sync.Pool{New: func() any { return new(gzipReader) }}
)

func gzipCompress(dst *shorter, src []byte) error {
	w := gzipWriters.Get().(*gzip.Writer)
	defer gzipWriters.Put(w)
	w.Reset(dst)
	defer w.Reset(nil)
	if _, err := w.Write(src); err != nil {
		return err
	}
	return w.Close()
}

func gzipDecompress(dst, src []byte) ([]byte, error) {
	z := gzipReaders.Get().(*gzipReader)
	defer gzipReaders.Put(z)
	z.src.Reset(src)
	defer z.src.Reset(nil)
	if err := z.r.Reset(&z.src); err != nil {
		return dst, err
	}
	// The last four bytes say how much there is, modulo 2^32. No more is believed than
	// the format can bring about.
	if n := len(src); n >= 4 {
		claim := int64(binary.LittleEndian.Uint32(src[n-4:]))
		dst = slices.Grow(dst, int(min(claim, gzipRatio*int64(n), MaxDecompressed))+bytes.MinRead)
	}
	for len(dst) <= MaxDecompressed {
		dst = slices.Grow(dst, bytes.MinRead)
		n, err := z.r.Read(dst[len(dst):cap(dst)])
		dst = dst[:len(dst)+n]
		if err == io.EOF {
			return dst, nil
		}
		if err != nil {
			return dst, err
		}
	}
	return dst, errTooLong
}
