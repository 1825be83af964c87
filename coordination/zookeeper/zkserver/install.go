package zkserver

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// ErrNotInstalled means that Java or ZooKeeper's jars were not found.
var ErrNotInstalled = errors.New("zkserver: ZooKeeper is not installed")

const (
	// jarsEnv names the directory of the jars, and requireEnv ("1") has StartTest fail
	// where it would skip.
	jarsEnv    = "TIDEMARK_ZOOKEEPER"
	requireEnv = "TIDEMARK_REQUIRE_ZOOKEEPER"
	debianJars = "/usr/share/java"
)

// StartTest starts a server in a temporary directory for the time of a test. Where
// there is no ZooKeeper the test is skipped, or fails when the environment variable
// TIDEMARK_REQUIRE_ZOOKEEPER is 1.
func StartTest(t testing.TB, o Options) *Server {
	t.Helper()
	s, err := Start(t.TempDir(), o)
	check(t, err)
	t.Cleanup(func() { require.NoError(t, s.Kill()) })
	return s
}

// StartTestEnsemble is StartTest for an ensemble of n servers.
func StartTestEnsemble(t testing.TB, n int, o Options) []*Server {
	t.Helper()
	servers, err := StartEnsemble(t.TempDir(), n, o)
	check(t, err)
	t.Cleanup(func() {
		for _, s := range servers {
			require.NoError(t, s.Kill())
		}
	})
	return servers
}

func check(t testing.TB, err error) {
	t.Helper()
	if errors.Is(err, ErrNotInstalled) && os.Getenv(requireEnv) != "1" {
		t.Skip(err)
	}
	require.NoError(t, err)
}

// find returns the java command and the class path.
func find() (java, jars string, err error) {
	if home := os.Getenv("JAVA_HOME"); home != "" {
		java = filepath.Join(home, "bin", "java")
	} else if java, err = exec.LookPath("java"); err != nil {
		return "", "", fmt.Errorf("%w: %w", ErrNotInstalled, err)
	}
	if dir := os.Getenv(jarsEnv); dir != "" {
		found, err := filepath.Glob(filepath.Join(dir, "zookeeper*.jar"))
		if err != nil || len(found) == 0 {
			return "", "", fmt.Errorf("%w: no zookeeper jar in %s, which %s names", ErrNotInstalled, dir, jarsEnv)
		}
		return java, filepath.Join(dir, "*"), nil
	}
	// The jar names those that it needs, but for the logger.
	for _, name := range []string{"zookeeper.jar", "slf4j-simple.jar"} {
		jar := filepath.Join(debianJars, name)
		if _, err := os.Stat(jar); err == nil {
			jars += string(filepath.ListSeparator) + jar
		} else if name == "zookeeper.jar" {
			return "", "", fmt.Errorf("%w: neither %s is set nor is there %s", ErrNotInstalled, jarsEnv, jar)
		}
	}
	return java, strings.TrimPrefix(jars, string(filepath.ListSeparator)), nil
}

// freePort returns a port that nobody uses. It is below those that the system hands
// out by itself, so that no connection takes it while the server is down.
func freePort() (int, error) {
	const first, last, tries = 20_000, 32_000, 100
	for range tries {
		port := first + rand.IntN(last-first)
		l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
		if err == nil {
			return port, l.Close()
		}
	}
	return 0, errors.New("zkserver: no free port found")
}
