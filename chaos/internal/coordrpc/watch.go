package coordrpc

import (
	"context"
	"sync"

	"github.com/tidemark-log/tidemark/coordination"
)

// backlog bounds what a watch may leave unread before it ends with
// coordination.ErrCompacted.
const backlog = 20_000

// watching is the client's side of a watch. Its channel has two places: one for
// everything that was not taken yet, merged, and one for the error that ends it. So
// nobody ever waits for whoever reads it, and no goroutine is needed.
type watching struct {
	mu    sync.Mutex
	ch    chan coordination.Changes
	ended bool
	stop  func() bool // forgets the context
}

// feed adds changes. false: the backlog got too long.
func (w *watching) feed(x coordination.Changes) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return true
	}
	select {
	case waiting := <-w.ch:
		if len(waiting.Events)+len(x.Events) > backlog {
			w.ch <- waiting
			return false
		}
		x.Events = append(waiting.Events, x.Events...)
	default:
	}
	w.ch <- x
	return true
}

// end closes the channel, behind err when there is one.
func (w *watching) end(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return
	}
	w.ended = true
	if w.stop != nil {
		w.stop()
	}
	if err != nil {
		w.ch <- coordination.Changes{Err: err}
	}
	close(w.ch)
}

// Watch implements coordination.Store.
func (c *Client) Watch(ctx context.Context, prefix string, after int64) (<-chan coordination.Changes, error) {
	l, err := c.connected(ctx)
	if err != nil {
		return nil, err
	}
	q := request{ID: l.id(), Kind: watch, Key: prefix, After: after}
	w := &watching{ch: make(chan coordination.Changes, 2)}
	l.mu.Lock()
	if l.err != nil {
		defer l.mu.Unlock()
		return nil, l.err
	}
	l.watches[q.ID] = w
	l.mu.Unlock()
	if _, err := l.call(ctx, &q); err != nil {
		l.unwatch(q.ID, nil)
		return nil, err
	}
	w.mu.Lock()
	if !w.ended {
		w.stop = context.AfterFunc(ctx, func() {
			if l.unwatch(q.ID, nil) {
				_ = l.pipe.send(&request{ID: q.ID, Kind: cancel})
			}
		})
	}
	w.mu.Unlock()
	return w.ch, nil
}

// changed takes what the server says about a watch.
func (l *link) changed(r *response) {
	l.mu.Lock()
	w := l.watches[r.ID]
	l.mu.Unlock()
	if w == nil {
		return
	}
	if r.Changes != nil && len(r.Changes.Events) > 0 && !w.feed(*r.Changes) {
		l.unwatch(r.ID, coordination.ErrCompacted)
		return
	}
	if r.End {
		l.unwatch(r.ID, r.Err.err())
	}
}

// unwatch ends a watch; false when it had ended.
func (l *link) unwatch(id uint64, err error) bool {
	l.mu.Lock()
	w := l.watches[id]
	delete(l.watches, id)
	l.mu.Unlock()
	if w != nil {
		w.end(err)
	}
	return w != nil
}
