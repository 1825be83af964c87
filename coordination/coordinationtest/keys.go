package coordinationtest

import (
	"fmt"
	"slices"
	"strconv"
	"sync"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/coordination"
)

var keyTests = []test{
	{"Guards", testGuards},
	{"NothingToWrite", testNothingToWrite},
	{"AllOrNothing", testAllOrNothing},
	{"LargestTransaction", testLargestTransaction},
	{"List", testList},
	{"Ownership", testOwnership},
	{"RevisionsRise", testRevisionsRise},
	{"Increments", testIncrements},
	{"ConsistentViews", testConsistentViews},
}

func testGuards(e *env) {
	s, other := e.connect(), e.connect()
	first := e.do(s, put("a", "1"))
	require.Positive(e.t, first)
	second := e.do(other, put("b", "1"))
	require.Greater(e.t, second, first)
	e.do(s, put("gone", ""))
	e.do(s, del("gone"))

	guard := func(pairs ...any) (g []coordination.Guard) {
		for p := range slices.Chunk(pairs, 2) {
			g = append(g, coordination.Guard{Key: p[0].(string), Revision: p[1].(int64)})
		}
		return g
	}
	none := int64(0)
	for _, tt := range []struct {
		name   string
		guards []coordination.Guard
		holds  bool
	}{
		{"none", nil, true},
		{"exact", guard("a", first), true},
		{"both", guard("a", first, "b", second), true},
		{"twice", guard("a", first, "a", first), true},
		{"contradiction", guard("a", first, "a", none), false},
		{"contradiction, other order", guard("a", none, "a", first), false},
		{"exists", guard("a", none), false},
		{"absent", guard("never", none), true},
		{"deleted", guard("gone", none), true},
		{"absent with revision", guard("never", first), false},
		{"of another key", guard("b", first), false},
		{"future", guard("a", second+100), false},
		{"last one fails", guard("a", first, "never", none, "b", none), false},
	} {
		before := e.revision(s)
		res, err := s.Do(e.ctx, coordination.Txn{Guards: tt.guards, Ops: []coordination.Op{put("t/"+tt.name, "x")}})
		require.NoError(e.t, err, tt.name)
		require.Equal(e.t, tt.holds, res.Applied, tt.name)
		kv, ok, err := other.Get(e.ctx, "t/"+tt.name)
		require.NoError(e.t, err, tt.name)
		require.Equal(e.t, tt.holds, ok, tt.name)
		if tt.holds {
			require.Greater(e.t, res.Revision, before, tt.name)
			require.Equal(e.t, coordination.KV{Key: "t/" + tt.name, Value: []byte("x"), Revision: res.Revision}, kv)
		} else {
			require.Equal(e.t, before, res.Revision, tt.name)
		}
	}
	// The guard sees the state before the transaction, not what its own ops make of it.
	res, err := s.Do(e.ctx, coordination.Txn{Guards: guard("a", first), Ops: []coordination.Op{put("a", "2")}})
	require.NoError(e.t, err)
	require.True(e.t, res.Applied)
	res, err = s.Do(e.ctx, coordination.Txn{Guards: guard("a", first), Ops: []coordination.Op{put("a", "3")}})
	require.NoError(e.t, err)
	require.False(e.t, res.Applied, "the revision is that of the last write")
}

func testNothingToWrite(e *env) {
	s := e.connect()
	rev := e.do(s, put("a", "1"))
	require.Equal(e.t, rev, e.do(s), "no ops")
	require.Equal(e.t, rev, e.do(s, del("never")), "deletes nothing")
	require.Equal(e.t, rev, e.revision(s))
	// An equal value is a write nevertheless: guards must notice it.
	require.Greater(e.t, e.do(s, put("a", "1")), rev)
}

// What every Store takes in one transaction is applied as one, and refused as one.
func testLargestTransaction(e *env) {
	s := e.connect()
	var txn coordination.Txn
	for i := range coordination.MaxTxnOps {
		key := fmt.Sprintf("large/%03d/state", i)
		txn.Guards = append(txn.Guards, coordination.Guard{Key: key})
		txn.Ops = append(txn.Ops, coordination.Op{Key: key, Value: make([]byte, coordination.MaxTxnBytes/coordination.MaxTxnOps-len(key))})
	}
	ch := e.watch(s, "large/", e.revision(s))
	res, err := s.Do(e.ctx, txn)
	require.NoError(e.t, err)
	require.True(e.t, res.Applied)
	events := e.events(ch, coordination.MaxTxnOps)
	for i, event := range events {
		require.Equal(e.t, txn.Ops[i].Key, event.Key)
		require.Equal(e.t, res.Revision, event.Revision)
	}
	for i := range txn.Guards {
		txn.Guards[i].Revision = res.Revision
		txn.Ops[i] = del(txn.Ops[i].Key)
	}
	txn.Guards[coordination.MaxTxnOps-1].Revision = 0
	refused, err := s.Do(e.ctx, txn)
	require.NoError(e.t, err)
	require.False(e.t, refused.Applied)
	require.Len(e.t, e.view(s, "large/"), coordination.MaxTxnOps)
	txn.Guards[coordination.MaxTxnOps-1].Revision = res.Revision
	res, err = s.Do(e.ctx, txn)
	require.NoError(e.t, err)
	require.True(e.t, res.Applied)
	require.Empty(e.t, e.view(s, "large/"))
}

func testAllOrNothing(e *env) {
	s := e.connect()
	e.do(s, put("old", ""), put("kept", ""))
	rev := e.do(s, put("x", "1"), put("y", "2"), del("old"), put("z", "3"))
	view := e.view(s, "")
	require.Len(e.t, view, 4)
	for _, key := range []string{"x", "y", "z"} {
		require.Equal(e.t, rev, view[key].Revision, key)
	}
	res, err := s.Do(e.ctx, coordination.Txn{
		Guards: []coordination.Guard{{Key: "x", Revision: rev}, {Key: "kept", Revision: rev}},
		Ops:    []coordination.Op{put("x", "9"), del("y"), put("new", "")},
	})
	require.NoError(e.t, err)
	require.False(e.t, res.Applied)
	require.Equal(e.t, view, e.view(s, ""))
	require.Equal(e.t, rev, e.revision(s))
}

func testList(e *env) {
	s := e.connect()
	keys := []string{"/a", "/a/1", "/a/10", "/a/2", "/a0", "/b", "/ä", "/a/\x00", "/a/\xff", "b"}
	for _, key := range keys {
		e.do(s, put(key, "v"+key))
	}
	slices.Sort(keys)
	for _, prefix := range []string{"", "/", "/a", "/a/", "/a/1", "/a/\xff", "/b", "c", "/a/3"} {
		kvs, rev, err := s.List(e.ctx, prefix)
		require.NoError(e.t, err)
		require.Equal(e.t, int64(0), rev-e.revision(s))
		var got, want []string
		for _, kv := range kvs {
			got = append(got, kv.Key)
			require.Equal(e.t, "v"+kv.Key, string(kv.Value))
		}
		for _, key := range keys {
			if len(key) >= len(prefix) && key[:len(prefix)] == prefix {
				want = append(want, key)
			}
		}
		require.Equal(e.t, want, got, "prefix %q", prefix)
	}
}

func testOwnership(e *env) {
	s := e.connect()
	value := []byte("original")
	ch := e.watch(s, "", e.revision(s))
	_, err := s.Do(e.ctx, coordination.Txn{Ops: []coordination.Op{{Key: "a", Value: value}}})
	require.NoError(e.t, err)
	copy(value, "CALLER'S")
	spoil := func(v []byte) {
		require.Equal(e.t, "original", string(v))
		copy(v, "SPOILED!")
	}
	for range 2 {
		kv, _, err := s.Get(e.ctx, "a")
		require.NoError(e.t, err)
		spoil(kv.Value)
		kvs, _, err := s.List(e.ctx, "")
		require.NoError(e.t, err)
		spoil(kvs[0].Value)
		spoil(e.events(e.watch(s, "", 0), 1)[0].Value)
	}
	spoil(e.events(ch, 1)[0].Value)
	e.do(s, coordination.Op{Key: "empty"})
	kv, ok, err := s.Get(e.ctx, "empty")
	require.NoError(e.t, err)
	require.True(e.t, ok)
	require.Empty(e.t, kv.Value)
}

func testRevisionsRise(e *env) {
	const writers, writes = 8, 20
	revs := make([][]int64, writers)
	parallel(writers, func(i int) {
		s := e.connect()
		for n := range writes {
			res, err := s.Do(e.ctx, coordination.Txn{Ops: []coordination.Op{put(fmt.Sprintf("%d/%d", i, n), "")}})
			if err != nil || !res.Applied {
				return // shows below as a missing revision
			}
			revs[i] = append(revs[i], res.Revision)
		}
	})
	seen := make(map[int64]bool)
	for i, of := range revs {
		require.Len(e.t, of, writes)
		require.True(e.t, slices.IsSorted(of), "writer %d: %v", i, of)
		for _, rev := range of {
			require.False(e.t, seen[rev], "revision %d twice", rev)
			seen[rev] = true
		}
	}
	for key, kv := range e.view(e.connect(), "") {
		require.True(e.t, seen[kv.Revision], key)
	}
}

func testIncrements(e *env) {
	const writers, adds = 6, 15
	parallel(writers, func(int) {
		s := e.connect()
		for done := 0; done < adds; {
			kv, _, err := s.Get(e.ctx, "n")
			if err != nil {
				return
			}
			n, _ := strconv.Atoi(string(kv.Value))
			res, err := s.Do(e.ctx, coordination.Txn{
				Guards: []coordination.Guard{{Key: "n", Revision: kv.Revision}},
				Ops:    []coordination.Op{put("n", strconv.Itoa(n+1))},
			})
			if err != nil {
				return
			}
			if res.Applied {
				done++
			}
		}
	})
	require.Equal(e.t, strconv.Itoa(writers*adds), string(e.view(e.connect(), "")["n"].Value))
}

// testConsistentViews moves a value between keys; no view may show it twice or not at all.
func testConsistentViews(e *env) {
	s := e.connect()
	e.do(s, put("at/0", ""))
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(stop)
		mover := e.connect()
		for i := range 200 {
			_, err := mover.Do(e.ctx, coordination.Txn{Ops: []coordination.Op{del(fmt.Sprintf("at/%d", i)), put(fmt.Sprintf("at/%d", i+1), "")}})
			if err != nil {
				return
			}
		}
	})
	bad, last := 0, int64(0)
	for running := true; running; {
		select {
		case <-stop:
			running = false
		default:
		}
		kvs, rev, err := s.List(e.ctx, "at/")
		if err != nil || len(kvs) != 1 || rev < last || kvs[0].Revision != rev {
			bad++
		}
		last = rev
	}
	wg.Wait()
	require.Zero(e.t, bad)
	require.Contains(e.t, e.view(s, ""), "at/200")
}
