// Package pebblefs is what the stores on Pebble have in common below it:
// directories and marker files that survive a power cut, and a guard between
// Pebble and the file system (D24).
package pebblefs

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// MakeDir makes dir and what is missing above it, and sees to it that they survive
// a power cut. It finishes what an earlier call was kept from by the end of its
// process. It is for a directory that nobody has begun to use; one that is in use
// needs no call.
func MakeDir(fsys vfs.FS, dir string) error {
	var missing []string
	d := dir
	for ; ; d = fsys.PathDir(d) {
		if _, err := fsys.Stat(d); err == nil {
			break
		} else if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		missing = append(missing, d)
		if d == fsys.PathDir(d) {
			break
		}
	}
	// What exists may be what such a call has made last. Most often it is not, and
	// then nothing is promised for it: its parent need not even be readable.
	_ = SyncDir(fsys, fsys.PathDir(d))
	for _, d := range slices.Backward(missing) {
		if err := fsys.MkdirAll(d, 0o755); err != nil {
			return err
		}
		if err := SyncDir(fsys, fsys.PathDir(d)); err != nil {
			return err
		}
	}
	return nil
}

// SyncDir makes the entries of dir durable.
func SyncDir(fsys vfs.FS, dir string) error {
	d, err := fsys.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// TempSuffix ends the name of a marker that is being written; a crash may leave
// such a file.
const TempSuffix = ".new"

// WriteMarker writes the file name in dir so that it is there as a whole or not at
// all, in place of an older one. When it returns without error the file is durable.
// Two calls for one file at the same time spoil it.
func WriteMarker(fsys vfs.FS, dir, name string, content []byte) error {
	path := fsys.PathJoin(dir, name)
	f, err := fsys.Create(path+TempSuffix, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	if _, err = f.Write(content); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := fsys.Rename(path+TempSuffix, path); err != nil {
		return err
	}
	return SyncDir(fsys, dir)
}

// Canonical returns the one name under which a directory that exists is to be
// locked: within a process locks go by name, and one directory must not have two.
// Only the operating system's file system has several names for a directory.
func Canonical(fsys vfs.FS, dir string) (string, error) {
	if vfs.Root(fsys) != vfs.Default {
		return dir, nil
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(dir)
}

// LockError puts held in front of an error of vfs.FS.Lock that means that somebody
// has the lock. One that means that the lock cannot be had stays apart from it.
func LockError(err, held error) error {
	var path *fs.PathError
	taken := errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EACCES) && !errors.As(err, &path)
	// Pebble has no name for the error when this process has the lock.
	if taken || strings.Contains(err.Error(), "lock held") {
		return fmt.Errorf("%w: %w", held, err)
	}
	return fmt.Errorf("lock: %w", err)
}
