package memstore_test

import (
	"errors"
	"testing"
	"time"

	"github.com/tidemark-log/tidemark/storage"
	"github.com/tidemark-log/tidemark/storage/memstore"
	"github.com/tidemark-log/tidemark/storage/storagetest"
)

// place is all that the suite can use.
type place struct{ disk *memstore.Disk }

func (p place) Open() (storage.Store, error) {
	p.disk.FailWrites(nil)
	s, err := p.disk.Open()
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (p place) Crash() { p.disk.Crash(0) }

func (p place) Damage(log storage.LogID, led bool) { p.disk.Damage(log, led) }

func (p place) Hang(on bool) {
	if on {
		p.disk.Hang()
	} else {
		p.disk.Unhang()
	}
}

func (p place) Fail() { p.disk.FailWrites(errors.New("disk on fire")) }

func TestConformance(t *testing.T) {
	storagetest.Run(t, func(testing.TB) storagetest.Place {
		return place{memstore.NewDisk(memstore.CloseTimeout(time.Second))}
	})
}
