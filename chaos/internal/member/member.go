// Package member is an etcd server of one member in a process of its own.
package member

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"

	"github.com/tidemark-log/tidemark/coordination/etcd/embedded"
)

// Config is what the process is told, as a JSON file.
type Config struct {
	Dir  string
	Peer string // host:port that is free; nobody dials it
}

// Hello is what the process says on its standard output once it serves, as one line of JSON.
type Hello struct{ Client string }

// ReadConfig reads a file that has a Config.
func ReadConfig(path string) (c Config, err error) {
	b, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(b, &c)
	}
	return c, err
}

// Run is the life of the process, until ctx ends. It returns the exit code.
func Run(ctx context.Context, c Config, hello io.Writer, log *slog.Logger) int {
	const name = "chaos"
	m, err := embedded.Start(ctx, embedded.Config{
		Name: name, Dir: c.Dir, Client: "127.0.0.1:0", Peer: c.Peer, Cluster: map[string]string{name: c.Peer}, Logger: log,
	})
	if err != nil {
		log.Error("could not start", "error", err)
		return 1
	}
	at, err := url.Parse(m.Endpoints()[0])
	if err == nil {
		var line []byte
		if line, err = json.Marshal(Hello{Client: at.Host}); err == nil {
			_, err = fmt.Fprintf(hello, "%s\n", line)
		}
	}
	if err == nil {
		select {
		case <-ctx.Done():
		case <-m.Failed():
			err = m.Err()
		}
	}
	if err != nil {
		log.Error("failed", "error", err)
	}
	if closed := m.Close(); closed != nil || err != nil {
		return 1
	}
	return 0
}
