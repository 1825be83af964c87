package pebblecoord_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/coordination/pebblecoord"
)

// journal is what users of a store were told, as of some moment: what a store that is
// opened again must have, and may have.
type journal struct {
	mu   sync.Mutex
	keys map[string]coordination.KV // the persistent ones
	high int64                      // highest revision that anybody saw
	open map[*attempt]bool          // what may be found or not

	opening bool            // Open is under way
	ctx     context.Context // of the calls of live
	cancel  func()
}

// attempt is a transaction whose answer did not come yet.
type attempt struct {
	ops   []coordination.Op
	after int64
}

func newJournal() *journal {
	return &journal{keys: make(map[string]coordination.KV), open: make(map[*attempt]bool), ctx: ctx}
}

func (j *journal) copy() *journal { return j.during(func() {}) }

// during returns the journal as it is while f runs: nothing begins or ends meanwhile.
func (j *journal) during(f func()) *journal {
	j.mu.Lock()
	defer j.mu.Unlock()
	f()
	return &journal{keys: maps.Clone(j.keys), high: j.high, open: maps.Clone(j.open), opening: j.opening}
}

func (j *journal) saw(revision int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.high = max(j.high, revision)
}

// do runs a transaction and takes note of it. Transactions that are under way at the
// same time must be about different keys.
func (j *journal) do(ctx context.Context, c coordination.Store, t coordination.Txn) (coordination.TxnResult, error) {
	j.mu.Lock()
	a := &attempt{t.Ops, j.high}
	j.open[a] = true
	j.mu.Unlock()
	res, err := c.Do(ctx, t)
	if err != nil {
		return res, err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.open, a)
	j.high = max(j.high, res.Revision)
	if res.Applied {
		a.apply(j.keys, res.Revision)
	}
	return res, nil
}

// apply makes the attempt part of the persistent keys.
func (a *attempt) apply(keys map[string]coordination.KV, revision int64) {
	for _, op := range a.ops {
		if op.Delete || op.Session != "" {
			delete(keys, op.Key)
		} else {
			keys[op.Key] = coordination.KV{Key: op.Key, Value: append([]byte{}, op.Value...), Revision: revision}
		}
	}
}

// compare says what is wrong with the content of a store that was just opened.
func (j *journal) compare(kvs []coordination.KV, revision int64) error {
	if revision < j.high {
		return fmt.Errorf("revision %d after %d", revision, j.high)
	}
	got := make(map[string]coordination.KV)
	for _, kv := range kvs {
		if kv.Session != "" {
			return fmt.Errorf("ephemeral key %q survived", kv.Key)
		}
		got[kv.Key] = kv
	}
	want := maps.Clone(j.keys)
	for a := range j.open { // all of it, at one revision, or nothing
		with := maps.Clone(want)
		for _, op := range a.ops {
			if at := got[op.Key].Revision; at > a.after {
				a.apply(with, at)
				break
			}
		}
		if slices.ContainsFunc(a.ops, func(op coordination.Op) bool { return !op.Delete && op.Session == "" }) {
			want = with
		} else if a.apply(with, 0); same(with, got) { // what only takes away leaves no revision
			want = with
		}
	}
	if !same(want, got) {
		return fmt.Errorf("found\n%.1000s\nwant\n%.1000s", fmt.Sprint(got), fmt.Sprint(want))
	}
	return nil
}

func same(a, b map[string]coordination.KV) bool {
	return maps.EqualFunc(a, b, func(a, b coordination.KV) bool {
		return a.Revision == b.Revision && string(a.Value) == string(b.Value)
	})
}

// check opens what is left of a store, compares it with what was answered, and sees
// that the store goes on from there.
func (j *journal) check(fs vfs.FS) (err error) {
	s, err := pebblecoord.Open("data", pebblecoord.Options{FS: fs})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	c := s.Connect()
	kvs, rev, err := c.List(ctx, "")
	if err == nil {
		err = j.compare(kvs, rev)
	}
	if err != nil {
		return err
	}
	res, err := c.Do(ctx, put("next", "", ""))
	if err == nil && res.Revision <= j.high {
		err = fmt.Errorf("revision %d again", res.Revision)
	}
	return err
}

// life is a store in use, from open to close.
type life struct {
	j      *journal
	s      *pebblecoord.Store
	c      *pebblecoord.Client
	rng    *rand.Rand
	number int
	value  string // values begin with it
}

// live opens and uses a store several times, the same way for the same seed, and notes
// in j what it is told. It ends with the first error; Close has been called then.
func live(t testing.TB, fs vfs.FS, j *journal, value string) error {
	rng := rand.New(rand.NewPCG(1, 2))
	for number := range 2 {
		j.during(func() { j.opening = true })
		s, err := pebblecoord.Open("data", pebblecoord.Options{FS: fs})
		if err != nil {
			return err
		}
		j.during(func() { j.opening = false })
		l := &life{j: j, s: s, c: s.Connect(), rng: rng, number: number, value: value}
		err = l.run(t)
		if err = errors.Join(err, s.Close()); err != nil {
			return err
		}
	}
	return nil
}

func (l *life) run(t testing.TB) error {
	kvs, rev, err := l.c.List(ctx, "")
	if err != nil {
		return err
	}
	if err := l.j.compare(kvs, rev); err != nil {
		t.Error(err)
	}
	watch, err := l.c.Watch(ctx, "", rev)
	if err != nil {
		return err
	}
	for step := range 10 {
		if err = l.step(t, step); err != nil {
			break
		}
	}
	// What a watch has told is durable, also when nobody else was told.
	select {
	case ch := <-watch:
		l.j.saw(ch.Revision)
	default:
	}
	return err
}

// step does one thing of each kind: sessions that end, guards that hold and do not,
// several keys at once, keys that change their kind, deletions.
func (l *life) step(t testing.TB, step int) error {
	ctx := l.j.ctx
	sess, err := l.c.NewSession(ctx, time.Hour)
	if err != nil {
		return err
	}
	key := fmt.Sprintf("k/%d", l.rng.IntN(5))
	was, _, err := l.c.Get(ctx, key)
	if err != nil {
		return err
	}
	value := fmt.Appendf([]byte(l.value), "%d/%d", l.number, step)
	ops := []coordination.Op{{Key: key, Value: value}, {Key: "e/" + key, Session: sess.ID()}, {Key: "k/5", Value: value}}
	switch step % 4 {
	case 1:
		ops[0].Session = sess.ID() // a persistent key becomes ephemeral
	case 2:
		ops[0] = coordination.Op{Key: key, Delete: true}
	case 3:
		ops = ops[:1]
	}
	for _, off := range []int64{1, 0} {
		guards := []coordination.Guard{{Key: key, Revision: was.Revision + off}}
		res, err := l.j.do(ctx, l.c, coordination.Txn{Guards: guards, Ops: ops})
		if err != nil {
			return err
		}
		if res.Applied != (off == 0) {
			t.Errorf("guard of revision %d on one of %d: applied %v", was.Revision+off, was.Revision, res.Applied)
		}
	}
	switch step % 3 {
	case 0:
		return sess.Close(ctx)
	case 1: // as the expiry pass does it, which waits for the disk
		expired := make(chan bool)
		go func() {
			l.s.Engine().Expire(sess.ID())
			close(expired)
		}()
		select {
		case <-expired:
		case <-ctx.Done():
		}
	}
	return ctx.Err()
}
