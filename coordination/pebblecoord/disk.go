package pebblecoord

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	iofs "io/fs"
	"log/slog"
	"strings"

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
	metaSum        = []byte("\x00sum")
	keyPrefix      = []byte("k")
)

// format is the value of metaFormat: the layout of keys and values.
const format = "1"

// disk is an open directory.
type disk struct {
	db    *pebble.DB
	lock  io.Closer
	guard *pebblefs.Guard
	out   *slog.Logger

	begun    bool  // the rest counts
	revision int64 // of the last write
	sums     sums
}

// content is what a directory held when it was opened.
type content struct {
	revision   int64
	generation uint64
	keys       []coordination.KV
	ephemeral  []string // names of the keys that are not in keys
	sums       sums     // over all of them
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
	d := &disk{lock: lock, guard: pebblefs.NewGuard(fs), out: out}
	d.guard.Live()
	err = caught(func() (err error) {
		if err = d.examine(d.guard, fs.PathJoin(path, dbDir)); err == nil {
			d.db, err = pebble.Open(fs.PathJoin(path, dbDir), d.options(false))
		}
		return err
	})
	if err == nil {
		return d, nil
	}
	if failure := d.guard.Err(); failure != nil {
		err = failure // what Pebble stumbled over may only be its consequence
	} else if pebble.IsCorruptionError(err) || errors.Is(err, iofs.ErrNotExist) { // what is not there should be
		err = fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return nil, errors.Join(fmt.Errorf("pebblecoord: open %s: %w", dir, err), d.release())
}

func (d *disk) options(readOnly bool) *pebble.Options {
	return &pebble.Options{
		FS:       d.guard,
		ReadOnly: readOnly,
		Logger:   &logger{out: d.out, fail: d.guard.Fail},
		// Pinned: a newer library must not make the directory unreadable for an older
		// one. With this version a torn WAL write is told from a damaged one, mostly
		// (damage.go).
		FormatMajorVersion: pebble.FormatWALSyncChunks,
		MemTableSize:       4 << 20,
		EventListener: &pebble.EventListener{
			BackgroundError: func(err error) { d.out.Warn("pebblecoord: background error", "error", err) },
			DataCorruption: func(info pebble.DataCorruptionInfo) {
				d.guard.Fail(fmt.Errorf("%w: %s: %w", ErrDamaged, info.Path, info.Details))
			},
		},
	}
}

// begin reads the content, drops the ephemeral keys and starts a new generation.
func (d *disk) begin() (content, error) {
	c, err := load(d.db)
	if err != nil {
		return content{}, err
	}
	c.generation++
	d.begun, d.revision, d.sums = true, c.revision, c.sums
	if len(c.ephemeral) > 0 {
		c.revision++
	}
	return c, d.write(c.revision, func(b *pebble.Batch) error {
		for _, key := range c.ephemeral {
			d.sums.remove(key)
			if err := b.Delete(dbKey(key), nil); err != nil {
				return err
			}
		}
		return errors.Join(
			b.Set(metaFormat, []byte(format), nil),
			b.Set(metaGeneration, binary.BigEndian.AppendUint64(nil, c.generation), nil),
		)
	})
}

// load returns the content of the database.
func load(db *pebble.DB) (c content, err error) {
	c.sums.of = make(map[string]uint64)
	it, err := db.NewIter(nil)
	if err != nil {
		return content{}, err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	if !it.First() {
		return c, it.Error() // a new store
	}
	// The metadata is written together, so that either all of it is there or nothing.
	meta := make(map[string][]byte)
	for ; it.Valid() && string(it.Key()) < string(keyPrefix); it.Next() {
		meta[string(it.Key())] = append([]byte(nil), it.Value()...)
	}
	generation, revision, sum := meta[string(metaGeneration)], meta[string(metaRevision)], meta[string(metaSum)]
	if string(meta[string(metaFormat)]) != format || len(generation) != 8 || len(revision) != 8 || len(sum) != 8 {
		return content{}, errors.Join(fmt.Errorf("%w: metadata %q", ErrFormat, meta), it.Error())
	}
	c.generation = binary.BigEndian.Uint64(generation)
	c.revision = int64(binary.BigEndian.Uint64(revision))
	for ; it.Valid(); it.Next() {
		if err := c.add(it.Key(), it.Value()); err != nil {
			return content{}, err
		}
	}
	if err := it.Error(); err != nil {
		return content{}, err
	}
	if c.sums.total != binary.BigEndian.Uint64(sum) {
		return content{}, fmt.Errorf("%w: the %d keys that can be read are not those of revision %d", ErrDamaged, len(c.sums.of), c.revision)
	}
	return c, nil
}

// add takes a key as it is in the database.
func (c *content) add(key, value []byte) error {
	name, ours := strings.CutPrefix(string(key), string(keyPrefix))
	if !ours {
		return fmt.Errorf("%w: key %q", ErrFormat, key)
	}
	kv, err := decode(name, value)
	if err != nil {
		return err
	}
	if kv.Revision < 1 || kv.Revision > c.revision {
		return fmt.Errorf("%w: key %q has revision %d of %d", ErrFormat, key, kv.Revision, c.revision)
	}
	c.sums.set(name, value)
	if kv.Session != "" {
		c.ephemeral = append(c.ephemeral, name)
	} else {
		c.keys = append(c.keys, kv)
	}
	return nil
}

// persist makes a change durable. It is not called again after an error.
func (d *disk) persist(ch engine.Change) error {
	return d.write(ch.Revision, func(b *pebble.Batch) error {
		for _, ev := range ch.Events {
			var err error
			if ev.Deleted {
				d.sums.remove(ev.Key)
				err = b.Delete(dbKey(ev.Key), nil)
			} else {
				value := encode(ev.KV)
				d.sums.set(ev.Key, value)
				err = b.Set(dbKey(ev.Key), value, nil)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// write makes what fill puts into a batch durable, as of the revision, and with it
// the proofs that it was (damage.go). It is not called again after an error.
func (d *disk) write(revision int64, fill func(*pebble.Batch) error) error {
	b := d.db.NewBatch()
	err := b.LogData(mark(d.revision), nil)
	if err == nil {
		err = fill(b)
	}
	if err == nil {
		err = errors.Join(
			b.Set(metaRevision, binary.BigEndian.AppendUint64(nil, uint64(revision)), nil),
			b.Set(metaSum, binary.BigEndian.AppendUint64(nil, d.sums.total), nil),
		)
	}
	if err != nil {
		return errors.Join(err, b.Close())
	}
	d.revision = revision
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
		d.guard.Fail(err)
		// The batch may still be in the hands of the database: it is left to the collector.
		return fmt.Errorf("pebblecoord: write failed: %w", err)
	}
	return b.Close()
}

// close closes the database and returns the failure of this open, if there was
// one. It frees the directory once nothing can write to it any more.
func (d *disk) close() error {
	var unmarked error
	if d.begun && d.guard.Err() == nil {
		unmarked = d.write(d.revision, func(*pebble.Batch) error { return nil })
	}
	d.guard.Hurry()
	err := caught(d.db.Close)
	if failure := d.guard.Err(); failure != nil {
		unmarked = failure
	}
	return errors.Join(unmarked, err, d.release())
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
