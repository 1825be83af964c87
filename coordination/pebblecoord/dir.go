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
// anything else that counts.
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
		err = pebblefs.WriteMarker(fs, path, markerFile, []byte(markerText))
	}
	if err != nil {
		return "", nil, errors.Join(err, lock.Close())
	}
	return path, lock, nil
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
