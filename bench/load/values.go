package load

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
)

// headerBytes is what a value begins with: partition, writer and number.
const headerBytes = 16

// poolBytes is how much the contents of values are cut from, one after the other. It is
// more than a batch has, within which compression would find what is there twice.
const poolBytes = 4 << 20

// values makes values that can be told from each other, and recognises them. A writer
// numbers the values that it appends to a partition from 0.
type values struct {
	size int
	pool []byte
}

// newValues makes values of that size, which do not compress or, with half, about by half.
func newValues(size int, half bool) (*values, error) {
	if size < headerBytes {
		return nil, fmt.Errorf("bench: values of %d bytes have no room for their header of %d", size, headerBytes)
	}
	v := &values{size: size, pool: make([]byte, poolBytes+size)}
	rng := rand.NewChaCha8([32]byte{1})
	for at := 0; at < len(v.pool); at += 64 {
		run := v.pool[at:min(at+64, len(v.pool))]
		if half {
			run = run[:len(run)/2]
		}
		_, _ = rng.Read(run) // never fails
	}
	return v, nil
}

// body is what follows the header of a value.
func (v *values) body(partition, writer uint32, number uint64) []byte {
	at := (uint64(partition)*31 + uint64(writer)*17 + number*uint64(v.size+1)) % poolBytes
	return v.pool[at : int(at)+v.size-headerBytes]
}

// fill makes a value in p, which has the size.
func (v *values) fill(p []byte, partition, writer uint32, number uint64) {
	binary.BigEndian.PutUint32(p, partition)
	binary.BigEndian.PutUint32(p[4:], writer)
	binary.BigEndian.PutUint64(p[8:], number)
	copy(p[headerBytes:], v.body(partition, writer, number))
}

// parse tells which value p is, having compared every byte.
func (v *values) parse(p []byte) (partition, writer uint32, number uint64, err error) {
	if len(p) != v.size {
		return 0, 0, 0, fmt.Errorf("bench: a value has %d bytes, not %d", len(p), v.size)
	}
	partition, writer, number = binary.BigEndian.Uint32(p), binary.BigEndian.Uint32(p[4:]), binary.BigEndian.Uint64(p[8:])
	if !bytes.Equal(p[headerBytes:], v.body(partition, writer, number)) {
		return 0, 0, 0, fmt.Errorf("bench: value %d of writer %d to partition %d has other contents", number, writer, partition)
	}
	return partition, writer, number, nil
}
