package tidemark

import (
	"slices"
	"sync"
)

// mailbox is an unbounded queue with one reader. Putting never blocks. What may
// be in it is bounded by whoever puts: clients by their budgets, links by their
// credit, the store by the groups outstanding.
type mailbox[T any] struct {
	mu    sync.Mutex
	items []T
	ready chan struct{} // holds one token while there are items
}

func newMailbox[T any]() *mailbox[T] { return &mailbox[T]{ready: make(chan struct{}, 1)} }

func (m *mailbox[T]) put(item T) {
	m.mu.Lock()
	m.items = append(m.items, item)
	first := len(m.items) == 1
	m.mu.Unlock()
	if first {
		select {
		case m.ready <- struct{}{}:
		default:
		}
	}
}

// take returns everything that is there, giving back an emptied slice for reuse.
func (m *mailbox[T]) take(reuse []T) []T {
	clear(reuse)
	m.mu.Lock()
	items := m.items
	m.items = reuse[:0]
	m.mu.Unlock()
	return items
}

func sortIDs(ids []uint64) { slices.Sort(ids) }
