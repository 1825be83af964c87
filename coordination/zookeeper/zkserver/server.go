// Package zkserver runs a ZooKeeper server for tests: a real one, as a process of
// its own on a loopback port, that can be stopped, killed, paused and restarted.
//
// It needs Java and ZooKeeper's jars. They are looked for in the directory that the
// environment variable TIDEMARK_ZOOKEEPER names (the lib directory of a release),
// else where Debian's package "zookeeper" puts them.
package zkserver

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// startTimeout bounds the start of a server, and its stop.
const startTimeout = 30 * time.Second

// Options configure a Server. The zero value is good.
type Options struct {
	// Tick is ZooKeeper's tickTime: a session's timeout is at least two of it, and is
	// rounded up to a multiple of it. 0 means 100 ms.
	Tick time.Duration
	// NoSync has the server not wait for its disk (forceSync=no). Kill then still loses
	// nothing, for the operating system has it.
	NoSync bool
	// Port is where it listens; 0 means one that is free.
	Port int
	// Heap bounds the Java heap, in MiB; 0 means 256.
	Heap int
	// Flags are further flags for the Java virtual machine, such as "-Djute.maxbuffer=…".
	Flags []string
}

// Server is one ZooKeeper server. Its methods may be called from any goroutine.
type Server struct {
	dir  string
	java string
	jars string
	o    Options
	port int

	id      int    // in an ensemble; 0: it is alone
	members string // of the ensemble, as its configuration has them

	mu      sync.Mutex
	process *process // nil: not running
}

// process is one life of the server.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed once err is set
	err  error
}

// Start starts a server with its files in dir, which is made if it does not exist;
// what an earlier server left there is taken up. It returns once the server answers.
// The error wraps ErrNotInstalled where there is no ZooKeeper.
func Start(dir string, o Options) (*Server, error) {
	s, err := prepare(dir, o)
	if err != nil {
		return nil, err
	}
	if err := s.Restart(); err != nil {
		return nil, errors.Join(err, s.Kill())
	}
	return s, nil
}

// StartEnsemble starts n servers that form one ensemble, with their files below dir, and
// returns once all of them answer.
func StartEnsemble(dir string, n int, o Options) ([]*Server, error) {
	var servers []*Server
	var members string
	for id := 1; id <= n; id++ {
		s, err := prepare(filepath.Join(dir, strconv.Itoa(id)), o)
		if err != nil {
			return nil, err
		}
		peer, err := freePort()
		if err != nil {
			return nil, err
		}
		election, err := freePort()
		if err != nil {
			return nil, err
		}
		members += fmt.Sprintf("server.%d=127.0.0.1:%d:%d\n", id, peer, election)
		s.id = id
		servers = append(servers, s)
	}
	var errs []error
	for _, s := range servers {
		s.members = members
		errs = append(errs, s.Launch())
	}
	for _, s := range servers {
		errs = append(errs, s.Ready())
	}
	if err := errors.Join(errs...); err != nil {
		for _, s := range servers {
			err = errors.Join(err, s.Kill())
		}
		return nil, err
	}
	return servers, nil
}

// prepare makes a Server that is not yet running.
func prepare(dir string, o Options) (*Server, error) {
	java, jars, err := find()
	if err != nil {
		return nil, err
	}
	if o.Tick == 0 {
		o.Tick = 100 * time.Millisecond
	}
	if o.Heap == 0 {
		o.Heap = 256
	}
	dir, err = filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("zkserver: %w", err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "data"), 0o755); err != nil {
		return nil, fmt.Errorf("zkserver: %w", err)
	}
	s := &Server{dir: dir, java: java, jars: jars, o: o, port: o.Port}
	if s.port == 0 {
		if s.port, err = freePort(); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// Addr is where the server listens, as host and port.
func (s *Server) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// DataDir is the directory with the server's snapshots and transaction logs. While
// the server is down it may be copied, and replaced by such a copy.
func (s *Server) DataDir() string { return filepath.Join(s.dir, "data") }

// Restart starts the server again on the same directory and port, after it was
// stopped or killed, and returns once it answers. A running one is killed first.
func (s *Server) Restart() error {
	if err := s.Launch(); err != nil {
		return err
	}
	return s.Ready()
}

// Launch is the first half of Restart: it returns as soon as the server accepts
// connections, before it answers on them.
func (s *Server) Launch() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.kill(); err != nil {
		return err
	}
	if err := s.configure(); err != nil {
		return err
	}
	p, err := s.spawn()
	if err != nil {
		return err
	}
	s.process = p
	return s.await(p, func(conn net.Conn) bool { return true })
}

// Ready is the second half of Restart: it waits until the server answers.
func (s *Server) Ready() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process == nil {
		return errors.New("zkserver: server is down")
	}
	return s.await(s.process, serves)
}

// Leads says whether the server is the leader of its ensemble, or alone.
func (s *Server) Leads() bool {
	conn, err := net.DialTimeout("tcp", s.Addr(), time.Second)
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close() }()
	status := status(conn)
	return strings.Contains(status, "Mode: leader") || strings.Contains(status, "Mode: standalone")
}

// serves asks the server whether it is up.
func serves(conn net.Conn) bool { return strings.Contains(status(conn), "Mode:") }

// status asks the server for its status; "": it did not answer.
func status(conn net.Conn) string {
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	if _, err := conn.Write([]byte("srvr")); err != nil {
		return ""
	}
	answer, _ := io.ReadAll(conn)
	return string(answer)
}

// await polls the server until good likes a connection to it.
func (s *Server) await(p *process, good func(net.Conn) bool) error {
	limit := time.After(startTimeout)
	for {
		if conn, err := net.DialTimeout("tcp", s.Addr(), time.Second); err == nil {
			ok := good(conn)
			_ = conn.Close()
			if ok {
				return nil
			}
		}
		select {
		case <-p.done:
			return fmt.Errorf("zkserver: server ended: %v: %s", p.err, s.lastWords())
		case <-limit:
			return fmt.Errorf("zkserver: server does not answer within %v: %s", startTimeout, s.lastWords())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// Stop ends the server in an orderly way.
func (s *Server) Stop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process == nil {
		return nil
	}
	if err := s.process.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("zkserver: %w", err)
	}
	select {
	case <-s.process.done:
		s.process = nil
		return nil
	case <-time.After(startTimeout):
		return errors.Join(fmt.Errorf("zkserver: server does not end within %v", startTimeout), s.kill())
	}
}

// Kill ends the server at once, as a crash of its process does. A paused one, too.
func (s *Server) Kill() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kill()
}

func (s *Server) kill() error {
	if s.process == nil {
		return nil
	}
	if err := s.process.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("zkserver: %w", err)
	}
	<-s.process.done
	s.process = nil
	return nil
}

// spawn starts the process. The goroutine that waits for it keeps its thread, for on
// Linux the process ends with the thread that started it.
func (s *Server) spawn() (*process, error) {
	log, err := os.OpenFile(s.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("zkserver: %w", err)
	}
	args := []string{
		fmt.Sprintf("-Xmx%dm", s.o.Heap), "-Xms32m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto",
		"-Dzookeeper.forceSync=" + map[bool]string{false: "yes", true: "no"}[s.o.NoSync],
		"-Dzookeeper.preAllocSize=1024", // KiB; else each start makes a log of 64 MiB
		"-Dzookeeper.commitLogCount=50", // transactions kept in memory; by default 500, of any size
		"-Dzookeeper.admin.enableServer=false", "-Dzookeeper.4lw.commands.whitelist=srvr",
		"-Dzookeeper.jmx.log4j.disable=true",
	}
	args = append(args, s.o.Flags...)
	main := "org.apache.zookeeper.server.ZooKeeperServerMain"
	if s.id != 0 {
		main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
	}
	args = append(args, "-cp", s.jars, main, s.configFile())
	cmd := exec.Command(s.java, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = s.dir, log, log, withParent()
	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer func() { _ = log.Close() }()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("zkserver: %w", err)
	}
	return p, nil
}

func (s *Server) configFile() string { return filepath.Join(s.dir, "zoo.cfg") }
func (s *Server) logFile() string    { return filepath.Join(s.dir, "server.log") }

func (s *Server) configure() error {
	config := fmt.Sprintf(`dataDir=%s
clientPort=%d
clientPortAddress=127.0.0.1
tickTime=%d
minSessionTimeout=%d
maxSessionTimeout=2000000000
maxClientCnxns=0
autopurge.purgeInterval=0
`, filepath.ToSlash(s.DataDir()), s.port, s.o.Tick.Milliseconds(), 2*s.o.Tick.Milliseconds())
	if s.id != 0 {
		config += "initLimit=50\nsyncLimit=20\n" + s.members
		if err := os.WriteFile(filepath.Join(s.DataDir(), "myid"), []byte(strconv.Itoa(s.id)), 0o644); err != nil {
			return fmt.Errorf("zkserver: %w", err)
		}
	}
	if err := os.WriteFile(s.configFile(), []byte(config), 0o644); err != nil {
		return fmt.Errorf("zkserver: %w", err)
	}
	return nil
}

// lastWords is the end of what the server said.
func (s *Server) lastWords() string {
	b, err := os.ReadFile(s.logFile())
	if err != nil {
		return "it left no log"
	}
	return strings.TrimSpace(string(b[max(0, len(b)-2000):]))
}
