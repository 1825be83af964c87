package pebblestore

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

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
	markerTemp      = markerName + ".new"
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
	s.guard = newGuard(o.FS, s.poison)
	return s
}

func (s *Store) openDir(dir string) error {
	// Looked at before the lock, which writes to the directory, and again behind it.
	fresh, err := inspect(s.guard, dir)
	if err != nil {
		return err
	}
	if fresh {
		if err := makeDir(s.guard, dir); err != nil {
			return err
		}
	}
	// Locks go by name: one directory must not have two.
	if s.o.FS == vfs.Default {
		if dir, err = canonical(dir); err != nil {
			return err
		}
	}
	lock, err := pebble.LockDirectory(dir, s.guard)
	if err != nil {
		return lockError(err)
	}
	if fresh, err = inspect(s.guard, dir); err != nil {
		return err
	}
	if fresh {
		rand.Read(s.directory[:]) // never fails
		if err := writeMarker(s.guard, dir, s.directory); err != nil {
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

func canonical(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(dir)
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
		case "LOCK", markerTemp: // an open that was cut short
		case "lost+found": // a file system of its own
		default:
			return false, fmt.Errorf("%w: it has %q", storage.ErrForeign, name)
		}
	}
	return true, nil
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

// writeMarker makes the marker whole or not at all.
func writeMarker(fsys vfs.FS, dir string, id protocol.UUID) error {
	temp := fsys.PathJoin(dir, markerTemp)
	f, err := fsys.Create(temp, "tidemark-marker")
	if err != nil {
		return err
	}
	if _, err = fmt.Fprintf(f, markerFormat+"\n"+markerDirectory+"%s\n", formatVersion, id); err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = fsys.Rename(temp, fsys.PathJoin(dir, markerName))
	}
	if err != nil {
		return err
	}
	return syncDir(fsys, dir)
}

// makeDir makes dir and its parents, and sees to it that they survive a power cut.
func makeDir(fsys vfs.FS, dir string) error {
	var made []string
	for d := dir; ; {
		if _, err := fsys.Stat(d); err == nil {
			break
		} else if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		d = fsys.PathDir(d)
		made = append(made, d)
		if d == fsys.PathDir(d) {
			break
		}
	}
	if err := fsys.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, parent := range made {
		if err := syncDir(fsys, parent); err != nil {
			return err
		}
	}
	return nil
}

func syncDir(fsys vfs.FS, dir string) error {
	d, err := fsys.OpenDir(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	if cerr := d.Close(); err == nil {
		err = cerr
	}
	return err
}

// lockError tells a lock that is taken from one that cannot be.
func lockError(err error) error {
	var path *fs.PathError
	held := errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EACCES) && !errors.As(err, &path)
	// Pebble has no name for the error when this process has the lock.
	if held || strings.Contains(err.Error(), "lock held") {
		return fmt.Errorf("%w: %w", storage.ErrInUse, err)
	}
	return fmt.Errorf("lock: %w", err)
}
