package storagetest

import (
	"errors"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tidemark-log/tidemark/storage"
	"github.com/tidemark-log/tidemark/storage/memstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// faulty is a store that keeps the contract but for what a fault replaces.
type faulty struct {
	*memstore.Store
	disk *memstore.Disk
	f    *fault

	mu   sync.Mutex
	held []func() // by faults that delay something
	rest sync.WaitGroup
}

// fault is one way to break the contract, and the test that must notice.
type fault struct {
	test  string
	write func(s *faulty, ops []storage.Op, synced bool, done func(storage.Result))
	node  func(s *faulty) storage.Node
	logs  func(s *faulty) (map[storage.LogID]storage.State, error)
	read  func(s *faulty, id storage.LogID, from int64, maxBytes int) (storage.Read, error)
	// health and close replace what they are named after.
	health func(s *faulty) storage.Health
	close  func(s *faulty) error
}

func (s *faulty) Write(ops []storage.Op, synced bool, done func(storage.Result)) {
	if s.f.write != nil {
		s.f.write(s, ops, synced, done)
		return
	}
	s.Store.Write(ops, synced, done)
}

func (s *faulty) Node() storage.Node {
	if s.f.node != nil {
		return s.f.node(s)
	}
	return s.Store.Node()
}

func (s *faulty) Logs() (map[storage.LogID]storage.State, error) {
	if s.f.logs != nil {
		return s.f.logs(s)
	}
	return s.Store.Logs()
}

func (s *faulty) Read(id storage.LogID, from int64, maxBytes int) (storage.Read, error) {
	if s.f.read != nil {
		return s.f.read(s, id, from, maxBytes)
	}
	return s.Store.Read(id, from, maxBytes)
}

func (s *faulty) Health() storage.Health {
	if s.f.health != nil {
		return s.f.health(s)
	}
	return s.Store.Health()
}

func (s *faulty) Close() error {
	if s.f.close != nil {
		return s.f.close(s)
	}
	return s.Store.Close()
}

// later runs f on a goroutine that the test waits for.
func (s *faulty) later(f func()) { s.rest.Go(f) }

// hold keeps f until the next call, and returns what was kept before.
func (s *faulty) hold(f func()) (before []func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, s.held = s.held, nil
	if f != nil {
		s.held = append(s.held, f)
	}
	return before
}

// place opens faulty stores on one disk.
type place struct {
	disk *memstore.Disk
	f    *fault
	last *faulty
}

func (p *place) Open() (storage.Store, error) {
	p.disk.FailWrites(nil)
	s, err := p.disk.Open()
	if err != nil {
		return nil, err
	}
	p.last = &faulty{Store: s, disk: p.disk, f: p.f}
	return p.last, nil
}

func (p *place) Crash() { p.disk.Crash(0) }

func (p *place) Damage(log storage.LogID, led bool) { p.disk.Damage(log, led) }

func (p *place) Hang(on bool) {
	if on {
		p.disk.Hang()
	} else {
		p.disk.Unhang()
	}
}

func (p *place) Fail() { p.disk.FailWrites(errors.New("disk on fire")) }

// trial stands for a testing.T.
type trial struct {
	mu     sync.Mutex
	failed bool
}

func (r *trial) Errorf(string, ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = true
}

func (r *trial) FailNow() { runtime.Goexit() }

// fails runs one test of the suite, in virtual time, on a store with the fault.
func fails(t *testing.T, name string, f *fault) (failed bool) {
	all := examples()
	i := slices.IndexFunc(all, func(x example) bool { return x.name == name })
	require.GreaterOrEqual(t, i, 0, name)
	synctest.Test(t, func(t *testing.T) {
		p := &place{disk: memstore.NewDisk(memstore.CloseTimeout(time.Second)), f: f}
		r := &trial{}
		over := make(chan struct{})
		go func() {
			defer close(over)
			all[i].on(&env{t: r, place: p})
		}()
		<-over
		p.disk.Unhang()
		p.disk.Crash(0)
		for _, f := range p.last.hold(nil) {
			f()
		}
		p.last.rest.Wait()
		failed = r.failed
	})
	return failed
}

// faults by what they do wrong.
func faultyStores() map[string]*fault {
	ok := func(done func(storage.Result)) func() { return func() { done(storage.Result{}) } }
	return map[string]*fault{
		"done before it is applied": {test: "GroupOverLogs", write: func(s *faulty, ops []storage.Op, synced bool, done func(storage.Result)) {
			for _, f := range s.hold(func() { s.Store.Write(ops, synced, func(storage.Result) {}) }) {
				f()
			}
			s.later(ok(done))
		}},
		"synced is not": {test: "SyncedSurvivesCrash", write: func(s *faulty, ops []storage.Op, _ bool, done func(storage.Result)) {
			s.disk.Hang() // nothing becomes durable any more
			s.Store.Write(ops, false, done)
		}},
		"synced does not cover what was before": {test: "SyncedSurvivesCrash", write: func(s *faulty, ops []storage.Op, synced bool, done func(storage.Result)) {
			if synced {
				s.Store.Write(ops, true, done)
				return
			}
			s.hold(nil)
			s.later(ok(done)) // forgotten
		}},
		"dones swapped": {test: "DonesInOrder", write: func(s *faulty, ops []storage.Op, synced bool, done func(storage.Result)) {
			s.Store.Write(ops, synced, func(r storage.Result) {
				if before := s.hold(nil); before != nil {
					done(r)
					before[0]()
				} else {
					s.hold(func() { done(r) })
				}
			})
		}},
		"unsynced dones overtake synced ones": {test: "UnsyncedDoesNotWait", write: func(s *faulty, ops []storage.Op, synced bool, done func(storage.Result)) {
			if synced {
				s.Store.Write(ops, true, done)
				return
			}
			s.Store.Write(ops, false, func(storage.Result) {})
			var called sync.WaitGroup
			called.Go(ok(done))
			called.Wait()
		}},
		"unsynced waits for the disk": {test: "UnsyncedDoesNotWait", write: func(s *faulty, ops []storage.Op, _ bool, done func(storage.Result)) {
			s.Store.Write(ops, true, done)
		}},
		"done inside Write": {test: "DoneNotInsideWrite", write: func(_ *faulty, _ []storage.Op, _ bool, done func(storage.Result)) {
			done(storage.Result{})
		}},
		"done twice": {test: "EmptyGroup", write: func(s *faulty, ops []storage.Op, synced bool, done func(storage.Result)) {
			s.Store.Write(ops, synced, func(r storage.Result) { done(r); done(r) })
		}},
		"refused is not told": {test: "RefusedOps", write: func(s *faulty, ops []storage.Op, synced bool, done func(storage.Result)) {
			s.Store.Write(ops, synced, func(r storage.Result) { done(storage.Result{Err: r.Err}) })
		}},
		"one refused log fails the group": {test: "RefusedOps", write: func(s *faulty, ops []storage.Op, synced bool, done func(storage.Result)) {
			s.Store.Write(ops, synced, func(r storage.Result) {
				for _, err := range r.Refused {
					r.Err = err
				}
				done(r)
			})
		}},
		"ops of a log one by one": {test: "LogsOpsTogether", write: func(s *faulty, ops []storage.Op, synced bool, done func(storage.Result)) {
			for i := range ops {
				if i < len(ops)-1 {
					s.Store.Write(ops[i:i+1], synced, func(storage.Result) {})
				} else {
					s.Store.Write(ops[i:], synced, done)
				}
			}
		}},
		"delete is refused": {test: "DeleteEndsRefusal", write: refuseDelete},
		"delete of a damaged log is refused": {test: "DamagedLog", write: func(s *faulty, ops []storage.Op, synced bool, done func(storage.Result)) {
			refuseDelete(s, ops, synced, done)
		}},
		"delete keeps what was there": {test: "DamagedLogReplaced", write: func(s *faulty, ops []storage.Op, synced bool, done func(storage.Result)) {
			ops = slices.DeleteFunc(slices.Clone(ops), func(op storage.Op) bool { return op.Kind == storage.Delete && len(ops) > 1 })
			s.Store.Write(ops, synced, done)
		}},
		"damage is not told": {test: "DamagedLog", logs: func(s *faulty) (map[storage.LogID]storage.State, error) {
			logs, err := s.Store.Logs()
			for id, l := range logs {
				l.Damaged = nil
				logs[id] = l
			}
			return logs, err
		}},
		"led of a damaged log is made up": {test: "DamagedLogReplaced", logs: func(s *faulty) (map[storage.LogID]storage.State, error) {
			logs, err := s.Store.Logs()
			for id, l := range logs {
				l.Led = max(l.Led, 0)
				logs[id] = l
			}
			return logs, err
		}},
		"always clean": {test: "UncleanAfterCrash", node: func(s *faulty) storage.Node {
			n := s.Store.Node()
			n.Unclean = false
			return n
		}},
		"a clean close hides an earlier crash": {test: "UncleanAfterCrash", close: func(s *faulty) error {
			n := s.Store.Node()
			n.BrokerEpoch++
			_ = s.Store.SetNode(n)
			return s.Store.Close()
		}},
		"never clean": {test: "CleanClose", node: func(s *faulty) storage.Node {
			n := s.Store.Node()
			n.Unclean = true
			return n
		}},
		"close drops what is not synced": {test: "CloseMakesDurable", close: func(s *faulty) error {
			s.disk.Crash(0)
			return nil
		}},
		"close blocks": {test: "CloseOnHungDisk", close: func(s *faulty) error {
			released := make(chan struct{})
			s.later(func() { s.Write(nil, true, func(storage.Result) { close(released) }) })
			select {
			case <-released: // waits for the disk, however long
			case <-time.After(2 * settle):
			}
			return s.Store.Close()
		}},
		"close hides that it gave up": {test: "CloseOnHungDisk", close: func(s *faulty) error {
			_ = s.Store.Close()
			return nil
		}},
		"health is always good": {test: "FailedWrite", health: func(*faulty) storage.Health { return storage.Health{} }},
		"a later failure is forgotten": {test: "UnsyncedFailsLater", write: func(s *faulty, ops []storage.Op, synced bool, done func(storage.Result)) {
			s.Store.Write(ops, synced, func(r storage.Result) {
				if len(ops) == 0 {
					r.Err = nil
				}
				done(r)
			})
		}},
		"read returns less than a batch": {test: "ReadBoundaries", read: func(s *faulty, id storage.LogID, from int64, maxBytes int) (storage.Read, error) {
			r, err := s.Store.Read(id, from, maxBytes)
			if len(r.Batches) > maxBytes && maxBytes >= 0 {
				r.Batches = r.Batches[:maxBytes]
			}
			return r, err
		}},
		"close does nothing": {test: "AfterClose", close: func(s *faulty) error { return nil }},
	}
}

func refuseDelete(s *faulty, ops []storage.Op, synced bool, done func(storage.Result)) {
	refused := map[storage.LogID]error{}
	ops = slices.DeleteFunc(slices.Clone(ops), func(op storage.Op) bool {
		if op.Kind == storage.Delete {
			refused[op.Log] = errors.New("refused")
		}
		return op.Kind == storage.Delete
	})
	s.Store.Write(ops, synced, func(r storage.Result) {
		if r.Refused == nil && len(refused) > 0 {
			r.Refused = refused
		}
		done(r)
	})
}

// Every planted fault makes the test fail that is named for it, and that test passes
// without the fault.
func TestTeeth(t *testing.T) {
	for name, f := range faultyStores() {
		t.Run(name, func(t *testing.T) {
			require.False(t, fails(t, f.test, &fault{}), "%s fails on a store without fault", f.test)
			require.True(t, fails(t, f.test, f), "%s does not notice", f.test)
		})
	}
}

// The suite skips what a place cannot play, and nothing else.
func TestNeeds(t *testing.T) {
	type bare struct{ Place }
	skipped := 0
	for _, x := range examples() {
		require.True(t, x.possible(&place{}), x.name)
		if !x.possible(bare{&place{}}) {
			skipped++
			require.NotZero(t, x.needs, x.name)
		}
	}
	require.Equal(t, 11, skipped)
}
