package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/tidemark-log/tidemark"
)

// maxRecordBytes is the default of tidemark.Config.MaxRecordBytes, which the
// brokers of package local use.
const maxRecordBytes = 1 << 20

// input is the file in memory.
type input struct {
	path  string
	sum   string   // its fingerprint: the beginning of its SHA-256
	lines [][]byte // without their line feeds
}

// record makes the record of line i, counted from 0. Its key is the line's number
// as people count, and decides which partition it goes to.
func (in *input) record(i int) tidemark.Record {
	return tidemark.Record{Key: key(i), Value: in.lines[i]}
}

func key(i int) []byte { return strconv.AppendInt(nil, int64(i)+1, 10) }

// line is the inverse of record: which line a record is, or an error if it is none.
func (in *input) line(rec tidemark.Record) (int, error) {
	n, err := strconv.Atoi(string(rec.Key))
	i := n - 1
	if err != nil || i < 0 || i >= len(in.lines) || !bytes.Equal(rec.Key, key(i)) || !bytes.Equal(rec.Value, in.lines[i]) {
		return 0, fmt.Errorf("record at offset %d with key %q is no line of %s", rec.Offset, rec.Key, in.path)
	}
	return i, nil
}

// loadInput reads and checks the file before anything is written.
func loadInput(ctx context.Context, path string) (*input, error) {
	if path == "" {
		root, err := goRoot(ctx)
		if err != nil {
			return nil, badInput{fmt.Errorf("no default input (%w): give a file with -in", err)}
		}
		path = filepath.Join(root, "api", "go1.txt")
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, badInput{fmt.Errorf("input: %w", err)}
	}
	sum := sha256.Sum256(data)
	in := &input{path: path, sum: hex.EncodeToString(sum[:8])}
	if len(data) > 0 {
		in.lines = bytes.Split(bytes.TrimSuffix(data, []byte("\n")), []byte("\n"))
	}
	for i := range in.lines {
		if size := len(key(i)) + len(in.lines[i]); size > maxRecordBytes {
			return nil, badInput{fmt.Errorf("%s, line %d: %w: %d bytes, the limit is %d", path, i+1, tidemark.ErrRecordTooLarge, size, maxRecordBytes)}
		}
	}
	return in, nil
}

// goRoot asks the go command where it is installed: a binary does not have to know.
func goRoot(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return "", fmt.Errorf("go env GOROOT: %w", err)
	}
	root := strings.TrimSpace(string(out))
	if root == "" {
		return "", errors.New("go env GOROOT: empty")
	}
	return root, nil
}
