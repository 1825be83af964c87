package zookeeper

import (
	"context"
	"errors"
	"sync"

	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/coordination/zookeeper/internal/wire"
)

// feed carries the log's entries to the watches. It has a goroutine from the first watch on,
// which lasts as long as the connection; the watches end with it.
type feed struct {
	s *Store

	mu  sync.Mutex
	run *run // nil: none
}

// run is one life of the feed.
type run struct {
	s     *Store
	conn  *wire.Conn
	begin chan *beginning
	dirty chan struct{} // something that is watched has changed
	ended chan struct{}

	// Of the goroutine only: how far the log has been told, and which nodes'
	// changes will be events.
	entry    int64
	revision int64
	watched  map[string]bool

	mu       sync.Mutex // never held during I/O
	changed  []string
	watchers map[*watcher]struct{}
}

// beginning is a watch that wants to begin.
type beginning struct {
	w    *watcher
	done chan error
}

// Watch implements coordination.Store. The watch ends with coordination.ErrUnavailable
// when the connection is lost.
func (s *Store) Watch(ctx context.Context, prefix string, after int64) (<-chan coordination.Changes, error) {
	if err := s.admit(ctx); err != nil {
		return nil, err
	}
	bounded, cancel := s.bounded(ctx)
	defer cancel()
	conn, err := s.link.get(bounded)
	if err != nil {
		return nil, s.unavailable(err)
	}
	r, err := s.feed.on(conn)
	if err != nil {
		return nil, s.unavailable(err)
	}
	w := &watcher{ctx: ctx, prefix: prefix, after: after, ch: make(chan coordination.Changes, 2)}
	b := &beginning{w: w, done: make(chan error, 1)}
	select {
	case r.begin <- b:
	case <-r.ended:
		return nil, s.unavailable(firstError(conn.Err(), errLost))
	case <-bounded.Done():
		return nil, s.unavailable(bounded.Err())
	}
	select {
	case err = <-b.done:
	case <-bounded.Done():
		return nil, s.unavailable(bounded.Err()) // it ends as soon as it begins
	}
	if err != nil {
		return nil, s.unavailable(err)
	}
	return w.ch, nil
}

// errLost is why watches end when nothing else is known.
var errLost = errors.New("zookeeper: connection was lost")

// on returns the run on a connection, and begins it if there is none.
func (f *feed) on(conn *wire.Conn) (*run, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.run != nil && f.run.conn == conn {
		select {
		case <-f.run.ended: // an answer was not to its liking
		default:
			return f.run, nil
		}
	}
	if !f.s.begin() {
		return nil, coordination.ErrClosed
	}
	f.run = &run{
		s: f.s, conn: conn,
		begin: make(chan *beginning), dirty: make(chan struct{}, 1), ended: make(chan struct{}),
		watched: make(map[string]bool), watchers: make(map[*watcher]struct{}),
	}
	go f.run.loop()
	return f.run, nil
}

// notify takes an event from the connection.
func (f *feed) notify(ev wire.Event) {
	f.mu.Lock()
	r := f.run
	f.mu.Unlock()
	if r == nil {
		return
	}
	r.mu.Lock()
	r.changed = append(r.changed, ev.Path)
	r.mu.Unlock()
	select {
	case r.dirty <- struct{}{}:
	default:
	}
}

func (r *run) loop() {
	defer r.s.work.Done()
	err := r.start()
	for err == nil {
		select {
		case <-r.dirty:
			err = r.advance()
		case b := <-r.begin:
			err = r.add(b)
		case <-r.conn.Dead():
			err = r.conn.Err()
		case <-r.s.ctx.Done():
			err = coordination.ErrClosed
		}
	}
	close(r.ended)
	r.s.cfg.Logger.Debug("watches on ZooKeeper end", "error", err)
	r.endAll(r.s.unavailable(err))
}

// start begins with the present.
func (r *run) start() error {
	if err := r.s.sync(r.s.ctx, r.conn); err != nil {
		return err
	}
	seq, err := r.s.look(r.s.ctx, r.conn, true)
	if err != nil {
		return err
	}
	r.entry, r.revision = seq.Entry, seq.logged()
	return r.attend(seq)
}

// advance tells what is new.
func (r *run) advance() error {
	r.mu.Lock()
	for _, path := range r.changed {
		delete(r.watched, path)
	}
	r.changed = nil
	r.mu.Unlock()
	seq, err := r.s.look(r.s.ctx, r.conn, true)
	if err == nil {
		err = r.tell(seq)
	}
	if err == nil {
		err = r.attend(seq)
	}
	return err // what comes after seq is an event
}

// tell tells the watches of the entries up to seq.
func (r *run) tell(seq *sequence) error {
	entries, err := r.s.entries(r.s.ctx, r.conn, r.entry+1, seq.Entry)
	if errors.Is(err, coordination.ErrCompacted) {
		r.endAll(err)
		r.entry, r.revision = seq.Entry, seq.logged()
		return nil
	}
	if err != nil {
		return err
	}
	for _, en := range entries {
		r.entry++
		r.revision = en.revision
		r.publish(en)
	}
	return nil
}

// attend has changes of the sessions' leases and keys be events, and adopts what is
// already gone.
func (r *run) attend(seq *sequence) error {
	var paths []string
	var reqs []*wire.Request
	ask := func(path string) {
		if !r.watched[path] {
			paths, reqs = append(paths, path), append(reqs, wire.Exists(path, true))
		}
	}
	for id, nodes := range seq.Sessions {
		ask(r.s.tree.lease(id))
		for _, n := range nodes {
			ask(r.s.tree.chroot + n)
		}
	}
	if err := r.s.call(r.s.ctx, r.conn, reqs...); err != nil {
		return err
	}
	gone := false
	for i, req := range reqs {
		if req.Err != nil && !errors.Is(req.Err, wire.NoNode) {
			return req.Err
		}
		// What is gone is asked for again until its end is told: another Store may be faster
		// now, and not have seen this.
		r.watched[paths[i]] = req.Err == nil
		gone = gone || req.Err != nil
	}
	if !gone {
		return nil
	}
	return r.s.adopt(r.s.ctx, r.conn) // which moves the sequence, which is watched
}

// add begins a watch: with what has been told since its revision.
func (r *run) add(b *beginning) error {
	entries, err := r.since(b.w.after)
	if errors.Is(err, coordination.ErrCompacted) {
		b.w.end(err)
		b.done <- nil
		return nil
	}
	if err != nil {
		b.done <- err
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.watchers[b.w] = struct{}{}
	b.w.stop = context.AfterFunc(b.w.ctx, func() { r.end(b.w, nil) })
	for _, en := range entries {
		if !b.w.feed(en.prefixed(b.w.prefix)) {
			r.endLocked(b.w, coordination.ErrCompacted)
			break
		}
	}
	b.done <- nil
	return nil
}

// since reads the log backwards, from what has been told to the first entry after a
// revision.
func (r *run) since(after int64) ([]*entry, error) {
	var entries []*entry
	last, few := r.entry, int64(4)
	for r.revision > after && last > 0 {
		first := max(last-few+1, 1)
		some, err := r.s.entries(r.s.ctx, r.conn, first, last)
		if errors.Is(err, coordination.ErrCompacted) && few > 1 {
			few /= 2 // the first ones of them are cut off, maybe not those that are needed
			continue
		}
		if err != nil {
			return nil, err
		}
		entries = append(some, entries...)
		if some[0].before <= after {
			break
		}
		last, few = first-1, min(4*few, 256)
	}
	return entries, nil
}
