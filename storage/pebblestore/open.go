package pebblestore

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"github.com/cockroachdb/pebble/v2"

	"github.com/tidemark-log/tidemark/internal/pebblefs"
	"github.com/tidemark-log/tidemark/storage"
)

// Open opens the store in dir, or makes one when dir is empty or does not exist.
// The caller must Close it. It waits for the disk for as long as that takes.
//
// A store that was abandoned (ErrAbandoned) or fenced does not stand in the way,
// also not while calls of it hang in the disk: each open moves the database to a
// directory of a new name, so that no operation of an earlier one finds it.
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
		s.unlock()
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
		released:  make(chan struct{}),
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
	if s.dirLock, err = s.o.FS.Lock(s.o.FS.PathJoin(dir, lockName)); err != nil {
		return pebblefs.LockError(err, storage.ErrInUse)
	}
	if fresh, err = inspect(s.guard, dir); err != nil {
		return err
	}
	if fresh {
		rand.Read(s.directory[:]) // never fails
		s.home, err = found(s.guard, dir, s.directory)
	} else {
		s.home, err = s.settleIn(dir)
	}
	if err != nil {
		return err
	}
	return s.openDB()
}

// settleIn looks whether the database can be taken over as the last open left it,
// and moves it to where this open has it.
func (s *Store) settleIn(dir string) (home string, err error) {
	if s.directory, err = readMarker(s.guard, dir); err != nil {
		return "", err
	}
	last, err := newestHome(s.guard, dir)
	if err != nil {
		return "", err
	}
	clean, err := closedCleanly(s.guard, dir, last)
	if err != nil {
		return "", err
	}
	s.unclean = !clean
	if err := checkSynced(s.guard, s.guard.PathJoin(dir, homeName(last)), s.directory); err != nil {
		return "", err
	}
	return move(s.guard, dir, last)
}

func (s *Store) openDB() (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = panicError(r)
		}
	}()
	opts := engineOptions(s.o, s.guard, engineLogger{log: s.log, fail: s.guard.Fail})
	s.guard.Live()
	s.db, err = pebble.Open(s.home, opts)
	if err != nil {
		if cause := s.guard.Err(); cause != nil {
			return failureError(cause)
		}
		return notOpened(err)
	}
	if err = s.load(); err == nil {
		err = s.leaveMark() // for what the replay has written
	}
	if s.guard.Err() != nil {
		err = failureError(s.guard.Err())
	}
	if err != nil {
		s.guard.Hurry()
		s.closeDB()
	}
	return err
}

// failureError is for the failure that ended an open: Pebble's background work may
// have met damage.
func failureError(cause error) error {
	if pebble.IsCorruptionError(cause) {
		return fmt.Errorf("%w: %w", storage.ErrDamaged, cause)
	}
	return cause
}

// notOpened gives an error of pebble.Open its meaning: unless it is what the file
// system said, Pebble has read something that does not fit together, such as a
// manifest that names tables that are not there. It does not always call that corrupt.
func notOpened(err error) error {
	var path *fs.PathError
	var link *os.LinkError
	var errno syscall.Errno
	if errors.As(err, &path) || errors.As(err, &link) || errors.As(err, &errno) {
		return err
	}
	return fmt.Errorf("%w: %w", storage.ErrDamaged, err)
}
