package pebblestore_test

import (
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/record"
	"github.com/tidemark-log/tidemark/storage"
	"github.com/tidemark-log/tidemark/storage/pebblestore"
)

var logA = storage.LogID{Topic: protocol.UUID{0xa}, Partition: 1}
var logB = storage.LogID{Topic: protocol.UUID{0xb}, Partition: 2}

func batchAt(base int64, n, size int) []byte {
	recs := make([]record.Record, n)
	for i := range recs {
		recs[i].Value = make([]byte, size)
		for j := range recs[i].Value {
			recs[i].Value[j] = byte(base) ^ byte(j)
		}
	}
	b, err := record.Encode(nil, recs, time.Unix(1, 0))
	if err != nil {
		panic(err)
	}
	record.Stamp(b, base, 1)
	return b
}

func appendOp(id storage.LogID, at int64, batches ...[]byte) storage.Op {
	op := storage.Op{Log: id, Kind: storage.Append, Offset: at, End: at, Batches: batches}
	for _, b := range batches {
		info, err := record.Peek(b)
		if err != nil {
			panic(err)
		}
		op.End = info.End()
	}
	return op
}

func write(s storage.Store, ops ...storage.Op) storage.Result {
	ch := make(chan storage.Result, 1)
	s.Write(ops, true, func(r storage.Result) { ch <- r })
	return <-ch
}

func open(t testing.TB, dir string, o pebblestore.Options) *pebblestore.Store {
	s, err := pebblestore.Open(dir, o)
	require.NoError(t, err)
	return s
}

// told does what a broker that registers does: the cluster knows now how it came up.
func told(s storage.Store) error {
	n := s.Node()
	n.BrokerEpoch++
	return s.SetNode(n)
}

func endOf(t testing.TB, s storage.Store, id storage.LogID) int64 {
	logs, err := s.Logs()
	require.NoError(t, err)
	return logs[id].End
}

func readFile(t testing.TB, fs vfs.FS, path string) []byte {
	f, err := fs.Open(path)
	require.NoError(t, err)
	defer f.Close()
	b, err := io.ReadAll(f)
	require.NoError(t, err)
	return b
}

// flip changes one byte of a file.
func flip(t testing.TB, fs vfs.FS, path string, at int64) { flipBits(t, fs, path, at, 0xff) }

func flipBits(t testing.TB, fs vfs.FS, path string, at int64, mask byte) {
	b := readFile(t, fs, path)
	f, err := fs.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
	require.NoError(t, err)
	_, err = f.WriteAt([]byte{b[at] ^ mask}, at)
	require.NoError(t, err)
	require.NoError(t, f.Close())
}

// dones checks what Store promises about done: once each, in order, no success
// after a failure.
type dones struct {
	mu      sync.Mutex
	next    int
	made    int // by count
	synced  int // groups up to here were promised to be durable
	failed  error
	problem string
	all     sync.WaitGroup
}

func (d *dones) expect(i int, synced bool) func(storage.Result) {
	d.all.Add(1)
	return func(r storage.Result) {
		d.mu.Lock()
		defer d.mu.Unlock()
		defer d.all.Done()
		if i != d.next {
			d.problem = "dones out of order"
		}
		d.next++
		switch {
		case r.Err != nil:
			d.failed = r.Err
		case d.failed != nil:
			d.problem = "success after a failure"
		case synced:
			d.synced = i + 1
		}
	}
}

// count numbers calls of expect.
func (d *dones) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.made++
	return d.made - 1
}

func (d *dones) promised() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.synced
}

func setBase(b []byte, base int64) { record.Stamp(b, base, 1) }

// home is the directory of the database of the store in "d".
func home(t testing.TB, fs vfs.FS) string {
	names, err := fs.List("d")
	require.NoError(t, err)
	newest := ""
	for _, n := range names {
		if strings.HasPrefix(n, "db-") {
			newest = max(newest, n)
		}
	}
	require.NotEmpty(t, newest)
	return fs.PathJoin("d", newest)
}

// crashMem is a vfs.MemFS whose CrashClone may be called at any time. In Pebble 2.1.7
// ReuseForWrite takes a read lock twice, and one that meets a CrashClone in between
// waits for ever, and so does the CrashClone.
type crashMem struct {
	*vfs.MemFS
	reuse sync.Mutex
}

func newCrashMem() *crashMem { return &crashMem{MemFS: vfs.NewCrashableMem()} }

func (m *crashMem) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (vfs.File, error) {
	m.reuse.Lock()
	defer m.reuse.Unlock()
	return m.MemFS.ReuseForWrite(from, to, c)
}

// cut is a power cut now, which keeps some of what was not synced.
func (m *crashMem) cut(percent int, rng *rand.Rand) *crashMem {
	m.reuse.Lock()
	defer m.reuse.Unlock()
	return &crashMem{MemFS: m.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng})}
}

// failure is the error of the first group that failed.
func (d *dones) failure() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.failed
}
