package inproc

import (
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// reorderWait is how long a message waits for one to overtake it.
const reorderWait = 10 * time.Millisecond

// wire has what is on its way because of a fault: delayed, held, or waiting to be
// overtaken. A message on it goes to a broker id, so it may reach a later
// endpoint than the one that was open when it was sent. Its lock comes before
// those of endpoints.
type wire struct {
	net *Network

	mu      sync.Mutex
	waiting map[int32]*load     // by receiver, on its way; an entry is never replaced
	chances map[path]*rand.Rand // so that a direction's fate does not hang on another's traffic
	flying  []*flight           // by due
	timer   *time.Timer         // runs when the first of them is due
	held    map[path][]*flight  // in order of sending
	behind  map[path]*flight    // the one that waits to be overtaken, in flying too
	count   Stats               // what only the wire counts
}

// flight is one message on its way.
type flight struct {
	path
	item
	dest   int32 // path.to, unless it is misdelivered
	due    time.Time
	yields bool // the next message of the path is to overtake it
}

func (w *wire) stats() Stats {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.count
}

// load returns what is on its way to a broker.
func (w *wire) load(id int32) *load {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.loadOf(id)
}

func (w *wire) loadOf(id int32) *load {
	l := w.waiting[id]
	if l == nil {
		l = new(load)
		w.waiting[id] = l
	}
	return l
}

// send lets the faults befall a message. It is false if there is no room for it.
func (w *wire) send(p path, it item, faults []Faults) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.net.state.Load() // faults may have ended, and the last endpoint may be gone
	c := w.chancesOf(p)
	if len(now.endpoints) == 0 || w.loses(c, faults) {
		w.net.dropped.Add(1)
		return true
	}
	dest := w.destination(c, p, faults, now)
	doubled := slices.ContainsFunc(faults, func(f Faults) bool { return c.Float64() < f.Double })
	if !w.expect(now, dest, it) {
		return false
	}
	if dest != p.to {
		w.count.Misdelivered++
	}
	w.start(now, &flight{path: p, item: it, dest: dest}, c, faults)
	if doubled && w.expect(now, dest, it) {
		w.count.Doubled++
		w.start(now, &flight{path: p, item: it, dest: dest}, c, faults)
	}
	return true
}

func (w *wire) chancesOf(p path) *rand.Rand {
	c := w.chances[p]
	if c == nil {
		c = rand.New(rand.NewPCG(w.net.opts.Seed, uint64(uint32(p.from))<<32|uint64(uint32(p.to))))
		w.chances[p] = c
	}
	return c
}

func (w *wire) loses(c *rand.Rand, faults []Faults) bool {
	lost := slices.ContainsFunc(faults, func(f Faults) bool { return c.Float64() < f.Drop })
	if lost {
		w.net.lost.Add(1)
	}
	return lost
}

// destination is where a message goes: elsewhere, if it is misdelivered and
// there is an elsewhere.
func (w *wire) destination(c *rand.Rand, p path, faults []Faults, now *state) int32 {
	if !slices.ContainsFunc(faults, func(f Faults) bool { return c.Float64() < f.Misdeliver }) {
		return p.to
	}
	others := slices.DeleteFunc(slices.Sorted(maps.Keys(now.endpoints)), func(id int32) bool { return id == p.to })
	if len(others) == 0 {
		return p.to
	}
	return others[c.IntN(len(others))]
}

// expect takes room for a message that is on its way to a broker.
func (w *wire) expect(now *state, dest int32, it item) bool {
	if e := now.endpoints[dest]; e != nil {
		return e.expect(it)
	}
	ahead := w.loadOf(dest)
	ok := w.net.room(it.size, new(load), ahead)
	if ok {
		ahead.add(it.size)
	}
	return ok
}

// start sends a message, or a copy of one, on its way.
func (w *wire) start(now *state, f *flight, c *rand.Rand, faults []Faults) {
	f.yields = slices.ContainsFunc(faults, func(f Faults) bool { return c.Float64() < f.Reorder })
	var late time.Duration
	for _, x := range faults {
		late += max(x.Delay, 0)
		if x.Jitter > 0 {
			late += time.Duration(c.Int64N(int64(x.Jitter)))
		}
	}
	switch {
	case now.held[f.path]:
		w.count.Held++
		w.held[f.path] = append(w.held[f.path], f)
	case late > 0:
		w.count.Delayed++
		w.fly(f, late)
	default:
		w.pass(f)
	}
}

// fly makes a message come later, behind those that are due at the same time.
func (w *wire) fly(f *flight, late time.Duration) {
	f.due = time.Now().Add(late)
	i, _ := slices.BinarySearchFunc(w.flying, f.due, func(g *flight, due time.Time) int {
		if g.due.After(due) {
			return 1
		}
		return -1
	})
	w.flying = slices.Insert(w.flying, i, f)
	if i == 0 {
		w.arm()
	}
}

// arm makes the timer fit the first message.
func (w *wire) arm() {
	if w.timer != nil {
		w.timer.Stop()
		w.timer = nil
	}
	if len(w.flying) > 0 {
		w.timer = time.AfterFunc(time.Until(w.flying[0].due), w.tick)
	}
}

// tick brings what is due. It runs on a goroutine of the timer's.
func (w *wire) tick() {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	for len(w.flying) > 0 && !w.flying[0].due.After(now) {
		f := w.flying[0]
		w.flying = slices.Delete(w.flying, 0, 1)
		w.pass(f)
	}
	w.arm()
}

// pass brings a message to its receiver, and after it the one that waited to be
// overtaken; or makes it the one that waits.
func (w *wire) pass(f *flight) {
	waits := w.behind[f.path]
	if f.yields && waits == nil {
		f.yields = false
		w.behind[f.path] = f
		w.fly(f, reorderWait)
		return
	}
	w.land(f)
	if waits == nil {
		return
	}
	delete(w.behind, f.path)
	if waits != f {
		i := slices.Index(w.flying, waits)
		w.flying = slices.Delete(w.flying, i, i+1)
		w.count.Reordered++
		w.land(waits)
	}
}

// land hands a message to whoever has the broker's id now.
func (w *wire) land(f *flight) {
	if e := w.net.state.Load().endpoints[f.dest]; e != nil {
		e.arrive(f.item)
		return
	}
	w.lose(f)
}

func (w *wire) lose(f *flight) {
	w.loadOf(f.dest).remove(f.size)
	w.net.dropped.Add(1)
}

// release brings what was held on a path.
func (w *wire) release(p path, reversed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	held := w.held[p]
	delete(w.held, p)
	if reversed {
		slices.Reverse(held)
	}
	for _, f := range held {
		w.land(f)
	}
}

// settle loses what is on its way if no endpoint is left to bring it to.
func (w *wire) settle() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.net.state.Load().endpoints) > 0 {
		return
	}
	for _, f := range w.flying {
		w.lose(f)
	}
	for _, held := range w.held {
		for _, f := range held {
			w.lose(f)
		}
	}
	w.flying = nil
	clear(w.held)
	clear(w.behind)
	w.arm()
}
