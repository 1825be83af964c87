package embedded_test

import (
	"bytes"
	"context"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/coordination/etcd/embedded"
)

// logged is what a member has said.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *logged) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// startAlone starts one of several members, which does not get far.
func startAlone(t testing.TB, c embedded.Config) (said string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	var log logged
	c.Logger = log.logger()
	m, err := embedded.Start(ctx, c)
	require.Error(t, err)
	require.Nil(t, m)
	return log.String(), err
}

// TestDirectoryIsSomebodys: a first start fixes the name and the members, also when it
// comes to nothing; later ones say so.
func TestDirectoryIsSomebodys(t *testing.T) {
	defer nothingLeft(t)()
	all := configs(t, 3)
	said, err := startAlone(t, all[0])
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NotContains(t, err.Error()+said, "does not count")

	other := all[1]
	other.Dir = all[0].Dir
	_, err = startAlone(t, other)
	require.EqualError(t, err, `embedded: directory of member "m0", opened as "m1"`)

	moved := all[0]
	moved.Cluster = maps.Clone(all[0].Cluster)
	moved.Cluster["m2"] = "127.0.0.1:1"
	said, err = startAlone(t, moved)
	warning := "directory was made for members m0=" + all[0].Peer + ",m1=" + all[1].Peer + ",m2=" + all[2].Peer +
		"; Config.Cluster (m0=" + all[0].Peer + ",m1=" + all[1].Peer + ",m2=127.0.0.1:1) does not count"
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, warning)
	require.Contains(t, said, "level=WARN")
	require.Contains(t, said, warning)

	require.NoError(t, os.WriteFile(filepath.Join(all[0].Dir, "tidemark-member.json"), []byte("{"), 0o600))
	_, err = startAlone(t, all[0])
	require.ErrorContains(t, err, "tidemark-member.json")
}

// TestStartThatLeftNothing: before etcd has its log, everything may still be changed.
func TestStartThatLeftNothing(t *testing.T) {
	defer nothingLeft(t)()
	c := configs(t, 1)[0]
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	wrong := c
	wrong.Name, wrong.Client, wrong.Cluster = "x", taken.Addr().String(), map[string]string{"x": c.Peer, "y": "127.0.0.1:1"}
	_, err = startAlone(t, wrong)
	require.ErrorContains(t, err, "address already in use")
	require.NoError(t, taken.Close())
	var log logged
	c.Logger = log.logger()
	closeAll(t, startAll(t, []embedded.Config{c}))
	require.NotContains(t, log.String(), "does not count")
}

// TestQuietEnd: a member that is closed has nothing to complain about.
func TestQuietEnd(t *testing.T) {
	check := nothingLeft(t)
	var log logged
	c := configs(t, 1)[0]
	c.Logger = log.logger()
	members := startAll(t, []embedded.Config{c})
	before := log.String()
	closeAll(t, members)
	check()
	require.Equal(t, before, log.String())
}
