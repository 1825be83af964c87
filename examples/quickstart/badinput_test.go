package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark"
	"github.com/tidemark-log/tidemark/local"
)

// tree lists everything below dir with its content.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := make(map[string]string)
	require.NoError(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			files[path] = "directory"
			return err
		}
		data, err := os.ReadFile(path)
		files[path] = string(data)
		return err
	}))
	return files
}

func TestBadInput(t *testing.T) {
	t.Parallel()
	file := write(t, sample(10))
	foreign := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(foreign, "precious"), []byte("data"), 0o644))
	newer := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(newer, "tidemark.json"), []byte(`{"format":99,"brokers":3}`), 0o644))
	long := strings.Repeat("x", maxRecordBytes)

	for name, c := range map[string]struct {
		args []string
		says string
	}{
		"no such file":          {[]string{"-in", filepath.Join(foreign, "missing")}, "no such file"},
		"a directory as input":  {[]string{"-in", foreign}, "is a directory"},
		"line too long":         {[]string{"-in", write(t, []byte("a\n"+long+"\n"))}, "line 2: tidemark: record is too large"},
		"below a file":          {[]string{"-in", file, "-dir", filepath.Join(file, "below")}, "not a directory"},
		"a file as directory":   {[]string{"-in", file, "-dir", file}, "not a directory"},
		"another program's":     {[]string{"-in", file, "-dir", foreign}, "neither empty nor a Tidemark cluster"},
		"a newer format":        {[]string{"-in", file, "-dir", newer}, "unknown directory format"},
		"unknown acks":          {[]string{"-in", file, "-acks", "some"}, `not "some"`},
		"no partitions":         {[]string{"-in", file, "-partitions", "0"}, "at least 1"},
		"partitions not an int": {[]string{"-in", file, "-partitions", "x"}, "invalid value"},
		"too many partitions":   {[]string{"-in", file, "-partitions", "2000000000"}, "partitions"},
		"unknown flag":          {[]string{"-what"}, "-what"},
		"an argument":           {[]string{file}, "unexpected argument"},
	} {
		t.Run(name, func(t *testing.T) {
			before := tree(t, foreign)
			r := quickstartRun(t, c.args...)
			require.Equal(t, 2, r.code, r.stderr)
			require.Contains(t, r.stderr, c.says)
			require.Empty(t, r.stdout)
			require.Equal(t, before, tree(t, foreign))
		})
	}
}

func TestDirectoryInUse(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	file, dir := write(t, sample(10)), t.TempDir()
	cluster, err := local.Open(ctx, dir, local.Options{})
	require.NoError(t, err)
	defer cluster.Close()
	r := quickstartRun(t, "-in", file, "-dir", dir)
	require.Equal(t, 2, r.code, r.stderr)
	require.Contains(t, r.stderr, "in use")

	require.NoError(t, cluster.Controller().CreateTopic(ctx, "orders", tidemark.TopicConfig{}), "the other one goes on")
	require.NoError(t, cluster.Close())
	r = quickstartRun(t, "-in", file, "-dir", dir)
	require.Equal(t, 2, r.code, r.stderr)
	require.Contains(t, r.stderr, `cluster of another program: it has a topic "orders"`)
}

func TestUnwritableDirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o555))
	if f, err := os.Create(filepath.Join(dir, "probe")); err == nil { // root may
		require.NoError(t, f.Close())
		dir = f.Name()
	}
	r := quickstartRun(t, "-in", write(t, sample(10)), "-dir", filepath.Join(dir, "cluster"))
	require.Equal(t, 2, r.code, r.stderr)
	require.Contains(t, r.stderr, "directory")
}

func TestHelp(t *testing.T) {
	r := quickstartRun(t, "-h")
	require.Zero(t, r.code)
	require.Contains(t, r.stderr, "-partitions")
	require.Empty(t, r.stdout)
}
