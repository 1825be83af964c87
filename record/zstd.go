package record

import (
	"errors"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// zstdWindow is how far back a match may lie when writing, and so the memory
// that a reader needs: a batch of the usual size fits.
const zstdWindow = 1 << 20

// Writers are used one batch after the other, in the mode that works on the
// caller's goroutine. The reader is one for all: its DecodeAll may be called from
// any goroutine, GOMAXPROCS of them at a time, and it has a channel (see buffers),
// so it is made here. It needs no memory until it is used.
var (
	zstdWriters = sync.Pool{New: func() any {
		return must(zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(zstdWindow),
			zstd.WithLowerEncoderMem(true), zstd.WithEncoderCRC(false)))
	}}
	zstdReader = must(zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderMaxMemory(MaxDecompressed)))
)

// must is for constructors that fail only for options that do not exist.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func zstdCompress(dst *shorter, src []byte) error {
	w := zstdWriters.Get().(*zstd.Encoder)
	defer zstdWriters.Put(w)
	w.ResetContentSize(dst, int64(len(src)))
	defer w.Reset(nil)
	if _, err := w.Write(src); err != nil {
		return err
	}
	return w.Close()
}

// zstdDecompress refuses more than MaxDecompressed, and matches from that far back.
func zstdDecompress(dst, src []byte) ([]byte, error) {
	dst, err := zstdReader.DecodeAll(src, dst)
	if errors.Is(err, zstd.ErrDecoderSizeExceeded) || errors.Is(err, zstd.ErrWindowSizeExceeded) {
		err = errTooLong
	}
	return dst, err
}
