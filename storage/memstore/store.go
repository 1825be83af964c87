package memstore

import (
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/tidemark-log/tidemark/storage"
)

// Store is a storage.Store over a Disk. Reads show every group that was written,
// durable or not.
type Store struct {
	disk *Disk

	// Guarded by disk.mu.
	logs    map[storage.LogID]*image
	refused map[storage.LogID]error
	node    storage.Node
	told    bool     // the broker registered since the store was opened
	queue   []*group // written, not durable: in order
	late    []*group // not taken: only done is owed
	err     error    // poisoned
	closing bool
	dead    bool // closed or crashed
	// closeErr is not guarded: finish sets it before anybody can know that it is over.
	closeErr error
	crashed  bool
	// draining says that late groups have a goroutine of their own, run being gone.
	draining bool

	kick chan struct{} // tells run to look again
	over chan struct{} // closed when dead
	gone chan struct{} // closed when run has returned
}

var _ storage.Store = (*Store)(nil)

type group struct {
	after  map[storage.LogID]*image // what it makes of the logs; nil: deleted
	node   *storage.Node
	synced bool
	done   func(storage.Result) // nil once called
	result storage.Result
}

// newStore is called with d.mu held.
func newStore(d *Disk) *Store {
	node := d.node
	node.Unclean = !d.clean
	return &Store{
		disk:    d,
		logs:    clip(d.logs),
		refused: map[storage.LogID]error{},
		node:    node,
		kick:    make(chan struct{}, 1),
		over:    make(chan struct{}),
		gone:    make(chan struct{}),
	}
}

// clip copies logs so that appends do not write where those of an earlier store did.
func clip(logs map[storage.LogID]*image) map[storage.LogID]*image {
	out := make(map[storage.LogID]*image, len(logs))
	for id, l := range logs {
		c := *l
		c.batches = c.batches[:len(c.batches):len(c.batches)]
		out[id] = &c
	}
	return out
}

func (s *Store) Node() storage.Node {
	s.disk.mu.Lock()
	defer s.disk.mu.Unlock()
	return s.node
}

// SetNode on a Manual disk is durable at once.
func (s *Store) SetNode(n storage.Node) error {
	s.disk.mu.Lock()
	switch {
	case s.dead || s.closing:
		s.disk.mu.Unlock()
		return storage.ErrClosed
	case n.Directory != s.node.Directory:
		s.disk.mu.Unlock()
		return errors.New("memstore: the directory id cannot change")
	}
	if s.disk.manual {
		defer s.disk.mu.Unlock()
		if s.poisoned() {
			return s.err
		}
		n.Unclean = s.node.Unclean
		s.take(n)
		s.disk.node = n
		return nil
	}
	answer := make(chan error, 1)
	n.Unclean = s.node.Unclean
	s.queue = append(s.queue, &group{node: &n, synced: true, done: func(r storage.Result) { answer <- r.Err }})
	s.disk.mu.Unlock()
	s.signal()
	select {
	case err := <-answer:
		return err
	case <-s.over:
	}
	select {
	case err := <-answer:
		return err
	default:
		return storage.ErrClosed
	}
}

// take makes n the store's node. disk.mu is held.
func (s *Store) take(n storage.Node) {
	s.told = s.told || n.BrokerEpoch > s.node.BrokerEpoch
	s.node = n
}

func (s *Store) Logs() (map[storage.LogID]storage.State, error) {
	s.disk.mu.Lock()
	defer s.disk.mu.Unlock()
	if s.dead {
		return nil, storage.ErrClosed
	}
	out := make(map[storage.LogID]storage.State, len(s.logs))
	for id, l := range s.logs {
		out[id] = l.state.Clone()
	}
	return out, nil
}

// Write applies the group to what reads show and queues it. The ops are copied.
func (s *Store) Write(ops []storage.Op, synced bool, done func(storage.Result)) {
	s.disk.mu.Lock()
	defer s.disk.mu.Unlock()
	g := &group{synced: synced, done: done}
	switch {
	case s.dead || s.closing:
		g.result.Err = storage.ErrClosed
	case s.poisoned():
		g.result.Err = s.err
	default:
		s.apply(g, ops)
		s.queue = append(s.queue, g)
		s.signal()
		return
	}
	s.late = append(s.late, g)
	if s.dead && !s.disk.manual && !s.draining {
		s.draining = true
		go s.drain()
	}
	s.signal()
}

// apply puts the group's ops into effect. disk.mu is held.
func (s *Store) apply(g *group, ops []storage.Op) {
	g.after = make(map[storage.LogID]*image, len(ops))
	for _, op := range ops {
		if op.Kind == storage.Delete { // whatever the log is, and was told before
			delete(s.refused, op.Log)
			g.forgive(op.Log)
			g.after[op.Log] = nil
			continue
		}
		if err := s.refused[op.Log]; err != nil {
			g.refuse(op.Log, err)
			continue
		}
		l, touched := g.after[op.Log]
		if !touched {
			l = s.logs[op.Log]
		}
		next, err := l.apply(op)
		if err != nil {
			s.refused[op.Log] = err
			g.refuse(op.Log, err)
			continue
		}
		g.after[op.Log] = next
	}
	for id, l := range g.after {
		if l == nil {
			delete(s.logs, id)
		} else {
			s.logs[id] = l
		}
	}
}

// refuse drops what the group did to the log so far: a log's ops stand or fall together.
func (g *group) refuse(log storage.LogID, err error) {
	delete(g.after, log)
	if g.result.Refused == nil {
		g.result.Refused = map[storage.LogID]error{}
	}
	g.result.Refused[log] = err
}

// forgive takes back a refusal.
func (g *group) forgive(log storage.LogID) {
	if delete(g.result.Refused, log); len(g.result.Refused) == 0 {
		g.result.Refused = nil
	}
}

func (s *Store) Read(log storage.LogID, from int64, maxBytes int) (storage.Read, error) {
	s.disk.mu.Lock()
	l, dead, check := s.logs[log], s.dead, s.disk.check
	if check { // Corrupt changes bytes under the same lock
		defer s.disk.mu.Unlock()
	} else {
		s.disk.mu.Unlock()
	}
	switch {
	case dead:
		return storage.Read{}, storage.ErrClosed
	case l == nil:
		return storage.Read{}, fmt.Errorf("%w: %s", storage.ErrUnknownLog, log)
	case l.state.Damaged != nil:
		return storage.Read{}, l.state.Damaged
	}
	return l.read(from, maxBytes, check)
}

// Health reports the size of all batches as the disk's usage.
func (s *Store) Health() storage.Health {
	s.disk.mu.Lock()
	defer s.disk.mu.Unlock()
	h := storage.Health{Err: s.err}
	if s.dead {
		h.Err = storage.ErrClosed
	}
	for l := range maps.Values(s.logs) {
		h.Disk += uint64(l.state.Bytes)
	}
	return h
}

// Close makes the queued groups durable first, unless the disk hangs or fails:
// then their dones, and Close, get an error.
func (s *Store) Close() error {
	s.disk.mu.Lock()
	if s.dead {
		s.disk.mu.Unlock()
		s.await()
		return s.closeErr
	}
	s.closing = true
	s.disk.mu.Unlock()
	if s.disk.manual {
		s.Sync(s.Pending())
		s.finish()
		return s.closeErr
	}
	s.signal()
	timer := time.NewTimer(s.disk.closeTimeout)
	defer timer.Stop()
	select {
	case <-s.gone:
	case <-timer.C:
		s.disk.mu.Lock()
		if !s.dead {
			s.dead = true
			s.end()
		}
		s.disk.mu.Unlock()
		<-s.gone
	}
	return s.closeErr
}

// await waits for the goroutine of a store that is dead.
func (s *Store) await() {
	if !s.disk.manual {
		<-s.gone
	}
}

// end announces that the store is dead. disk.mu is held.
func (s *Store) end() { close(s.over) }
