package tidemark

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/transport"
)

// ledger is what the appenders of a topic were told of their records, each of which has
// a value of its own.
type ledger struct {
	r     *attackRig
	topic string

	mu      sync.Mutex
	acked   []map[int64]string // by partition and offset
	refused map[string]bool
	unknown int
	last    map[string]int64 // by producer and partition: the offset of its last acknowledged record
}

func newLedger(r *attackRig, topic string, partitions int) *ledger {
	l := &ledger{r: r, topic: topic, refused: make(map[string]bool), last: make(map[string]int64)}
	for range partitions {
		l.acked = append(l.acked, make(map[int64]string))
	}
	return l
}

// append appends a record of at least so many bytes through a handle.
func (l *ledger) append(ctx context.Context, c *Client, n int, value string, size int) error {
	value += strings.Repeat(".", max(0, size-len(value)))
	res, err := c.Partition(l.topic, n).Append(ctx, Record{Value: []byte(value)})
	l.note(n, value, res, err)
	return err
}

func (l *ledger) note(n int, value string, res Result, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch OutcomeOf(err) {
	case Appended:
		if other, taken := l.acked[n][res.Base]; taken {
			l.r.t.Errorf("two records at %d of partition %d: %.20s and %.20s", res.Base, n, other, value)
		}
		l.acked[n][res.Base] = value
	case NotAppended:
		l.refused[value] = true
	default:
		l.unknown++
	}
}

// produce hands count records to a producer, one every now and then, and holds that they
// end in their order, and that those that are acknowledged lie in it.
func (l *ledger) produce(p *Producer, name string, n, count, size int) {
	var stopped atomic.Bool // by one whose outcome is unknown
	ended := -1
	for i := range count {
		refused := stopped.Load()
		value := fmt.Sprintf("%s-%d%*s", name, i, size, "")
		err := p.AppendAsync(context.Background(), Record{Value: []byte(value)}, func(res Result, err error) {
			l.note(n, value, res, err)
			l.mu.Lock()
			defer l.mu.Unlock()
			if OutcomeOf(err) == Unknown {
				stopped.Store(true)
			}
			if ended > i {
				l.r.t.Errorf("%.20s ended after number %d", value, ended)
			}
			ended = i
			of := fmt.Sprint(name, n)
			if last, any := l.last[of]; err == nil && any && res.Base <= last {
				l.r.t.Errorf("%.20s is at %d, behind a later one at %d", value, res.Base, last)
			} else if err == nil {
				l.last[of] = res.Base
			}
		})
		if err != nil {
			l.note(n, value, noResult, err)
			if p.Resume(n) == nil { // else something before it is undecided
				stopped.Store(false)
			}
		} else if refused {
			l.r.t.Errorf("%.20s was taken after an unknown outcome", value)
		}
		pause(time.Duration(l.r.dice.roll(400)) * time.Microsecond)
	}
}

// load appends with so many goroutines through handles, to any partition, until the
// function that it returns is called.
func (l *ledger) load(workers, size int, handle func(worker int) *Client) (end func()) {
	stop, cancel := context.WithCancel(l.r.t.Context())
	var work sync.WaitGroup
	for w := range workers {
		work.Go(func() {
			for i := 0; stop.Err() == nil; i++ {
				limit := time.Duration(1+l.r.dice.roll(3000)) * time.Millisecond
				ctx, cancel := context.WithTimeout(context.Background(), limit)
				began := time.Now()
				_ = l.append(ctx, handle(w), l.r.dice.roll(len(l.acked)), fmt.Sprintf("w%d-%d", w, i), size)
				cancel()
				if took := time.Since(began); took > limit+100*time.Millisecond {
					l.r.t.Errorf("append with a limit of %v took %v", limit, took)
				}
				pause(time.Duration(l.r.dice.roll(20)) * time.Millisecond)
			}
		})
	}
	return func() { cancel(); work.Wait() }
}

// counts tells how many appends ended in which way.
func (l *ledger) counts() (acked, refused, unknown int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range l.acked {
		acked += len(a)
	}
	return acked, len(l.refused), l.unknown
}

// holds checks that it was the truth, once all is well again: what was acknowledged is
// where it was said to be and nowhere else, what was refused is nowhere, and nothing is
// there twice.
func (l *ledger) holds() {
	l.r.t.Helper()
	l.r.holds(l.topic, l.acked)
	seen := make(map[string]string)
	ctx := l.r.within(time.Minute)
	for n := range l.acked {
		p := l.r.client.Partition(l.topic, n)
		ends, err := p.Offsets(ctx)
		require.NoError(l.r.t, err)
		for next := int64(0); next < ends.HighWatermark; {
			f, err := p.Fetch(ctx, next, FetchOptions{})
			require.NoError(l.r.t, err)
			for _, rec := range f.Records {
				next = rec.Offset + 1
				value, at := string(rec.Value), fmt.Sprintf("%d of partition %d", rec.Offset, n)
				require.Empty(l.r.t, seen[value], "%.20s is at %s, too", value, at)
				require.False(l.r.t, l.refused[value], "%.20s was refused, and is at %s", value, at)
				seen[value] = at
			}
		}
	}
}

// tracked are calls that are to return.
type tracked struct {
	mu   sync.Mutex
	open map[string]int
	work sync.WaitGroup
}

func (c *tracked) run(what string, call func()) {
	add := func(n int) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.open == nil {
			c.open = make(map[string]int)
		}
		c.open[what] += n
	}
	add(1)
	c.work.Go(func() {
		defer add(-1)
		call()
	})
}

// underWay names the calls that have not returned.
func (c *tracked) underWay() (all []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for what, n := range c.open {
		if n > 0 {
			all = append(all, fmt.Sprintf("%d × %s", n, what))
		}
	}
	slices.Sort(all)
	return all
}

// within waits until all have returned, and names those that have not in time.
func (c *tracked) within(limit time.Duration) (late []string) {
	for end := time.Now().Add(limit); time.Now().Before(end); pause(limit / 100) {
		if synctest.Wait(); len(c.underWay()) == 0 {
			return nil
		}
	}
	return c.underWay()
}

// deafNet wraps the transports of a rig: nothing reaches the deaf broker, though what
// it sends itself arrives.
type deafNet struct {
	deaf    atomic.Int32 // 0: none
	busy    atomic.Bool  // it is refused, not taken and lost
	offered atomic.Int64 // bytes for the deaf one, so far
}

func (d *deafNet) join(c *Config) { c.Transport = &deafEnd{c.Transport, d} }

type deafEnd struct {
	transport.Transport
	net *deafNet
}

func (e *deafEnd) Send(to transport.Peer, m *protocol.Message) error {
	if to.ID != e.net.deaf.Load() {
		return e.Transport.Send(to, m)
	}
	e.net.offered.Add(int64(m.Size()))
	if e.net.busy.Load() {
		return transport.ErrBusy
	}
	return nil
}
