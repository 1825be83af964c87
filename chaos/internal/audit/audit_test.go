package audit_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/chaos/internal/audit"
	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/record"
	"github.com/tidemark-log/tidemark/storage"
	"github.com/tidemark-log/tidemark/storage/pebblestore"
)

// put makes a store with one batch per value in partition 3.
func put(t *testing.T, topic byte, epoch int32, values ...string) string {
	dir := filepath.Join(t.TempDir(), "store")
	s, err := pebblestore.Open(dir, pebblestore.Options{})
	require.NoError(t, err)
	for i, v := range values {
		b, err := record.Encode(nil, []record.Record{{Value: []byte(v)}}, time.Unix(1, 0))
		require.NoError(t, err)
		record.Stamp(b, int64(i), epoch)
		done := make(chan storage.Result, 1)
		op := storage.Op{
			Log: storage.LogID{Topic: protocol.UUID{topic}, Partition: 3}, Kind: storage.Append,
			Offset: int64(i), End: int64(i) + 1, Batches: [][]byte{b},
		}
		s.Write([]storage.Op{op}, true, func(r storage.Result) { done <- r })
		r := <-done
		require.NoError(t, r.Err)
		require.Empty(t, r.Refused)
	}
	require.NoError(t, s.Close())
	return dir
}

func TestAudit(t *testing.T) {
	open := func(broker int32, dir string) *audit.Logs {
		l, err := audit.Open(broker, dir)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, l.Close()) })
		return l
	}
	one, same := open(1, put(t, 1, 5, "a", "b")), open(2, put(t, 1, 5, "a", "b"))
	f, err := one.Final(3)
	require.NoError(t, err)
	require.EqualValues(t, 3, f.Partition)
	require.EqualValues(t, 1, f.Replica)
	require.Len(t, f.Records, 2)
	require.Equal(t, "b", f.Records[1].Value)
	require.EqualValues(t, 1, f.Records[1].Offset)
	require.EqualValues(t, 5, f.Records[1].Epoch)
	g, err := same.Final(3)
	require.NoError(t, err)
	require.Equal(t, f.Records, g.Records)
	differ, err := audit.Compare(3, []*audit.Logs{one, same})
	require.NoError(t, err)
	require.Empty(t, differ)
	for i, dir := range []string{put(t, 1, 5, "a", "c"), put(t, 1, 6, "a", "b"), put(t, 1, 5, "a")} {
		other := open(int32(3+i), dir)
		differ, err = audit.Compare(3, []*audit.Logs{one, same, other})
		require.NoError(t, err)
		require.NotEmpty(t, differ, i)
	}
	require.True(t, one.Has(3))
	require.False(t, one.Has(4))
	_, err = one.Final(4)
	require.Error(t, err)
}
