package local

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-log/tidemark/coordination/pebblecoord"
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
	// ErrFewerBrokers: the cluster was made with more brokers than it is opened with.
	ErrFewerBrokers = errors.New("local: cluster has more brokers than asked for")
)

const (
	markerName   = "tidemark.json"
	markerFormat = 1
)

// marker says that a directory holds a cluster.
type marker struct {
	Format  int `json:"format"`
	Brokers int `json:"brokers"`
}

// claim makes sure that dir is ours, or makes it so when it is empty or new.
func claim(fs vfs.FS, dir string, brokers int) error {
	if err := fs.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("local: %w", err)
	}
	names, err := fs.List(dir)
	if err != nil {
		return fmt.Errorf("local: %w", err)
	}
	path := filepath.Join(dir, markerName)
	f, err := fs.Open(path)
	switch {
	case err == nil:
		data, readErr := io.ReadAll(f)
		if err := errors.Join(readErr, f.Close()); err != nil {
			return fmt.Errorf("local: %w", err)
		}
		var m marker
		if err := json.Unmarshal(data, &m); err != nil || m.Format != markerFormat {
			return fmt.Errorf("%w: %s", ErrFormat, path)
		}
		if m.Brokers > brokers {
			return fmt.Errorf("%w: %d, not %d", ErrFewerBrokers, m.Brokers, brokers)
		}
		if m.Brokers == brokers {
			return nil
		}
	case len(names) > 0 && !onlyLeftover(names):
		return fmt.Errorf("%w: %s", ErrForeign, dir)
	}
	return writeMarker(fs, dir, path, marker{Format: markerFormat, Brokers: brokers})
}

// onlyLeftover reports whether all that is there is a marker that was being
// written when the process died.
func onlyLeftover(names []string) bool {
	return len(names) == 1 && names[0] == markerName+".new"
}

// writeMarker makes the marker appear as a whole or not at all.
func writeMarker(fs vfs.FS, dir, path string, m marker) error {
	data, _ := json.Marshal(m)
	f, err := fs.Create(path+".new", vfs.WriteCategoryUnspecified)
	if err != nil {
		return fmt.Errorf("local: %w", err)
	}
	_, err = f.Write(append(data, '\n'))
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("local: %w", err)
	}
	if err := fs.Rename(path+".new", path); err != nil {
		return fmt.Errorf("local: %w", err)
	}
	d, err := fs.OpenDir(dir)
	if err != nil {
		return fmt.Errorf("local: %w", err)
	}
	return errors.Join(d.Sync(), d.Close())
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
	}
	return err
}
