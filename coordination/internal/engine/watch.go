package engine

import (
	"context"
	"strings"

	"github.com/tidemark-log/tidemark/coordination"
)

// maxBytes bounds the values that the history, and the backlog of one watch,
// keep alive.
const maxBytes = 16 << 20

// history keeps the last events of the store, whole revisions only.
type history struct {
	limit     int
	compacted int64 // events up to this revision are gone
	head      int   // index of the first event that is kept
	events    []coordination.Event
	bytes     int
}

func (h *history) add(ch Change) {
	h.events = append(h.events, ch.Events...)
	h.bytes += eventBytes(ch.Events)
	for h.head < len(h.events) && (len(h.events)-h.head > h.limit || h.bytes > maxBytes) {
		h.dropOldest()
	}
	if h.head > len(h.events)/2 {
		n := copy(h.events, h.events[h.head:])
		clear(h.events[n:])
		h.events, h.head = h.events[:n], 0
	}
}

func (h *history) dropOldest() {
	h.compacted = h.events[h.head].Revision
	for h.head < len(h.events) && h.events[h.head].Revision == h.compacted {
		h.bytes -= len(h.events[h.head].Value)
		h.events[h.head] = coordination.Event{}
		h.head++
	}
}

func eventBytes(events []coordination.Event) int {
	n := 0
	for _, ev := range events {
		n += len(ev.Value)
	}
	return n
}

// watcher is one watch. Its channel has two places: one for everything that the
// receiver has not taken yet, merged into one Changes, and one for the Err that
// ends the watch. The engine alone sends, under its lock, and thus never waits:
// no goroutine is needed per watch, and one that nobody reads costs nothing but
// its backlog, which is bounded.
type watcher struct {
	client *Client
	ctx    context.Context
	prefix string
	after  int64
	limit  int
	ch     chan coordination.Changes
	stop   func() bool // forgets ctx
}

// feed appends the events that the watch is about. It returns false when the
// backlog got too long: the watch has to end.
func (w *watcher) feed(events []coordination.Event) bool {
	var mine []coordination.Event
	for _, ev := range events {
		if ev.Revision > w.after && strings.HasPrefix(ev.Key, w.prefix) {
			if !ev.Deleted {
				ev.Value = cloneValue(ev.Value)
			}
			mine = append(mine, ev)
		}
	}
	if len(mine) == 0 {
		return true
	}
	next := coordination.Changes{Events: mine, Revision: mine[len(mine)-1].Revision}
	select {
	case waiting := <-w.ch:
		if len(waiting.Events)+len(mine) > w.limit || eventBytes(waiting.Events)+eventBytes(mine) > maxBytes {
			w.ch <- waiting
			return false
		}
		next.Events = append(waiting.Events, mine...)
	default:
	}
	w.ch <- next
	return true
}

// end closes the channel, after err when there is one. What was not yet received stays
// in front of it.
func (w *watcher) end(err error) {
	if w.stop != nil {
		w.stop()
	}
	if err != nil {
		w.ch <- coordination.Changes{Err: err}
	}
	close(w.ch)
}

// watch begins a watch for c; e.mu is held.
func (e *Engine) watch(ctx context.Context, c *Client, prefix string, after int64) <-chan coordination.Changes {
	w := &watcher{
		client: c, ctx: ctx, prefix: prefix, after: after, limit: e.history.limit,
		ch: make(chan coordination.Changes, 2),
	}
	if after < e.history.compacted {
		w.end(coordination.ErrCompacted)
		return w.ch
	}
	w.feed(e.history.events[e.history.head:])
	e.watchers[w] = struct{}{}
	if !e.manual {
		w.stop = context.AfterFunc(ctx, func() {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.endWatch(w, nil)
		})
	}
	return w.ch
}

// publish tells every watch of a change; e.mu is held.
func (e *Engine) publish(ch Change) {
	e.history.add(ch)
	for w := range e.watchers {
		if e.manual && w.ctx.Err() != nil {
			e.endWatch(w, nil)
		} else if !w.feed(ch.Events) {
			e.endWatch(w, coordination.ErrCompacted)
		}
	}
}

// endWatch ends w unless it has ended; e.mu is held.
func (e *Engine) endWatch(w *watcher, err error) {
	if _, live := e.watchers[w]; live {
		delete(e.watchers, w)
		w.end(err)
	}
}

// endWatches ends the watches of c, or of every client when c is nil; e.mu is held.
func (e *Engine) endWatches(c *Client, err error) {
	for w := range e.watchers {
		if c == nil || w.client == c {
			e.endWatch(w, err)
		}
	}
}
