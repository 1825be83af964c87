package memstore_test

import (
	"testing"

	"github.com/tidemark-log/tidemark/storage"
	"github.com/tidemark-log/tidemark/storage/memstore"
	"github.com/tidemark-log/tidemark/storage/storagetest"
)

type place struct{ *memstore.Disk }

func (p place) Open() (storage.Store, error) {
	s, err := p.Disk.Open()
	if err != nil {
		return nil, err
	}
	return s, nil
}

func TestConformance(t *testing.T) {
	storagetest.Run(t, func(testing.TB) storagetest.Place { return place{memstore.NewDisk()} })
}
