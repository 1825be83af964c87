package pebblestore_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/storage"
	"github.com/tidemark-log/tidemark/storage/pebblestore"
)

// Damage to the newest WAL is noticed unless it hits only the last group.
func TestDamagedWAL(t *testing.T) {
	for _, size := range []int{100, 3_000} {
		mem := vfs.NewCrashableMem()
		s := open(t, "d", pebblestore.Options{FS: mem})
		const groups = 20
		for i := range int64(groups) {
			require.NoError(t, write(s, appendOp(logA, i, batchAt(i, 1, size))).Err)
		}
		wal := ""
		names, err := mem.List(home(t, mem))
		require.NoError(t, err)
		for _, n := range names {
			if strings.HasSuffix(n, ".log") {
				require.Empty(t, wal)
				wal = mem.PathJoin(home(t, mem), n)
			}
		}
		total := len(readFile(t, mem, wal))
		crashed := func() *vfs.MemFS { return mem.CrashClone(vfs.CrashCloneCfg{}) }
		for at := 7; at < total; at += total/13 + 1 {
			disk := crashed()
			flip(t, disk, wal, int64(at))
			again, err := pebblestore.Open("d", pebblestore.Options{FS: disk})
			if at < total-2*size-200 {
				require.ErrorIs(t, err, storage.ErrDamaged, "byte %d of %d", at, total)
			} else if err == nil {
				require.Equal(t, int64(groups-1), endOf(t, again, logA))
				require.NoError(t, again.Close())
			}
		}
		require.NoError(t, s.Close())
		// Closed: now all of it is covered.
		for at := total - size - 100; at < total; at += size / 3 {
			disk := crashed()
			flip(t, disk, wal, int64(at))
			_, err := pebblestore.Open("d", pebblestore.Options{FS: disk})
			require.ErrorIs(t, err, storage.ErrDamaged, "byte %d of %d, closed", at, total)
		}
	}
}

// tamper changes the database of a closed store.
func tamper(t testing.TB, mem vfs.FS, f func(db *pebble.DB)) {
	db, err := pebble.Open(home(t, mem), &pebble.Options{FS: mem, Logger: quiet{}})
	require.NoError(t, err)
	f(db)
	require.NoError(t, db.Close())
}

// keys lists the keys with a prefix.
func keys(t *testing.T, db *pebble.DB, prefix byte) (out [][]byte) {
	it, err := db.NewIter(&pebble.IterOptions{LowerBound: []byte{prefix}, UpperBound: []byte{prefix + 1}})
	require.NoError(t, err)
	for ok := it.First(); ok; ok = it.Next() {
		out = append(out, append([]byte(nil), it.Key()...))
	}
	require.NoError(t, it.Close())
	return out
}

// Each way in which one log can be damaged leaves the other log alone.
func TestOneDamagedLog(t *testing.T) {
	const prefixState, prefixEpochs, prefixIndex, prefixData = 2, 3, 4, 8
	for name, c := range map[string]struct {
		damage func(t *testing.T, db *pebble.DB)
		late   bool // found by a read, not at open
		noLed  bool // Led cannot be read
	}{
		"last batch gone": {damage: func(t *testing.T, db *pebble.DB) {
			k := keys(t, db, prefixData)
			require.NoError(t, db.Delete(k[len(k)-1], pebble.Sync))
		}},
		"last batch changed": {damage: func(t *testing.T, db *pebble.DB) {
			k := keys(t, db, prefixData)
			b := batchAt(4, 1, 900)
			b[len(b)-1] ^= 1
			require.NoError(t, db.Set(k[len(k)-1], b, pebble.Sync))
		}},
		"middle batch gone": {late: true, damage: func(t *testing.T, db *pebble.DB) {
			require.NoError(t, db.Delete(keys(t, db, prefixData)[2], pebble.Sync))
		}},
		"middle batch changed": {late: true, damage: func(t *testing.T, db *pebble.DB) {
			b := batchAt(2, 1, 900)
			b[len(b)-1] ^= 1
			require.NoError(t, db.Set(keys(t, db, prefixData)[2], b, pebble.Sync))
		}},
		"middle batch is another": {late: true, damage: func(t *testing.T, db *pebble.DB) {
			require.NoError(t, db.Set(keys(t, db, prefixData)[3], batchAt(1, 1, 900), pebble.Sync))
		}},
		"index entry gone": {damage: func(t *testing.T, db *pebble.DB) {
			k := keys(t, db, prefixIndex)
			require.NoError(t, db.Delete(k[len(k)-1], pebble.Sync))
		}},
		"first index entry gone": {damage: func(t *testing.T, db *pebble.DB) {
			require.NoError(t, db.Delete(keys(t, db, prefixIndex)[1], pebble.Sync)) // [0] is the other log's
		}},
		"index entry short": {damage: func(t *testing.T, db *pebble.DB) {
			require.NoError(t, db.Set(keys(t, db, prefixIndex)[1], []byte{1}, pebble.Sync))
		}},
		"index falls": {damage: func(t *testing.T, db *pebble.DB) {
			require.NoError(t, db.Set(keys(t, db, prefixIndex)[2], make([]byte, 16), pebble.Sync))
		}},
		"epochs gone": {noLed: true, damage: func(t *testing.T, db *pebble.DB) {
			require.NoError(t, db.Delete(keys(t, db, prefixEpochs)[0], pebble.Sync))
		}},
		"epochs short": {noLed: true, damage: func(t *testing.T, db *pebble.DB) {
			require.NoError(t, db.Set(keys(t, db, prefixEpochs)[0], []byte{1}, pebble.Sync))
		}},
		"epochs above the end": {damage: func(t *testing.T, db *pebble.DB) {
			v := make([]byte, 16)
			v[3] = 7
			binary.BigEndian.PutUint64(v[8:], 99)
			require.NoError(t, db.Set(keys(t, db, prefixEpochs)[0], v, pebble.Sync))
		}},
		"state gone": {damage: func(t *testing.T, db *pebble.DB) {
			require.NoError(t, db.Delete(keys(t, db, prefixState)[0], pebble.Sync))
		}},
		"state short": {damage: func(t *testing.T, db *pebble.DB) {
			require.NoError(t, db.Set(keys(t, db, prefixState)[0], []byte{1}, pebble.Sync))
		}},
		"state says more": {damage: func(t *testing.T, db *pebble.DB) {
			k := keys(t, db, prefixState)[0]
			v, closer, err := db.Get(k)
			require.NoError(t, err)
			v = append([]byte(nil), v...)
			require.NoError(t, closer.Close())
			v[23]++ // the end
			require.NoError(t, db.Set(k, v, pebble.Sync))
		}},
	} {
		for _, sameOpen := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, repaired in the same open %v", name, sameOpen), func(t *testing.T) {
				mem := vfs.NewMem()
				s := open(t, "d", small(mem))
				require.NoError(t, write(s, appendOp(logB, 0, batchAt(0, 2, 10))).Err)
				led := int32(7)
				for i := range int64(5) {
					op := appendOp(logA, i, batchAt(i, 1, 900))
					op.Led = &led
					require.NoError(t, write(s, op).Err)
				}
				require.NoError(t, s.Close())
				tamper(t, mem, func(db *pebble.DB) { c.damage(t, db) })

				s = open(t, "d", small(mem))
				logs, err := s.Logs()
				require.NoError(t, err)
				require.Len(t, logs, 2)
				require.Equal(t, !c.late, errors.Is(logs[logA].Damaged, storage.ErrDamaged))
				if c.noLed {
					led = -1
				}
				require.Equal(t, led, logs[logA].Led)
				_, err = s.Read(logA, logs[logA].Start, 1<<20)
				require.ErrorIs(t, err, storage.ErrDamaged)
				r := write(s, appendOp(logB, 2, batchAt(2, 1, 1)), appendOp(logA, 5, batchAt(5, 1, 1)))
				require.NoError(t, r.Err)
				if !c.late {
					require.ErrorIs(t, r.Refused[logA], storage.ErrDamaged)
				}
				got, err := s.Read(logB, 0, 1<<20)
				require.NoError(t, err)
				require.Equal(t, append(batchAt(0, 2, 10), batchAt(2, 1, 1)...), got.Batches)

				// Repair: begin anew, by Delete in the same open, or by Reset in the next.
				led = 12
				anew := storage.Op{Log: logA, Kind: storage.Reset, Offset: 3, Epochs: []storage.EpochEntry{}, Led: &led}
				group := []storage.Op{anew, appendOp(logA, 3, batchAt(3, 2, 10))}
				if sameOpen {
					group = append([]storage.Op{{Log: logA, Kind: storage.Delete}}, group...)
				} else {
					require.NoError(t, s.Close())
					s = open(t, "d", small(mem))
				}
				r = write(s, group...)
				require.NoError(t, r.Err)
				require.Empty(t, r.Refused)
				for range 2 {
					got, err := s.Read(logA, 3, 1<<20)
					require.NoError(t, err)
					require.Equal(t, batchAt(3, 2, 10), got.Batches)
					logs, err := s.Logs()
					require.NoError(t, err)
					require.NoError(t, logs[logA].Damaged)
					require.Equal(t, led, logs[logA].Led)
					require.NoError(t, s.Close())
					s = open(t, "d", small(mem))
				}
				require.NoError(t, s.Close())
				tamper(t, mem, func(db *pebble.DB) {
					require.Len(t, keys(t, db, prefixEpochs), 2)
					require.Len(t, keys(t, db, prefixState), 2)
				})
			})
		}
	}
}

// Delete leaves nothing of a log, also not of what its own group had for it before
// and what did not fit.
func TestDeleteLeavesNothing(t *testing.T) {
	mem := vfs.NewMem()
	s := open(t, "d", small(mem))
	for i := range int64(3) {
		require.NoError(t, write(s, appendOp(logA, i, batchAt(i, 1, 900))).Err)
	}
	r := write(s,
		appendOp(logA, 3, batchAt(3, 1, 10)),
		appendOp(logA, 9, batchAt(9, 1, 10)),
		appendOp(logB, 4, batchAt(4, 1, 10)),
		storage.Op{Log: logA, Kind: storage.Delete},
		storage.Op{Log: logB, Kind: storage.Delete},
	)
	require.NoError(t, r.Err)
	require.Empty(t, r.Refused)
	require.NoError(t, s.Close())
	tamper(t, mem, func(db *pebble.DB) {
		for _, prefix := range []byte{2, 3, 4, 8} {
			require.Empty(t, keys(t, db, prefix), "prefix %d", prefix)
		}
	})
}

// A damaged table gives an error to those who read it, never wrong bytes.
func TestDamagedTable(t *testing.T) {
	mem := vfs.NewMem()
	s := open(t, "d", small(mem))
	at := int64(0)
	for range 16 {
		op := appendOp(logA, at, batchAt(at, 1, 40_000))
		at = op.End
		require.NoError(t, write(s, op).Err)
	}
	require.NoError(t, s.Close())
	require.NoError(t, open(t, "d", small(mem)).Close()) // what was in the WAL is in tables now
	names, err := mem.List(home(t, mem))
	require.NoError(t, err)
	for _, n := range names {
		if strings.HasSuffix(n, ".sst") {
			path := mem.PathJoin(home(t, mem), n)
			// The keys without which nothing can be opened are in small tables of their own.
			if b := readFile(t, mem, path); len(b) > 30_000 {
				flip(t, mem, path, int64(len(b)/2))
			}
		}
	}
	s = open(t, "d", small(mem))
	damaged := 0
	for i := range at {
		r, err := s.Read(logA, i, 1)
		if err != nil {
			// A compaction that has met the damage ends the store.
			require.True(t, errors.Is(err, storage.ErrDamaged) || errors.Is(err, storage.ErrPoisoned), err)
			damaged++
			continue
		}
		require.Equal(t, batchAt(i, 1, 40_000), r.Batches)
	}
	require.Positive(t, damaged)
	_ = s.Close() // reports it then
}
