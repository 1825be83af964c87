package embedded

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.etcd.io/etcd/server/v3/storage/wal"
)

// ownerFile is beside what etcd has in Dir, which does not tell a mistaken name or an
// outdated list of members from the right one.
const ownerFile = "tidemark-member.json"

// owner is whom a directory was made for.
type owner struct {
	Name    string            `json:"name"`
	Cluster map[string]string `json:"cluster"`
}

// claim makes the directory this member's at its first start, and checks at every
// further one that it is. outdated says, if anything, that Config.Cluster is not what
// the directory was made with.
func claim(c *Config) (outdated string, err error) {
	file := filepath.Join(c.Dir, ownerFile)
	if !wal.Exist(filepath.Join(c.Dir, "member", "wal")) {
		// etcd remembers nothing yet. It comes by a log only after the file is on the disk.
		return "", record(file, owner{c.Name, c.Cluster})
	}
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil // somebody else's etcd has made it, so we cannot tell
	}
	if err != nil {
		return "", fmt.Errorf("embedded: %w", err)
	}
	var o owner
	if err := json.Unmarshal(data, &o); err != nil {
		return "", fmt.Errorf("embedded: %s: %w", file, err)
	}
	if o.Name != c.Name {
		return "", fmt.Errorf("embedded: directory of member %q, opened as %q", o.Name, c.Name)
	}
	if maps.Equal(o.Cluster, c.Cluster) {
		return "", nil
	}
	return fmt.Sprintf("directory was made for members %s; Config.Cluster (%s) does not count", list(o.Cluster), list(c.Cluster)), nil
}

func list(cluster map[string]string) string {
	var all []string
	for name, address := range cluster {
		all = append(all, name+"="+address)
	}
	slices.Sort(all)
	return strings.Join(all, ",")
}

// record writes the file so that it is whole, or not there, whatever happens.
func record(file string, o owner) error {
	data, err := json.Marshal(o)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(file), 0o700)
	}
	if err == nil {
		err = writeSynced(file+".tmp", data)
	}
	if err == nil {
		err = os.Rename(file+".tmp", file)
	}
	if err == nil {
		err = syncDir(filepath.Dir(file))
	}
	if err != nil {
		return fmt.Errorf("embedded: %w", err)
	}
	return nil
}

func writeSynced(file string, data []byte) error {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
