package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// children are the processes of the demo, by broker.
type children struct {
	dir     string
	all     places
	session time.Duration
	tee     io.Writer               // besides their files, where what they log goes; nil: nowhere
	fail    context.CancelCauseFunc // is called when one ends by itself
	running map[int32]*child
}

// child is a process of this same program, as one broker.
type child struct {
	id    int32
	cmd   *exec.Cmd
	stdin io.Closer // its end tells the child to shut down, also when we are gone without a word
	ended chan struct{}

	mu       sync.Mutex
	expected bool // it was told to end
}

func (c *children) logFile(id int32) string {
	return filepath.Join(c.dir, fmt.Sprintf("broker-%d.log", id))
}

func (c *children) start(p place) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	file, err := os.OpenFile(c.logFile(p.id), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	cmd := exec.Command(self, "-child",
		"-id", fmt.Sprint(p.id), "-brokers", c.all.String(), "-session", c.session.String(),
		"-dir", filepath.Join(c.dir, fmt.Sprintf("broker-%d", p.id)), "-certs", filepath.Join(c.dir, "certs"))
	cmd.Stderr = file
	if c.tee != nil {
		cmd.Stderr = io.MultiWriter(file, c.tee)
	}
	stdin, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return errors.Join(err, file.Close())
	}
	started := &child{id: p.id, cmd: cmd, stdin: stdin, ended: make(chan struct{})}
	c.running[p.id] = started
	go func() {
		err := errors.Join(cmd.Wait(), file.Close())
		if !started.toldToEnd() {
			c.fail(fmt.Errorf("broker %d ended by itself: %w", p.id, errors.Join(err, errors.New("see "+c.logFile(p.id)))))
		}
		close(started.ended)
	}()
	return nil
}

func (c *child) toldToEnd() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.expected
}

func (c *child) expectEnd() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.expected = true
}

// kill ends a broker with SIGKILL: it cannot do anything about it.
func (c *children) kill(id int32) error {
	child := c.running[id]
	child.expectEnd()
	if err := child.cmd.Process.Kill(); err != nil {
		return err
	}
	<-child.ended
	delete(c.running, id)
	return nil
}

// stop shuts all of them down, all at once, and kills those that take too long.
func (c *children) stop() {
	const limit = 2 * shutdownTime // longer than they need
	for _, child := range c.running {
		child.expectEnd()
		_ = child.stdin.Close() // it is closed already if the process has ended
	}
	patience := time.After(limit)
	for _, child := range c.running {
		select {
		case <-child.ended:
		case <-patience:
			_ = child.cmd.Process.Kill()
			<-child.ended
		}
	}
	clear(c.running)
}

// pid is for people to see that these are processes.
func (c *children) pid(id int32) int { return c.running[id].cmd.Process.Pid }

// freePlaces finds four free ports for each of n brokers on this machine. They are
// none of those that the system gives to outgoing connections, so that a broker that
// was killed finds its own free when it returns.
func freePlaces(n int) (places, error) {
	const first, last = 20000, 32000
	var all places
	for range 1000 {
		port := first + 4*rand.IntN((last-first)/4)
		taken := slices.ContainsFunc(all, func(p place) bool { return p.port == port })
		if taken || !free(port) {
			continue
		}
		all = append(all, place{id: int32(len(all) + 1), host: "127.0.0.1", port: port})
		if len(all) == n {
			return all, nil
		}
	}
	return nil, errors.New("no free ports")
}

func free(first int) bool {
	for port := first; port < first+4; port++ {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil || l.Close() != nil {
			return false
		}
	}
	return true
}
