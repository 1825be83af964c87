package pebblestore_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/storage"
	"github.com/tidemark-log/tidemark/storage/pebblestore"
)

// Groups of 256 batches of about 1 KiB, synced, with some groups in flight.
func BenchmarkWrite(b *testing.B) {
	for _, inFlight := range []int{1, 4} {
		b.Run(map[int]string{1: "one by one", 4: "four in flight"}[inFlight], func(b *testing.B) {
			s := open(b, b.TempDir(), pebblestore.Options{})
			slots := make(chan struct{}, inFlight)
			at, size := int64(0), int64(0)
			one := batchAt(0, 1, 1024)
			for b.Loop() {
				op := storage.Op{Log: logA, Kind: storage.Append, Offset: at}
				for range 256 {
					v := append([]byte(nil), one...)
					setBase(v, at)
					op.Batches = append(op.Batches, v)
					at++
					size += int64(len(v))
				}
				op.End = at
				slots <- struct{}{}
				s.Write([]storage.Op{op}, true, func(r storage.Result) {
					if r.Err != nil || r.Refused != nil {
						panic("write failed")
					}
					<-slots
				})
			}
			for range inFlight {
				slots <- struct{}{}
			}
			b.SetBytes(size / int64(b.N))
			require.NoError(b, s.Close())
		})
	}
}

// Groups of one batch of 16 KiB, eight in flight, with and without sync (D25).
func BenchmarkBackground(b *testing.B) {
	for name, synced := range map[string]bool{"synced": true, "unsynced": false} {
		b.Run(name, func(b *testing.B) {
			s := open(b, b.TempDir(), pebblestore.Options{})
			one := batchAt(0, 1, 16<<10)
			b.SetBytes(int64(len(one)))
			slots := make(chan struct{}, 8)
			at := int64(0)
			for b.Loop() {
				v := append([]byte(nil), one...)
				setBase(v, at)
				op := storage.Op{Log: logA, Kind: storage.Append, Offset: at, Batches: [][]byte{v}, End: at + 1}
				at++
				slots <- struct{}{}
				s.Write([]storage.Op{op}, synced, func(r storage.Result) {
					if r.Err != nil || r.Refused != nil {
						panic("write failed")
					}
					<-slots
				})
			}
			for range cap(slots) {
				slots <- struct{}{}
			}
			require.NoError(b, s.Close())
		})
	}
}

func BenchmarkRead(b *testing.B) {
	s := open(b, b.TempDir(), pebblestore.Options{})
	const groups = 200
	at := int64(0)
	for range groups {
		op := appendOp(logA, at, batchAt(at, 16, 16<<10))
		at = op.End
		require.NoError(b, write(s, op).Err)
	}
	from := int64(0)
	for b.Loop() {
		r, err := s.Read(logA, from, 1<<20)
		require.NoError(b, err)
		b.SetBytes(int64(len(r.Batches)))
		if from += 48; from >= at-48 {
			from = 0
		}
	}
	require.NoError(b, s.Close())
}
