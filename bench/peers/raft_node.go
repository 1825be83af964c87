package peers

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/fs"
	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"

	"github.com/tidemark-log/tidemark/bench/meter"
)

// raftNode is one replica of a group, on raft-wal, which syncs every write.
type raftNode struct {
	id        raft.ServerID
	wal       *wal.WAL
	transport *raft.NetworkTransport
	raft      *raft.Raft
	fsm       raftFSM
}

func openRaftNode(dir string, i int, w *meter.Writes) (*raftNode, error) {
	n := &raftNode{id: raft.ServerID(fmt.Sprintf("node-%d", i))}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	silent := hclog.NewNullLogger()
	var err error
	if n.wal, err = wal.Open(dir, wal.WithLogger(silent), wal.WithSegmentFiler(segment.NewFiler(dir, countingVFS{fs.New(), w}))); err != nil {
		return nil, err
	}
	if n.transport, err = raft.NewTCPTransportWithLogger("127.0.0.1:0", nil, 4, 10*time.Second, silent); err != nil {
		return nil, errors.Join(err, n.close())
	}
	if n.raft, err = raft.NewRaft(raftConfig(n.id, silent), &n.fsm, n.wal, n.wal, raft.NewDiscardSnapshotStore(), n.transport); err != nil {
		return nil, errors.Join(err, n.close())
	}
	return n, nil
}

// raftConfig is as fast as it was found to get, and takes no snapshots.
func raftConfig(id raft.ServerID, log hclog.Logger) *raft.Config {
	c := raft.DefaultConfig()
	c.LocalID, c.Logger = id, log
	c.MaxAppendEntries = 1024 // the most that raft takes
	c.BatchApplyCh = true
	c.SnapshotThreshold, c.SnapshotInterval, c.TrailingLogs = 1<<62, time.Hour, 1<<62
	c.NoLegacyTelemetry = true
	// A disk that is busy for a while must not cost it its leader.
	c.LeaderLeaseTimeout = c.HeartbeatTimeout // a second; the default is half of it
	return c
}

// apply begins an append. raft keeps the bytes.
func (n *raftNode) apply(value []byte) raft.ApplyFuture {
	return n.raft.Apply(bytes.Clone(value), 0)
}

// read reads the log that the node has on the disk.
func (n *raftNode) read(f func([]byte) error) error {
	first, err := n.wal.FirstIndex()
	if err != nil {
		return err
	}
	last, err := n.wal.LastIndex()
	if err != nil {
		return err
	}
	for i := first; i <= last; i++ {
		var entry raft.Log
		if err := n.wal.GetLog(i, &entry); err != nil {
			return fmt.Errorf("entry %d: %w", i, err)
		}
		if entry.Type != raft.LogCommand {
			continue
		}
		if err := f(entry.Data); err != nil {
			return err
		}
	}
	return nil
}

func (n *raftNode) close() error {
	var errs []error
	if n.raft != nil {
		errs = append(errs, n.raft.Shutdown().Error())
	}
	if n.transport != nil {
		errs = append(errs, n.transport.Close())
	}
	return errors.Join(append(errs, n.wal.Close())...)
}

// raftFSM counts what was applied, and keeps a checksum of all of it in order.
type raftFSM struct {
	applied atomic.Int64
	sum     atomic.Uint32
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ApplyBatch is called in place of Apply.
func (f *raftFSM) ApplyBatch(entries []*raft.Log) []any {
	sum, n := f.sum.Load(), int64(0)
	for _, entry := range entries {
		if entry.Type == raft.LogCommand {
			sum = crc32.Update(sum, castagnoli, entry.Data)
			n++
		}
	}
	f.sum.Store(sum)
	f.applied.Add(n)
	return make([]any, len(entries))
}

func (f *raftFSM) Apply(entry *raft.Log) any { return f.ApplyBatch([]*raft.Log{entry})[0] }

var errNoSnapshots = errors.New("bench: no snapshots")

func (f *raftFSM) Snapshot() (raft.FSMSnapshot, error) { return nil, errNoSnapshots }
func (f *raftFSM) Restore(io.ReadCloser) error         { return errNoSnapshots }

// countingVFS counts what raft-wal writes to segments; not the few writes of its
// database of metadata.
type countingVFS struct {
	types.VFS
	w *meter.Writes
}

func (c countingVFS) Create(dir, name string, size uint64) (types.WritableFile, error) {
	f, err := c.VFS.Create(dir, name, size)
	if err != nil {
		return nil, err
	}
	return countingSegment{f, c.w}, nil
}

func (c countingVFS) OpenWriter(dir, name string) (types.WritableFile, error) {
	f, err := c.VFS.OpenWriter(dir, name)
	if err != nil {
		return nil, err
	}
	return countingSegment{f, c.w}, nil
}

type countingSegment struct {
	types.WritableFile
	w *meter.Writes
}

func (s countingSegment) WriteAt(p []byte, at int64) (int, error) {
	n, err := s.WritableFile.WriteAt(p, at)
	s.w.AddBytes(n)
	return n, err
}

func (s countingSegment) Sync() error {
	s.w.AddSync()
	return s.WritableFile.Sync()
}
