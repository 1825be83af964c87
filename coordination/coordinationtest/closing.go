package coordinationtest

import (
	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/coordination"
)

var closeTests = []test{
	{"UseAfterClose", testUseAfterClose},
	{"CloseFromEverywhere", testCloseFromEverywhere},
	{"CloseUnderLoad", testCloseUnderLoad},
}

func testUseAfterClose(e *env) {
	s, other := e.connect(), e.connect()
	sess := e.session(s)
	ch, others := e.watch(s, "", 0), e.watch(other, "", 0)
	e.do(s, put("a", ""))
	require.NoError(e.t, s.Close())
	require.NoError(e.t, s.Close())
	require.LessOrEqual(e.t, len(e.ends(ch, coordination.ErrClosed)), 1)
	_, _, err := s.Get(e.ctx, "a")
	require.ErrorIs(e.t, err, coordination.ErrClosed)
	_, _, err = s.List(e.ctx, "")
	require.ErrorIs(e.t, err, coordination.ErrClosed)
	_, err = s.Do(e.ctx, coordination.Txn{Ops: []coordination.Op{put("late", "")}})
	require.ErrorIs(e.t, err, coordination.ErrClosed)
	_, err = s.Watch(e.ctx, "", 0)
	require.ErrorIs(e.t, err, coordination.ErrClosed)
	_, err = s.NewSession(e.ctx, e.ttl)
	require.ErrorIs(e.t, err, coordination.ErrClosed)
	require.ErrorIs(e.t, sess.Renew(e.ctx), coordination.ErrClosed)
	// The other one does not notice.
	e.do(other, put("b", ""))
	require.Len(e.t, e.events(others, 2), 2)
	require.NotContains(e.t, e.view(other, ""), "late")
}

func testCloseFromEverywhere(e *env) {
	s := e.connect()
	e.session(s)
	e.watch(s, "", 0)
	parallel(16, func(int) { _ = s.Close() })
	require.NoError(e.t, s.Close())
}

// testCloseUnderLoad: every call ends, and what was answered counts.
func testCloseUnderLoad(e *env) {
	s, other := e.connect(), e.connect()
	const writers = 6
	answered := make([]int, writers)
	errs := make([]error, writers)
	started := make(chan struct{}, writers)
	done := make(chan struct{})
	go func() {
		defer close(done)
		parallel(writers, func(i int) {
			for {
				_, err := s.Do(e.ctx, coordination.Txn{Ops: []coordination.Op{put(key(i, answered[i]), "")}})
				if err != nil {
					errs[i] = err
					return
				}
				if answered[i]++; answered[i] == 3 {
					started <- struct{}{}
				}
			}
		})
	}()
	for range writers {
		<-started
	}
	require.NoError(e.t, s.Close())
	e.wait(done)
	view := e.view(other, "")
	for i := range writers {
		require.ErrorIs(e.t, errs[i], coordination.ErrClosed)
		for n := range answered[i] {
			if _, ok := view[key(i, n)]; !ok {
				require.Fail(e.t, "an answered write is gone", key(i, n))
			}
		}
	}
}
