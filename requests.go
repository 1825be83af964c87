package tidemark

import "sync"

// requests are the calls of this broker's clients that wait for an answer, from
// another broker or from one of its own loops.
type requests[A any] struct {
	mu      sync.Mutex
	first   func() uint64 // where the numbers begin: by chance, so that no answer to an earlier process fits one
	last    uint64        // 0: none yet, and the number of no request
	waiting map[uint64]request[A]
	closed  bool
	lost    A // the answer when the session with the asked broker is gone
	over    A // the answer when this broker closes
}

type request[A any] struct {
	peer int32
	done func(A)
}

func newRequests[A any](first func() uint64, lost, over A) *requests[A] {
	return &requests[A]{first: first, waiting: make(map[uint64]request[A]), lost: lost, over: over}
}

// drain takes no more; what waits goes on.
func (q *requests[A]) drain() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
}

// add registers a request to a broker. done is called once, from any goroutine;
// it does not block. It returns 0 after drain and close.
func (q *requests[A]) add(peer int32, done func(A)) uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return 0
	}
	if q.last == 0 {
		q.last = q.first() >> 1 // it does not come round
	}
	q.last++
	q.waiting[q.last] = request[A]{peer, done}
	return q.last
}

// drop forgets a request that was not sent; it reports false if it was answered already.
func (q *requests[A]) drop(id uint64) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	_, ok := q.waiting[id]
	delete(q.waiting, id)
	return ok
}

// finish answers a request. An answer from another broker than the one asked is ignored.
func (q *requests[A]) finish(peer int32, id uint64, a A) {
	q.mu.Lock()
	r, ok := q.waiting[id]
	if ok && r.peer == peer {
		delete(q.waiting, id)
	}
	q.mu.Unlock()
	if ok && r.peer == peer {
		r.done(a)
	}
}

// lose ends what was asked of a broker whose session ended.
func (q *requests[A]) lose(peer int32) { q.refuse(peer, q.lost) }

// refuse gives one answer to all that was asked of a broker.
func (q *requests[A]) refuse(peer int32, a A) {
	q.end(a, func(r request[A]) bool { return r.peer == peer })
}

// close ends everything and takes no more. It returns how many requests it ended.
func (q *requests[A]) close() int {
	q.drain()
	return q.end(q.over, func(request[A]) bool { return true })
}

func (q *requests[A]) end(answer A, which func(request[A]) bool) (n int) {
	q.mu.Lock()
	var ended []uint64
	for id, r := range q.waiting {
		if which(r) {
			ended = append(ended, id)
		}
	}
	q.mu.Unlock()
	sortIDs(ended) // in the order in which they were asked
	for _, id := range ended {
		q.mu.Lock()
		r, ok := q.waiting[id]
		delete(q.waiting, id)
		q.mu.Unlock()
		if ok {
			r.done(answer)
			n++
		}
	}
	return n
}

// open is how many requests wait.
func (q *requests[A]) open() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.waiting)
}
