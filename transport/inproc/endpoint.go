package inproc

import (
	"sync"
	"sync/atomic"

	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/transport"
)

// Phases of an endpoint. It passes through them in this order, once.
const (
	phaseNew int32 = iota
	phaseOpen
	phaseClosed
)

// endpoint is one broker's share of a Network, from Start to Close.
type endpoint struct {
	net *Network
	id  int32

	phase atomic.Int32  // written under mu
	wake  chan struct{} // holds a token when the queue may have something
	stop  chan struct{} // closed by the Close that ends an open endpoint
	done  chan struct{} // closed when deliver has returned

	mu      sync.Mutex
	waiting []item // in order of arrival; deliver takes all of it at once

	// What was accepted and not yet handed over, in waiting or taken by deliver.
	// Raised under mu, lowered by deliver without it.
	queued load
	// What is on its way to this broker id, delayed or held, whether it reaches
	// this endpoint or the next.
	ahead *load
}

type item struct {
	m    *protocol.Message
	size int
}

// load is how much waits somewhere.
type load struct{ messages, bytes atomic.Int64 }

func (l *load) add(size int) {
	l.messages.Add(1)
	l.bytes.Add(int64(size))
}

func (l *load) remove(size int) {
	l.messages.Add(-1)
	l.bytes.Add(-int64(size))
}

func (e *endpoint) MaxMessageBytes() int { return e.net.opts.MaxMessageBytes }

func (e *endpoint) Start(h transport.Handler) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch e.phase.Load() {
	case phaseOpen:
		return ErrStarted
	case phaseClosed:
		return transport.ErrClosed
	}
	if err := e.net.join(e); err != nil {
		return err
	}
	e.phase.Store(phaseOpen)
	go e.deliver(h)
	return nil
}

func (e *endpoint) Send(to transport.Peer, m *protocol.Message) error {
	switch e.phase.Load() {
	case phaseNew:
		return ErrNotStarted
	case phaseClosed:
		return transport.ErrClosed
	}
	return e.net.send(e.id, to.ID, m)
}

func (e *endpoint) Close() error {
	e.mu.Lock()
	before := e.phase.Swap(phaseClosed)
	switch before {
	case phaseNew:
		close(e.done)
	case phaseOpen:
		close(e.stop)
	}
	e.mu.Unlock()
	<-e.done
	return nil
}

// queue adds it for delivery. A full queue refuses it; a closing endpoint loses it.
func (e *endpoint) queue(it item) error {
	e.mu.Lock()
	if e.phase.Load() != phaseOpen {
		e.mu.Unlock()
		e.net.dropped.Add(1)
		return nil
	}
	if !e.net.room(it.size, &e.queued, e.ahead) {
		e.mu.Unlock()
		return transport.ErrBusy
	}
	e.add(it)
	return nil
}

// expect counts it as being on its way, if there is room.
func (e *endpoint) expect(it item) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	ok := e.net.room(it.size, &e.queued, e.ahead)
	if ok {
		e.ahead.add(it.size)
	}
	return ok
}

// arrive adds what was on its way, and had its room.
func (e *endpoint) arrive(it item) {
	e.mu.Lock()
	e.ahead.remove(it.size)
	if e.phase.Load() != phaseOpen {
		e.mu.Unlock()
		e.net.dropped.Add(1)
		return
	}
	e.add(it)
}

// add puts it into the queue, and unlocks.
func (e *endpoint) add(it item) {
	e.queued.add(it.size)
	e.waiting = append(e.waiting, it)
	first := len(e.waiting) == 1
	e.mu.Unlock()
	if first {
		select {
		case e.wake <- struct{}{}:
		default: // a token is there already
		}
	}
}

// room reports whether a message of that size may wait beside what does.
func (n *Network) room(size int, queued, ahead *load) bool {
	messages := queued.messages.Load() + ahead.messages.Load()
	bytes := queued.bytes.Load() + ahead.bytes.Load()
	return messages == 0 ||
		messages < int64(n.opts.QueueMessages) && bytes+int64(size) <= int64(n.opts.QueueBytes)
}

// deliver is the endpoint's goroutine: started by Start, ended by Close.
func (e *endpoint) deliver(h transport.Handler) {
	defer close(e.done)
	defer e.net.leave(e)
	var batch []item
	for {
		select {
		case <-e.stop:
			e.lose()
			return
		case <-e.wake:
		}
		batch = e.take(batch)
		for i := range batch {
			if e.phase.Load() != phaseOpen {
				e.net.dropped.Add(int64(len(batch) - i))
				break
			}
			it := batch[i]
			batch[i] = item{}
			e.queued.remove(it.size)
			e.net.delivered.Add(1)
			h(it.m)
		}
		clear(batch)
	}
}

// take swaps the queue for an empty one that reuses the space of the batch before.
func (e *endpoint) take(used []item) []item {
	e.mu.Lock()
	defer e.mu.Unlock()
	batch := e.waiting
	e.waiting = used[:0]
	return batch
}

// lose counts what is still queued as dropped. The endpoint is closed by now,
// so that nothing is added afterwards.
func (e *endpoint) lose() {
	left := e.take(nil)
	e.net.dropped.Add(int64(len(left)))
}
