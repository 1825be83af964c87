package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/tidemark-log/tidemark/chaos/internal/member"
)

// etcdStore is an etcd of one member, in a process of its own.
type etcdStore struct {
	c      *Cluster
	log    *os.File
	config member.Config
	child  *child // nil: down
}

func newEtcdStore(c *Cluster) (*etcdStore, error) {
	log, err := os.OpenFile(filepath.Join(c.dir, "etcd.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	return &etcdStore{c: c, log: log, config: member.Config{Dir: filepath.Join(c.dir, "etcd")}}, nil
}

func (e *etcdStore) start(ctx context.Context) (string, error) {
	port, err := freePort()
	if err != nil {
		return "", err
	}
	e.config.Peer = port
	return e.up(ctx)
}

// freePort is an address of the loopback interface that nobody uses now.
func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// up starts the process. Somebody's outgoing connection may have the port just then, so
// it is tried for a while.
func (e *etcdStore) up(ctx context.Context) (string, error) {
	path := filepath.Join(e.c.dir, "etcd.json")
	b, err := json.Marshal(e.config)
	if err == nil {
		err = os.WriteFile(path, b, 0o600)
	}
	if err != nil {
		return "", err
	}
	for end := time.Now().Add(startLimit); ; {
		c, err := startChild(e.c.spawner, e.log, "etcd", "-config", path)
		if err != nil {
			return "", err
		}
		var hello member.Hello
		if err = c.listen(&hello, startLimit); err == nil {
			e.child = c
			return hello.Client, nil
		}
		c.kill()
		if time.Now().After(end) || !pause(ctx, 100*time.Millisecond) {
			return "", fmt.Errorf("etcd did not start: %w", err)
		}
	}
}

func (e *etcdStore) down() error {
	if e.child != nil {
		e.child.kill()
		e.child = nil
	}
	return nil
}

func (e *etcdStore) pause() error  { return e.signal(syscall.SIGSTOP) }
func (e *etcdStore) resume() error { return e.signal(syscall.SIGCONT) }

func (e *etcdStore) signal(sig syscall.Signal) error {
	if e.child != nil {
		e.child.signal(sig)
	}
	return nil
}

func (e *etcdStore) stop() error {
	defer e.log.Close()
	if e.child == nil {
		return nil
	}
	return e.child.terminate(stopLimit, func() {})
}
