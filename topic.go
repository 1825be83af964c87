package tidemark

import (
	"context"

	"github.com/tidemark-log/tidemark/protocol"
)

// TopicConfig is how a topic is created: Partitions, ReplicationFactor and MinISR,
// all int32. Zero fields mean: 1 partition, replication factor 3 (see
// ClientOptions; package local: at most the number of brokers), MinISR 2. A MinISR
// above the replication factor is capped by it; Status shows the one in force.
//
// UncleanElection and Background trade safety for availability and speed; default:
// neither. MaxRecordBytes and MaxUncommittedBytes lower the brokers' limits for this
// topic; default: the brokers' own. See Controller.AlterTopic for what can change.
type TopicConfig = protocol.TopicConfig

// Topic is a handle of a named set of partitions. It is a small value without
// resources; all methods may be called from any goroutine.
type Topic struct {
	client *Client
	name   string
}

// Name is the topic's name.
func (t *Topic) Name() string { return t.name }

// Partition returns the handle of partition n, counted from 0.
func (t *Topic) Partition(n int) *Partition { return t.client.Partition(t.name, n) }

// Config returns the topic's configuration, or ErrUnknownTopic.
func (t *Topic) Config(ctx context.Context) (TopicConfig, error) {
	ctx = given(ctx)
	_, topic, err := t.client.topicOf(ctx, t.name, 0)
	return topic.Config, err
}

// Partitions returns the number of partitions, or ErrUnknownTopic.
func (t *Topic) Partitions(ctx context.Context) (int, error) {
	cfg, err := t.Config(ctx)
	return int(cfg.Partitions), err
}

// Producer begins an ordered, batching writer for the topic. Close it.
func (t *Topic) Producer(o ProducerOptions) *Producer { return newProducer(t, o) }

// PartitionFor is the partition that a key belongs to: the murmur2 hash of the
// key, as Kafka's clients compute it, so that both agree on where a key lives.
func PartitionFor(key []byte, partitions int) int {
	return int(murmur2(key)&0x7fffffff) % partitions
}

// murmur2 is the 32-bit hash of Austin Appleby with the seed that Kafka's default partitioner uses.
func murmur2(data []byte) uint32 {
	const (
		seed = 0x9747b28c
		m    = 0x5bd1e995
	)
	h := seed ^ uint32(len(data))
	for ; len(data) >= 4; data = data[4:] {
		k := uint32(data[0]) | uint32(data[1])<<8 | uint32(data[2])<<16 | uint32(data[3])<<24
		k *= m
		k ^= k >> 24
		k *= m
		h = h*m ^ k
	}
	switch len(data) {
	case 3:
		h ^= uint32(data[2]) << 16
		fallthrough
	case 2:
		h ^= uint32(data[1]) << 8
		fallthrough
	case 1:
		h = (h ^ uint32(data[0])) * m
	}
	h ^= h >> 13
	h *= m
	return h ^ h>>15
}
