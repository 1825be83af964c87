package pebblecoord

import (
	"errors"
	"fmt"
	"io"
	iofs "io/fs"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-log/tidemark/internal/pebblefs"
)

// What a directory holds. The marker tells that it is ours, and is there before
// anything in the database.
const (
	markerFile = "TIDEMARK-COORDINATION"
	markerText = "tidemark coordination store, format 1\n"
	lockFile   = "LOCK"
	dbDir      = "db"
)

// takeDir makes dir when needed, checks that it is ours, locks it, and marks it when it is
// new. It returns the name of dir that the lock goes by. A directory that is not
// ours is left as it is.
func takeDir(fs vfs.FS, dir string) (path string, lock io.Closer, err error) {
	marked, err := inspect(fs, dir)
	if err == nil && !marked {
		err = pebblefs.MakeDir(fs, dir)
	}
	if err == nil {
		path, err = pebblefs.Canonical(fs, dir)
	}
	if err != nil {
		return "", nil, err
	}
	lock, err = fs.Lock(fs.PathJoin(path, lockFile))
	if err != nil {
		return "", nil, pebblefs.LockError(err, ErrInUse)
	}
	// Once more: until now somebody else might have been at work.
	marked, err = inspect(fs, path)
	if err == nil && !marked {
		err = found(fs, path)
	} else if err == nil {
		if _, err = fs.Stat(fs.PathJoin(path, dbDir)); errors.Is(err, iofs.ErrNotExist) {
			err = fmt.Errorf("%w: the directory of the database is gone", ErrDamaged)
		}
	}
	if err != nil {
		return "", nil, errors.Join(err, lock.Close())
	}
	return path, lock, nil
}

// found makes the directory of the database and then the marker: a marker without it
// means that the database was lost.
func found(fs vfs.FS, dir string) error {
	if err := fs.MkdirAll(fs.PathJoin(dir, dbDir), 0o755); err != nil {
		return err
	}
	if err := pebblefs.SyncDir(fs, dir); err != nil {
		return err
	}
	return pebblefs.WriteMarker(fs, dir, markerFile, []byte(markerText))
}

// inspect says whether the directory is marked as ours, or that it cannot become so.
// One that does not exist can.
func inspect(fs vfs.FS, dir string) (bool, error) {
	if _, err := fs.Stat(dir); errors.Is(err, iofs.ErrNotExist) {
		return false, nil
	}
	names, err := fs.List(dir)
	if err != nil {
		return false, err
	}
	marked, strange := false, ""
	for _, name := range names {
		switch name {
		case markerFile:
			marked = true
		case markerFile + pebblefs.TempSuffix, lockFile:
		case dbDir: // of an open that was cut short, if it is empty
			if inside, err := fs.List(fs.PathJoin(dir, dbDir)); err != nil || len(inside) > 0 {
				strange = name
			}
		default:
			strange = name
		}
	}
	if !marked {
		if strange != "" {
			return false, fmt.Errorf("%w: found %q", ErrForeign, strange)
		}
		return false, nil
	}
	f, err := fs.Open(fs.PathJoin(dir, markerFile))
	if err != nil {
		return false, err
	}
	text, err := io.ReadAll(io.LimitReader(f, int64(len(markerText))+1))
	if err = errors.Join(err, f.Close()); err != nil {
		return false, err
	}
	if string(text) != markerText {
		return false, fmt.Errorf("%w: %s says %q", ErrFormat, markerFile, text)
	}
	return true, nil
}
