package pebblestore

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

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
// flipped bit can silently drop all that follows it.
//
// Therefore each group carries a mark, in a part of its batch that goes to the WAL
// only: up to where this WAL was synced when the group was made. A mark behind the
// place where the replay would end, saying that more than that was synced, proves
// damage. What was synced after the last mark is not covered; Close leaves a mark
// for all of it.

const markSize = 16 + 8 + 8 + 4

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// walMark says that the first synced bytes of WAL num are on the disk. It begins
// with the directory id, by which it is found among other bytes.
func walMark(directory protocol.UUID, num uint64, synced int64) []byte {
	m := make([]byte, 0, markSize)
	m = append(m, directory[:]...)
	m = be.AppendUint64(m, num)
	m = be.AppendUint64(m, uint64(synced))
	return be.AppendUint32(m, crc32.Checksum(m, castagnoli))
}

// maxMark returns how much of WAL num was synced according to the marks in b.
func maxMark(b []byte, directory protocol.UUID, num uint64) (synced int64) {
	for {
		i := bytes.Index(b, directory[:])
		if i < 0 || len(b)-i < markSize {
			return synced
		}
		m := b[i : i+markSize]
		if crc32.Checksum(m[:markSize-4], castagnoli) == be.Uint32(m[markSize-4:]) && be.Uint64(m[16:]) == num {
			synced = max(synced, int64(be.Uint64(m[24:])))
		}
		b = b[i+1:]
	}
}

// walPadding is the most that Pebble leaves empty at the end of a block: less than
// a chunk's header.
const walPadding = 18

// checkWAL reads the newest WAL as Pebble will and errs when it would stop short.
// It writes nothing.
func checkWAL(fsys vfs.FS, dir string, directory protocol.UUID) error {
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
	f, err := fsys.Open(fsys.PathJoin(dir, name), vfs.SequentialReadsOption)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	stop, err := walEnd(io.NewSectionReader(f, 0, info.Size()), newest)
	if err != nil {
		return err
	}
	rest := make([]byte, info.Size()-stop)
	if _, err := f.ReadAt(rest, stop); err != nil && err != io.EOF {
		return err
	}
	if synced := maxMark(rest, directory, newest); synced > stop+walPadding {
		return fmt.Errorf("%w: write-ahead log %s cannot be read from byte %d on, but %d bytes of it were synced", storage.ErrDamaged, name, stop, synced)
	}
	return nil
}

// walEnd is where the last whole record ends. The error is one of reading r.
func walEnd(r io.Reader, num uint64) (int64, error) {
	source := &errorKeeper{r: r}
	records := newReader(pebblerecord.NewReader, source, num)
	end := int64(0)
	for {
		rec, err := records.Next()
		if err == nil {
			_, err = io.Copy(io.Discard, rec)
		}
		if err != nil {
			return end, source.err
		}
		end = records.Offset()
	}
}

// newReader calls f with a number whose type is internal to Pebble.
func newReader[N ~uint64, R any](f func(io.Reader, N) R, r io.Reader, num uint64) R {
	return f(r, N(num))
}

// errorKeeper keeps what a reader's own errors are apart from those about content.
type errorKeeper struct {
	r   io.Reader
	err error
}

func (k *errorKeeper) Read(p []byte) (int, error) {
	n, err := k.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		k.err = err
	}
	return n, err
}
