package pebblecoord

import (
	"errors"
	"fmt"
	"io"
	iofs "io/fs"
	"path/filepath"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// What a directory holds. The marker tells that it is ours, and is there before
// anything else that counts.
const (
	markerFile = "TIDEMARK-COORDINATION"
	markerTemp = "TIDEMARK-COORDINATION.tmp"
	markerText = "tidemark coordination store, format 1\n"
	lockFile   = "LOCK"
	dbDir      = "db"
)

// category tells Pebble's file systems what a write is for.
const category = vfs.WriteCategoryUnspecified

// takeDir makes dir when needed, checks that it is ours, locks it, and marks it when it is
// new. A directory that is not ours is left as it is.
func takeDir(dir string, fs vfs.FS) (vfs.FS, string, io.Closer, error) {
	fail := func(err error) (vfs.FS, string, io.Closer, error) {
		return nil, "", nil, fmt.Errorf("pebblecoord: open %s: %w", dir, err)
	}
	real := fs == nil
	if real {
		fs = vfs.Default
	}
	if err := makeDir(fs, dir); err != nil {
		return fail(err)
	}
	path := dir
	if real {
		// The lock goes by name within a process, so that each directory needs one name.
		abs, err := filepath.Abs(dir)
		if err == nil {
			abs, err = filepath.EvalSymlinks(abs)
		}
		if err != nil {
			return fail(err)
		}
		path = abs
	}
	if _, err := inspect(fs, path); err != nil {
		return fail(err)
	}
	lock, err := fs.Lock(fs.PathJoin(path, lockFile))
	if err != nil {
		if errors.Is(err, iofs.ErrPermission) || errors.Is(err, iofs.ErrNotExist) {
			return fail(err)
		}
		return fail(fmt.Errorf("%w: %w", ErrInUse, err))
	}
	// Once more: until now somebody else might have been at work.
	marked, err := inspect(fs, path)
	if err == nil && !marked {
		err = mark(fs, path)
	}
	if err != nil {
		return fail(errors.Join(err, lock.Close()))
	}
	return fs, path, lock, nil
}

// inspect says whether the directory is marked as ours, or that it cannot become so.
func inspect(fs vfs.FS, dir string) (bool, error) {
	names, err := fs.List(dir)
	if err != nil {
		return false, err
	}
	marked, strange := false, ""
	for _, name := range names {
		switch name {
		case markerFile:
			marked = true
		case markerTemp, lockFile:
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

// mark writes the marker; it is whole whenever it is there.
func mark(fs vfs.FS, dir string) error {
	temp := fs.PathJoin(dir, markerTemp)
	f, err := fs.Create(temp, category)
	if err != nil {
		return err
	}
	_, err = io.WriteString(f, markerText)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := fs.Rename(temp, fs.PathJoin(dir, markerFile)); err != nil {
		return err
	}
	return syncDir(fs, dir)
}

// makeDir makes dir and what is missing above it, durably.
func makeDir(fs vfs.FS, dir string) error {
	var missing []string
	for p := dir; ; p = fs.PathDir(p) {
		if _, err := fs.Stat(p); err == nil {
			break
		} else if !errors.Is(err, iofs.ErrNotExist) {
			return err
		}
		missing = append(missing, p)
		if p == fs.PathDir(p) {
			break
		}
	}
	if len(missing) == 0 {
		return nil
	}
	if err := fs.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, p := range missing {
		if err := syncDir(fs, fs.PathDir(p)); err != nil {
			return err
		}
	}
	return nil
}

func syncDir(fs vfs.FS, dir string) error {
	d, err := fs.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
