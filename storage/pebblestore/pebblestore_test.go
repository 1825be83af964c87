package pebblestore_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/record"
	"github.com/tidemark-log/tidemark/storage"
	"github.com/tidemark-log/tidemark/storage/memstore"
	"github.com/tidemark-log/tidemark/storage/pebblestore"
)

func batchAt(base int64, n, size int) []byte {
	recs := make([]record.Record, n)
	for i := range recs {
		recs[i].Value = make([]byte, size)
	}
	b, err := record.Encode(nil, recs, time.Unix(1, 0))
	if err != nil {
		panic(err)
	}
	record.Stamp(b, base, 1)
	return b
}

func TestSmoke(t *testing.T) {
	dir := t.TempDir()
	open := func() storage.Store {
		s, err := pebblestore.Open(dir, pebblestore.Options{})
		require.NoError(t, err)
		return s
	}
	disk := memstore.NewDisk()
	mem := func() storage.Store {
		s, err := disk.Open()
		require.NoError(t, err)
		return s
	}
	for _, open := range []func() storage.Store{open, mem} {
		s := open()
		id := storage.LogID{Topic: protocol.UUID{1}, Partition: 2}
		ch := make(chan storage.Result, 1)
		led := int32(4)
		s.Write([]storage.Op{{Log: id, Kind: storage.Append, Batches: [][]byte{batchAt(0, 3, 100), batchAt(3, 2, 10)}, End: 5, HW: 2, Led: &led}}, true, func(r storage.Result) { ch <- r })
		require.Equal(t, storage.Result{}, <-ch)
		r, err := s.Read(id, 4, 1000)
		require.NoError(t, err)
		require.Equal(t, batchAt(3, 2, 10), r.Batches)
		require.NoError(t, s.Close())
		s = open()
		l, err := s.Logs()
		require.NoError(t, err)
		require.EqualValues(t, 5, l[id].End)
		require.EqualValues(t, 4, l[id].Led)
		r, err = s.Read(id, 1, 1000)
		require.NoError(t, err)
		require.Equal(t, append(batchAt(0, 3, 100), batchAt(3, 2, 10)...), r.Batches)
		require.NoError(t, s.Close())
	}
}

func peek(b []byte) record.Info {
	info, err := record.Peek(b)
	if err != nil {
		panic(err)
	}
	return info
}
