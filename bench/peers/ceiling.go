package peers

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/sync/errgroup"

	"github.com/tidemark-log/tidemark/bench/meter"
)

// ceilingBatch is how many bytes a store syncs at a time.
const ceilingBatch = 256 << 10

// ceilingPeer is no log, but what the disk and Pebble leave room for: three bare stores
// with the options of storage/pebblestore, each with a goroutine that writes the same as
// the others. Where many records are under way, each writes at its own pace.
type ceilingPeer struct {
	stores  []*bareStore
	config  Config
	keys    atomic.Uint64
	running sync.WaitGroup
	writes  meter.Writes

	mu      sync.Mutex
	batches int // that all stores were fed
}

// bareStore is one Pebble.
type bareStore struct {
	db      *pebble.DB
	write   *pebble.WriteOptions
	todo    chan bareWrite
	batches int // that it was fed; guarded by the peer's lock
}

// bareWrite is what all stores write at once.
type bareWrite struct {
	key   uint64
	value []byte
	ended chan<- error // has room for all
}

func openCeiling(_ context.Context, c Config) (Peer, error) {
	p := &ceilingPeer{config: c}
	for i := range replicas {
		db, err := pebble.Open(filepath.Join(c.Dir, fmt.Sprintf("bare-%d", i)), bareOptions(p.writes.FS(vfs.Default)))
		if err != nil {
			return nil, errors.Join(err, p.Close())
		}
		s := &bareStore{db: db, todo: make(chan bareWrite), write: pebble.Sync}
		if c.Background {
			s.write = pebble.NoSync
		}
		p.stores = append(p.stores, s)
		p.running.Go(s.run)
	}
	return p, nil
}

// bareOptions are those of storage/pebblestore that matter for writes.
func bareOptions(fs vfs.FS) *pebble.Options {
	o := &pebble.Options{
		FS: fs, Logger: quiet{}, FormatMajorVersion: pebble.FormatTableFormatV6,
		CacheSize: 16 << 20, MemTableSize: 64 << 20, MemTableStopWritesThreshold: 4,
		L0CompactionThreshold: 4, L0StopWritesThreshold: 1000, LBaseMaxBytes: 256 << 20,
		FlushSplitBytes: 16 << 20, MaxOpenFiles: 256,
	}
	o.ApplyCompressionSettings(func() pebble.DBCompressionSettings { return pebble.DBCompressionNone })
	for i := range o.TargetFileSizes {
		o.TargetFileSizes[i] = 16 << 20
	}
	o.CompactionConcurrencyRange = func() (int, int) { return 1, 2 }
	return o
}

// quiet is a logger for Pebble that says nothing but what must not be missed.
type quiet struct{}

func (quiet) Infof(string, ...any)         {}
func (quiet) Errorf(string, ...any)        {}
func (quiet) Fatalf(f string, args ...any) { panic(fmt.Sprintf("bench: pebble: "+f, args...)) }

func (s *bareStore) run() {
	for w := range s.todo {
		w.ended <- s.set(w.key, w.value)
	}
}

func (s *bareStore) set(key uint64, value []byte) error {
	return s.db.Set(binary.BigEndian.AppendUint64(nil, key), value, s.write)
}

// AppendWait has all stores sync one value each, in parallel.
func (p *ceilingPeer) AppendWait(_ context.Context, _ int, value []byte) error {
	ended := make(chan error, len(p.stores))
	w := bareWrite{p.keys.Add(1), value, ended}
	for _, s := range p.stores {
		s.todo <- w
	}
	var failed error
	for range p.stores {
		failed = errors.Join(failed, <-ended)
	}
	return failed
}

func (p *ceilingPeer) Feed(going context.Context, fill func([]byte, uint64), ended func(int, time.Duration)) error {
	g, going := errgroup.WithContext(going)
	for _, s := range p.stores {
		g.Go(func() error { return p.feed(going, s, fill, ended) })
	}
	return g.Wait()
}

// feed writes batches to one store.
func (p *ceilingPeer) feed(going context.Context, s *bareStore, fill func([]byte, uint64), ended func(int, time.Duration)) error {
	size := p.config.ValueBytes
	count := max(1, ceilingBatch/size)
	batch := make([]byte, count*size)
	for key := uint64(0); going.Err() == nil; key++ {
		for i := range count {
			fill(batch[i*size:(i+1)*size], key*uint64(count)+uint64(i))
		}
		began := time.Now()
		if err := s.set(key, batch); err != nil {
			return err
		}
		if p.fed(s) {
			ended(count, time.Since(began))
		}
	}
	return nil
}

// fed counts a batch, and reports whether all stores have one more now.
func (p *ceilingPeer) fed(s *bareStore) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.batches++
	for _, other := range p.stores {
		if other.batches <= p.batches {
			return false
		}
	}
	p.batches++
	return true
}

// Read reads what all stores have, and compares them.
func (p *ceilingPeer) Read(_ context.Context, _ int, f func([]byte) error) (err error) {
	var its []*pebble.Iterator
	defer func() {
		for _, it := range its {
			err = errors.Join(err, it.Close())
		}
	}()
	for _, s := range p.stores {
		it, err := s.db.NewIter(nil)
		if err != nil {
			return err
		}
		its = append(its, it)
		it.First()
	}
	all := int(p.keys.Load()) + p.batches
	for n := range all {
		first := its[0].Value()
		for _, it := range its {
			if !it.Valid() || !bytes.Equal(it.Value(), first) {
				return errors.Join(fmt.Errorf("bench: stores differ at key %d of %d", n, all), it.Error())
			}
		}
		for ; len(first) > 0; first = first[p.config.ValueBytes:] {
			if err := f(first[:p.config.ValueBytes]); err != nil {
				return err
			}
		}
		for _, it := range its {
			it.Next()
		}
	}
	return nil
}

func (p *ceilingPeer) Writes() *meter.Writes { return &p.writes }

func (p *ceilingPeer) Close() error {
	for _, s := range p.stores {
		close(s.todo)
	}
	p.running.Wait()
	var errs []error
	for _, s := range p.stores {
		errs = append(errs, s.db.Close())
	}
	return errors.Join(errs...)
}
