package protocol

import (
	"encoding/hex"
	"fmt"
)

// UUID is a 128-bit identifier: of a cluster, a topic, a directory or an incarnation.
type UUID [16]byte

// IsZero reports whether u is the zero UUID, which names nothing.
func (u UUID) IsZero() bool { return u == UUID{} }

func (u UUID) String() string { return hex.EncodeToString(u[:]) }

// MarshalText gives 32 hexadecimal digits.
func (u UUID) MarshalText() ([]byte, error) { return []byte(u.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (u *UUID) UnmarshalText(b []byte) error {
	if len(b) != 32 {
		return fmt.Errorf("protocol: a UUID has 32 hexadecimal digits, not %d", len(b))
	}
	_, err := hex.Decode(u[:], b)
	return err
}

// PartitionID names a partition by its topic's id, so that a topic that was
// deleted and created again under the same name is another one.
type PartitionID struct {
	Topic     UUID
	Partition int32
}

func (p PartitionID) String() string { return fmt.Sprintf("%s-%d", p.Topic, p.Partition) }

// Less orders partitions by topic id and number.
func (p PartitionID) Less(q PartitionID) bool {
	if p.Topic != q.Topic {
		return string(p.Topic[:]) < string(q.Topic[:])
	}
	return p.Partition < q.Partition
}
