package scale

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-log/tidemark"
	"github.com/tidemark-log/tidemark/bench/cluster"
	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/coordination/memory"
)

// spareBytes stay free on the disk whatever a workload writes.
const spareBytes = 2 << 30

// place makes a directory for a workload that will write about so many bytes, or says
// that the disk has too little room.
func (o *Options) place(name string, bytes int64) (string, error) {
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return "", err
	}
	usage, err := vfs.Default.GetDiskUsage(o.Dir)
	if err != nil {
		return "", fmt.Errorf("room on the disk: %w", err)
	}
	// Tables are written before those that they replace are gone.
	if need := uint64(bytes + bytes/5 + spareBytes); usage.AvailBytes < need {
		return "", fmt.Errorf("%s has %d MiB of room, and %d MiB are needed", o.Dir, usage.AvailBytes>>20, need>>20)
	}
	return os.MkdirTemp(o.Dir, name+"-")
}

// rig is a cluster in a directory that goes with it. Its metadata outlive a reopening.
type rig struct {
	*cluster.Cluster
	dir  string
	meta *memory.Store
	co   cluster.Options
}

// open opens a cluster that will write about so many bytes, over all brokers.
func (o *Options) open(ctx context.Context, name string, bytes int64, co cluster.Options) (*rig, error) {
	dir, err := o.place(name, bytes)
	if err != nil {
		return nil, err
	}
	r := &rig{dir: dir, meta: memory.New(memory.Options{}), co: co}
	r.co.Dir = dir
	if co.Coordination == nil {
		r.co.Coordination = func(int32) (coordination.Store, error) { return r.meta.Connect(), nil }
	}
	if r.Cluster, err = cluster.Open(ctx, r.co); err != nil {
		return nil, errors.Join(err, r.meta.Close(), os.RemoveAll(dir))
	}
	return r, nil
}

// reopen closes the brokers and opens them again on their directories.
func (r *rig) reopen(ctx context.Context) error {
	if err := r.Cluster.Close(); err != nil {
		return err
	}
	next, err := cluster.Open(ctx, r.co)
	if err == nil {
		r.Cluster = next
	}
	return err
}

// close closes everything and removes the directory.
func (r *rig) close() error {
	return errors.Join(r.Cluster.Close(), r.meta.Close(), os.RemoveAll(r.dir))
}

// create makes a ledger's topic, and waits until all replicas are in sync.
func (r *rig) create(ctx context.Context, l *ledger, replicas int) error {
	return r.CreateTopic(ctx, l.topic, tidemark.TopicConfig{
		Partitions: int32(l.partitions()), ReplicationFactor: int32(replicas), MinISR: int32(min(replicas, 2)),
	})
}
