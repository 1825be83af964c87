package pebblestore

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"

	pebblerecord "github.com/cockroachdb/pebble/v2/record"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-log/tidemark/internal/pebblefs"
	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/storage"
)

// Pebble ends its replay of the newest WAL at the first chunk that does not hold,
// taking it for a write that a power cut has torn. Its sync chunks are meant to
// tell that from damage, but in v2.1.7 the offset they carry leaves out every full
// block of 32 KiB and the rest of the damaged block is not looked at, so that one
// flipped bit can silently drop all that follows it. The manifest it reads in the
// same way and without sync chunks: a flipped bit makes it the manifest of an earlier
// time, whose tables may all be there while a WAL that it needs has been recycled.
//
// Therefore each group carries a mark, in a part of its batch that goes to the WAL
// only: up to where this WAL and the manifest were synced when the group was made. A
// mark in or behind what can be read of the newest WAL, saying that more was synced
// than can be read, proves damage. What was synced after the last mark is not
// covered; Open and Close leave a mark for all of it.

const markSize = 16 + 4*8 + 4

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// syncedMark says what is on the disk. It begins with the directory id, by which it
// is found among other bytes.
func syncedMark(directory protocol.UUID, at pebblefs.Synced) []byte {
	m := make([]byte, 0, markSize)
	m = append(m, directory[:]...)
	m = be.AppendUint64(m, at.WAL.Num)
	m = be.AppendUint64(m, uint64(at.WAL.Bytes))
	m = be.AppendUint64(m, at.Manifest.Num)
	m = be.AppendUint64(m, uint64(at.Manifest.Bytes))
	return be.AppendUint32(m, crc32.Checksum(m, castagnoli))
}

// lastMark returns the highest of the marks in b: what they say of WAL num, and of the
// newest manifest.
func lastMark(b []byte, directory protocol.UUID, num uint64) (last pebblefs.Synced) {
	for {
		i := bytes.Index(b, directory[:])
		if i < 0 || len(b)-i < markSize {
			return last
		}
		m := b[i : i+markSize]
		if crc32.Checksum(m[:markSize-4], castagnoli) == be.Uint32(m[markSize-4:]) {
			if be.Uint64(m[16:]) == num {
				last.WAL = higher(last.WAL, pebblefs.Position{Num: num, Bytes: int64(be.Uint64(m[24:]))})
			}
			last.Manifest = higher(last.Manifest, pebblefs.Position{Num: be.Uint64(m[32:]), Bytes: int64(be.Uint64(m[40:]))})
		}
		b = b[i+1:]
	}
}

func higher(a, b pebblefs.Position) pebblefs.Position {
	if a.Num > b.Num || a.Num == b.Num && a.Bytes > b.Bytes {
		return a
	}
	return b
}

// What Pebble leaves empty at the end of a block is less than a chunk's header.
const (
	walPadding      = 18
	manifestPadding = 6
)

// checkSynced reads the newest WAL and its manifest as Pebble will and errs when it
// would stop short. It writes nothing.
func checkSynced(fsys vfs.FS, dir string, directory protocol.UUID) error {
	names, err := fsys.List(dir)
	if err != nil {
		return err
	}
	newest, name := uint64(0), ""
	for _, n := range names {
		if num, ok := pebblefs.WALNumber(n); ok && (name == "" || num > newest) {
			newest, name = num, n
		}
	}
	if name == "" {
		return nil
	}
	content, err := readAll(fsys, fsys.PathJoin(dir, name))
	if err != nil {
		return err
	}
	// Also what a recycled WAL had before is looked at: a mark is true wherever it is.
	last := lastMark(content, directory, newest)
	if err := mustReach(content, newest, last.WAL.Bytes-walPadding, name); err != nil {
		return err
	}
	name = pebblefs.ManifestName(last.Manifest.Num)
	content, err = readAll(fsys, fsys.PathJoin(dir, name))
	if errors.Is(err, fs.ErrNotExist) { // no mark, or a newer manifest has replaced it
		return nil
	}
	if err != nil {
		return err
	}
	return mustReach(content, 0, last.Manifest.Bytes-manifestPadding, name)
}

// mustReach errs when the records in content, a file of Pebble's that was synced beyond
// a place, end before that.
func mustReach(content []byte, num uint64, least int64, name string) error {
	if stop := recordsEnd(content, num); stop < least {
		return fmt.Errorf("%w: %s cannot be read from byte %d on, but was synced beyond byte %d", storage.ErrDamaged, name, stop, least)
	}
	return nil
}

// recordsEnd is where the last whole record ends. num is part of the records of WALs.
func recordsEnd(content []byte, num uint64) (end int64) {
	records := newReader(pebblerecord.NewReader, bytes.NewReader(content), num)
	for {
		rec, err := records.Next()
		if err == nil {
			_, err = io.Copy(io.Discard, rec)
		}
		if err != nil {
			return end
		}
		end = records.Offset()
	}
}

// newReader calls f with a number whose type is internal to Pebble.
func newReader[N ~uint64, R any](f func(io.Reader, N) R, r io.Reader, num uint64) R {
	return f(r, N(num))
}

func readAll(fsys vfs.FS, path string) ([]byte, error) {
	f, err := fsys.Open(path, vfs.SequentialReadsOption)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	content := make([]byte, info.Size())
	n, err := io.ReadFull(f, content)
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		err = nil
	}
	return content[:n], err
}
