package record

import (
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"sync"

	"github.com/pierrec/lz4/v4"
)

// The part of the LZ4 frame format that Kafka uses: one frame of independent
// blocks, no dictionary. Checksums in it are passed over, since the batch has one
// over all of it.
const (
	lz4Magic = "\x04\x22\x4d\x18"
	// lz4Header: version 1, independent blocks of at most 64 KiB, no checksums, no
	// content size; and the checksum of these two bytes.
	lz4Header  = lz4Magic + "\x60\x40\x82"
	lz4Block   = 64 << 10
	lz4Stored  = 1 << 31 // flag in a block's size: it is not compressed
	lz4EndMark = "\x00\x00\x00\x00"
	// lz4Ratio is more than a block can grow: a byte adds at most 255 to a length.
	lz4Ratio = 255

	// Flags of a frame.
	lz4Version         = 0b1100_0000
	lz4Version1        = 0b0100_0000
	lz4Independent     = 0b0010_0000
	lz4BlockChecksum   = 0b0001_0000
	lz4ContentSize     = 0b0000_1000
	lz4ContentChecksum = 0b0000_0100
)

var lz4Compressors = sync.Pool{New: func() any { return new(lz4.Compressor) }}

func lz4Compress(dst *shorter, src []byte) error {
	z := lz4Compressors.Get().(*lz4.Compressor)
	defer lz4Compressors.Put(z)
	if _, err := dst.Write([]byte(lz4Header)); err != nil {
		return err
	}
	for block := range slices.Chunk(src, lz4Block) {
		at := len(dst.b)
		dst.b = slices.Grow(dst.b, 4+len(block))
		// Given less than the worst case, it says 0 where the block does not get smaller.
		n, err := z.CompressBlock(block, dst.b[at+4:at+4+len(block)])
		if err != nil {
			return err
		}
		size := uint32(n)
		if n == 0 {
			n = copy(dst.b[at+4:at+4+len(block)], block)
			size = lz4Stored | uint32(n)
		}
		if 4+n+len(lz4EndMark) > dst.limit-at {
			return errNoGain
		}
		dst.b = binary.LittleEndian.AppendUint32(dst.b, size)[:at+4+n]
	}
	_, err := dst.Write([]byte(lz4EndMark))
	return err
}

func lz4Decompress(dst, src []byte) ([]byte, error) {
	flags, block, src, err := lz4ReadHeader(src)
	for err == nil {
		if len(src) < 4 {
			return dst, errors.New("end of the frame")
		}
		size := binary.LittleEndian.Uint32(src)
		if src = src[4:]; size == 0 {
			break
		}
		n := int(size &^ lz4Stored)
		if n > block || n > len(src) {
			return dst, errors.New("size of a block")
		}
		if size&lz4Stored != 0 {
			dst = append(dst, src[:n]...)
		} else {
			dst, err = lz4DecodeBlock(dst, src[:n], block)
		}
		if len(dst) > MaxDecompressed {
			return dst, errTooLong
		}
		if flags&lz4BlockChecksum != 0 {
			n += 4
		}
		src = src[min(n, len(src)):]
	}
	if err != nil {
		return dst, err
	}
	tail := 0
	if flags&lz4ContentChecksum != 0 {
		tail = 4
	}
	if len(src) != tail {
		return dst, errors.New("end of the frame")
	}
	return dst, nil
}

// lz4ReadHeader returns a frame's flags, the size that its blocks may have, and
// what follows its header.
func lz4ReadHeader(src []byte) (flags byte, block int, rest []byte, err error) {
	if len(src) < len(lz4Header) || !strings.HasPrefix(string(src[:len(lz4Magic)]), lz4Magic) {
		return 0, 0, nil, errors.New("not a frame")
	}
	flags = src[4]
	known := byte(lz4Version | lz4Independent | lz4BlockChecksum | lz4ContentSize | lz4ContentChecksum)
	if flags&lz4Version != lz4Version1 || flags&lz4Independent == 0 || flags&^known != 0 {
		return 0, 0, nil, errors.New("flags of the frame")
	}
	size := src[5] >> 4
	if size < 4 || size > 7 || src[5]&0xf != 0 {
		return 0, 0, nil, errors.New("block size of the frame")
	}
	at := len(lz4Header)
	if flags&lz4ContentSize != 0 {
		at += 8
	}
	if at > len(src) {
		return 0, 0, nil, errors.New("header of the frame")
	}
	return flags, 1 << (8 + 2*size), src[at:], nil
}

func lz4DecodeBlock(dst, block []byte, size int) ([]byte, error) {
	room := min(size, lz4Ratio*len(block))
	dst = slices.Grow(dst, room)
	n, err := lz4.UncompressBlock(block, dst[len(dst):len(dst)+room])
	if err != nil {
		return dst, err
	}
	return dst[:len(dst)+n], nil
}
