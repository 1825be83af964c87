package zkserver_test

import (
	"bufio"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tidemark-log/tidemark/coordination/zookeeper/zkserver"
)

// answer asks the server for its status, with a limit.
func answer(t *testing.T, s *zkserver.Server, limit time.Duration) (string, error) {
	t.Helper()
	conn, err := net.DialTimeout("tcp", s.Addr(), limit)
	if err != nil {
		return "", err
	}
	defer func() { require.NoError(t, conn.Close()) }()
	require.NoError(t, conn.SetDeadline(time.Now().Add(limit)))
	_, err = conn.Write([]byte("srvr"))
	require.NoError(t, err)
	return bufio.NewReader(conn).ReadString('\n')
}

func TestLife(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	s := zkserver.StartTest(t, zkserver.Options{})
	require.NoError(t, s.Ready())
	line, err := answer(t, s, time.Second)
	require.NoError(t, err)
	require.Contains(t, line, "Zookeeper version")

	require.NoError(t, s.Pause())
	_, err = answer(t, s, 100*time.Millisecond)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.NoError(t, s.Resume())
	_, err = answer(t, s, 5*time.Second)
	require.NoError(t, err)

	addr := s.Addr()
	for _, end := range []func() error{s.Stop, s.Kill, func() error { require.NoError(t, s.Pause()); return s.Kill() }} {
		require.NoError(t, end())
		_, err = answer(t, s, time.Second)
		require.Error(t, err)
		require.Error(t, s.Pause())
		require.Error(t, s.Ready())
		require.NoError(t, s.Restart())
		require.Equal(t, addr, s.Addr())
		_, err = answer(t, s, 5*time.Second)
		require.NoError(t, err)
	}
	require.NoError(t, s.Kill())
}

func TestFailures(t *testing.T) {
	s := zkserver.StartTest(t, zkserver.Options{})
	_, port, err := net.SplitHostPort(s.Addr())
	require.NoError(t, err)
	n, err := net.LookupPort("tcp", port)
	require.NoError(t, err)
	require.NoError(t, s.Kill())
	_, err = zkserver.Start(t.TempDir(), zkserver.Options{Port: n, Flags: []string{"-XX:NoSuchFlag"}})
	require.ErrorContains(t, err, "NoSuchFlag", "it says why")

	t.Setenv("TIDEMARK_ZOOKEEPER", t.TempDir())
	_, err = zkserver.Start(t.TempDir(), zkserver.Options{})
	require.ErrorIs(t, err, zkserver.ErrNotInstalled)
}

func TestEnsemble(t *testing.T) {
	servers := zkserver.StartTestEnsemble(t, 3, zkserver.Options{NoSync: true})
	leader := func() *zkserver.Server {
		for _, s := range servers {
			if s.Leads() {
				return s
			}
		}
		return nil
	}
	old := leader()
	require.NotNil(t, old)
	require.NoError(t, old.Kill())
	require.Eventually(t, func() bool { now := leader(); return now != nil && now != old }, 20*time.Second, 20*time.Millisecond)
	require.NoError(t, old.Restart())
	require.False(t, old.Leads())
}
