package pebblecoord

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"hash/fnv"
	"io"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// Pebble takes the first chunk of a write-ahead log or a manifest that does not
// hold for the end that a power cut has left, and opens with what comes before: a
// flipped bit can silently bring back an old state, and a manifest that ends too
// early can leave out tables. So there are two proofs of what a store must hold:
//
//   - The sum over all keys and values is written with each of them. It shows
//     whether what was read was ever the content of the store.
//   - Each write begins with a mark, which goes to the write-ahead log only: the
//     revision that was durable before. A mark anywhere in a log proves that the
//     store had come that far. Close leaves one for the last write.
//
// What nothing covers is damage to the last write before a crash, which looks like
// a write that was cut short.

// examine reads the database without writing anything, and errs when it is damaged.
// Only then may it be opened for good, which makes what it reads the truth.
func (d *disk) examine(fs vfs.FS, dir string) error {
	desc, err := pebble.Peek(dir, fs)
	if err != nil {
		return err
	}
	names, err := fs.List(dir)
	if err != nil {
		return err
	}
	marked := int64(0)
	for _, name := range names {
		if !desc.Exists && (strings.HasSuffix(name, ".log") || strings.HasSuffix(name, ".sst")) {
			return fmt.Errorf("%w: there is %s, but nothing that says what the database consists of", ErrDamaged, name)
		}
		if strings.HasSuffix(name, ".log") {
			b, err := readFile(fs, fs.PathJoin(dir, name))
			if err != nil {
				return err
			}
			marked = max(marked, maxMark(b))
		}
	}
	if !desc.Exists {
		return nil // a first open that was cut short
	}
	db, err := pebble.Open(dir, d.options(true))
	if err != nil {
		return err
	}
	c, err := load(db)
	if err = errors.Join(err, db.Close()); err != nil {
		return err
	}
	if c.revision < marked {
		return fmt.Errorf("%w: only revision %d can be read, but %d was durable", ErrDamaged, c.revision, marked)
	}
	return nil
}

func readFile(fs vfs.FS, path string) ([]byte, error) {
	f, err := fs.Open(path, vfs.SequentialReadsOption)
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(f)
	return b, errors.Join(err, f.Close())
}

// markStart tells a mark from other bytes, together with its checksum.
var markStart = []byte("\x00tidemark durable\x00")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// mark says that everything up to revision is durable.
func mark(revision int64) []byte {
	m := binary.BigEndian.AppendUint64(bytes.Clone(markStart), uint64(revision))
	return binary.BigEndian.AppendUint32(m, crc32.Checksum(m, castagnoli))
}

// maxMark returns the highest revision of the marks in b, 0 if there is none. One
// that lies across two blocks of a log is not found; the next one is.
func maxMark(b []byte) (revision int64) {
	size := len(markStart) + 8
	for {
		i := bytes.Index(b, markStart)
		if i < 0 || len(b)-i < size+4 {
			return revision
		}
		b = b[i:]
		if crc32.Checksum(b[:size], castagnoli) == binary.BigEndian.Uint32(b[size:]) {
			revision = max(revision, int64(binary.BigEndian.Uint64(b[len(markStart):])))
		}
		b = b[1:]
	}
}

// sums is the sum over a content, and what each key adds to it.
type sums struct {
	of    map[string]uint64
	total uint64
}

func (s *sums) set(key string, value []byte) {
	s.remove(key)
	h := fnv.New64a()
	h.Write(binary.AppendUvarint(nil, uint64(len(key))))
	h.Write([]byte(key))
	h.Write(value)
	s.of[key] = h.Sum64()
	s.total += s.of[key]
}

func (s *sums) remove(key string) {
	s.total -= s.of[key]
	delete(s.of, key)
}
