package peers

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	"golang.org/x/sync/errgroup"

	"github.com/tidemark-log/tidemark/bench/meter"
	"github.com/tidemark-log/tidemark/bench/pause"
)

// raftPeer is a raft group per partition. All leaders are of this process, so that an
// append goes straight to them.
type raftPeer struct {
	groups []*raftGroup
	writes meter.Writes
}

// raftGroup is three nodes, the first of which leads.
type raftGroup struct {
	nodes   []*raftNode
	leader  *raftNode
	futures chan pendingApply
	ending  sync.WaitGroup
}

// pendingApply is an append under way. They end in the order in which they began.
type pendingApply struct {
	future raft.ApplyFuture
	done   func(error)
}

func openRaft(ctx context.Context, c Config) (Peer, error) {
	if c.Background {
		return nil, errors.New("raft-wal always syncs")
	}
	p := &raftPeer{groups: make([]*raftGroup, c.Partitions)}
	var opening errgroup.Group // each waits for an election
	for i := range p.groups {
		p.groups[i] = &raftGroup{futures: make(chan pendingApply, c.InFlight)}
		opening.Go(func() error {
			return p.groups[i].open(ctx, filepath.Join(c.Dir, fmt.Sprintf("group-%d", i)), &p.writes)
		})
	}
	if err := opening.Wait(); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

func (g *raftGroup) open(ctx context.Context, dir string, w *meter.Writes) error {
	g.ending.Go(func() {
		for a := range g.futures {
			a.done(a.future.Error())
		}
	})
	var members raft.Configuration
	for i := range replicas {
		n, err := openRaftNode(filepath.Join(dir, fmt.Sprintf("node-%d", i)), i, w)
		if err != nil {
			return err
		}
		g.nodes = append(g.nodes, n)
		members.Servers = append(members.Servers, raft.Server{ID: n.id, Address: n.transport.LocalAddr()})
	}
	for _, n := range g.nodes {
		if err := n.raft.BootstrapCluster(members).Error(); err != nil {
			return err
		}
	}
	for {
		for _, n := range g.nodes {
			if n.raft.State() == raft.Leader {
				g.leader = n
				return n.raft.Barrier(10 * time.Second).Error()
			}
		}
		if err := pause.Shortly(ctx); err != nil {
			return fmt.Errorf("no leader: %w", err)
		}
	}
}

func (p *raftPeer) Append(_ context.Context, partition int, value []byte, done func(error)) {
	g := p.groups[partition]
	g.futures <- pendingApply{g.leader.apply(value), done}
}

func (p *raftPeer) AppendWait(_ context.Context, partition int, value []byte) error {
	return p.groups[partition].leader.apply(value).Error()
}

func (p *raftPeer) Read(ctx context.Context, partition int, f func([]byte) error) error {
	g := p.groups[partition]
	for _, n := range g.nodes { // that followers have it all the same costs little to see
		for n.fsm.applied.Load() < g.leader.fsm.applied.Load() {
			if err := pause.Shortly(ctx); err != nil {
				return fmt.Errorf("%s has applied %d of %d: %w", n.id, n.fsm.applied.Load(), g.leader.fsm.applied.Load(), err)
			}
		}
		if a, b := n.fsm.sum.Load(), g.leader.fsm.sum.Load(); a != b {
			return fmt.Errorf("bench: %s has applied something else than %s", n.id, g.leader.id)
		}
	}
	return g.leader.read(f)
}

func (p *raftPeer) Writes() *meter.Writes { return &p.writes }

func (p *raftPeer) Close() error {
	var closing errgroup.Group
	for _, g := range p.groups {
		closing.Go(g.close)
	}
	return closing.Wait()
}

func (g *raftGroup) close() error {
	close(g.futures)
	g.ending.Wait()
	var errs []error
	for _, n := range g.nodes {
		errs = append(errs, n.close())
	}
	return errors.Join(errs...)
}
