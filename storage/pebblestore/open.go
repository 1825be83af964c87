package pebblestore

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-log/tidemark/internal/pebblefs"
	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/storage"
)

// The marker file makes a directory recognizable as a store's before the engine
// touches it, and holds its id. It is the first thing that is written and never
// changes.
const (
	markerName      = "TIDEMARK"
	markerFormat    = "tidemark pebblestore format %d"
	markerDirectory = "directory "
)

// Open opens the store in dir, or makes one when dir is empty or does not exist.
// The caller must Close it.
//
// Errors: storage.ErrForeign when dir has something else in it, which is then left
// untouched; storage.ErrFormat when a newer version of this package made the
// store; storage.ErrInUse; storage.ErrDamaged when the whole store cannot be read
// (damage of one log is no error here); else what the file system said.
func Open(dir string, o Options) (*Store, error) {
	o = o.withDefaults()
	s := newStore(o)
	if err := s.openDir(dir); err != nil {
		<-s.guard.Fence()
		return nil, fmt.Errorf("pebblestore: open %s: %w", dir, err)
	}
	go s.commit()
	go s.sync()
	go s.finish()
	return s, nil
}

func newStore(o Options) *Store {
	s := &Store{
		o:         o,
		log:       o.Logger,
		logs:      map[storage.LogID]*log{},
		damaged:   map[storage.LogID]error{},
		changing:  map[storage.LogID]chan struct{}{},
		refused:   map[storage.LogID]error{},
		noReaders: make(chan struct{}),
		toCommit:  make(chan struct{}, 1),
		toFinish:  make(chan struct{}, 1),
		toSync:    make(chan *group, 64),
		committed: make(chan struct{}),
		synced:    make(chan struct{}),
		finished:  make(chan struct{}),
		dying:     make(chan struct{}),
		closed:    make(chan struct{}),
		spares:    make(chan *pebble.Batch, 2),
	}
	s.guard = pebblefs.NewGuard(o.FS)
	s.guard.Notify(s.poison)
	return s
}

func (s *Store) openDir(dir string) error {
	// Looked at before the lock, which writes to the directory, and again behind it.
	fresh, err := inspect(s.guard, dir)
	if err != nil {
		return err
	}
	if fresh {
		if err := pebblefs.MakeDir(s.o.FS, dir); err != nil {
			return err
		}
	}
	if dir, err = pebblefs.Canonical(s.guard, dir); err != nil {
		return err
	}
	lock, err := pebble.LockDirectory(dir, s.guard)
	if err != nil {
		return pebblefs.LockError(err, storage.ErrInUse)
	}
	if fresh, err = inspect(s.guard, dir); err != nil {
		return err
	}
	if fresh {
		rand.Read(s.directory[:]) // never fails
		if err := pebblefs.WriteMarker(s.guard, dir, markerName, markerText(s.directory)); err != nil {
			return err
		}
	} else {
		if s.directory, err = readMarker(s.guard, dir); err != nil {
			return err
		}
		if err := checkWAL(s.guard, dir, s.directory); err != nil {
			return err
		}
	}
	return s.openDB(dir, lock)
}

func (s *Store) openDB(dir string, lock *pebble.Lock) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = panicError(r)
		}
	}()
	opts := engineOptions(s.o, s.guard, engineLogger{log: s.log, fail: s.guard.Fail})
	opts.Lock = lock
	s.guard.Live()
	s.db, err = pebble.Open(dir, opts)
	if err != nil {
		if cause := s.guard.Err(); cause != nil {
			return cause
		}
		if pebble.IsCorruptionError(err) {
			return fmt.Errorf("%w: %w", storage.ErrDamaged, err)
		}
		return err
	}
	if err = s.load(); s.guard.Err() != nil {
		err = s.guard.Err()
	}
	if err != nil {
		s.guard.Hurry()
		s.closeDB()
	}
	return err
}

// inspect tells whether dir is empty (or does not exist), and errs unless it is
// that or a store. It writes nothing.
func inspect(fsys vfs.FS, dir string) (fresh bool, err error) {
	info, err := fsys.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return true, nil
	case err != nil:
		return false, err
	case !info.IsDir():
		return false, fmt.Errorf("%w: not a directory", storage.ErrForeign)
	}
	names, err := fsys.List(dir)
	if err != nil {
		return false, err
	}
	if slices.Contains(names, markerName) {
		_, err := readMarker(fsys, dir)
		return false, err
	}
	for _, name := range names {
		switch name {
		case "LOCK", markerName + pebblefs.TempSuffix: // an open that was cut short
		case "lost+found": // a file system of its own
		default:
			return false, fmt.Errorf("%w: it has %q", storage.ErrForeign, name)
		}
	}
	return true, nil
}

func markerText(id protocol.UUID) []byte {
	return fmt.Appendf(nil, markerFormat+"\n"+markerDirectory+"%s\n", formatVersion, id)
}

func readMarker(fsys vfs.FS, dir string) (id protocol.UUID, err error) {
	f, err := fsys.Open(fsys.PathJoin(dir, markerName))
	if err != nil {
		return id, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, 256))
	if err != nil {
		return id, err
	}
	first, second, _ := strings.Cut(string(b), "\n")
	var version int
	if n, err := fmt.Sscanf(first, markerFormat, &version); err != nil || n != 1 {
		return id, fmt.Errorf("%w: %s does not say what it should", storage.ErrForeign, markerName)
	}
	if version > formatVersion {
		return id, fmt.Errorf("%w: version %d, this package knows up to %d", storage.ErrFormat, version, formatVersion)
	}
	text, ok := strings.CutPrefix(strings.TrimSuffix(second, "\n"), markerDirectory)
	if err := id.UnmarshalText([]byte(text)); !ok || err != nil {
		return id, fmt.Errorf("%w: %s has no directory id", storage.ErrDamaged, markerName)
	}
	return id, nil
}
