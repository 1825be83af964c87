package record

import (
	"bytes"
	"io"
	"slices"
	"sync"

	"github.com/klauspost/compress/gzip"
)

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
