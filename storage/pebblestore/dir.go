package pebblestore

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-log/tidemark/internal/pebblefs"
	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/storage"
)

// What a store's directory holds.
//
// The marker makes the directory recognizable as a store's and holds its id. It
// never changes.
//
// The home is the directory of the database. Its number rises with every open
// (D24): what an earlier open, abandoned in this process with a call inside the
// disk, may still do by name then meets a name that is gone; what it does by a
// handle reaches files that Pebble never writes to again once it was opened anew
// (it makes its own WAL and manifest, and does not recycle WALs of earlier opens).
//
// The file CLEAN, in the home, holds the home's name (D25): the last thing that an
// open writes that was closed with everything on the disk and no error. The next
// open's move makes it void, before anything is written.
const (
	markerName      = "TIDEMARK"
	markerFormat    = "tidemark pebblestore format %d"
	markerDirectory = "directory "
	lockName        = "LOCK"
	homePrefix      = "db-"
	cleanName       = "CLEAN"
)

func homeName(n uint64) string { return fmt.Sprintf(homePrefix+"%06d", n) }

func parseHome(name string) (uint64, bool) {
	digits, ok := strings.CutPrefix(name, homePrefix)
	n, err := strconv.ParseUint(digits, 10, 64)
	return n, ok && err == nil && homeName(n) == name
}

// found makes the first home and then the marker: a marker without a home means
// that the database was lost.
func found(fsys vfs.FS, dir string, id protocol.UUID) (home string, err error) {
	home = fsys.PathJoin(dir, homeName(1))
	if err := fsys.MkdirAll(home, 0o755); err != nil {
		return "", err
	}
	if err := pebblefs.SyncDir(fsys, dir); err != nil {
		return "", err
	}
	return home, pebblefs.WriteMarker(fsys, dir, markerName, markerText(id))
}

// newestHome is the number of the home with the database.
func newestHome(fsys vfs.FS, dir string) (newest uint64, err error) {
	names, err := fsys.List(dir)
	if err != nil {
		return 0, err
	}
	for _, name := range names {
		if n, ok := parseHome(name); ok {
			newest = max(newest, n)
		}
	}
	if newest == 0 {
		return 0, fmt.Errorf("%w: the directory of the database is gone", storage.ErrDamaged)
	}
	return newest, nil
}

// closedCleanly tells whether the last open of the store, which had home n, has
// left everything on the disk.
func closedCleanly(fsys vfs.FS, dir string, n uint64) (bool, error) {
	f, err := fsys.Open(fsys.PathJoin(dir, homeName(n), cleanName))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, 64))
	return string(b) == homeName(n)+"\n", err
}

// move gives home n its next name, durably.
func move(fsys vfs.FS, dir string, n uint64) (home string, err error) {
	home = fsys.PathJoin(dir, homeName(n+1))
	if err := fsys.Rename(fsys.PathJoin(dir, homeName(n)), home); err != nil {
		return "", err
	}
	if err := pebblefs.SyncDir(fsys, dir); err != nil {
		return "", err
	}
	// Void already; it only must not confuse who looks into a store that is open.
	if err := fsys.Remove(fsys.PathJoin(home, cleanName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	return home, nil
}

// markClean says that the store's life in home has ended well.
func markClean(fsys vfs.FS, home string) error {
	return pebblefs.WriteMarker(fsys, home, cleanName, []byte(fsys.PathBase(home)+"\n"))
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
		case lockName, markerName + pebblefs.TempSuffix: // an open that was cut short
			continue
		case "lost+found": // a file system of its own
			continue
		case homeName(1): // cut short as well, if it is empty
			if inside, err := fsys.List(fsys.PathJoin(dir, name)); err != nil || len(inside) == 0 {
				if err != nil {
					return false, err
				}
				continue
			}
		}
		return false, fmt.Errorf("%w: it has %q", storage.ErrForeign, name)
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
