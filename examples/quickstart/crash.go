package main

import (
	"context"
	"sync"
	"time"

	"github.com/tidemark-log/tidemark"
)

// crash kills the leader of partition 0 once, and measures the failover: from the
// kill to the first acks=all append to that partition which was acknowledged after
// it. What the dead leader had taken does not count; its epoch gives it away.
//
// With -acks leader or none an acknowledgement does not say that the partition is
// well again. Then the lines of partition 0 after the kill are probes, appended
// with acks=all one at a time, until one is acknowledged.
//
// The methods of a nil *crash do nothing.
type crash struct {
	job     *job
	halfway int // strikes when so many lines of partition 0 are left

	mu       sync.Mutex // the writer writes, and the Producer's goroutine reads
	struck   bool
	broker   int32 // 0: not aimed yet
	epoch    int32 // of its leadership
	at       time.Time
	failover time.Duration
}

// step is called before every line of partition 0, with the number of lines left.
// The leader is found a little ahead of the kill, so that lines are under way when
// it dies.
func (c *crash) step(ctx context.Context, left int) error {
	if c == nil || c.struck {
		return nil
	}
	if c.broker == 0 && left <= c.halfway+windowSize/2 {
		if err := c.aim(ctx); err != nil {
			return err
		}
	}
	if left <= c.halfway {
		return c.strike()
	}
	return nil
}

// aim finds the leader. It waits for a full ISR: the point is to lose one replica,
// not the last one.
func (c *crash) aim(ctx context.Context) error {
	for {
		st, err := c.job.topic.Partition(0).Status(ctx)
		if err != nil {
			return err
		}
		if st.Leader > 0 && len(st.ISR) == brokers {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.broker, c.epoch = st.Leader, st.LeaderEpoch
			return nil
		}
		if err := pause(ctx); err != nil {
			return err
		}
	}
}

func (c *crash) strike() error {
	c.job.say.Printf("killing broker %d, leader of partition 0 in epoch %d", c.broker, c.epoch)
	c.mu.Lock()
	c.struck, c.at = true, time.Now()
	c.mu.Unlock()
	return c.job.cluster.Kill(c.broker)
}

// wantsProbe reports whether the next line must be appended with acks=all.
func (c *crash) wantsProbe() bool {
	if c == nil || c.job.o.acks == tidemark.AcksAll {
		return false
	}
	return c.struck && c.took() == 0
}

// survived takes note of an acks=all append that was acknowledged.
func (c *crash) survived(res tidemark.Result) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.struck && c.failover == 0 && res.LeaderEpoch > c.epoch {
		c.failover = time.Since(c.at)
	}
}

func (c *crash) took() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failover
}

// restart opens the killed broker again, on what its disk has.
func (c *crash) restart(ctx context.Context) error {
	if !c.struck {
		return nil
	}
	c.job.say.Printf("partition 0 went on after %v; restarting broker %d", c.took().Round(time.Millisecond), c.broker)
	if err := c.job.cluster.Restart(ctx, c.broker); err != nil {
		return err
	}
	return c.job.cluster.Broker(c.broker).Ready(ctx)
}
