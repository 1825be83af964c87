package record

// zigzag maps small negative numbers to small positive ones: 0, -1, 1, -2 become 0, 1, 2, 3.
func zigzag(v int64) uint64 { return uint64(v)<<1 ^ uint64(v>>63) }

func unzigzag(u uint64) int64 { return int64(u>>1) ^ -int64(u&1) }

// varintSize is the number of bytes that appendVarint adds.
func varintSize(v int64) int64 {
	n := int64(1)
	for u := zigzag(v); u >= 0x80; u >>= 7 {
		n++
	}
	return n
}

// appendVarint writes v. Numbers of 32 and of 64 bits look the same.
func appendVarint(b []byte, v int64) []byte {
	u := zigzag(v)
	for u >= 0x80 {
		b = append(b, byte(u)|0x80)
		u >>= 7
	}
	return append(b, byte(u))
}

// varint reads a number of at most width (32 or 64) bits at b[at]. next is where
// the number ends, negative when there is none: the bytes end, or the number is
// wider. A negative at stays negative, so that calls can be chained.
func varint(b []byte, at int, width uint) (v int64, next int) {
	// Most numbers have one or two bytes.
	if uint(at) < uint(len(b)) {
		low := b[at]
		if low < 0x80 {
			return unzigzag(uint64(low)), at + 1
		}
		if at+1 < len(b) && b[at+1] < 0x80 {
			return unzigzag(uint64(b[at+1])<<7 | uint64(low&0x7f)), at + 2
		}
	}
	return longVarint(b, at, width)
}

func longVarint(b []byte, at int, width uint) (v int64, next int) {
	var u uint64
	for shift := uint(0); shift < width; shift += 7 {
		if uint(at) >= uint(len(b)) {
			return 0, -1
		}
		c := b[at]
		at++
		if c < 0x80 {
			if left := width - shift; left < 7 && c>>left != 0 {
				return 0, -1
			}
			return unzigzag(u | uint64(c)<<shift), at
		}
		u |= uint64(c&0x7f) << shift
	}
	return 0, -1
}
