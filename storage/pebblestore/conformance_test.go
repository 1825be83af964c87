package pebblestore_test

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/goleak"

	"github.com/tidemark-log/tidemark/storage"
	"github.com/tidemark-log/tidemark/storage/pebblestore"
	"github.com/tidemark-log/tidemark/storage/storagetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// place is a directory with options.
type place struct {
	dir string
	o   pebblestore.Options
}

func (p place) Open() (storage.Store, error) {
	s, err := pebblestore.Open(p.dir, p.o)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// small makes segments and memtables so small that a test has many of them.
func small(fs vfs.FS) pebblestore.Options {
	return pebblestore.Options{FS: fs, CacheBytes: 1 << 20, MemtableBytes: 256 << 10, SegmentBytes: 700}
}

func TestConformance(t *testing.T) {
	storagetest.Run(t, func(testing.TB) storagetest.Place { return place{"store", small(vfs.NewMem())} })
}

func TestConformanceOnDisk(t *testing.T) {
	storagetest.RunExamples(t, func(t testing.TB) storagetest.Place {
		return place{t.TempDir(), pebblestore.Options{MemtableBytes: 1 << 20}}
	})
}
