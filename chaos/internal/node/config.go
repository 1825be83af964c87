// Package node is one broker in a process of its own, with a control interface for
// whoever started it: to append, to read, to look at it and to break its disk.
package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"
)

// Topic is the one topic that the harness uses.
const Topic = "chaos"

// Config is what a broker's process is told, as a JSON file.
type Config struct {
	ID      int32
	Dir     string // of the store
	Cluster string // name, for the transport

	SessionTimeout, MaxLag time.Duration

	Certificates string           // directory; "": no TLS
	Peers        map[int32]string // where this broker dials each other one
	Coordination Coordination

	Disk     Disk          // how the disk is at first
	EarlyAck time.Duration // a planted bug, see earlyStore; 0: not planted
}

// Coordination says how to reach the coordination store.
type Coordination struct {
	Kind    string // one of Kinds
	Address string // host:port
}

// The coordination stores.
const (
	Memory    = "memory"
	Etcd      = "etcd"
	ZooKeeper = "zookeeper"
)

// Kinds are the coordination stores that a broker can use.
var Kinds = []string{Memory, Etcd, ZooKeeper}

// Disk is what is wrong with a broker's disk.
type Disk struct{ Full, Stalled bool }

// Exit codes of a broker's process.
const (
	ExitClean  = 0 // it was told to stop
	ExitFailed = 4 // it could not start, or could not stop cleanly
	ExitUnfit  = 3 // the broker gave up its roles: its store failed or hangs
	ExitOrphan = 5 // whoever started it is gone
)

// Hello is what the process says on its standard output once it listens, as one line of JSON.
type Hello struct {
	Control   string // where the control interface is
	Transport string // where the other brokers reach it
}

// ReadConfig reads the file that WriteConfig wrote.
func ReadConfig(path string) (Config, error) {
	var c Config
	b, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(b, &c)
	}
	if err == nil && c.Dir == "" {
		err = errors.New("no directory is given")
	}
	if err != nil {
		return c, fmt.Errorf("configuration %s: %w", path, err)
	}
	return c, nil
}

// WriteConfig writes the configuration to a file.
func WriteConfig(path string, c Config) error {
	b, err := json.MarshalIndent(c, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(path, b, 0o600)
}
