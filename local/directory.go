package local

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	iofs "io/fs"
	"slices"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-log/tidemark/coordination/pebblecoord"
	"github.com/tidemark-log/tidemark/internal/pebblefs"
	"github.com/tidemark-log/tidemark/storage"
)

// Errors of Open, for errors.Is.
var (
	// ErrForeign: the directory is neither empty nor a cluster's. Nothing was written to it.
	ErrForeign = errors.New("local: directory is neither empty nor a Tidemark cluster")
	// ErrInUse: another cluster has the directory open.
	ErrInUse = errors.New("local: directory is in use")
	// ErrFormat: the directory was written in a format that this version does not know.
	ErrFormat = errors.New("local: unknown directory format")
	// ErrDamaged: a store in the directory does not hold what was once durable in it, and
	// says so before it is used. Nothing was written to it.
	ErrDamaged = errors.New("local: a store is damaged")
	// ErrFewerBrokers: the cluster was made with more brokers than it is opened with.
	ErrFewerBrokers = errors.New("local: cluster has more brokers than asked for")
)

// What Open itself writes to the directory. The marker is there before anything of
// the cluster is.
const (
	markerName   = "tidemark.json"
	markerFormat = 1
	lockName     = "LOCK" // held while the marker of a new cluster is written
)

// marker says that a directory holds a cluster.
type marker struct {
	Format int `json:"format"`
	// Brokers is how many brokers the cluster has had; 0 until its coordination
	// store was opened for the first time. It never falls.
	Brokers int `json:"brokers"`
}

// claim makes sure that dir can be opened with so many brokers, and marks it as ours
// when it is empty or new. A cluster that is there already is not changed: it may be
// open. claim returns the one name of dir that locks go by.
func claim(fs vfs.FS, dir string, brokers int) (string, error) {
	m, err := readMarker(fs, dir)
	if err != nil {
		return "", err
	}
	if m == nil {
		if err := pebblefs.MakeDir(fs, dir); err != nil {
			return "", fmt.Errorf("local: %w", err)
		}
	}
	if dir, err = pebblefs.Canonical(fs, dir); err != nil {
		return "", fmt.Errorf("local: %w", err)
	}
	if m == nil {
		return dir, found(fs, dir, brokers)
	}
	return dir, m.admits(brokers)
}

// found marks a directory as a cluster's. Of several that try at once one does, so
// that a late one cannot undo what enlarge wrote meanwhile.
func found(fs vfs.FS, dir string, brokers int) (err error) {
	lock, err := fs.Lock(fs.PathJoin(dir, lockName))
	if err != nil {
		return fmt.Errorf("local: %w", pebblefs.LockError(err, ErrInUse))
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	m, err := readMarker(fs, dir)
	if err != nil {
		return err
	}
	if m != nil {
		return m.admits(brokers)
	}
	return writeMarker(fs, dir, marker{Format: markerFormat})
}

// enlarge notes that the cluster has so many brokers from now on. The caller has the
// coordination store open, which nobody else can have, and no broker of the cluster.
func enlarge(fs vfs.FS, dir string, brokers int) error {
	m, err := readMarker(fs, dir)
	switch {
	case err != nil:
		return err
	case m == nil:
		return fmt.Errorf("local: %s has lost %s", dir, markerName)
	case m.Brokers == brokers:
		return nil
	}
	// Until the store was open another cluster might have been at work.
	if err := m.admits(brokers); err != nil {
		return err
	}
	m.Brokers = brokers
	return writeMarker(fs, dir, *m)
}

// admits errs when the cluster has more brokers than that.
func (m marker) admits(brokers int) error {
	if m.Brokers > brokers {
		return fmt.Errorf("%w: %d, not %d", ErrFewerBrokers, m.Brokers, brokers)
	}
	return nil
}

// readMarker returns nil when dir is empty or does not exist. It writes nothing.
func readMarker(fs vfs.FS, dir string) (*marker, error) {
	info, err := fs.Stat(dir)
	switch {
	case errors.Is(err, iofs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("local: %w", err)
	case !info.IsDir():
		return nil, fmt.Errorf("%w: %s: %w", ErrForeign, dir, syscall.ENOTDIR)
	}
	names, err := fs.List(dir)
	if err != nil {
		return nil, fmt.Errorf("local: %w", err)
	}
	if !slices.Contains(names, markerName) {
		for _, name := range names {
			// These are left when the first Open was cut short.
			if name != lockName && name != markerName+pebblefs.TempSuffix {
				return nil, fmt.Errorf("%w: %s has %q", ErrForeign, dir, name)
			}
		}
		return nil, nil
	}
	path := fs.PathJoin(dir, markerName)
	f, err := fs.Open(path)
	if err != nil {
		return nil, fmt.Errorf("local: %w", err)
	}
	data, err := io.ReadAll(f)
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("local: %w", err)
	}
	m := &marker{}
	if err := json.Unmarshal(data, m); err != nil || m.Format != markerFormat || m.Brokers < 0 {
		return nil, fmt.Errorf("%w: %s", ErrFormat, path)
	}
	return m, nil
}

func writeMarker(fs vfs.FS, dir string, m marker) error {
	data, err := json.Marshal(m)
	if err == nil {
		err = pebblefs.WriteMarker(fs, dir, markerName, append(data, '\n'))
	}
	if err != nil {
		return fmt.Errorf("local: %w", err)
	}
	return nil
}

// translate gives the errors of the stores the names that this package promises.
func translate(err error) error {
	switch {
	case errors.Is(err, storage.ErrInUse) || errors.Is(err, pebblecoord.ErrInUse):
		return fmt.Errorf("%w: %w", ErrInUse, err)
	case errors.Is(err, storage.ErrForeign) || errors.Is(err, pebblecoord.ErrForeign):
		return fmt.Errorf("%w: %w", ErrForeign, err)
	case errors.Is(err, storage.ErrFormat) || errors.Is(err, pebblecoord.ErrFormat):
		return fmt.Errorf("%w: %w", ErrFormat, err)
	case errors.Is(err, storage.ErrDamaged) || errors.Is(err, pebblecoord.ErrDamaged):
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return err
}
