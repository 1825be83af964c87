package nemesis

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Kinds of faults.
const (
	None                = "none"
	Kill                = "kill"                 // SIGKILL of a broker, and restart
	KillLeader          = "kill-leader"          // of the one that leads some partition
	KillController      = "kill-controller"      //
	Pause               = "pause"                // SIGSTOP of a broker, mostly of a leader, for up to three sessions
	Cut                 = "cut"                  // both ways: of a pair of brokers, or of one from all others
	OneWay              = "oneway"               // what one broker sends to another, or to all, is swallowed, or what they answer it
	Delay               = "delay"                // of 50 to 300 ms, around one broker or everywhere
	Slow                = "slow"                 // 100 KB/s to 1 MB/s around one broker
	DiskFull            = "diskfull"             // writes fail, then there is space again
	DiskStall           = "diskstall"            // writes and syncs hang for seconds
	Rolling             = "rolling"              // graceful restart of all, one after the other
	IsolateCoordination = "isolate-coordination" // one broker from the coordination store
	Outage              = "outage"               // of the coordination store, shorter or longer than a session
	AllKill             = "allkill"              // SIGKILL of all brokers at once, and restart
)

// kindOf is what there is to know of a kind.
type kindOf struct {
	name    string
	weight  int  // how often it is drawn
	quorum  bool // appends can go on meanwhile, once the others have noticed
	overlap bool // others may be in force at the same time
	inflict func(*Nemesis, context.Context, plan) error
}

var kinds = []kindOf{
	{Kill, 3, true, true, (*Nemesis).kill},
	{KillLeader, 3, true, true, (*Nemesis).kill},
	{KillController, 3, true, true, (*Nemesis).kill},
	{Pause, 3, true, true, (*Nemesis).pause},
	{Cut, 3, true, true, (*Nemesis).cut},
	{OneWay, 3, true, true, (*Nemesis).oneWay},
	{Delay, 2, true, true, (*Nemesis).delay},
	{Slow, 2, true, true, (*Nemesis).slow},
	{DiskFull, 2, true, true, (*Nemesis).disk},
	{DiskStall, 2, true, true, (*Nemesis).disk},
	{Rolling, 1, true, false, (*Nemesis).rolling},
	{IsolateCoordination, 2, true, true, (*Nemesis).isolate},
	{Outage, 2, true, true, (*Nemesis).outage},
	{AllKill, 1, false, true, (*Nemesis).allKill},
}

// Names are the kinds that can be asked for.
func Names() []string {
	names := []string{None}
	for _, k := range kinds {
		names = append(names, k.name)
	}
	return names
}

// find returns the kinds of those names; none: all of them.
func find(names []string) ([]kindOf, error) {
	if len(names) == 0 {
		return kinds, nil
	}
	var found []kindOf
	for _, name := range names {
		i := slices.IndexFunc(kinds, func(k kindOf) bool { return k.name == name })
		switch {
		case i >= 0:
			found = append(found, kinds[i])
		case name != None:
			return nil, fmt.Errorf("unknown kind of fault %q; there are %s", name, strings.Join(Names(), ", "))
		}
	}
	return found, nil
}

// plan is one fault, as drawn. What it hits is found from its numbers when it begins.
type plan struct {
	kindOf
	hold    time.Duration
	target  int // index of a broker, or of the partition whose leader it is
	other   int // of those that are not the target
	variant int
	amount  float64       // 0 to 1: how strong
	next    time.Duration // from its beginning until that of the next fault of the same round
}

// draw draws a fault. It uses the source of choices in the same way whatever it draws.
func (n *Nemesis) draw(from []kindOf) plan {
	sum := 0
	for _, k := range from {
		sum += k.weight
	}
	at := n.rng.IntN(sum)
	i := 0
	for ; at >= from[i].weight; i++ {
		at -= from[i].weight
	}
	p := plan{kindOf: from[i], target: n.rng.IntN(1 << 20), other: n.rng.IntN(1 << 20), variant: n.rng.IntN(1 << 20), amount: n.rng.Float64()}
	p.hold = n.holdOf(p.name, n.rng)
	p.next = time.Duration(1.2 * n.rng.Float64() * float64(p.hold))
	return p
}

// holdOf is how long a fault lasts.
func (n *Nemesis) holdOf(kind string, rng *rand.Rand) time.Duration {
	session := n.o.SessionTimeout
	x := rng.Float64()
	between := func(low, high float64) time.Duration {
		return time.Duration((low + x*(high-low)) * float64(session))
	}
	switch kind {
	case Pause:
		if n.o.Only {
			return 2 * session
		}
		return between(0.5, 3)
	case Kill, KillLeader, KillController:
		return between(0, 2)
	case AllKill, Rolling:
		return between(0, 0.5)
	case DiskStall:
		return between(0.4, 3)
	case Outage, IsolateCoordination:
		if x < 0.4 {
			return between(0.3, 1.3) // to 0.7
		}
		return between(0.6, 3)
	}
	return between(0.5, 3)
}
