package load

import (
	"context"
	"fmt"
)

// reader is what a peer offers for checking.
type reader interface {
	Read(ctx context.Context, partition int, f func(value []byte) error) error
}

// checker compares what a partition has with what was acknowledged: every writer's
// values, whole, once, and in the order in which it appended them.
type checker struct {
	values    *values
	partition uint32
	acked     []uint64 // by writer
	next      []uint64 // by writer: the number that comes next
}

func (c *checker) see(value []byte) error {
	partition, writer, number, err := c.values.parse(value)
	switch {
	case err != nil:
		return err
	case partition != c.partition:
		return fmt.Errorf("bench: partition %d has a value of partition %d", c.partition, partition)
	case int(writer) >= len(c.next):
		return fmt.Errorf("bench: partition %d has a value of writer %d, of %d", c.partition, writer, len(c.next))
	case number != c.next[writer]:
		return fmt.Errorf("bench: partition %d has value %d of writer %d where %d belongs: lost, doubled or reordered",
			c.partition, number, writer, c.next[writer])
	}
	c.next[writer]++
	return nil
}

func (c *checker) finish() error {
	for writer, n := range c.next {
		if n != c.acked[writer] {
			return fmt.Errorf("bench: partition %d has %d values of writer %d, %d were acknowledged", c.partition, n, writer, c.acked[writer])
		}
	}
	return nil
}

// check reads all partitions back. acked counts by partition and writer. It returns how
// many values it has seen.
func check(ctx context.Context, r reader, v *values, acked [][]uint64) (seen int64, err error) {
	for partition, counts := range acked {
		c := &checker{values: v, partition: uint32(partition), acked: counts, next: make([]uint64, len(counts))}
		if err := r.Read(ctx, partition, c.see); err != nil {
			return seen, fmt.Errorf("bench: reading partition %d back: %w", partition, err)
		}
		if err := c.finish(); err != nil {
			return seen, err
		}
		for _, n := range c.next {
			seen += int64(n)
		}
	}
	return seen, nil
}
