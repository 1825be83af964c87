package pebblestore_test

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tidemark-log/tidemark/storage"
	"github.com/tidemark-log/tidemark/storage/pebblestore"
	"github.com/tidemark-log/tidemark/storage/storagetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// place is a disk in memory with all that the suite can use.
type place struct {
	t    testing.TB
	mem  *vfs.MemFS
	gate *gate
	last *pebblestore.Store
}

func newPlace(t testing.TB) storagetest.Place {
	return &place{t: t, mem: vfs.NewCrashableMem(), gate: newGate()}
}

func (p *place) Open() (storage.Store, error) {
	p.gate.fail(nil)
	o := small(errorfs.Wrap(p.mem, p.gate))
	o.CloseTimeout = time.Second
	s, err := pebblestore.Open("d", o)
	if err != nil {
		return nil, err
	}
	p.last = s
	return s, nil
}

func (p *place) Crash() {
	p.mem = p.mem.CrashClone(vfs.CrashCloneCfg{})
	require.NoError(p.t, p.last.Fence())
}

func (p *place) Damage(id storage.LogID, led bool) {
	tamper(p.t, p.mem, func(db *pebble.DB) {
		k := append([]byte{2}, id.Topic[:]...)
		k = binary.BigEndian.AppendUint32(k, uint32(id.Partition))
		if led {
			k[0] = 3
		}
		require.NoError(p.t, db.Set(k, []byte{1}, pebble.Sync)) // too short
	})
}

func (p *place) Hang(on bool) {
	if on {
		p.gate.hang(func(errorfs.Op) bool { return true })
	} else {
		p.gate.open()
	}
}

func (p *place) Fail() { p.gate.fail(errDisk) }

// small makes segments and memtables so small that a test has many of them.
func small(fs vfs.FS) pebblestore.Options {
	return pebblestore.Options{FS: fs, CacheBytes: 1 << 20, MemtableBytes: 256 << 10, SegmentBytes: 700}
}

func TestConformance(t *testing.T) { storagetest.Run(t, newPlace) }

// onDisk is a directory of the operating system. Its crash is that of a process.
type onDisk struct {
	t    testing.TB
	dir  string
	last *pebblestore.Store
}

func (p *onDisk) Open() (storage.Store, error) {
	s, err := pebblestore.Open(p.dir, pebblestore.Options{MemtableBytes: 1 << 20})
	if err != nil {
		return nil, err
	}
	p.last = s
	return s, nil
}

func (p *onDisk) Crash() { require.NoError(p.t, p.last.Fence()) }

func TestConformanceOnDisk(t *testing.T) {
	storagetest.RunExamples(t, func(t testing.TB) storagetest.Place { return &onDisk{t: t, dir: t.TempDir()} })
}
