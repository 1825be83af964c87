package scale

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
)

// headerBytes are a value's first: its partition and its number there.
const headerBytes = 12

// values are of one size, and each of them follows from its partition and its number:
// so another process can tell whether what it reads is what was appended.
type values struct {
	size  int
	noise []byte // does not compress
}

// noiseBytes is how much noise there is beyond the size of a value: different values
// begin at different places in it.
const noiseBytes = 64 << 10

func newValues(size int) *values {
	v := &values{size: max(size, headerBytes)}
	v.noise = make([]byte, v.size+noiseBytes)
	var seed [32]byte
	_, _ = rand.NewChaCha8(seed).Read(v.noise) // never fails
	return v
}

// body is what follows a value's header.
func (v *values) body(partition int, n int64) []byte {
	at := (uint64(partition)*2654435761 + uint64(n)*40503) % noiseBytes
	return v.noise[at:][:v.size-headerBytes]
}

// appendTo appends a value to dst.
func (v *values) appendTo(dst []byte, partition int, n int64) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(partition))
	dst = binary.BigEndian.AppendUint64(dst, uint64(n))
	return append(dst, v.body(partition, n)...)
}

// partitionOf is the partition that a value was made for.
func partitionOf(value []byte) int { return int(binary.BigEndian.Uint32(value)) }

// check compares every byte.
func (v *values) check(value []byte, partition int, n int64) error {
	if len(value) != v.size {
		return fmt.Errorf("record %d of partition %d has %d bytes, not %d", n, partition, len(value), v.size)
	}
	if p, m := partitionOf(value), binary.BigEndian.Uint64(value[4:]); p != partition || m != uint64(n) {
		return fmt.Errorf("record %d of partition %d is record %d of partition %d", n, partition, m, p)
	}
	if !bytes.Equal(value[headerBytes:], v.body(partition, n)) {
		return fmt.Errorf("record %d of partition %d has other bytes than were appended", n, partition)
	}
	return nil
}
