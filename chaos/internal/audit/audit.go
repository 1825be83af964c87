// Package audit reads the logs of brokers that are closed, and compares them byte by byte.
package audit

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/tidemark-log/tidemark/chaos/history"
	"github.com/tidemark-log/tidemark/record"
	"github.com/tidemark-log/tidemark/storage"
	"github.com/tidemark-log/tidemark/storage/pebblestore"
)

// Logs are all logs of one broker.
type Logs struct {
	Broker int32
	store  *pebblestore.Store
	logs   map[int32]log // by partition
}

type log struct {
	id    storage.LogID
	state storage.State
}

// Open opens the store of a broker that is closed.
func Open(broker int32, dir string) (*Logs, error) {
	s, err := pebblestore.Open(dir, pebblestore.Options{})
	if err != nil {
		return nil, err
	}
	all, err := s.Logs()
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	l := &Logs{Broker: broker, store: s, logs: make(map[int32]log)}
	for id, state := range all {
		if other, twice := l.logs[id.Partition]; twice {
			err := fmt.Errorf("broker %d has logs of two topics, %s and %s", broker, other.id, id)
			return nil, errors.Join(err, s.Close())
		}
		l.logs[id.Partition] = log{id, state}
	}
	return l, nil
}

// Close closes the store.
func (l *Logs) Close() error { return l.store.Close() }

// batches calls f for every batch of a partition's log, in order.
func (l *Logs) batches(partition int32, f func(batch []byte) error) error {
	x, ok := l.logs[partition]
	switch {
	case !ok:
		return fmt.Errorf("broker %d has no log of partition %d", l.Broker, partition)
	case x.state.Damaged != nil:
		return fmt.Errorf("broker %d, partition %d: %w", l.Broker, partition, x.state.Damaged)
	}
	for at := x.state.Start; at < x.state.End; {
		r, err := l.store.Read(x.id, at, 1<<20)
		if err != nil {
			return fmt.Errorf("broker %d, partition %d at %d: %w", l.Broker, partition, at, err)
		}
		for rest := r.Batches; len(rest) > 0; {
			var batch []byte
			if batch, rest, err = record.Split(rest); err != nil {
				return fmt.Errorf("broker %d, partition %d at %d: %w", l.Broker, partition, at, err)
			}
			info, err := record.Peek(batch)
			if err == nil {
				at = info.End()
				err = f(batch)
			}
			if err != nil {
				return fmt.Errorf("broker %d, partition %d at %d: %w", l.Broker, partition, at, err)
			}
		}
	}
	return nil
}

// Final reads a partition's whole log.
func (l *Logs) Final(partition int32) (history.Final, error) {
	f := history.Final{Partition: partition, Replica: l.Broker}
	err := l.batches(partition, func(batch []byte) error {
		info, err := record.Peek(batch)
		if err != nil {
			return err
		}
		sum := crc32.ChecksumIEEE(batch)
		if sum == 0 {
			sum = 1 // 0 is for logs that were not read from disk
		}
		for rec, err := range record.All(batch) {
			if err != nil {
				return err
			}
			f.Records = append(f.Records, history.Record{Offset: rec.Offset, Value: string(rec.Value), Sum: sum, Epoch: info.Epoch})
		}
		return nil
	})
	return f, err
}

// Compare says how the bytes of a partition's logs differ; "": they do not.
func Compare(partition int32, all []*Logs) (string, error) {
	var first []byte
	for i, l := range all {
		var whole []byte
		if err := l.batches(partition, func(batch []byte) error {
			whole = append(whole, batch...)
			return nil
		}); err != nil {
			return "", err
		}
		if i == 0 {
			first = whole
		} else if !bytes.Equal(first, whole) {
			return fmt.Sprintf("partition %d: broker %d has %d bytes, broker %d has %d, and they differ", partition, all[0].Broker, len(first), l.Broker, len(whole)), nil
		}
	}
	return "", nil
}

// Has reports whether the broker has a log of the partition.
func (l *Logs) Has(partition int32) bool {
	_, ok := l.logs[partition]
	return ok
}
