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

// storeWriter turns the turns of all loops into one ordered sequence of groups:
// group commit over partitions. It has no goroutine: whoever adds to it, or
// completes a group, starts the next one.
type storeWriter struct {
	store  storage.Store
	now    func() time.Duration
	stored func(storedGroup) // called in order, from the store's goroutine
	failed func(error)

	mu       sync.Mutex
	pending  writeGroup
	busy     bool // someone is handing a group to the store
	inFlight []time.Duration
	broken   bool
}

type writeGroup struct {
	ops  []storage.Op
	logs []storedLog
}

// storedLog says that n ops of a log, all from one turn, belong to a group.
type storedLog struct {
	loop int
	id   storage.LogID
	n    int
	err  error
}

type storedGroup []storedLog

// submit adds the ops of one turn of a loop.
func (w *storeWriter) submit(loop int, ops []storage.Op) {
	if len(ops) == 0 {
		return
	}
	w.mu.Lock()
	if w.broken {
		w.mu.Unlock()
		return
	}
	w.pending.ops = append(w.pending.ops, ops...)
	for i := range ops {
		if n := len(w.pending.logs); n > 0 && w.pending.logs[n-1].id == ops[i].Log {
			w.pending.logs[n-1].n++
		} else {
			w.pending.logs = append(w.pending.logs, storedLog{loop: loop, id: ops[i].Log, n: 1})
		}
	}
	w.mu.Unlock()
	w.pump()
}

// pump hands groups to the store while it may have more. Only one caller at a
// time does so, which keeps the order without a lock over the store's call.
func (w *storeWriter) pump() {
	for {
		w.mu.Lock()
		if w.busy || w.broken || len(w.inFlight) >= groupsInFlight || len(w.pending.ops) == 0 {
			w.mu.Unlock()
			return
		}
		group := w.pending
		w.pending = writeGroup{}
		w.busy = true
		w.inFlight = append(w.inFlight, w.now())
		w.mu.Unlock()

		w.store.Write(group.ops, true, func(res storage.Result) { w.done(group, res) })

		w.mu.Lock()
		w.busy = false
		w.mu.Unlock()
	}
}

func (w *storeWriter) done(group writeGroup, res storage.Result) {
	w.mu.Lock()
	w.inFlight = w.inFlight[1:]
	if res.Err != nil {
		w.broken = true
		w.pending = writeGroup{}
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

// oldest is how long the oldest group has been under way; 0 when there is none.
func (w *storeWriter) oldest() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.inFlight) == 0 {
		return 0
	}
	return w.now() - w.inFlight[0]
}
