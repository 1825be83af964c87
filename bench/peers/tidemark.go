package peers

import (
	"context"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-log/tidemark"
	"github.com/tidemark-log/tidemark/bench/cluster"
	"github.com/tidemark-log/tidemark/bench/meter"
)

const topic = "bench"

// tidemarkPeer has defaults throughout, and does what an application would: a Producer
// where many records are under way, Partition.Append where a caller waits for its own.
type tidemarkPeer struct {
	cluster  *cluster.Cluster
	producer *tidemark.Producer
	next     int // partition of the record that is being appended
	writes   meter.Writes
}

func openTidemark(ctx context.Context, c Config, net string) (Peer, error) {
	t := &tidemarkPeer{}
	var err error
	if t.cluster, err = cluster.Open(ctx, cluster.Options{Dir: c.Dir, Net: net, FS: t.writes.FS(vfs.Default)}); err != nil {
		return nil, err
	}
	err = t.cluster.CreateTopic(ctx, topic, tidemark.TopicConfig{
		Partitions: int32(c.Partitions), ReplicationFactor: replicas, MinISR: 2, Background: c.Background,
	})
	if err != nil {
		return nil, errors.Join(err, t.cluster.Close())
	}
	t.producer = t.cluster.Topic(topic).Producer(tidemark.ProducerOptions{
		Compression: c.Compression,
		Partitioner: func(tidemark.Record, int) int { return t.next },
	})
	return t, nil
}

func (t *tidemarkPeer) Append(ctx context.Context, partition int, value []byte, done func(error)) {
	t.next = partition
	err := t.producer.AppendAsync(ctx, tidemark.Record{Value: value}, func(_ tidemark.Result, err error) { done(err) })
	if err != nil {
		done(err)
	}
}

func (t *tidemarkPeer) AppendWait(ctx context.Context, partition int, value []byte) error {
	_, err := t.cluster.Partition(topic, partition).Append(ctx, tidemark.Record{Value: value})
	return err
}

func (t *tidemarkPeer) Read(ctx context.Context, partition int, f func([]byte) error) error {
	p := t.cluster.Partition(topic, partition)
	for next := int64(0); ; {
		got, err := p.Fetch(ctx, next, tidemark.FetchOptions{})
		if err != nil {
			return err
		}
		if len(got.Records) == 0 {
			return nil
		}
		for _, rec := range got.Records {
			if rec.Offset != next {
				return fmt.Errorf("bench: offset %d follows %d", rec.Offset, next-1)
			}
			if err := f(rec.Value); err != nil {
				return err
			}
			next++
		}
	}
}

func (t *tidemarkPeer) Writes() *meter.Writes { return &t.writes }

func (t *tidemarkPeer) Close() error {
	return errors.Join(t.producer.Close(context.Background()), t.cluster.Close())
}
