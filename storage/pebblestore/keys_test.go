package pebblestore

import (
	"bytes"
	"cmp"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/internal/pebblefs"
	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/storage"
)

// seedBytes are values and keys of each kind, and what they become when they are cut.
func seedBytes(f *testing.F, add func([]byte)) {
	history := []storage.EpochEntry{{Epoch: 1, Start: 0}, {Epoch: math.MaxInt32, Start: math.MaxInt64}}
	id := storage.LogID{Topic: protocol.UUID{1, 15: 2}, Partition: 3}
	for _, b := range [][]byte{
		logRecord{local: 1, start: 2, end: 3, hw: 4, total: 5}.encode(),
		encodeEpochs(-1, nil),
		encodeEpochs(7, history),
		encodeEntry(entry{segment: 1, first: 2, before: 3}),
		encodeNode(storage.Node{Cluster: id.Topic, Directory: id.Topic, BrokerID: -1, BrokerEpoch: 1 << 40}),
		counters{local: 1, segment: math.MaxUint64}.encode(),
		logKey(prefixState, id),
		indexKey(1, 2),
		dataKey(1, 2, 3),
		syncedMark(id.Topic, pebblefs.Synced{WAL: pebblefs.Position{Num: 2, Bytes: 100}, Manifest: pebblefs.Position{Num: 1, Bytes: 50}}),
	} {
		add(b)
		add(b[:len(b)-1])
		add(append(bytes.Clone(b), 0))
	}
}

// FuzzDecode: no bytes make a decoder panic, and what it takes is what it would write.
func FuzzDecode(f *testing.F) {
	seedBytes(f, func(b []byte) { f.Add(b) })
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := decodeLogRecord(b); err == nil {
			require.Equal(t, b, r.encode())
		}
		if led, history, err := decodeEpochs(b); err == nil {
			require.Equal(t, b, encodeEpochs(led, history))
		}
		if n, err := decodeNode(b); err == nil {
			require.Equal(t, b, encodeNode(n))
		}
		if c, err := decodeCounters(b); err == nil {
			require.Equal(t, b, c.encode())
		}
		if id, err := parseLogKey(b); err == nil {
			require.Equal(t, b[1:], logKey(b[0], id)[1:])
		}
		k, v := b[:min(17, len(b))], b[min(17, len(b)):]
		if local, e, err := decodeEntry(k, v); err == nil {
			require.Equal(t, k[1:], indexKey(local, e.segment)[1:])
			require.Equal(t, v, encodeEntry(e))
		}
		// Marks are looked for in what may be anything.
		var directory protocol.UUID
		copy(directory[:], b)
		lastMark(b, directory, 2)
		recordsEnd(b, 2)
	})
}

// place is where a batch is.
type place struct {
	segment, local uint64
	base           int64
}

func (p place) compare(q place) int {
	return cmp.Or(cmp.Compare(p.segment, q.segment), cmp.Compare(p.local, q.local), cmp.Compare(p.base, q.base))
}

// FuzzKeyOrder: keys sort as what they name does, and no key of one kind lies among
// those of another.
func FuzzKeyOrder(f *testing.F) {
	for _, n := range []uint64{0, 1, 255, 256, 1 << 32, math.MaxInt64} {
		f.Add(n, n, n, n+1, n, n)
		f.Add(n, n+1, n, n, n, n)
		f.Add(n, n, n+1, n, n, n)
		f.Add(n, n, n, n, n, n)
	}
	f.Fuzz(func(t *testing.T, s1, l1, b1, s2, l2, b2 uint64) {
		p := place{s1, l1, int64(b1 &^ (1 << 63))} // offsets are not negative
		q := place{s2, l2, int64(b2 &^ (1 << 63))}
		pk, qk := dataKey(p.segment, p.local, p.base), dataKey(q.segment, q.local, q.base)
		require.Equal(t, p.compare(q), bytes.Compare(pk, qk))
		require.Equal(t, pk, appendDataKey(nil, p.segment, p.local, p.base))
		require.Len(t, pk, dataKeySize)

		pi, qi := indexKey(p.local, p.segment), indexKey(q.local, q.segment)
		require.Equal(t, cmp.Or(cmp.Compare(p.local, q.local), cmp.Compare(p.segment, q.segment)), bytes.Compare(pi, qi))
		id := storage.LogID{Partition: int32(l1)}
		be.PutUint64(id.Topic[:], s1)
		be.PutUint64(id.Topic[8:], b1)
		last := []byte{}
		for _, k := range [][]byte{keyCounters, keyFormat, keyNode, logKey(prefixState, id), logKey(prefixEpochs, id), pi, pk} {
			require.Negative(t, bytes.Compare(last, k))
			last = k
		}
	})
}
