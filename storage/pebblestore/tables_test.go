package pebblestore_test

import (
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/storage"
	"github.com/tidemark-log/tidemark/storage/pebblestore"
)

// tableFS counts what is written to tables.
type tableFS struct {
	vfs.FS
	bytes atomic.Int64
}

func (f *tableFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := f.FS.Create(name, c)
	if err == nil && strings.HasSuffix(name, ".sst") {
		file = &tableFile{file, &f.bytes}
	}
	return file, err
}

type tableFile struct {
	vfs.File
	bytes *atomic.Int64
}

func (f *tableFile) Write(p []byte) (int, error) {
	f.bytes.Add(int64(len(p)))
	return f.File.Write(p)
}

// Data is written to a table once, also when a group is a large part of a memtable (D23).
func TestDataIsWrittenToTablesOnce(t *testing.T) {
	const size, total = 32 << 10, 100 << 20
	for logs, most := range map[int]float64{8: 1.1, 64: 1.15, 100: 1.2, 160: 1.25} {
		fs := &tableFS{FS: vfs.NewMem()}
		s := open(t, "d", pebblestore.Options{FS: fs, MemtableBytes: 8 << 20})
		for at := range int64(total / size / logs) {
			ops := []storage.Op{}
			for p := range int32(logs) {
				ops = append(ops, appendOp(storage.LogID{Topic: protocol.UUID{1}, Partition: p}, at, batchAt(at, 1, size)))
			}
			require.NoError(t, write(s, ops...).Err)
		}
		require.NoError(t, s.Close())
		require.LessOrEqual(t, float64(fs.bytes.Load())/total, most, "groups of %d KiB", logs*size>>10)
	}
}

// Tables of appended data do not overlap, and have none of the small keys, so that Pebble
// moves them and never writes them again. What is trimmed away is in tables of its own too.
func TestTablesOfDataDoNotOverlap(t *testing.T) {
	const logs, rounds, keep = 40, 60, 20
	mem := vfs.NewMem()
	s := open(t, "d", pebblestore.Options{FS: mem, MemtableBytes: 200 << 10})
	for at := range int64(rounds) {
		ops := []storage.Op{}
		for p := range int32(logs) {
			id := storage.LogID{Topic: protocol.UUID{1}, Partition: p}
			ops = append(ops, appendOp(id, at, batchAt(at, 1, 700)))
			if at > keep && at%10 == 0 {
				ops = append(ops, storage.Op{Log: id, Kind: storage.Trim, Offset: at - keep})
			}
		}
		r := write(s, ops...)
		require.NoError(t, r.Err)
		require.Empty(t, r.Refused)
	}
	require.NoError(t, s.Close())
	db, err := pebble.Open(home(t, mem), &pebble.Options{FS: mem, Logger: quiet{}, ReadOnly: true})
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	levels, err := db.SSTables()
	require.NoError(t, err)
	const data, segment = 8, 1 + 8 // prefix, and the size of what a segment's keys begin with
	segments := map[string]bool{}
	for _, table := range slices.Concat(levels...) {
		from, to := table.Smallest.UserKey, table.Largest.UserKey
		if from[0] < data {
			require.Less(t, to[0], byte(data))
			continue
		}
		require.Equal(t, from[:segment], to[:segment])
		if !table.Largest.IsExclusiveSentinel() { // else it deletes something
			require.False(t, segments[string(to[:segment])], "segment %x is in two tables", to[:segment])
			segments[string(to[:segment])] = true
		}
	}
	require.Greater(t, len(segments), 4)
}
