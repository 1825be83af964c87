package pebblestore_test

import (
	"io"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/storage"
	"github.com/tidemark-log/tidemark/storage/pebblestore"
)

func readFile(t *testing.T, fs vfs.FS, path string) []byte {
	f, err := fs.Open(path)
	require.NoError(t, err)
	defer f.Close()
	b, err := io.ReadAll(f)
	require.NoError(t, err)
	return b
}

func writeFile(t *testing.T, fs vfs.FS, path string, b []byte) {
	f, err := fs.Create(path, vfs.WriteCategoryUnspecified)
	require.NoError(t, err)
	_, err = f.Write(b)
	require.NoError(t, err)
	require.NoError(t, f.Sync())
	require.NoError(t, f.Close())
}

func TestWALBitFlip(t *testing.T) {
	id := storage.LogID{Topic: protocol.UUID{1}}
	for _, size := range []int{100, 10_000, 100_000} {
		mem := vfs.NewCrashableMem()
		s, err := pebblestore.Open("d", pebblestore.Options{FS: mem})
		require.NoError(t, err)
		for i := range int64(20) {
			require.NoError(t, write(s, appendOp(id, i, batchAt(i, 1, size))).Err)
		}
		names, err := mem.List("d")
		require.NoError(t, err)
		for _, n := range names {
			if !strings.HasSuffix(n, ".log") {
				continue
			}
			total := len(readFile(t, mem, mem.PathJoin("d", n)))
			for at := 200; at < total; at += total / 40 {
				for _, mask := range []byte{1, 0xff} {
					c := mem.CrashClone(vfs.CrashCloneCfg{})
					b := readFile(t, c, c.PathJoin("d", n))
					f, err := c.OpenReadWrite(c.PathJoin("d", n), vfs.WriteCategoryUnspecified)
					require.NoError(t, err)
					_, err = f.WriteAt([]byte{b[at] ^ mask}, int64(at))
					require.NoError(t, err)
					require.NoError(t, f.Close())
					s, err := pebblestore.Open("d", pebblestore.Options{FS: c})
					if err != nil {
						t.Log(size, mask, n, at, "noticed", err)
						continue
					}
					l, _ := s.Logs()
					t.Log(size, mask, n, at, "silent", l[id].End)
					s.Close()
				}
			}
		}
		require.NoError(t, s.Close())
	}
}

func appendOp(id storage.LogID, at int64, batches ...[]byte) storage.Op {
	op := storage.Op{Log: id, Kind: storage.Append, Offset: at, End: at, Batches: batches}
	for _, b := range batches {
		info := peek(b)
		op.End = info.End()
	}
	return op
}

func write(s storage.Store, ops ...storage.Op) storage.Result {
	ch := make(chan storage.Result, 1)
	s.Write(ops, true, func(r storage.Result) { ch <- r })
	return <-ch
}
