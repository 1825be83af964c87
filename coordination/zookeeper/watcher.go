package zookeeper

import (
	"context"

	"github.com/tidemark-log/tidemark/coordination"
)

// What a watch may leave unread.
const (
	maxUnread      = 10_000   // events
	maxUnreadBytes = 16 << 20 // of values
)

// watcher is one watch. Its channel has two places: one for everything that the
// receiver has not taken yet, merged into one Changes, and one for the Err that ends
// the watch. Whoever sends holds the run's lock, and thus never waits.
type watcher struct {
	ctx    context.Context // the caller's, with which it ends without an error
	prefix string
	after  int64
	ch     chan coordination.Changes
	stop   func() bool // forgets ctx
}

// feed appends events. It returns false when too many are unread: the watch has to end.
func (w *watcher) feed(events []coordination.Event) bool {
	var mine []coordination.Event
	for _, ev := range events {
		if ev.Revision > w.after {
			ev.Value = append([]byte{}, ev.Value...)
			mine = append(mine, ev)
		}
	}
	if len(mine) == 0 {
		return true
	}
	next := coordination.Changes{Events: mine, Revision: mine[len(mine)-1].Revision}
	select {
	case waiting := <-w.ch:
		if len(waiting.Events)+len(mine) > maxUnread || bytesOf(waiting.Events)+bytesOf(mine) > maxUnreadBytes {
			w.ch <- waiting
			return false
		}
		next.Events = append(waiting.Events, mine...)
	default:
	}
	w.ch <- next
	return true
}

func bytesOf(events []coordination.Event) int {
	n := 0
	for _, ev := range events {
		n += len(ev.Value)
	}
	return n
}

// end closes the channel, after err when there is one.
func (w *watcher) end(err error) {
	if w.stop != nil {
		w.stop()
	}
	if err != nil {
		w.ch <- coordination.Changes{Err: err}
	}
	close(w.ch)
}

// publish tells every watch of an entry.
func (r *run) publish(en *entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for w := range r.watchers {
		if !w.feed(en.prefixed(w.prefix)) {
			r.endLocked(w, coordination.ErrCompacted)
		}
	}
}

// end ends a watch unless it has ended.
func (r *run) end(w *watcher, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.endLocked(w, err)
}

func (r *run) endLocked(w *watcher, err error) {
	if _, live := r.watchers[w]; live {
		delete(r.watchers, w)
		w.end(err)
	}
}

func (r *run) endAll(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for w := range r.watchers {
		r.endLocked(w, err)
	}
}
