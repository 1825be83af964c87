package nemesis

import (
	"context"
	"errors"
	"time"

	"github.com/tidemark-log/tidemark/chaos/internal/cluster"
	"github.com/tidemark-log/tidemark/chaos/internal/node"
	"github.com/tidemark-log/tidemark/chaos/internal/proxy"
)

// victim is the broker that a plan is about.
func (n *Nemesis) victim(ctx context.Context, p plan) int32 {
	any := n.ids[p.target%len(n.ids)]
	switch p.name {
	case KillController:
		if id := n.c.View(ctx).Controller(); id > 0 {
			return id
		}
	case KillLeader, Pause:
		if p.name == Pause && !n.o.Only && p.variant%10 < 3 {
			return any
		}
		leaders := n.c.View(ctx).Leaders
		if id := leaders[p.target%len(leaders)]; id > 0 {
			return id
		}
	}
	return any
}

// others are the brokers but one.
func (n *Nemesis) others(id int32) (all []int32) {
	for _, x := range n.ids {
		if x != id {
			all = append(all, x)
		}
	}
	return all
}

func (n *Nemesis) kill(ctx context.Context, p plan) error {
	id := n.victim(ctx, p)
	n.say("%s: broker %d for %v", p.name, id, round(p.hold))
	n.c.Kill(id)
	defer n.c.Up(id)
	sleep(ctx, p.hold)
	return nil
}

func (n *Nemesis) allKill(ctx context.Context, p plan) error {
	n.say("%s: all brokers for %v", p.name, round(p.hold))
	n.c.KillAll()
	sleep(ctx, p.hold)
	for _, id := range n.ids {
		n.c.Up(id)
	}
	return nil
}

// pause keeps appends in flight at the process that stands still: some that were sent
// before, and some that it finds when it goes on.
func (n *Nemesis) pause(ctx context.Context, p plan) error {
	id := n.victim(ctx, p)
	life := n.c.Life(id)
	var led []int
	for i, leader := range n.c.View(ctx).Leaders {
		if leader == id {
			led = append(led, i)
		}
	}
	n.say("%s: broker %d, which leads %v, for %v", p.name, id, led, round(p.hold))
	if life != nil {
		n.load.Press(life, led, n.o.Press/2)
	}
	n.c.Pause(id)
	defer n.c.Resume(id)
	if life != nil {
		n.load.Press(life, led, n.o.Press-n.o.Press/2)
	}
	sleep(ctx, p.hold)
	if life != nil {
		inFlight := n.load.MarkResume(life)
		n.inFlight.Add(int64(inFlight))
		n.say("%s: broker %d goes on, with %d appends in flight at it", p.name, id, inFlight)
	}
	return nil
}

// cut cuts a pair or a broker off, by resets or by a black hole.
func (n *Nemesis) cut(ctx context.Context, p plan) error {
	id := n.victim(ctx, p)
	peers := n.others(id)
	if p.variant&1 == 0 {
		peers = peers[p.other%len(peers):][:1]
	}
	f := proxy.Fault{Cut: true}
	if p.variant&2 == 0 {
		f = proxy.Fault{HoldForward: true, HoldBackward: true}
	}
	n.say("%s: broker %d from %v for %v, %s", p.name, id, peers, round(p.hold), how(f))
	for _, peer := range peers {
		defer n.c.Impose(cluster.Way{From: id, To: peer}, f)()
		defer n.c.Impose(cluster.Way{From: peer, To: id}, f)()
	}
	if p.variant&12 == 12 { // a quarter: from the coordination store, too
		n.say("%s: and from the coordination store", p.name)
		defer n.c.ImposeCoordination(id, f)()
	}
	sleep(ctx, p.hold)
	return nil
}

// oneWay swallows what a broker sends to one or to all, on connections of either side's
// making, or only the answers on its own.
func (n *Nemesis) oneWay(ctx context.Context, p plan) error {
	id := n.victim(ctx, p)
	peers := n.others(id)
	if p.variant&1 == 0 {
		peers = peers[p.other%len(peers):][:1]
	}
	n.say("%s: from broker %d to %v for %v, variant %d", p.name, id, peers, round(p.hold), p.variant&6>>1)
	for _, peer := range peers {
		out, back := cluster.Way{From: id, To: peer}, cluster.Way{From: peer, To: id}
		switch p.variant & 6 {
		case 0: // messages one way only; what answers them on the same connection passes
			defer n.c.Impose(out, proxy.Fault{HoldForward: true})()
		case 2: // messages pass, and nothing is heard back on their connection
			defer n.c.Impose(out, proxy.Fault{HoldBackward: true})()
		default: // packets from id to the peer
			defer n.c.Impose(out, proxy.Fault{HoldForward: true})()
			defer n.c.Impose(back, proxy.Fault{HoldBackward: true})()
		}
	}
	sleep(ctx, p.hold)
	return nil
}

// around puts a fault on all ways from and to a broker; 0: on all ways.
func (n *Nemesis) around(id int32, f proxy.Fault) (lift func()) {
	var lifts []func()
	for _, a := range n.ids {
		for _, b := range n.others(a) {
			if id == 0 || id == a || id == b {
				lifts = append(lifts, n.c.Impose(cluster.Way{From: a, To: b}, f))
			}
		}
	}
	return func() {
		for _, l := range lifts {
			l()
		}
	}
}

func (n *Nemesis) delay(ctx context.Context, p plan) error {
	id := n.victim(ctx, p)
	if p.variant&1 == 0 {
		id = 0
	}
	d := 50*time.Millisecond + time.Duration(p.amount*float64(250*time.Millisecond))
	n.say("%s: %v around broker %d (0: all) for %v", p.name, round(d), id, round(p.hold))
	defer n.around(id, proxy.Fault{Delay: d, Jitter: d / 2})()
	sleep(ctx, p.hold)
	return nil
}

func (n *Nemesis) slow(ctx context.Context, p plan) error {
	id := n.victim(ctx, p)
	rate := int64(100_000 + p.amount*900_000)
	n.say("%s: %d bytes/s around broker %d for %v", p.name, rate, id, round(p.hold))
	defer n.around(id, proxy.Fault{Rate: rate})()
	sleep(ctx, p.hold)
	return nil
}

func (n *Nemesis) disk(ctx context.Context, p plan) error {
	id := n.victim(ctx, p)
	n.say("%s: broker %d for %v", p.name, id, round(p.hold))
	// A broker that does not answer is between two lives, and is told at the next one's start.
	if err := n.c.SetDisk(id, node.Disk{Full: p.name == DiskFull, Stalled: p.name == DiskStall}); err != nil {
		n.say("%s: broker %d does not answer: %v", p.name, id, err)
	}
	sleep(ctx, p.hold)
	if err := n.c.SetDisk(id, node.Disk{}); err != nil {
		n.say("%s: broker %d does not answer: %v", p.name, id, err)
	}
	return nil
}

// rejoinLimit is how long one restarted broker may take to be in sync again.
const rejoinLimit = 20 * time.Second

func (n *Nemesis) rolling(ctx context.Context, p plan) error {
	n.say("%s: all brokers, %v apart", p.name, round(p.hold))
	for i := range n.ids {
		id := n.ids[(p.target+i)%len(n.ids)]
		err := n.c.Stop(id)
		n.c.Up(id)
		if err != nil {
			return err
		}
		limited, cancel := context.WithTimeout(ctx, rejoinLimit)
		err = n.c.AwaitISR(limited)
		cancel()
		if err != nil && ctx.Err() == nil {
			return err
		}
		sleep(ctx, p.hold)
	}
	return nil
}

func (n *Nemesis) isolate(ctx context.Context, p plan) error {
	id := n.victim(ctx, p)
	f := proxy.Fault{Cut: true}
	if p.variant&1 == 0 {
		f = proxy.Fault{HoldForward: true, HoldBackward: true}
	}
	n.say("%s: broker %d for %v, %s", p.name, id, round(p.hold), how(f))
	defer n.c.ImposeCoordination(id, f)()
	sleep(ctx, p.hold)
	return nil
}

// outage takes the coordination store away: it dies, it stands still, or nobody reaches it.
func (n *Nemesis) outage(ctx context.Context, p plan) error {
	switch p.variant % 4 {
	case 0:
		n.say("%s: the store is down for %v", p.name, round(p.hold))
		err := n.c.StoreDown()
		sleep(ctx, p.hold)
		return errors.Join(err, n.c.StoreUp(context.WithoutCancel(ctx)))
	case 1:
		n.say("%s: the store stands still for %v", p.name, round(p.hold))
		err := n.c.StorePause()
		sleep(ctx, p.hold)
		return errors.Join(err, n.c.StoreResume())
	default:
		f := proxy.Fault{Cut: true}
		if p.variant%4 == 3 {
			f = proxy.Fault{HoldForward: true, HoldBackward: true}
		}
		n.say("%s: nobody reaches the store for %v, %s", p.name, round(p.hold), how(f))
		for _, id := range n.ids {
			defer n.c.ImposeCoordination(id, f)()
		}
	}
	sleep(ctx, p.hold)
	return nil
}

func how(f proxy.Fault) string {
	if f.Cut {
		return "by resets"
	}
	return "in a black hole"
}

func round(d time.Duration) time.Duration { return d.Round(time.Millisecond) }

// sleep waits, or less when ctx ends: faults always end what they began.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
