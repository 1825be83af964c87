package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/tidemark-log/tidemark/chaos/internal/node"
)

const (
	startLimit  = 20 * time.Second // until a process says where it listens
	stopLimit   = 25 * time.Second // of a graceful shutdown
	adminLimit  = 2 * time.Second  // of a question or an order to a broker
	hangUpLimit = 2 * time.Second  // until a stopped broker has answered what was on its way
	restartGap  = 200 * time.Millisecond
)

// Life is one process of a broker, while it is up.
type Life struct {
	Broker int32
	Number int
	// Work is for appends and reads, so that they cannot hold up what the harness has to say.
	Work  *node.Client
	admin *node.Client
	child *child
}

// Gone is closed once the process has ended.
func (l *Life) Gone() <-chan struct{} { return l.child.exited }

// Exit is how a broker's process ended.
type Exit struct {
	Broker int32
	Code   int  // or minus the signal
	Asked  bool // by the harness
	Faulty bool // its disk was, in that life
}

// bad reports whether no fault of the harness explains the exit.
func (e Exit) bad() bool {
	switch e.Code {
	case node.ExitClean, -int(syscall.SIGKILL):
		return !e.Asked
	case node.ExitUnfit: // after a pause a write looks as if it had hung
		return false
	case node.ExitFailed:
		return !e.Faulty
	}
	return true
}

// broker is one broker of the cluster over all its lives, and its supervisor: while it
// is wanted, a process that ends is started again.
type broker struct {
	c   *Cluster
	id  int32
	log *os.File

	mu      sync.Mutex
	changed chan struct{} // closed when what follows changes
	want    bool
	ending  bool
	life    *Life  // nil: not up, or not reached yet
	child   *child // nil: no process
	asked   bool   // the end of the present process was
	faulty  bool   // the disk was, in the present life
	disk    node.Disk
	lives   int
	exits   []Exit
}

func newBroker(c *Cluster, id int32) (*broker, error) {
	log, err := os.OpenFile(filepath.Join(c.dir, fmt.Sprintf("broker-%d.log", id)), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	b := &broker{c: c, id: id, log: log, changed: make(chan struct{})}
	if err := os.MkdirAll(b.dir(), 0o700); err != nil {
		return nil, errors.Join(err, log.Close())
	}
	return b, nil
}

func (b *broker) dir() string { return filepath.Join(b.c.dir, fmt.Sprintf("broker-%d", b.id)) }

// change runs f under the lock, and wakes whoever waits for a change.
func (b *broker) change(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f()
	close(b.changed)
	b.changed = make(chan struct{})
}

// until waits until the condition holds. false: it did not within the limit.
func (b *broker) until(limit time.Duration, holds func() bool) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		b.mu.Lock()
		ok, changed := holds(), b.changed
		b.mu.Unlock()
		if ok {
			return true
		}
		select {
		case <-changed:
		case <-timer.C:
			return false
		}
	}
}

// supervise starts the process whenever it is wanted and not there.
func (b *broker) supervise() {
	for {
		b.until(time.Duration(1<<62), func() bool { return b.want || b.ending })
		b.mu.Lock()
		ending := b.ending
		b.mu.Unlock()
		if ending {
			return
		}
		if err := b.live(); err != nil {
			b.c.say("broker %d: %v", b.id, err)
		}
		b.until(restartGap, func() bool { return b.ending })
	}
}

// live is one life of the broker, from start to exit.
func (b *broker) live() error {
	b.mu.Lock()
	cfg := b.c.nodeConfig(b.id, b.disk)
	faulty := b.disk != node.Disk{}
	b.mu.Unlock()
	path := filepath.Join(b.dir(), "config.json")
	if err := node.WriteConfig(path, cfg); err != nil {
		return err
	}
	child, err := startChild(b.c.spawner, b.log, "broker", "-config", path)
	if err != nil {
		return err
	}
	b.change(func() {
		b.child, b.faulty, b.asked = child, faulty, !b.want // it may have been called off meanwhile
		b.lives++
	})
	if !b.wanted() {
		child.signal(syscall.SIGKILL)
	}
	if err := b.reach(child); err != nil {
		child.signal(syscall.SIGKILL)
	}
	<-child.exited
	b.change(func() {
		if b.life != nil {
			_ = b.life.Work.Close()
			_ = b.life.admin.Close()
		}
		e := Exit{Broker: b.id, Code: child.code(), Asked: b.asked, Faulty: b.faulty}
		b.exits = append(b.exits, e)
		b.life, b.child = nil, nil
		if !e.Asked {
			b.c.say("broker %d: its process ended with %d after %v, and is started again", b.id, e.Code, time.Since(child.began).Round(time.Millisecond))
		}
	})
	return nil
}

// reach connects to the process once it listens, and points the others' ways at it.
func (b *broker) reach(c *child) error {
	var hello node.Hello
	if err := c.listen(&hello, startLimit); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	work, err := node.Dial(ctx, hello.Control)
	if err != nil {
		return err
	}
	admin, err := node.Dial(ctx, hello.Control)
	if err != nil {
		_ = work.Close()
		return err
	}
	b.c.net.point(b.id, hello.Transport)
	var disk node.Disk
	b.change(func() {
		b.life = &Life{Broker: b.id, Number: b.lives, Work: work, admin: admin, child: c}
		disk = b.disk
	})
	// The disk may have been changed since the configuration was written.
	return admin.Call(ctx, "SetDisk", disk, &node.None{})
}

func (b *broker) wanted() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.want
}

// current is the life, nil while there is none.
func (b *broker) current() *Life {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.life
}

// up has the process started, and does not wait for it.
func (b *broker) up() { b.change(func() { b.want = true }) }

// down ends the process in the way given and leaves it so.
func (b *broker) down(end func(*child) error) error {
	var c *child
	b.change(func() {
		b.want, b.asked = false, true
		c = b.child
	})
	var err error
	if c != nil {
		err = end(c)
	}
	b.until(startLimit, func() bool { return b.child == nil })
	return err
}

func (b *broker) kill() {
	_ = b.down(func(c *child) error {
		c.kill()
		return nil
	})
}

func (b *broker) stop() error {
	return b.down(func(c *child) error { return c.terminate(stopLimit, b.hangUp) })
}

// hangUp ends the connections to a process that has stopped, once they are answered.
func (b *broker) hangUp() {
	var life *Life
	b.change(func() { life, b.life = b.life, nil })
	if life != nil {
		_ = life.Work.HangUp(hangUpLimit)
		_ = life.admin.Close()
	}
}

// signal sends a signal to the process, if there is one.
func (b *broker) signal(sig syscall.Signal) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.child != nil {
		b.child.signal(sig)
	}
}

// setDisk breaks and mends the disk, in this life and in later ones.
func (b *broker) setDisk(d node.Disk) error {
	b.change(func() {
		b.disk = d
		b.faulty = b.faulty || d != node.Disk{}
	})
	l := b.current()
	if l == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), adminLimit)
	defer cancel()
	return l.admin.Call(ctx, "SetDisk", d, &node.None{})
}

// end stops the supervisor, once the process is down.
func (b *broker) end() {
	b.kill()
	b.change(func() { b.ending = true })
}
