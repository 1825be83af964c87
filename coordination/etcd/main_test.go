package etcd_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/coordination/etcd"
	"github.com/tidemark-log/tidemark/coordination/etcd/embedded"
)

// memberEnv makes the test binary a process with one etcd member.
const memberEnv = "TIDEMARK_TEST_ETCD_MEMBER"

// quietEnv gives the member, and a Store that the process then uses, no logger.
const quietEnv = "TIDEMARK_TEST_ETCD_QUIET"

func TestMain(m *testing.M) {
	if config := os.Getenv(memberEnv); config != "" {
		os.Exit(member(config))
	}
	os.Exit(m.Run())
}

// member runs a member until its standard input ends.
func member(config string) int {
	var c embedded.Config
	if err := json.Unmarshal([]byte(config), &c); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	if os.Getenv(quietEnv) == "" {
		c.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	m, err := embedded.Start(context.Background(), c)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(m.Endpoints()[0])
	if os.Getenv(quietEnv) != "" {
		_ = use(append(m.Endpoints(), "127.0.0.1:1")) // may fail with the member that dies
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	if err := m.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// use does a little of everything with a Store, one of whose endpoints is dead.
func use(endpoints []string) error {
	ctx := context.Background()
	s, err := etcd.Open(ctx, etcd.Config{Endpoints: endpoints})
	if err != nil {
		return err
	}
	defer s.Close()
	sess, err := s.NewSession(ctx, time.Second)
	if err != nil {
		return err
	}
	if _, err := s.Do(ctx, coordination.Txn{Ops: []coordination.Op{{Key: "e", Session: sess.ID()}}}); err != nil {
		return err
	}
	if _, err := s.Watch(ctx, "", 0); err != nil {
		return err
	}
	<-sess.Done()
	return nil
}

// process is an etcd member in a process of its own.
type process struct {
	t     testing.TB
	cmd   *exec.Cmd
	stdin io.Closer
	line  chan string
	ended chan struct{}
	log   strings.Builder
}

func startProcess(t testing.TB, c embedded.Config) *process {
	config, err := json.Marshal(c)
	require.NoError(t, err)
	p := &process{t: t, cmd: exec.Command(os.Args[0]), line: make(chan string, 1), ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), memberEnv+"="+string(config))
	p.cmd.Stderr = &p.log
	p.stdin, err = p.cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, p.cmd.Start())
	go func() {
		line, _ := bufio.NewReader(stdout).ReadString('\n')
		p.line <- strings.TrimSpace(line)
		_ = p.cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Log(c.Name, p.log.String())
		}
	})
	return p
}

// endpoint waits until the member takes part.
func (p *process) endpoint() string {
	p.t.Helper()
	select {
	case line := <-p.line:
		if line != "" {
			return line
		}
	case <-time.After(time.Minute):
	}
	p.kill()
	require.FailNow(p.t, "etcd does not start", p.log.String())
	return ""
}

// kill ends the process without a warning.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// stop ends it in good order.
func (p *process) stop() {
	p.stdin.Close()
	select {
	case <-p.ended:
	case <-time.After(time.Minute):
		p.kill()
		require.FailNow(p.t, "etcd does not stop", p.log.String())
	}
}

func (p *process) signal(s syscall.Signal) { require.NoError(p.t, p.cmd.Process.Signal(s)) }

// TestNothingIsSaid: without a logger not a word goes to standard output or error, also
// while another member is away.
func TestNothingIsSaid(t *testing.T) {
	t.Setenv(quietEnv, "1")
	c := startCluster(t)
	c.processes[0].kill()
	<-time.After(3 * time.Second)
	for _, p := range c.processes[1:] {
		p.stop()
		require.Empty(t, p.log.String())
		require.Zero(t, p.cmd.ProcessState.ExitCode())
	}
}

// freeAddress is an address that nobody listened on a moment ago.
func freeAddress(t testing.TB) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

// oneMember is the configuration of a cluster of one.
func oneMember(t testing.TB) embedded.Config {
	peer := freeAddress(t)
	return embedded.Config{
		Name: "one", Dir: t.TempDir(), Client: freeAddress(t), Peer: peer, Cluster: map[string]string{"one": peer},
	}
}
