package cluster

import (
	"fmt"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-log/tidemark"
	"github.com/tidemark-log/tidemark/coordination"
)

// Options describes a Cluster. Zero fields mean the documented defaults.
type Options struct {
	// Dir has a directory for each broker. Required. What is there is opened again.
	Dir string
	// Brokers is how many there are, with ids from 1. Default 3.
	Brokers int
	// Net is how they are connected: "tcp" over the loopback interface, or "inproc",
	// without sockets. Default "tcp".
	Net string
	// Coordination returns a broker's way to the metadata. The Cluster closes it.
	// Default: all brokers share one coordination/memory.
	Coordination func(broker int32) (coordination.Store, error)
	// Tweak may change what a broker is about to be opened with, and put something
	// around its Transport or Store.
	Tweak func(*tidemark.Config)
	// FS is the file system of all stores. Default: the operating system's.
	FS vfs.FS
}

func (o Options) withDefaults() Options {
	if o.Brokers == 0 {
		o.Brokers = 3
	}
	if o.Net == "" {
		o.Net = "tcp"
	}
	return o
}

func (o Options) validate() error {
	switch {
	case o.Dir == "":
		return fmt.Errorf("bench: cluster: Dir is required")
	case o.Brokers < 1:
		return fmt.Errorf("bench: cluster: Brokers is %d", o.Brokers)
	case o.Net != "tcp" && o.Net != "inproc":
		return fmt.Errorf("bench: cluster: Net is %q, not tcp or inproc", o.Net)
	}
	return nil
}
