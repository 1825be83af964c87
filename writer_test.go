package tidemark

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/storage"
)

// heldStore keeps the groups that it is given.
type heldStore struct {
	storage.Store
	groups []heldGroup
}

type heldGroup struct {
	ops  []storage.Op
	done func(storage.Result)
}

func (s *heldStore) Write(ops []storage.Op, _ bool, done func(storage.Result)) {
	s.groups = append(s.groups, heldGroup{ops, done})
}

// finish completes the oldest group, and returns how many ops the next one has; 0: there is none.
func (s *heldStore) finish() int {
	g := s.groups[0]
	s.groups = s.groups[1:]
	g.done(storage.Result{})
	if len(s.groups) == 0 {
		return 0
	}
	return len(s.groups[len(s.groups)-1].ops)
}

// While a group is under way the next one leaves when there is enough of it, or else
// when that one is done.
func TestStoreWriterGathers(t *testing.T) {
	store := &heldStore{}
	stored := 0
	w := &storeWriter{store: store, now: func() time.Duration { return 0 }, stored: func(storedGroup) { stored++ }}
	submit := func(size int) {
		w.submit(0, []storage.Op{{Kind: storage.Append, Batches: [][]byte{make([]byte, size)}}}, true)
	}
	submit(1)
	require.Len(t, store.groups, 1, "at once")
	submit(1)
	submit(overlapBytes / 2)
	require.Len(t, store.groups, 1, "gathers")
	submit(overlapBytes / 2)
	require.Len(t, store.groups, 2, "enough")
	submit(overlapBytes)
	require.Len(t, store.groups, 2, "no third")
	submit(0)
	require.Equal(t, 2, store.finish(), "all that waited, in one")
	require.Len(t, store.groups, 2)
	submit(1)
	store.finish()
	require.Len(t, store.groups, 1, "too little")
	require.Equal(t, 1, store.finish(), "but there is nothing else")
	require.Zero(t, store.finish())
	require.Equal(t, 4, stored)
	_, queued := w.load()
	require.Zero(t, queued)
	require.Zero(t, w.waiting)
}
