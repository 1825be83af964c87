package cluster

import (
	"context"
	"path/filepath"

	"github.com/tidemark-log/tidemark/coordination/zookeeper/zkserver"
)

// zookeeperStore is a ZooKeeper of one server.
type zookeeperStore struct {
	dir     string
	spawner *spawner         // its own, for it is busy until the server answers
	server  *zkserver.Server // nil: not started
}

func newZooKeeperStore(c *Cluster) *zookeeperStore {
	return &zookeeperStore{dir: filepath.Join(c.dir, "zookeeper"), spawner: newSpawner()}
}

func (z *zookeeperStore) start(context.Context) (address string, err error) {
	z.spawner.do(func() { z.server, err = zkserver.Start(z.dir, zkserver.Options{}) })
	if err != nil {
		return "", err
	}
	return z.server.Addr(), nil
}

func (z *zookeeperStore) down() error { return z.server.Kill() }

func (z *zookeeperStore) up(context.Context) (address string, err error) {
	z.spawner.do(func() { err = z.server.Restart() })
	return z.server.Addr(), err
}

func (z *zookeeperStore) pause() error  { return z.server.Pause() }
func (z *zookeeperStore) resume() error { return z.server.Resume() }

func (z *zookeeperStore) stop() error {
	defer z.spawner.close()
	if z.server == nil {
		return nil
	}
	return z.server.Stop()
}
