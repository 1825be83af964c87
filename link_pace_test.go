package tidemark

import (
	"container/heap"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/protocol"
)

// wayRun is a link over a way with a rate, in one goroutine. End 0 sends bulk, as
// much as it has credit for; now and then a control payload shows how long it takes.
type wayRun struct {
	*linkSim
	rate  float64 // bytes a second
	way   time.Duration
	item  int     // bytes of one bulk payload
	alone bool    // no control beside it, so that nothing but heartbeats comes back
	share float64 // of the rate that is offered; 0: all that there is credit for
	free  time.Duration
	took  int           // bulk bytes that arrived
	worst time.Duration // of the control payloads
}

func newWay(t *testing.T, rate float64, way time.Duration, item int) *wayRun {
	w := &wayRun{linkSim: newLinkSim(t, 1), rate: rate, way: way, item: item}
	for _, e := range w.ends {
		e.cfg.window, e.cfg.maxMessage, e.cfg.maxPayload = linkWindow, 2<<20, linkWindow
	}
	w.step(0, func(l *link, out *linkOut) { l.tick(w.now, out) })
	w.pass(3*way + 50*time.Millisecond)
	require.True(t, w.ends[0].isUp() && w.ends[1].isUp())
	return w
}

// step has an end do something, and sends what comes of it: end 0's over the way,
// end 1's beside it.
func (w *wayRun) step(i int, do func(l *link, out *linkOut)) {
	out := &linkOut{}
	do(w.ends[i].link, out)
	w.took += out.unsound * w.item // no real batch: whoever puts fragments together sees that
	for _, p := range out.deliver {
		for _, a := range p.Appends {
			w.took += len(a.Batch)
		}
		for _, c := range p.Commands {
			w.worst = max(w.worst, w.now-time.Duration(c.Request))
		}
	}
	for _, m := range out.send {
		at := w.now
		if i == 0 {
			w.free = max(w.free, w.now) + time.Duration(float64(m.Size())/w.rate*float64(time.Second))
			at = w.free
		}
		w.at(at-w.now+w.way, linkEvent{to: 1 - i, m: m})
	}
}

// pass lets time go by, without bulk.
func (w *wayRun) pass(d time.Duration) {
	for end := w.now + d; ; {
		next := min(w.ends[0].next(), w.ends[1].next())
		if len(w.events) > 0 {
			next = min(next, w.events[0].at)
		}
		if next > end {
			w.now = end
			return
		}
		w.now = max(w.now, next)
		if len(w.events) > 0 && w.events[0].at <= w.now {
			e := heap.Pop(&w.events).(linkEvent)
			w.step(e.to, func(l *link, out *linkOut) { l.receive(w.now, e.m, out) })
			continue
		}
		for i := range w.ends {
			w.step(i, func(l *link, out *linkOut) { l.tick(w.now, out) })
		}
	}
}

// load offers bulk for a time, and returns which part of the rate arrived.
func (w *wayRun) load(d time.Duration) float64 {
	w.took, w.worst = 0, 0
	began, offered := w.now, 0
	const every = time.Millisecond
	for n := 0; w.now < began+d; n++ {
		w.step(0, func(l *link, out *linkOut) {
			for l.credit() > 0 && (w.share == 0 || float64(offered) < w.share*w.rate*(w.now-began).Seconds()) {
				require.True(w.t, l.send(w.now, protocol.Payload{Appends: []protocol.Append{{Batch: linkBulk[:w.item]}}}, out))
				offered += w.item
			}
			if n%100 == 50 && !w.alone {
				require.True(w.t, l.send(w.now, linkItem(uint64(w.now), 100), out))
			}
		})
		w.pass(every)
	}
	return float64(w.took) / w.rate / d.Seconds()
}

// D14: however slow the way is, what must not wait does not wait long behind bulk, and
// the way is used.
func TestLinkKeepsPace(t *testing.T) {
	const target = linkT / 12
	for name, c := range map[string]struct {
		rate  float64
		way   time.Duration
		item  int
		worst time.Duration
		used  float64
	}{
		"a tenth of a megabyte a second": {100e3, 10 * time.Millisecond, 16 << 10, 3 * time.Second, 0.95},
		"a megabyte a second":            {1e6, time.Millisecond, 64 << 10, 2 * target, 0.95},
		"a megabyte a second, far away":  {1e6, 150 * time.Millisecond, 64 << 10, 3 * target, 0.9},
		"large batches":                  {1e6, time.Millisecond, 1 << 20, 2 * target, 0.9}, // it arrives in tenths
		"ten megabytes a second":         {10e6, 5 * time.Millisecond, 256 << 10, 2 * target, 0.95},
		"fast and far away":              {40e6, 150 * time.Millisecond, 256 << 10, 2 * target, 0.9},
		"the machine itself":             {500e6, 50 * time.Microsecond, 1 << 20, target, 0.9},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWay(t, c.rate, c.way, c.item)
			w.load(15 * time.Second) // it begins with what suits no slow way
			used := w.load(10 * time.Second)
			t.Logf("window %d target %v worst %v used %.2f", w.ends[0].pace.window, w.ends[0].pace.target, w.worst, used)
			require.Less(t, w.worst, c.worst)
			require.Greater(t, used, c.used)
			require.Equal(t, uint64(1), w.ends[0].stats().sessions)
		})
	}
}

// Where nothing comes back but acknowledgements, these come in time, too.
func TestLinkKeepsPaceOfBulkAlone(t *testing.T) {
	for _, rate := range []float64{1e6, 40e6, 500e6} {
		for _, way := range []time.Duration{100 * time.Microsecond, 50 * time.Millisecond} {
			w := newWay(t, rate, way, 64<<10)
			w.alone = true
			w.load(2 * time.Second)
			used := w.load(5 * time.Second)
			t.Logf("%v bytes/s, %v away: window %d, used %.2f", rate, way, w.ends[0].pace.window, used)
			most := linkWindow / (2 * way).Seconds() / rate // more is not under way
			require.Greater(t, used, 0.9*min(1, most))
		}
	}
	for _, size := range []int{900 << 10, 2 << 20, 15 << 20} { // one batch, in fragments
		w := newWay(t, 100e6, 200*time.Microsecond, 1)
		for range 3 {
			w.took = 0
			began := w.now
			w.step(0, func(l *link, out *linkOut) {
				require.True(t, l.send(w.now, protocol.Payload{Appends: []protocol.Append{{Batch: make([]byte, size)}}}, out))
			})
			for w.took == 0 {
				w.pass(time.Millisecond)
				require.Less(t, w.now-began, 100*time.Millisecond+time.Duration(float64(size)/w.rate*2*float64(time.Second)))
			}
			w.pass(time.Second)
		}
	}
}

// A way that becomes slow, and fast again, is followed.
func TestLinkFollowsTheRate(t *testing.T) {
	w := newWay(t, 100e6, time.Millisecond, 256<<10)
	w.load(time.Second)
	require.Equal(t, linkWindow, w.ends[0].pace.window)
	w.rate = 2e6
	w.load(10 * time.Second) // what was under way when it became slow, first
	require.Greater(t, w.load(5*time.Second), 0.95)
	require.Less(t, w.worst, linkT/6)
	w.rate = 100e6
	w.load(time.Second)
	require.Greater(t, w.load(time.Second), 0.95)
	require.Equal(t, linkWindow, w.ends[0].pace.window)
	require.Equal(t, uint64(1), w.ends[0].stats().sessions)
}

// Too little to send says nothing of the way.
func TestLinkWithLittleToSendKeepsItsWindow(t *testing.T) {
	w := newWay(t, 100e6, time.Millisecond, 256<<10)
	w.load(time.Second)
	w.share = 0.02
	w.load(10 * time.Second)
	require.Equal(t, linkWindow, w.ends[0].pace.window)
	w.pass(10 * time.Second)
	w.share = 0
	require.Greater(t, w.load(time.Second), 0.95)
	require.Equal(t, linkWindow, w.ends[0].pace.window)
}

// Bursts that the way takes at once widen the window: their batches need not be cut.
// Where the way is slow they do not; where it becomes slow the window is lowered again, and
// control does not wait long behind them.
func TestLinkLearnsFromBursts(t *testing.T) {
	for _, c := range []struct {
		rate, later float64
		burst       int // MiB
		atLeast     int
		atMost      int
	}{
		{200e6, 200e6, 1, 4 << 20, linkWindow},
		{2e6, 2e6, 1, leastWindow, 2 << 20},
		{200e6, 1e6, 8, leastWindow, 2 << 20},
		{200e6, 4e6, 8, leastWindow, 4 << 20},
	} {
		w := newWay(t, c.rate, 100*time.Microsecond, 1<<20)
		for range 100 {
			w.burst(c.burst)
		}
		w.rate = c.later
		for range 20 {
			w.worst = 0
			w.burst(c.burst)
		}
		require.GreaterOrEqual(t, w.ends[0].pace.window, c.atLeast)
		require.LessOrEqual(t, w.ends[0].pace.window, c.atMost)
		require.Less(t, w.worst, linkT/6)
	}
}

// burst sends so many items of bulk at once, and a control payload a little later, and
// waits until the peer has acknowledged all of it, which does what a follower does.
func (w *wayRun) burst(items int) {
	for range items {
		w.step(0, func(l *link, out *linkOut) {
			require.True(w.t, l.send(w.now, protocol.Payload{Appends: []protocol.Append{{Batch: linkBulk[:w.item]}}}, out))
		})
	}
	for n := 0; w.ends[0].inFlight > 0; n++ {
		w.pass(6 * time.Millisecond)
		w.step(1, func(l *link, out *linkOut) { require.True(w.t, l.send(w.now, linkItem(uint64(w.now), 100), out)) })
		if n == 3 {
			w.step(0, func(l *link, out *linkOut) { require.True(w.t, l.send(w.now, linkItem(uint64(w.now), 100), out)) })
		}
	}
	w.pass(50 * time.Millisecond)
}
