package tidemark

import (
	"sync"
	"time"

	"github.com/tidemark-log/tidemark/storage"
)

// groupsInFlight is how many groups the store has at a time: one that is being
// synced, and one that is being applied meanwhile. What comes in the meantime
// gathers into the next.
const groupsInFlight = 2

// overlapBytes is how much the second of them must have. To apply less takes next to no
// time, and it would only keep what comes meanwhile out of the group that is synced next.
const overlapBytes = 128 << 10

// groupBytes bounds a group, unless one turn is larger.
const groupBytes = 32 << 20

// storeWriter turns the turns of all loops into one ordered sequence of groups:
// group commit over partitions. It has no goroutine: whoever adds to it, or
// completes a group, starts the next one. How much waits is bounded by the loops:
// they take no more appends and fetch no more while it is too much.
type storeWriter struct {
	store  storage.Store
	now    func() time.Duration
	stored func(storedGroup) // called in order, from the store's goroutine
	failed func(error)

	mu       sync.Mutex
	pending  []writeGroup    // one per turn, in order
	waiting  int64           // bytes in pending
	queued   int64           // and those in flight
	busy     bool            // someone is handing a group to the store
	inFlight []time.Duration // when each group was handed over
	broken   bool
}

type writeGroup struct {
	ops    []storage.Op
	logs   []storedLog
	bytes  int64
	synced bool // some of it has to be on the disk before it counts
}

// storedLog says that n ops of a log, one after the other, belong to a group.
type storedLog struct {
	loop int
	id   storage.LogID
	n    int
	err  error
}

type storedGroup []storedLog

// submit adds the ops of one turn of a loop. What need not be synced waits for the
// disk all the same when it shares a group with what does.
func (w *storeWriter) submit(loop int, ops []storage.Op, synced bool) {
	if len(ops) == 0 {
		return
	}
	w.mu.Lock()
	if w.broken {
		w.mu.Unlock()
		return
	}
	turn := writeGroup{ops: ops, synced: synced}
	for i := range ops {
		if n := len(turn.logs); n > 0 && turn.logs[n-1].id == ops[i].Log {
			turn.logs[n-1].n++
		} else {
			turn.logs = append(turn.logs, storedLog{loop: loop, id: ops[i].Log, n: 1})
		}
		for _, b := range ops[i].Batches {
			turn.bytes += int64(len(b))
		}
	}
	w.queued += turn.bytes
	w.waiting += turn.bytes
	w.pending = append(w.pending, turn)
	w.mu.Unlock()
	w.pump()
}

// pump hands groups to the store while it may have more. Only one caller at a
// time does so, which keeps the order without a lock over the store's call.
func (w *storeWriter) pump() {
	for {
		w.mu.Lock()
		if w.busy || w.broken || !w.due() {
			w.mu.Unlock()
			return
		}
		group := w.next()
		w.busy = true
		w.inFlight = append(w.inFlight, w.now())
		w.mu.Unlock()

		w.store.Write(group.ops, group.synced, func(res storage.Result) { w.done(group, res) })

		w.mu.Lock()
		w.busy = false
		w.mu.Unlock()
	}
}

// due reports whether the store may have another group now. w.mu is held.
func (w *storeWriter) due() bool {
	switch len(w.inFlight) {
	case 0:
		return len(w.pending) > 0
	case groupsInFlight:
		return false
	}
	return w.waiting >= overlapBytes
}

// next takes turns for one group: at least one, then more while they fit. w.mu is held.
func (w *storeWriter) next() writeGroup {
	group, n := w.pending[0], 1
	for n < len(w.pending) && group.bytes+w.pending[n].bytes <= groupBytes {
		group.ops = append(group.ops, w.pending[n].ops...)
		group.logs = append(group.logs, w.pending[n].logs...)
		group.bytes += w.pending[n].bytes
		group.synced = group.synced || w.pending[n].synced
		n++
	}
	w.pending = dropFront(w.pending, n)
	w.waiting -= group.bytes
	return group
}

func (w *storeWriter) done(group writeGroup, res storage.Result) {
	w.mu.Lock()
	w.inFlight = w.inFlight[1:]
	w.queued -= group.bytes
	if res.Err != nil {
		w.broken = true
		w.pending, w.waiting = nil, 0
	}
	w.mu.Unlock()
	if res.Err != nil {
		w.failed(res.Err)
		return
	}
	for i := range group.logs {
		group.logs[i].err = res.Refused[group.logs[i].id]
	}
	w.stored(group.logs)
	w.pump()
}

// load is how long the oldest group has been under way, 0 when there is none, and
// how many bytes wait for the store, those of that group included.
func (w *storeWriter) load() (oldest time.Duration, queued int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.inFlight) > 0 {
		oldest = w.now() - w.inFlight[0]
	}
	return oldest, w.queued
}
