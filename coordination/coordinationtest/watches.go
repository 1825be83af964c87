package coordinationtest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/coordination"
)

var watchTests = []test{
	{"WatchFromThePast", testWatchFromThePast},
	{"WatchWholeTransactions", testWatchWholeTransactions},
	{"WatchesConverge", testWatchesConverge},
	{"WatchCompacted", testWatchCompacted},
	{"WatchFallsBehind", testWatchFallsBehind},
	{"WatchCancel", testWatchCancel},
	{"WatchUnread", testWatchUnread},
}

func testWatchFromThePast(e *env) {
	s := e.connect()
	var revs []int64
	for i := range 6 {
		revs = append(revs, e.do(s, put(fmt.Sprintf("k/%d", i%2), fmt.Sprint(i)), put("other", "")))
	}
	revs = append(revs, e.do(s, del("k/0")))
	var watches []<-chan coordination.Changes
	for i, after := range append([]int64{0}, revs...) {
		ch := e.watch(s, "k/", after)
		watches = append(watches, ch)
		if i == len(revs) {
			break
		}
		events := e.events(ch, len(revs)-i)
		require.Len(e.t, events, len(revs)-i)
		for j, ev := range events {
			require.Equal(e.t, revs[i+j], ev.Revision)
			require.Equal(e.t, i+j == 6, ev.Deleted)
			if !ev.Deleted {
				require.Equal(e.t, fmt.Sprint(i+j), string(ev.Value))
			}
		}
	}
	// All of them go on with the present.
	e.do(s, put("k", "not within the prefix"))
	live := e.do(s, put("k/live", ""))
	for _, ch := range watches {
		require.Equal(e.t, live, e.events(ch, 1)[0].Revision)
	}
	// A watch may begin at a revision that does not exist yet.
	future := e.watch(s, "", e.revision(s)+1)
	e.do(s, put("skipped", ""))
	rev := e.do(s, put("seen", ""))
	ev := e.events(future, 1)[0]
	require.Equal(e.t, rev, ev.Revision)
	require.Equal(e.t, "seen", ev.Key)
}

func testWatchWholeTransactions(e *env) {
	s := e.connect()
	ch := e.watch(s, "k", 0)
	for range 20 {
		e.do(s, put("k1", ""), put("x", ""), put("k2", ""))
	}
	for seen := 0; seen < 40; {
		c, ok := e.next(ch)
		require.True(e.t, ok)
		require.Zero(e.t, len(c.Events)%2, "a transaction is not split")
		seen += len(c.Events)
	}
}

// testWatchesConverge has several writers change a few keys while watches begin, by
// "list, then watch from there". Each must end with exactly what a list shows, and
// the one from the start must have seen each change once.
func testWatchesConverge(e *env) {
	const writers, writes, watchers = 4, 60, 4
	ctx, cancel := context.WithCancel(e.ctx)
	defer cancel()
	full := e.watch(e.connect(), "k/", 0)
	var mu sync.Mutex
	applied := make(map[int64]string)
	late := make([]func() error, watchers)
	parallel(writers+watchers, func(i int) {
		s := e.connect()
		if i >= writers {
			late[i-writers] = e.follow(ctx, s)
			return
		}
		rng := rand.New(rand.NewPCG(uint64(i), 1))
		for range writes {
			op := put(fmt.Sprintf("k/%d", rng.IntN(5)), fmt.Sprint(i))
			op.Delete = rng.IntN(3) == 0
			before, _, err := s.Get(ctx, op.Key)
			if err != nil {
				return
			}
			res, err := s.Do(ctx, coordination.Txn{
				Guards: []coordination.Guard{{Key: op.Key, Revision: before.Revision}}, Ops: []coordination.Op{op},
			})
			if err == nil && res.Applied && !(op.Delete && before.Revision == 0) {
				mu.Lock()
				applied[res.Revision] = op.Key
				mu.Unlock()
			}
		}
	})
	s := e.connect()
	e.do(s, put("k/end", ""))
	want := e.view(s, "k/")

	view, last := make(map[string]coordination.KV), int64(0)
	seen := make(map[int64]string)
	for view["k/end"].Revision == 0 {
		events := e.events(full, 1)
		var err error
		last, err = fold(view, last, events)
		require.NoError(e.t, err)
		for _, ev := range events {
			seen[ev.Revision] = ev.Key
		}
	}
	require.Equal(e.t, want, view)
	delete(seen, want["k/end"].Revision)
	require.Equal(e.t, applied, seen)
	for i, join := range late {
		require.NotNil(e.t, join, "watch %d", i)
		require.NoError(e.t, join(), "watch %d", i)
	}
}

// follow lists and watches, and returns a function that waits for the key k/end and
// compares what the watch made of the list with a list of that revision.
func (e *env) follow(ctx context.Context, s coordination.Store) func() error {
	kvs, rev, err := s.List(ctx, "k/")
	if err != nil {
		return nil
	}
	ch, err := s.Watch(ctx, "k/", rev)
	if err != nil {
		return nil
	}
	view := make(map[string]coordination.KV)
	for _, kv := range kvs {
		view[kv.Key] = kv
	}
	return func() error {
		for view["k/end"].Revision == 0 {
			c, ok := <-ch
			if !ok || c.Err != nil {
				return fmt.Errorf("watch ended: %v", c.Err)
			}
			if rev, err = fold(view, rev, c.Events); err != nil {
				return err
			}
		}
		now, _, err := s.List(ctx, "k/")
		if err != nil {
			return err
		}
		if len(now) != len(view) {
			return fmt.Errorf("%d keys, watch shows %d", len(now), len(view))
		}
		for _, kv := range now {
			if got := view[kv.Key]; got.Revision != kv.Revision || string(got.Value) != string(kv.Value) {
				return fmt.Errorf("%v, watch shows %v", kv, got)
			}
		}
		return nil
	}
}

func testWatchCompacted(e *env) {
	if e.server.History == 0 {
		return
	}
	s := e.connect()
	var revs []int64
	for i := range e.server.History + 3 {
		revs = append(revs, e.do(s, put("k", fmt.Sprint(i))))
	}
	for _, after := range []int64{0, revs[0], revs[1]} {
		require.Empty(e.t, e.ends(e.watch(s, "k", after), coordination.ErrCompacted))
	}
	require.Len(e.t, e.events(e.watch(s, "k", revs[2]), e.server.History), e.server.History)
	require.Empty(e.t, e.ends(e.watch(s, "never", 0), coordination.ErrCompacted), "it cannot know")
}

// testWatchFallsBehind: one that is not read may end, but what it showed before must be
// the changes from its start on without a gap.
func testWatchFallsBehind(e *env) {
	if e.server.History == 0 {
		return
	}
	s := e.connect()
	ch := e.watch(s, "k", e.revision(s))
	var revs []int64
	for i := range 3 * e.server.History {
		revs = append(revs, e.do(s, put("k", fmt.Sprint(i))))
	}
	n := 0
	for n < len(revs) {
		c, ok := e.next(ch)
		require.True(e.t, ok)
		if c.Err != nil {
			require.ErrorIs(e.t, c.Err, coordination.ErrCompacted)
			_, ok = e.next(ch)
			require.False(e.t, ok)
			break
		}
		for _, ev := range c.Events {
			require.Equal(e.t, revs[n], ev.Revision)
			n++
		}
	}
	require.Positive(e.t, n)
}

func testWatchCancel(e *env) {
	s := e.connect()
	ctx, cancel := context.WithCancel(e.ctx)
	ch, err := s.Watch(ctx, "k", e.revision(s))
	require.NoError(e.t, err)
	other := e.watch(s, "k", e.revision(s))
	rev := e.do(s, put("k", ""))
	require.Equal(e.t, rev, e.events(ch, 1)[0].Revision)
	cancel()
	require.Empty(e.t, e.ends(ch, nil))
	e.do(s, put("k", ""))
	require.Len(e.t, e.events(other, 2), 2)
	_, err = s.Watch(ctx, "k", 0)
	require.Error(e.t, err, "with a context that has ended")
}

// testWatchUnread: watches that nobody reads disturb neither writers nor Close.
func testWatchUnread(e *env) {
	s := e.connect()
	ctx, cancel := context.WithCancel(e.ctx)
	defer cancel()
	for range 5 {
		_, err := s.Watch(ctx, "", 0)
		require.NoError(e.t, err)
		e.watch(s, "", 0)
	}
	for i := range 50 {
		e.do(s, put("k", fmt.Sprint(i)))
	}
	cancel()
	require.NoError(e.t, s.Close())
}
