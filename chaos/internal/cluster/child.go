package cluster

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// spawner starts processes from one thread, which lives as long as they may: Linux
// kills them when the thread that started them ends, and with this process.
type spawner struct {
	work  chan func()
	ended chan struct{}
}

func newSpawner() *spawner {
	s := &spawner{work: make(chan func()), ended: make(chan struct{})}
	go func() {
		defer close(s.ended)
		runtime.LockOSThread() // and never unlocks: the thread ends with the goroutine
		for f := range s.work {
			f()
		}
	}()
	return s
}

// do runs f in the thread.
func (s *spawner) do(f func()) {
	done := make(chan struct{})
	s.work <- func() {
		defer close(done)
		f()
	}
	<-done
}

// close ends the thread; no child may be left.
func (s *spawner) close() {
	close(s.work)
	<-s.ended
}

// child is one process: this executable with another command.
type child struct {
	cmd    *exec.Cmd
	stdin  io.Closer     // it ends itself when that closes
	hello  chan []byte   // its first line, once
	over   chan struct{} // closed with its next line: it ends when its callers have hung up
	exited chan struct{} // closed once it has ended
	began  time.Time
}

// startChild starts this executable with args. What it says on stderr goes to log.
func startChild(s *spawner, log *os.File, args ...string) (*child, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(exe, args...)
	cmd.SysProcAttr = attributes()
	cmd.Stderr = log
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if s.do(func() { err = cmd.Start() }); err != nil {
		return nil, err
	}
	c := &child{cmd: cmd, stdin: stdin, hello: make(chan []byte, 1), over: make(chan struct{}), exited: make(chan struct{}), began: time.Now()}
	go c.wait(stdout)
	return c, nil
}

// wait reads two lines, passes the rest by, and sees the process end.
func (c *child) wait(stdout io.Reader) {
	r := bufio.NewReader(stdout)
	if line, err := r.ReadBytes('\n'); err == nil {
		c.hello <- line
	}
	if _, err := r.ReadBytes('\n'); err == nil {
		close(c.over)
	}
	_, _ = io.Copy(io.Discard, r)
	_ = c.cmd.Wait() // what it came to is in ProcessState
	close(c.exited)
}

var errSilent = errors.New("it does not say where it listens")

// listen waits for the first line, and reads it into v.
func (c *child) listen(v any, limit time.Duration) error {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case line := <-c.hello:
		return json.Unmarshal(line, v)
	case <-c.exited:
		select {
		case line := <-c.hello:
			return json.Unmarshal(line, v)
		default:
			return fmt.Errorf("it ended: %v", c.cmd.ProcessState)
		}
	case <-timer.C:
		return errSilent
	}
}

func (c *child) signal(sig syscall.Signal) { _ = c.cmd.Process.Signal(sig) } // one that has ended needs none

// kill ends it now, also when it is stopped.
func (c *child) kill() {
	c.signal(syscall.SIGKILL)
	<-c.exited
}

// terminate asks it to end, and kills it when it takes too long. hangUp is called when it
// has stopped, and waits for its callers.
func (c *child) terminate(limit time.Duration, hangUp func()) error {
	c.signal(syscall.SIGTERM)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	select {
	case <-c.over:
		hangUp()
	case <-c.exited:
	case <-ctx.Done():
	}
	select {
	case <-c.exited:
		return nil
	case <-ctx.Done():
		c.signal(syscall.SIGQUIT) // its goroutines go to the log
		again := time.NewTimer(2 * time.Second)
		defer again.Stop()
		select {
		case <-c.exited:
		case <-again.C:
			c.kill()
		}
		return fmt.Errorf("process %d did not end within %v of SIGTERM", c.cmd.Process.Pid, limit)
	}
}

// code is the exit code, or minus the signal that ended it.
func (c *child) code() int {
	<-c.exited
	if ws, ok := c.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return -int(ws.Signal())
	}
	return c.cmd.ProcessState.ExitCode()
}
