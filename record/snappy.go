package record

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"

	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/snappy"
)

// Snappy has no framing of its own. Kafka's Java client writes and reads that of
// its library, xerial: a header, then each block behind its size. Other clients
// write one bare block, which Java reads as well.
const (
	snappyHeader = "\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01" // with the version, and the oldest that can read it
	snappyMagic  = 8                                                // bytes of it
	snappyBlock  = 32 << 10
	// snappyRatio is more than a block can grow: three bytes stand for at most 64.
	snappyRatio = 22
)

var errSnappyBlock = errors.New("block is damaged")

func snappyCompress(dst *shorter, src []byte) error {
	if _, err := dst.Write([]byte(snappyHeader)); err != nil {
		return err
	}
	for block := range slices.Chunk(src, snappyBlock) {
		at := len(dst.b)
		dst.b = slices.Grow(dst.b, 4+s2.MaxEncodedLen(len(block)))
		out := s2.EncodeSnappy(dst.b[at+4:cap(dst.b)], block)
		if 4+len(out) > dst.limit-at {
			return errNoGain
		}
		dst.b = binary.BigEndian.AppendUint32(dst.b, uint32(len(out)))[:at+4+len(out)]
	}
	return nil
}

func snappyDecompress(dst, src []byte) ([]byte, error) {
	if len(src) < len(snappyHeader) || !bytes.HasPrefix(src, []byte(snappyHeader[:snappyMagic])) {
		return snappyDecodeBlock(dst, src)
	}
	var err error
	for src = src[len(snappyHeader):]; len(src) > 0 && err == nil; {
		if len(src) < 4 {
			return dst, errors.New("size of a block is cut short")
		}
		n := binary.BigEndian.Uint32(src)
		if src = src[4:]; uint64(n) > uint64(len(src)) {
			return dst, errors.New("block is cut short")
		}
		dst, err = snappyDecodeBlock(dst, src[:n])
		src = src[n:]
	}
	return dst, err
}

func snappyDecodeBlock(dst, block []byte) ([]byte, error) {
	n, err := snappy.DecodedLen(block)
	switch {
	case err != nil:
		return dst, errSnappyBlock
	case n/snappyRatio > len(block):
		return dst, errors.New("block claims more than it can hold")
	case n > MaxDecompressed-len(dst):
		return dst, errTooLong
	}
	end := len(dst) + n
	dst = slices.Grow(dst, n)
	// Strict: the ordinary decoder reads an extension that Kafka's clients do not.
	if _, err := snappy.DecodeStrict(dst[len(dst):end:end], block); err != nil {
		return dst, errSnappyBlock
	}
	return dst[:end], nil
}
