package pebblecoord

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/coordination/internal/engine"
	"github.com/tidemark-log/tidemark/internal/pebblefs"
)

// Keys of the database. The metadata sorts before the keys of the store, which
// have keyPrefix in front.
var (
	metaFormat     = []byte("\x00format")
	metaGeneration = []byte("\x00generation")
	metaRevision   = []byte("\x00revision")
	keyPrefix      = []byte("k")
	keyEnd         = []byte("l")
)

// format is the value of metaFormat: the layout of keys and values.
const format = "1"

// disk is an open directory.
type disk struct {
	db    *pebble.DB
	lock  io.Closer
	guard *pebblefs.Guard
}

// content is what a directory held when it was opened.
type content struct {
	revision   int64
	generation uint64
	keys       []coordination.KV
}

// openDisk takes the directory and opens the database in it.
func openDisk(dir string, fs vfs.FS, out *slog.Logger) (*disk, error) {
	if fs == nil {
		fs = vfs.Default
	}
	path, lock, err := takeDir(fs, dir)
	if err != nil {
		return nil, fmt.Errorf("pebblecoord: open %s: %w", dir, err)
	}
	d := &disk{lock: lock, guard: pebblefs.NewGuard(fs)}
	d.guard.Live()
	err = caught(func() (err error) {
		d.db, err = pebble.Open(fs.PathJoin(path, dbDir), &pebble.Options{
			FS:     d.guard,
			Logger: &logger{out: out, fail: d.guard.Fail},
			// Pinned: a newer library must not make the directory unreadable for an older
			// one. With this version a torn WAL write is told from a damaged one.
			FormatMajorVersion: pebble.FormatWALSyncChunks,
			MemTableSize:       4 << 20,
			EventListener: &pebble.EventListener{
				BackgroundError: func(err error) { out.Warn("pebblecoord: background error", "error", err) },
			},
		})
		return err
	})
	if err == nil {
		return d, nil
	}
	if failure := d.guard.Err(); failure != nil {
		err = failure // what Pebble stumbled over may only be its consequence
	}
	return nil, errors.Join(fmt.Errorf("pebblecoord: open %s: %w", dir, err), d.release())
}

// begin reads the content, drops the ephemeral keys and starts a new generation.
func (d *disk) begin() (content, error) {
	c, ephemeral, err := d.load()
	if err != nil {
		return content{}, err
	}
	c.generation++
	if len(ephemeral) > 0 {
		c.revision++
	}
	b := d.db.NewBatch()
	for _, key := range ephemeral {
		if err := b.Delete(dbKey(key), nil); err != nil {
			return content{}, errors.Join(err, b.Close())
		}
	}
	err = errors.Join(
		b.Set(metaFormat, []byte(format), nil),
		b.Set(metaGeneration, binary.BigEndian.AppendUint64(nil, c.generation), nil),
		b.Set(metaRevision, binary.BigEndian.AppendUint64(nil, uint64(c.revision)), nil),
	)
	if err != nil {
		return content{}, errors.Join(err, b.Close())
	}
	return c, d.commit(b)
}

// load returns the content and, apart from it, the names of the ephemeral keys.
func (d *disk) load() (c content, ephemeral []string, err error) {
	it, err := d.db.NewIter(nil)
	if err != nil {
		return content{}, nil, err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	if !it.First() {
		return content{}, nil, it.Error() // a new store
	}
	// The metadata is written together, so that either all of it is there or nothing.
	meta := make(map[string][]byte)
	for ; it.Valid() && string(it.Key()) < string(keyPrefix); it.Next() {
		meta[string(it.Key())] = append([]byte(nil), it.Value()...)
	}
	generation, revision := meta[string(metaGeneration)], meta[string(metaRevision)]
	if string(meta[string(metaFormat)]) != format || len(generation) != 8 || len(revision) != 8 {
		return content{}, nil, errors.Join(fmt.Errorf("%w: metadata %q", ErrFormat, meta), it.Error())
	}
	c.generation = binary.BigEndian.Uint64(generation)
	c.revision = int64(binary.BigEndian.Uint64(revision))
	for ; it.Valid(); it.Next() {
		key := it.Key()
		if string(key) >= string(keyEnd) {
			return content{}, nil, fmt.Errorf("%w: key %q", ErrFormat, key)
		}
		kv, err := decode(string(key[len(keyPrefix):]), it.Value())
		if err != nil {
			return content{}, nil, err
		}
		if kv.Revision < 1 || kv.Revision > c.revision {
			return content{}, nil, fmt.Errorf("%w: key %q has revision %d of %d", ErrFormat, key, kv.Revision, c.revision)
		}
		if kv.Session != "" {
			ephemeral = append(ephemeral, kv.Key)
		} else {
			c.keys = append(c.keys, kv)
		}
	}
	return c, ephemeral, it.Error()
}

// persist makes a change durable. It is not called again after an error.
func (d *disk) persist(ch engine.Change) error {
	b := d.db.NewBatch()
	for _, ev := range ch.Events {
		var err error
		if ev.Deleted {
			err = b.Delete(dbKey(ev.Key), nil)
		} else {
			err = b.Set(dbKey(ev.Key), encode(ev.KV), nil)
		}
		if err != nil {
			return errors.Join(err, b.Close())
		}
	}
	if err := b.Set(metaRevision, binary.BigEndian.AppendUint64(nil, uint64(ch.Revision)), nil); err != nil {
		return errors.Join(err, b.Close())
	}
	return d.commit(b)
}

// commit applies and syncs b. DB.Apply would hide a failed sync behind Fatalf and
// return nil; the two steps return it (D24).
func (d *disk) commit(b *pebble.Batch) error {
	err := caught(func() error {
		if err := d.db.ApplyNoSyncWait(b, pebble.Sync); err != nil {
			return err
		}
		return b.SyncWait()
	})
	if failure := d.guard.Err(); failure != nil {
		err = failure
	}
	if err != nil {
		// The batch may still be in the hands of the database: it is left to the collector.
		return fmt.Errorf("pebblecoord: write failed: %w", err)
	}
	return b.Close()
}

// close closes the database and returns the failure of this open, if there was
// one. It frees the directory once nothing can write to it any more.
func (d *disk) close() error {
	d.guard.Hurry()
	err := caught(d.db.Close)
	return errors.Join(d.guard.Err(), err, d.release())
}

// release frees the directory when the last write is over. What is left of the
// database writes no more.
func (d *disk) release() error {
	<-d.guard.Fence()
	return d.lock.Close()
}

func dbKey(key string) []byte { return append(append([]byte(nil), keyPrefix...), key...) }

// encode: revision, length of the session id, session id, value.
func encode(kv coordination.KV) []byte {
	b := make([]byte, 0, 2*binary.MaxVarintLen64+len(kv.Session)+len(kv.Value))
	b = binary.AppendUvarint(b, uint64(kv.Revision))
	b = binary.AppendUvarint(b, uint64(len(kv.Session)))
	b = append(b, kv.Session...)
	return append(b, kv.Value...)
}

func decode(key string, b []byte) (coordination.KV, error) {
	revision, n := binary.Uvarint(b)
	if n <= 0 {
		return coordination.KV{}, fmt.Errorf("%w: value of key %q", ErrFormat, key)
	}
	b = b[n:]
	size, n := binary.Uvarint(b)
	if n <= 0 || size > uint64(len(b)-n) {
		return coordination.KV{}, fmt.Errorf("%w: value of key %q", ErrFormat, key)
	}
	b = b[n:]
	return coordination.KV{
		Key:      key,
		Revision: int64(revision),
		Session:  string(b[:size]),
		Value:    append([]byte{}, b[size:]...),
	}, nil
}
