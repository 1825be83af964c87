package pebblestore_test

import (
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/storage"
	"github.com/tidemark-log/tidemark/storage/pebblestore"
)

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
