package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// asProgram makes the test binary behave as the program itself.
const asProgram = "TIDEMARK_TEST_CLUSTER"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	goleak.VerifyTestMain(m)
}

// output is what a program writes, also while it runs. seen is closed once it has
// written what is waited for.
type output struct {
	mu      sync.Mutex
	text    bytes.Buffer
	waitFor string
	seen    chan struct{}
}

func outputWith(text string) *output { return &output{waitFor: text, seen: make(chan struct{})} }

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	before := strings.Contains(o.text.String(), o.waitFor)
	o.text.Write(p)
	if !before && strings.Contains(o.text.String(), o.waitFor) {
		close(o.seen)
	}
	return len(p), nil
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

func (o *output) wait(t *testing.T, limit time.Duration) {
	t.Helper()
	select {
	case <-o.seen:
	case <-time.After(limit):
		t.Fatalf("%q was not written within %v:\n%s", o.waitFor, limit, o)
	}
}

// pids are the processes of which a demo told.
func pids(t *testing.T, said string) (all []int) {
	for _, m := range regexp.MustCompile(`process (\d+)`).FindAllStringSubmatch(said, -1) {
		pid, err := strconv.Atoi(m[1])
		require.NoError(t, err)
		all = append(all, pid)
	}
	return all
}

func requireGone(t *testing.T, said string) {
	t.Helper()
	require.NotEmpty(t, pids(t, said))
	for _, pid := range pids(t, said) {
		require.Eventually(t, func() bool { return syscall.Kill(pid, 0) == syscall.ESRCH }, 20*time.Second, 10*time.Millisecond, "process %d", pid)
	}
}

// ownTemp has temporary directories made where the test sees what is left of them.
func ownTemp(t *testing.T) string {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	return dir
}

func requireEmpty(t *testing.T, dir string) {
	t.Helper()
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
}

func skipShort(t *testing.T) {
	if testing.Short() {
		t.Skip("starts brokers as processes")
	}
}

func TestDemo(t *testing.T) {
	skipShort(t)
	temp := ownTemp(t)
	t.Setenv(asProgram, "1")
	var stdout, stderr bytes.Buffer
	require.Zero(t, run(t.Context(), []string{"-demo", "-lines", "900"}, nil, &stdout, &stderr), &stderr)
	t.Logf("\n%s%s", &stderr, &stdout)

	var sum summary
	d := json.NewDecoder(strings.NewReader(stdout.String()))
	d.DisallowUnknownFields()
	require.NoError(t, d.Decode(&sum), &stdout)
	require.Equal(t, 1, strings.Count(stdout.String(), "\n"), "one line only")
	require.Equal(t, 900, sum.Lines)
	require.Equal(t, 900, sum.Acked)
	require.Equal(t, 900+sum.Duplicated, sum.Read)
	require.Zero(t, sum.Lost)
	require.Zero(t, sum.OutOfOrder)
	require.True(t, sum.ReplicasEqual)
	require.NotZero(t, sum.RecoveryMs)
	require.Positive(t, sum.FailoverMs)
	require.LessOrEqual(t, sum.FailoverMs, sum.SessionMs+1000)
	requireGone(t, stderr.String())
	requireEmpty(t, temp)
}

// startDemo runs the demo as a process until it says that.
func startDemo(t *testing.T, until string) (*exec.Cmd, *output) {
	stderr := outputWith(until)
	cmd := exec.Command(os.Args[0], "-demo")
	cmd.Env = append(os.Environ(), asProgram+"=1")
	cmd.Stderr = stderr
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // unless it has ended
	stderr.wait(t, time.Minute)
	return cmd, stderr
}

// Ctrl-C in the middle leaves nothing.
func TestInterrupted(t *testing.T) {
	skipShort(t)
	temp := ownTemp(t)
	cmd, stderr := startDemo(t, "SIGKILL to process")
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	require.Error(t, cmd.Wait())
	require.Equal(t, 1, cmd.ProcessState.ExitCode(), stderr)
	requireGone(t, stderr.String())
	requireEmpty(t, temp)
}

// When the demo is killed its brokers end all the same.
func TestKilled(t *testing.T) {
	skipShort(t)
	ownTemp(t)
	cmd, stderr := startDemo(t, "appending")
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait() // it was killed
	requireGone(t, stderr.String())
}

// A broker that ends when nobody wanted that ends the demo, which says so.
func TestBrokerEnds(t *testing.T) {
	skipShort(t)
	temp := ownTemp(t)
	cmd, stderr := startDemo(t, "appending")
	require.NoError(t, syscall.Kill(pids(t, stderr.String())[2], syscall.SIGKILL))
	require.Error(t, cmd.Wait())
	require.Equal(t, 1, cmd.ProcessState.ExitCode())
	require.Contains(t, stderr.String(), "cluster: broker 3 ended by itself: signal: killed")
	requireGone(t, stderr.String())
	kept, err := filepath.Glob(filepath.Join(temp, "tidemark-cluster-*", "broker-3.log"))
	require.NoError(t, err)
	require.Len(t, kept, 1)
	require.Contains(t, stderr.String(), "kept "+filepath.Dir(kept[0]))
}

// TestByHand goes the way of the README: certificates, three brokers, curl, SIGTERM,
// and the same again.
func TestByHand(t *testing.T) {
	skipShort(t)
	dir := t.TempDir()
	all, err := freePlaces(brokers)
	require.NoError(t, err)
	all[1].host = "localhost" // a name, which etcd looks for in the certificate
	var stdout, stderr bytes.Buffer
	certs := filepath.Join(dir, "certs")
	require.Zero(t, run(t.Context(), []string{"-make-certs", "-certs", certs, "-brokers", all.String()}, nil, &stdout, &stderr), &stderr)
	require.Equal(t, brokers, strings.Count(stdout.String(), "\n"))

	web := &http.Client{Timeout: 10 * time.Second}
	defer web.CloseIdleConnections()
	first, second := &client{all[0], web}, &client{all[1], web}
	for round := range 2 {
		var running []*exec.Cmd
		var logs []*output
		for _, p := range all {
			cmd := exec.Command(os.Args[0], "-id", strconv.Itoa(int(p.id)), "-brokers", all.String(), "-certs", certs, "-dir", filepath.Join(dir, strconv.Itoa(int(p.id))))
			cmd.Env = append(os.Environ(), asProgram+"=1")
			log := outputWith("msg=serving")
			cmd.Stderr = log
			require.NoError(t, cmd.Start())
			t.Cleanup(func() { _ = cmd.Process.Kill() }) // unless it has ended
			defer func() {
				if t.Failed() {
					t.Log(log.String())
				}
			}()
			running, logs = append(running, cmd), append(logs, log)
		}
		require.Eventually(t, func() bool { return first.createTopic(t.Context(), 2) == nil }, time.Minute, 100*time.Millisecond)
		require.Eventually(t, func() bool {
			a, err := second.append(t.Context(), 1, "hello")
			return err == nil && a.Offset >= int64(round)
		}, time.Minute, 100*time.Millisecond)
		values, err := first.readAll(t.Context(), 1)
		require.NoError(t, err)
		require.GreaterOrEqual(t, len(values), round+1)
		require.Equal(t, "hello", values[0])
		for _, cmd := range running {
			require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		}
		for i, cmd := range running {
			require.NoError(t, cmd.Wait(), "it shuts down, and that is no error")
			said := strings.Split(strings.TrimSpace(logs[i].String()), "\n")
			require.Contains(t, said[len(said)-1], `level=INFO msg="shut down"`)
		}
	}
}

func TestBadInput(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		says string
	}{
		"nothing":            {nil, "-brokers is required, or -demo"},
		"an argument":        {[]string{"-demo", "x"}, `unexpected argument "x"`},
		"unknown flag":       {[]string{"-nothing"}, "-nothing"},
		"session too short":  {[]string{"-demo", "-session", "10ms"}, "-session"},
		"a used directory":   {[]string{"-demo", "-dir", "."}, "is not empty"},
		"too few lines":      {[]string{"-demo", "-lines", "3"}, "-lines"},
		"no certificates":    {[]string{"-id", "1", "-brokers", "1=a", "-dir", "d"}, "-certs is required"},
		"no directory":       {[]string{"-id", "1", "-brokers", "1=a", "-certs", "d"}, "-dir is required"},
		"not in the list":    {[]string{"-id", "4", "-brokers", "1=a,2=b", "-certs", "d", "-dir", "d"}, "-id 4 is not one of the -brokers 1=a:7400,2=b:7400"},
		"a list of nonsense": {[]string{"-id", "1", "-brokers", "a,b", "-certs", "d", "-dir", "d"}, "not ID=HOST"},
		"the same ports":     {[]string{"-make-certs", "-brokers", "1=127.0.0.1,2=127.0.0.2", "-certs", "d"}, "1=127.0.0.1:7400 and 2=127.0.0.2:7400 are on one machine"},
		"certs of nonsense":  {[]string{"-make-certs", "-brokers", "a,b", "-certs", "d"}, "not ID=HOST"},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			require.Equal(t, 2, run(t.Context(), c.args, nil, &stdout, &stderr))
			require.Contains(t, stderr.String(), c.says)
			require.Empty(t, stdout.String())
		})
	}
	var stderr bytes.Buffer
	require.Zero(t, run(t.Context(), []string{"-h"}, nil, io.Discard, &stderr))
	require.Contains(t, stderr.String(), "-make-certs")
}

func TestPlaces(t *testing.T) {
	all, err := parsePlaces("1=10.0.0.1,2=b.example:9000,3=[::1],4=[::1]:80,5=::2")
	require.NoError(t, err)
	require.Equal(t, places{{1, "10.0.0.1", 7400}, {2, "b.example", 9000}, {3, "::1", 7400}, {4, "::1", 80}, {5, "::2", 7400}}, all)
	require.Equal(t, "[::1]:81", all[3].etcdPeer())
	require.Equal(t, "[::1]:81", all[3].listenEtcdPeer())
	require.Equal(t, "0.0.0.0:9000", all[1].listenBroker(), "a name is for others to look up")
	require.Equal(t, "b.example:9000", all[1].broker())
	require.Equal(t, "localhost:7400", place{host: "localhost", port: 7400}.listenBroker())
	_, err = parsePlaces("1=127.0.0.1:7400,2=localhost:7404,3=[::1]:7396,4=127.0.0.2:7410,5=b.example:7400")
	require.NoError(t, err)
	again, err := parsePlaces(all.String())
	require.NoError(t, err)
	require.Equal(t, all, again)
	for _, list := range []string{"", "1", "=a", "x=a", "-1=a", "1=", "1=:7400", "1=a:0", "1=a:65533", "1=a,1=b", "1=a,", "99999999999=a",
		"1=localhost:7400,2=127.0.0.9:7403", "1=[::1],2=localhost", "1=a:7403,2=a:7400"} {
		_, err := parsePlaces(list)
		require.Error(t, err, list)
	}
}

func TestCount(t *testing.T) {
	for name, c := range map[string]struct {
		acked, read string // letters are lines
		want        summary
	}{
		"all well":           {"abc", "abc", summary{Acked: 3, Read: 3}},
		"nothing":            {"", "", summary{}},
		"not acked":          {"ab", "abx", summary{Acked: 2, Read: 3}},
		"lost":               {"abc", "ac", summary{Acked: 3, Read: 2, Lost: 1}},
		"twice":              {"abc", "abcb", summary{Acked: 3, Read: 4, Duplicated: 1}},
		"out of order":       {"abc", "acb", summary{Acked: 3, Read: 3, OutOfOrder: 1}},
		"twice and in order": {"abc", "abab" + "c", summary{Acked: 3, Read: 5, Duplicated: 2}},
	} {
		t.Run(name, func(t *testing.T) {
			var s summary
			s.count(strings.Split(c.acked, ""), strings.Split(c.read, ""))
			require.Equal(t, c.want, s)
		})
	}
}
