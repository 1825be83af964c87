package node

import (
	"bytes"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/tidemark-log/tidemark/storage"
)

// earlyStore is a planted bug: it says that groups are stored while it has them in
// memory only, for a while, so that a killed process loses what was acknowledged. A
// checker that is any good notices when all brokers are killed at once.
type earlyStore struct {
	storage.Store
	delay time.Duration

	mu      sync.Mutex
	changed *sync.Cond
	held    []heldGroup // not given to the store yet, in order
	told    []func(storage.Result)
	writing int // given to it and not done
	hurry   bool
	ended   bool
	running sync.WaitGroup
}

type heldGroup struct {
	ops    []storage.Op
	synced bool
	due    time.Time
}

func newEarlyStore(s storage.Store, delay time.Duration) *earlyStore {
	e := &earlyStore{Store: s, delay: delay}
	e.changed = sync.NewCond(&e.mu)
	e.running.Go(e.tell)
	e.running.Go(e.release)
	return e
}

// Write implements storage.Store, but for its promise.
func (e *earlyStore) Write(ops []storage.Op, synced bool, done func(storage.Result)) {
	g := heldGroup{ops: copyOps(ops), synced: synced, due: time.Now().Add(e.delay)}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.told = append(e.told, done)
	if !e.ended {
		e.held = append(e.held, g)
	}
	e.changed.Broadcast()
}

// copyOps copies what the caller may change once it was told.
func copyOps(ops []storage.Op) []storage.Op {
	ops = slices.Clone(ops)
	for i := range ops {
		op := &ops[i]
		op.Batches, op.Epochs = slices.Clone(op.Batches), slices.Clone(op.Epochs)
		for j := range op.Batches {
			op.Batches[j] = bytes.Clone(op.Batches[j])
		}
		if op.Led != nil {
			led := *op.Led
			op.Led = &led
		}
	}
	return ops
}

// tell says too early that groups are stored.
func (e *earlyStore) tell() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for {
		for len(e.told) == 0 && !e.ended {
			e.changed.Wait()
		}
		if len(e.told) == 0 {
			return
		}
		told := e.told
		e.told = nil
		e.mu.Unlock()
		for _, done := range told {
			done(storage.Result{})
		}
		e.mu.Lock()
	}
}

// release gives groups to the store when they are due.
func (e *earlyStore) release() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for {
		for len(e.held) == 0 && !e.ended {
			e.changed.Wait()
		}
		if len(e.held) == 0 {
			return
		}
		if wait := time.Until(e.held[0].due); wait > 0 && !e.hurry {
			timer := time.AfterFunc(wait, e.changed.Broadcast)
			e.changed.Wait()
			timer.Stop()
			continue
		}
		g := e.held[0]
		e.held = e.held[1:]
		e.writing++
		e.mu.Unlock()
		e.Store.Write(g.ops, g.synced, func(storage.Result) {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.writing--
			e.changed.Broadcast()
		})
		e.mu.Lock()
	}
}

// flush waits until the store has everything.
func (e *earlyStore) flush() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.hurry = true
	e.changed.Broadcast()
	for len(e.held) > 0 || e.writing > 0 {
		e.changed.Wait()
	}
	e.hurry = false
}

// SetNode implements storage.Store.
func (e *earlyStore) SetNode(n storage.Node) error {
	e.flush()
	return e.Store.SetNode(n)
}

// Read implements storage.Store.
func (e *earlyStore) Read(log storage.LogID, from int64, maxBytes int) (storage.Read, error) {
	r, err := e.Store.Read(log, from, maxBytes)
	if len(r.Batches) > 0 || err != nil && !errors.Is(err, storage.ErrOutOfRange) && !errors.Is(err, storage.ErrUnknownLog) {
		return r, err
	}
	e.flush()
	return e.Store.Read(log, from, maxBytes)
}

// Close implements storage.Store.
func (e *earlyStore) Close() error {
	e.flush()
	e.mu.Lock()
	e.ended = true
	e.changed.Broadcast()
	e.mu.Unlock()
	e.running.Wait()
	return e.Store.Close()
}
