package tidemark

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/storage"
	"github.com/tidemark-log/tidemark/transport/inproc"
)

var driverSeeds = flag.Int("driver.seeds", 30, "how many seeds TestDriverCloseAtAnyMoment tries")

// A broker is closed at any moment, with all kinds of calls under way through its own
// handle and through others, while a disk, a peer, the transport or the coordination
// store hangs: Close is over in time, every call ends, nothing is left, and every append
// was told the truth. A failure names its seed: to repeat it,
// go test -run 'TestDriverCloseAtAnyMoment/seed_12$' .
func TestDriverCloseAtAnyMoment(t *testing.T) {
	for seed := range *driverSeeds {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			c := &closeRun{rng: rand.New(rand.NewPCG(uint64(seed), 1)), victim: int32(1 + seed%3), fault: closeFault(seed / 3 % int(closeFaults))}
			attack(t, 3, c.tweak, func(t *testing.T, r *attackRig) { c.play(t, r) })
		})
	}
}

type closeFault int

const (
	noFault closeFault = iota
	ownDiskHangs
	otherDisksHang
	coldReadHangs
	hearsNobody
	nobodyHears
	sendBlocks
	transportCloseBlocks
	coordinationHangs
	coordinationIgnoresContexts
	closeFaults
)

// abandons tells whether the fault may keep the broker from ending by itself.
func (f closeFault) abandons() bool {
	return f == coldReadHangs || f == sendBlocks || f == transportCloseBlocks || f == coordinationIgnoresContexts
}

// closeRun is one broker that is closed, and what happens meanwhile.
type closeRun struct {
	rng         *rand.Rand
	victim      int32
	fault       closeFault
	net         deafNet
	network     *inproc.Network // below net, where it is not the rig's
	stuck, free chan struct{}   // closed: what hangs does from now on, and no more
	own, others tracked         // calls through the victim's handles, and those through others'
}

func (c *closeRun) tweak(cfg *Config) {
	if c.stuck == nil { // in the bubble
		c.stuck, c.free = make(chan struct{}), make(chan struct{})
	}
	cfg.MemoryBudget = 1 << 20                     // so that some reads are cold
	if c.fault == sendBlocks || c.network != nil { // the rig's own holds a lock while it delivers, which Close needs
		if c.network == nil {
			c.network = inproc.New(inproc.Options{})
		}
		cfg.Transport = c.network.Transport(cfg.ID)
	}
	c.net.join(cfg)
	if cfg.ID != c.victim {
		return
	}
	cfg.Transport = &stuckTransport{
		Transport: cfg.Transport, stuck: c.stuck, free: c.free, send: c.fault == sendBlocks, close: c.fault == transportCloseBlocks,
	}
	if c.fault == coordinationHangs || c.fault == coordinationIgnoresContexts {
		cfg.Coordination = &stuckCoordination{Store: cfg.Coordination, stuck: c.stuck, free: c.free, heeded: c.fault == coordinationHangs}
	}
}

func (c *closeRun) play(t *testing.T, r *attackRig) {
	r.create("t", 3)
	l := newLedger(r, "t", 3)
	for i := range 45 {
		require.NoError(t, l.append(r.within(10*time.Second), r.client, i%3, fmt.Sprint("before", i), 10_000))
	}
	until, stop := context.WithCancel(t.Context())
	defer stop()
	b := r.broker(c.victim)
	c.begin(context.Background(), &c.own, l, "own", b.Client)
	c.begin(until, &c.others, l, "all", r.client)
	c.begin(until, &c.others, l, "other", r.broker(1+c.victim%3).Client)
	pause(time.Duration(c.rng.IntN(300_000)) * time.Microsecond)
	c.strike(r)
	close(c.stuck)
	if c.rng.IntN(3) > 0 { // not at once
		pause(time.Duration(c.rng.IntN(2_500_000)) * time.Microsecond)
	}

	limit := 2 * time.Second
	if c.fault.abandons() {
		limit = closeLimit
	}
	c.close(t, b, limit)
	require.Empty(t, c.own.within(time.Second), "calls through a closed broker")

	close(c.free)
	c.net.deaf.Store(0)
	for _, d := range r.disks {
		d.Unhang()
	}
	n := r.take(c.victim)
	n.store.readErr.Store(nil)
	synctest.Wait()
	require.NoError(t, errors.Join(n.store.Store.Close(), n.coord.Close()))
	c.fault = noFault
	r.start(c.victim)
	pause(attackSession / 2) // a write that took long may just be noticed
	c.reopen(r)
	stop()
	require.Empty(t, c.others.within(5*time.Second), "calls through the others")
	l.holds()
}

// reopen opens brokers again that a hung disk made unfit.
func (c *closeRun) reopen(r *attackRig) {
	for id := range int32(3) {
		if r.broker(id+1).unfitReason() != nil {
			r.kill(id+1, 2)
			r.start(id + 1)
		}
	}
}

// close closes the broker, now and then by Shutdown.
func (c *closeRun) close(t *testing.T, b *Broker, limit time.Duration) {
	began := time.Now()
	err := error(nil)
	if c.rng.IntN(3) == 0 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(c.rng.IntN(50))*time.Millisecond)
		defer cancel()
		err = b.Shutdown(ctx)
	} else {
		err = b.Close()
	}
	require.LessOrEqual(t, time.Since(began), limit+100*time.Millisecond, "fault %d", c.fault)
	if !c.fault.abandons() {
		require.NotErrorIs(t, err, ErrAbandoned, "fault %d", c.fault)
	}
}

// strike makes something hang, or a broker deaf.
func (c *closeRun) strike(r *attackRig) {
	switch c.fault {
	case ownDiskHangs:
		r.disks[c.victim-1].Hang()
	case otherDisksHang:
		for id := range int32(3) {
			if id+1 != c.victim {
				r.disks[id].Hang()
			}
		}
	case coldReadHangs:
		hang := func(storage.LogID) error { <-c.free; return errors.New("late") }
		r.node(c.victim).store.readErr.Store(&hang)
	case hearsNobody:
		c.net.deaf.Store(c.victim)
	case nobodyHears:
		c.net.deaf.Store(1 + c.victim%3)
		c.net.busy.Store(c.rng.IntN(2) == 0)
	}
}

// begin calls whatever there is through a client, again and again until ctx or the
// client ends.
func (c *closeRun) begin(ctx context.Context, calls *tracked, l *ledger, name string, client *Client) {
	for w := range 4 {
		calls.run("append", func() {
			for i := 0; ; i++ {
				err := l.append(ctx, client, (w+i)%3, fmt.Sprintf("%s%d-%d", name, w, i), 10)
				if ctx.Err() != nil || errors.Is(err, ErrClosed) && client != l.r.client {
					return
				}
				pause(time.Duration(1+l.r.dice.roll(60)) * time.Millisecond)
			}
		})
	}
	calls.run("produce", func() {
		p := client.Topic("t").Producer(ProducerOptions{Partitioner: func(rec Record, _ int) int { return len(rec.Value) % 3 }})
		for i := 0; ctx.Err() == nil; i++ {
			value := fmt.Sprintf("p%s%d", name, i)
			n := len(value) % 3
			err := p.AppendAsync(ctx, Record{Value: []byte(value)}, func(res Result, err error) { l.note(n, value, res, err) })
			if errors.Is(err, ErrClosed) {
				break
			}
			if errors.Is(err, ErrResume) {
				_ = p.Resume(n)
			}
			pause(time.Duration(1+l.r.dice.roll(60)) * time.Millisecond)
		}
		end, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		defer cancel()
		_ = p.Flush(end)
		_ = p.Close(end)
	})
	part := client.Partition("t", c.rng.IntN(3))
	calls.run("records", func() {
		for _, err := range part.Records(ctx, Earliest()) {
			if err != nil {
				return
			}
		}
	})
	for what, call := range map[string]func() error{
		"fetch":    func() error { _, err := part.Fetch(ctx, 0, FetchOptions{MaxWait: time.Hour}); return err },
		"tail":     func() error { _, err := part.Fetch(ctx, 1<<40, FetchOptions{MaxWait: time.Hour}); return err },
		"offsets":  func() error { _, err := part.Offsets(ctx); return err },
		"writable": func() error { return part.Writable(ctx) },
		"status":   func() error { _, err := part.Status(ctx); return err },
		"create": func() error {
			return client.Controller().EnsureTopic(ctx, "u"+name, TopicConfig{Partitions: 4})
		},
		"elect":  func() error { return client.Controller().ElectPreferred(ctx, "t", 0) },
		"delete": func() error { return client.Controller().DeleteTopic(ctx, "u"+name) },
	} {
		calls.run(what, func() {
			for {
				if err := call(); ctx.Err() != nil || errors.Is(err, ErrClosed) && client != l.r.client {
					return
				}
				pause(time.Duration(1+l.r.dice.roll(300)) * time.Millisecond)
			}
		})
	}
}
