package pebblestore_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/storage"
	"github.com/tidemark-log/tidemark/storage/pebblestore"
	"github.com/tidemark-log/tidemark/storage/storagetest"
)

// The mix is what the tests of faults do to a store: all kinds of ops on several
// logs, some of which do not fit, in groups with and without sync; what a broker
// says of itself; waiting, reading, closing and opening. Memtables are so small that
// tables, compactions and new WALs come in it all the time.
type step struct {
	ops      []storage.Op
	synced   bool
	register bool // a new broker epoch, as after every open of a broker
	wait     bool // for all dones
	reopen   bool
}

const (
	mixLives  = 3
	mixGroups = 24 // in each life
)

// theMix is always the same.
var theMix = sync.OnceValue(func() []step {
	return rapid.Custom(drawMix).Example(4)
})

// bulkLog gets the data that fills memtables.
var bulkLog = storage.LogID{Topic: protocol.UUID{0xf}, Partition: 7}

func drawMix(t *rapid.T) (steps []step) {
	rng := rand.New(rand.NewPCG(1, 2))
	model := storagetest.NewModel()
	bulk := bulkWriter{}
	for life := range mixLives {
		steps = append(steps, step{register: true})
		for i := range mixGroups {
			var ops []storage.Op
			if rng.IntN(3) > 0 {
				ops = model.DrawGroup(t)
			}
			if rng.IntN(2) == 0 || len(ops) == 0 {
				ops = append(ops, bulk.next(rng)...)
			}
			model.Apply(ops)
			steps = append(steps, step{ops: ops, synced: rng.IntN(3) > 0})
			if rng.IntN(7) == 0 || i == mixGroups-1 {
				steps = append(steps, step{wait: true})
			}
		}
		if life < mixLives-1 {
			steps = append(steps, step{reopen: true})
			model.Reopen()
		}
	}
	return steps
}

// bulkWriter makes groups for bulkLog: mostly appends, now and then a cut or a trim.
type bulkWriter struct{ start, end int64 }

func (w *bulkWriter) next(rng *rand.Rand) []storage.Op {
	switch rng.IntN(8) {
	case 0:
		if w.end > w.start+3 {
			w.start = w.end - 3
			return []storage.Op{{Log: bulkLog, Kind: storage.Trim, Offset: w.start}}
		}
	case 1:
		if w.end > w.start+2 {
			w.end -= 2
			return []storage.Op{{Log: bulkLog, Kind: storage.Truncate, Offset: w.end, Epochs: []storage.EpochEntry{}}}
		}
	}
	op := appendOp(bulkLog, w.end, batchAt(w.end, 1, 500+rng.IntN(8000)), batchAt(w.end+1, 1, 100))
	w.end = op.End
	return []storage.Op{op}
}

// tiny is for the mix.
func tiny(fs vfs.FS) pebblestore.Options {
	return pebblestore.Options{FS: fs, CacheBytes: 1 << 20, MemtableBytes: 16 << 10, SegmentBytes: 12 << 10}
}

// moment is what a store must show after some of the groups.
type moment struct {
	model *storagetest.Model
	epoch int64 // of the broker
}

// at tells whether the store is in this state.
func (m moment) at(s storage.Store) (said string) {
	if got := s.Node().BrokerEpoch; got != m.epoch {
		return fmt.Sprintf("broker epoch is %d, not %d", got, m.epoch)
	}
	return shows(s, m.model)
}

// history is one way through the mix. A store that has failed may be opened again,
// and the mix goes on.
type history struct {
	steps []step // to come

	mu       sync.Mutex
	line     []moment // after each number of groups, of all lives
	base     int      // where in it this life began
	promised int      // what may not be lost
	problem  error    // a broken promise

	dones  *dones // of this life
	alive  bool   // between an open and its Close
	unread bool   // nothing is read between an open and the next: reads may hang
	// closeTook is the longest that a Close has taken.
	closeTook time.Duration
	told      bool // this life began clean, or the broker has registered: the next may be clean
	clean     bool // ... and its Close has made everything durable: the next must be
	tried     bool // an open has failed since: it may have ended that
}

func newHistory() *history {
	return &history{steps: theMix(), line: []moment{{model: storagetest.NewModel()}}, dones: &dones{}, told: true, clean: true}
}

// bounds are the first and the last place in the line that the disk may have.
func (h *history) bounds() (least, most int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return max(h.promised, h.base+h.dones.promised()), len(h.line) - 1
}

func (h *history) span(least, most int) []moment {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.line[least : most+1]
}

// found looks which of the moments the store shows.
func found(s storage.Store, span []moment) (int, error) {
	said := ""
	for i, m := range span {
		if said = m.at(s); said == "" {
			return i, nil
		}
	}
	return 0, fmt.Errorf("the store shows none of the %d moments that it may: %s", len(span), said)
}

// isAlive tells whether a store is open and nobody has begun to close it.
func (h *history) isAlive() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.alive
}

func (h *history) now() moment {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.line[len(h.line)-1]
}

func (h *history) add(m moment) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.line = append(h.line, m)
}

func (h *history) breaks(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.problem = errors.Join(h.problem, fmt.Errorf(format, args...))
}

// open opens the store and looks whether it shows what it must.
func (h *history) open(o pebblestore.Options) (*pebblestore.Store, error) {
	s, err := pebblestore.Open("d", o)
	if err != nil {
		h.tried = true
		return nil, err
	}
	least, most := h.bounds()
	switch clean := !s.Node().Unclean; {
	case clean && !h.told:
		h.breaks("clean, but nobody was told")
	case !clean && h.clean && !h.tried:
		h.breaks("unclean after a clean end")
	case clean:
		least = most
	}
	i, err := found(s, h.span(least, most))
	if failed := s.Health().Err; err != nil && failed != nil { // the disk did, under what an open leaves to do
		h.tried = true
		return nil, errors.Join(failed, s.Close())
	}
	if err != nil {
		h.breaks("%w", err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	m := h.line[least+i]
	m.model = m.model.Clone()
	m.model.Reopen()
	h.base, h.alive = least+i, true
	h.line = append(slices.Clone(h.line[:h.base]), m)
	h.promised, h.dones, h.told, h.clean, h.tried = h.base, &dones{}, !s.Node().Unclean, false, false
	return s, nil
}

// life goes on with the mix in one open, up to the reopen that ends it, or until the
// store fails, and closes the store.
func (h *history) life(s *pebblestore.Store) (err error) {
	for len(h.steps) > 0 && err == nil {
		next := h.steps[0]
		h.steps = h.steps[1:]
		switch {
		case next.reopen:
			return h.close(s)
		case next.register:
			h.told = h.register(s) == nil || h.told
		case next.wait:
			if h.dones.all.Wait(); !h.unread {
				err = h.look(s)
			}
		default:
			h.write(s, next)
		}
		if herr := s.Health().Err; herr != nil {
			err = herr
		}
	}
	return errors.Join(err, h.close(s))
}

// all goes through the rest of the mix on a disk without faults.
func (h *history) all(t require.TestingT, o pebblestore.Options) {
	for len(h.steps) > 0 {
		s, err := h.open(o)
		require.NoError(t, err)
		require.NoError(t, h.life(s))
		require.NoError(t, h.problem)
	}
}

func (h *history) register(s *pebblestore.Store) error {
	m := h.now()
	m.epoch++
	done := h.dones.expect(h.dones.count(), true)
	h.add(m)
	n := s.Node()
	n.BrokerEpoch = m.epoch
	err := s.SetNode(n)
	done(storage.Result{Err: err})
	return err
}

func (h *history) write(s *pebblestore.Store, next step) {
	m := h.now()
	m.model = m.model.Clone()
	refused := m.model.Apply(next.ops)
	done := h.dones.expect(h.dones.count(), next.synced)
	h.add(m)
	s.Write(next.ops, next.synced, func(r storage.Result) {
		if r.Err == nil {
			h.checkRefused(refused, r)
		}
		done(r)
	})
}

func (h *history) checkRefused(want map[storage.LogID]bool, r storage.Result) {
	for id := range want {
		if r.Refused[id] == nil {
			h.breaks("%s was not refused", id)
		}
	}
	if len(r.Refused) != len(want) {
		h.breaks("refused: %v", r.Refused)
	}
}

// look compares what the store shows while it is open, once all groups are done.
func (h *history) look(s *pebblestore.Store) error {
	said := h.now().at(s)
	switch err := s.Health().Err; {
	case err != nil:
		return err // then a read may fail
	case h.dones.failed != nil:
		h.breaks("Health says nothing of %w", h.dones.failed)
	}
	if said != "" {
		h.breaks("open store: %s", said)
	}
	return nil
}

func (h *history) close(s *pebblestore.Store) error {
	h.mu.Lock()
	h.alive = false
	h.mu.Unlock()
	start := time.Now()
	err := s.Close()
	h.closeTook = max(h.closeTook, time.Since(start))
	h.dones.all.Wait()
	if h.dones.problem != "" {
		h.breaks("%s", h.dones.problem)
	}
	if err == nil && h.dones.failed != nil {
		h.breaks("Close says nothing of %w", h.dones.failed)
	}
	if err == nil {
		h.mu.Lock()
		h.promised = len(h.line) - 1
		h.mu.Unlock()
		h.clean = h.told
	}
	return err
}

// The mix has what it is for, and a sound disk shows all of it.
func TestMix(t *testing.T) {
	mem := newCrashMem()
	var mu sync.Mutex
	seen := map[string]int{}
	fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		mu.Lock()
		defer mu.Unlock()
		switch ext := op.Path[strings.LastIndexByte(op.Path, '.')+1:]; op.Kind {
		case errorfs.OpCreate:
			seen["new "+ext]++
		case errorfs.OpRemove:
			seen["removed "+ext]++
		}
		return nil
	}))
	h := newHistory()
	refused := 0
	for model := storagetest.NewModel(); len(h.steps) > 0; h.steps = h.steps[1:] {
		for _, op := range h.steps[0].ops {
			seen[fmt.Sprint("kind ", op.Kind)]++
		}
		if h.steps[0].ops != nil {
			seen[fmt.Sprint("synced ", h.steps[0].synced)]++
		}
		refused += len(model.Apply(h.steps[0].ops))
	}
	h = newHistory()
	h.all(t, tiny(fs))
	s, err := h.open(tiny(mem))
	require.NoError(t, err)
	require.NoError(t, s.Close())
	require.NoError(t, h.problem)

	t.Log(seen, refused)
	for what, least := range map[string]int{
		"kind 1": 50, "kind 2": 5, "kind 3": 5, "kind 4": 5, "kind 5": 5, "kind 6": 5,
		"synced true": 20, "synced false": 20,
		"new log": 8, "new sst": 12, "removed sst": 4, // WALs, flushes, compactions
	} {
		require.GreaterOrEqual(t, seen[what], least, what)
	}
	require.Positive(t, refused)
}
