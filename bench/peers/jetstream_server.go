package peers

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"slices"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/tidemark-log/tidemark/bench/pause"
)

// startNATS starts three servers with JetStream, and waits until they know each other.
// With sync they sync every write; otherwise they do so every two minutes, as is their
// default.
func startNATS(ctx context.Context, dir string, sync bool) ([]*server.Server, error) {
	ports, err := freePorts(replicas)
	if err != nil {
		return nil, err
	}
	var routes []*url.URL
	for _, port := range ports {
		routes = append(routes, &url.URL{Scheme: "nats", Host: fmt.Sprintf("127.0.0.1:%d", port)})
	}
	var all []*server.Server
	for i, port := range ports {
		s, err := server.NewServer(&server.Options{
			ServerName: fmt.Sprintf("server-%d", i), Host: "127.0.0.1", Port: server.RANDOM_PORT, NoLog: true, NoSigs: true,
			JetStream: true, StoreDir: filepath.Join(dir, fmt.Sprintf("server-%d", i)), SyncAlways: sync,
			JetStreamMaxMemory: 1 << 30, JetStreamMaxStore: 1 << 40,
			Cluster: server.ClusterOpts{Name: "bench", Host: "127.0.0.1", Port: port},
			Routes:  routes,
		})
		if err != nil {
			return all, err
		}
		all = append(all, s)
		s.Start()
	}
	for !placeable(all) {
		if err := pause.Shortly(ctx); err != nil {
			return all, fmt.Errorf("servers do not know each other: %w", err)
		}
	}
	return all, nil
}

// placeable reports whether the servers have a leader that knows of all of them.
func placeable(all []*server.Server) bool {
	return slices.ContainsFunc(all, func(s *server.Server) bool { return len(s.JetStreamClusterPeers()) == len(all) })
}

// freePorts are ports of the loopback interface that nobody listened at just now.
func freePorts(n int) ([]int, error) {
	var ports []int
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}
