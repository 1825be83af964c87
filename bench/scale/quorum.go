package scale

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/coordination/etcd"
	"github.com/tidemark-log/tidemark/coordination/etcd/embedded"
	"github.com/tidemark-log/tidemark/coordination/memory"
)

// metadata is a coordination store that brokers and whoever watches them connect to.
type metadata interface {
	// connect makes a broker's way to it.
	connect(broker int32) (coordination.Store, error)
	// watcher makes a way that does not end with a broker's process.
	watcher(besides int32) (coordination.Store, error)
	// died ends what runs in the process of a broker that was killed.
	died(broker int32) error
	close() error
}

// inMemory is coordination/memory: it is in no broker's process.
type inMemory struct{ *memory.Store }

func (m inMemory) connect(int32) (coordination.Store, error) { return m.Connect(), nil }
func (m inMemory) watcher(int32) (coordination.Store, error) { return m.Connect(), nil }
func (m inMemory) died(int32) error                          { return nil }
func (m inMemory) close() error                              { return m.Store.Close() }

// quorum is an embedded etcd with a member beside each broker, which dies with it.
type quorum struct {
	mu      sync.Mutex
	members map[int32]*embedded.Member
}

// startQuorum starts the members, and waits until they have a leader.
func startQuorum(ctx context.Context, dir string, brokers int32) (*quorum, error) {
	peers := make(map[string]string)
	for id := range brokers {
		address, err := freeAddress()
		if err != nil {
			return nil, err
		}
		peers[memberName(id+1)] = address
	}
	q := &quorum{members: make(map[int32]*embedded.Member)}
	var g errgroup.Group
	for id := int32(1); id <= brokers; id++ {
		g.Go(func() error {
			name := memberName(id)
			m, err := embedded.Start(ctx, embedded.Config{
				Name: name, Dir: filepath.Join(dir, name), Client: "127.0.0.1:0", Peer: peers[name], Cluster: peers,
			})
			if err != nil {
				return err
			}
			q.mu.Lock()
			q.members[id] = m
			q.mu.Unlock()
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, errors.Join(err, q.close())
	}
	return q, nil
}

func memberName(broker int32) string { return fmt.Sprintf("etcd-%d", broker) }

// freeAddress is one that nobody listens on. It is free for others until it is used.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

func (q *quorum) member(id int32) *embedded.Member {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.members[id]
}

func (q *quorum) connect(broker int32) (coordination.Store, error) {
	return etcd.Open(context.Background(), etcd.Config{Endpoints: q.member(broker).Endpoints()})
}

func (q *quorum) watcher(besides int32) (coordination.Store, error) {
	for id := range q.members {
		if id != besides {
			return q.connect(id)
		}
	}
	return nil, errors.New("etcd has no other member")
}

func (q *quorum) died(broker int32) error {
	m := q.member(broker)
	q.mu.Lock()
	delete(q.members, broker)
	q.mu.Unlock()
	return m.Close()
}

func (q *quorum) close() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	var g errgroup.Group
	for _, m := range q.members {
		g.Go(m.Close)
	}
	return g.Wait()
}
