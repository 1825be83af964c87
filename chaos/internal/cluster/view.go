package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tidemark-log/tidemark/chaos/internal/node"
)

// View is what the brokers say of themselves at about one time.
type View struct {
	Brokers map[int32]node.StatusReply // those that answered
	Leaders []int32                    // by partition, by the newest leader epoch that anybody knows; -1: none
}

// View asks all brokers, for two seconds at most.
func (c *Cluster) View(ctx context.Context) View {
	ctx, cancel := context.WithTimeout(ctx, adminLimit)
	defer cancel()
	v := View{Brokers: make(map[int32]node.StatusReply), Leaders: make([]int32, c.o.Partitions)}
	var mu sync.Mutex
	var all sync.WaitGroup
	for id, b := range c.brokers {
		l := b.current()
		if l == nil {
			continue
		}
		all.Go(func() {
			var r node.StatusReply
			if l.admin.Call(ctx, "Status", node.None{}, &r) != nil || !r.Open {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			v.Brokers[id] = r
		})
	}
	all.Wait()
	newest := make([]int32, c.o.Partitions)
	for n := range v.Leaders {
		v.Leaders[n], newest[n] = -1, -1
	}
	for _, r := range v.Brokers {
		for _, x := range r.Replicas {
			if x.LeaderEpoch > newest[x.Partition] {
				newest[x.Partition], v.Leaders[x.Partition] = x.LeaderEpoch, x.Leader
			}
		}
	}
	return v
}

// Controller is the one that most brokers know; -1: none.
func (v View) Controller() int32 {
	votes := make(map[int32]int)
	best := int32(-1)
	for _, r := range v.Brokers {
		if r.Controller < 0 {
			continue
		}
		votes[r.Controller]++
		if best < 0 || votes[r.Controller] > votes[best] || votes[r.Controller] == votes[best] && r.Controller < best {
			best = r.Controller
		}
	}
	return best
}

// leaderOf is the replica that leads a partition, as its broker says.
func (v View) leaderOf(n int) (node.Replica, bool) {
	r, ok := v.Brokers[v.Leaders[n]]
	if !ok {
		return node.Replica{}, false
	}
	i := slices.IndexFunc(r.Replicas, func(x node.Replica) bool { return x.Partition == n && x.Role == "leader" })
	if i < 0 {
		return node.Replica{}, false
	}
	return r.Replicas[i], true
}

// missing says what keeps the cluster from being settled: all brokers ready, every
// partition led, every replica in sync and everything committed. "": nothing.
func (c *Cluster) missing(v View) string {
	var why []string
	for id := range c.brokers {
		r, ok := v.Brokers[id]
		switch {
		case !ok:
			why = append(why, fmt.Sprintf("broker %d does not answer", id))
		case r.NotReady != "":
			why = append(why, fmt.Sprintf("broker %d is not ready: %s", id, r.NotReady))
		}
	}
	for n := range v.Leaders {
		l, ok := v.leaderOf(n)
		if !ok {
			why = append(why, fmt.Sprintf("partition %d has no leader", n))
			continue
		}
		if len(l.ISR) < c.o.ReplicationFactor {
			why = append(why, fmt.Sprintf("partition %d has only %v in sync", n, l.ISR))
		}
		if l.HighWatermark != l.LogEnd {
			why = append(why, fmt.Sprintf("partition %d has uncommitted records", n))
		}
		for id, r := range v.Brokers {
			for _, x := range r.Replicas {
				if x.Partition == n && (x.StoredEnd != l.LogEnd || x.HighWatermark != l.HighWatermark || x.LeaderEpoch != l.LeaderEpoch) {
					why = append(why, fmt.Sprintf("broker %d has partition %d to %d of %d", id, n, x.StoredEnd, l.LogEnd))
				}
			}
		}
	}
	slices.Sort(why)
	return strings.Join(why, "; ")
}

// AwaitInSync waits until all brokers are ready, all replicas in sync, and all logs
// as long as their leader's. Nobody may be appending.
func (c *Cluster) AwaitInSync(ctx context.Context) error {
	why := "nobody was asked yet"
	for {
		if why = c.missing(c.View(ctx)); why == "" {
			return nil
		}
		if !pause(ctx, 100*time.Millisecond) {
			return fmt.Errorf("not settled: %s: %w", why, context.Cause(ctx))
		}
	}
}

// AwaitISR waits until every replica of every partition is in sync, under load too.
func (c *Cluster) AwaitISR(ctx context.Context) error {
	for {
		v := c.View(ctx)
		why := ""
		for n := range v.Leaders {
			if l, ok := v.leaderOf(n); !ok {
				why = fmt.Sprintf("partition %d has no leader", n)
			} else if len(l.ISR) < c.o.ReplicationFactor {
				why = fmt.Sprintf("partition %d has only %v in sync", n, l.ISR)
			}
		}
		if why == "" {
			return nil
		}
		if !pause(ctx, 100*time.Millisecond) {
			return fmt.Errorf("not in sync: %s: %w", why, context.Cause(ctx))
		}
	}
}

// Ends are the ends of all partitions' logs as their leaders have them, with the view
// that they are from.
func (c *Cluster) Ends(ctx context.Context) ([]int64, View) {
	v := c.View(ctx)
	ends := make([]int64, len(v.Leaders))
	for n := range ends {
		if l, ok := v.leaderOf(n); ok {
			ends[n] = l.HighWatermark
		}
	}
	return ends, v
}
