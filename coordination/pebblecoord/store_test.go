package pebblecoord_test

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/coordination/coordinationtest"
	"github.com/tidemark-log/tidemark/coordination/pebblecoord"
)

const history = 500

// serve opens a store in an empty file system for the conformance tests.
func serve(t testing.TB, fs vfs.FS, dir string) *coordinationtest.Server {
	s, err := pebblecoord.Open(dir, pebblecoord.Options{FS: fs, History: history})
	require.NoError(t, err)
	e := s.Engine()
	return &coordinationtest.Server{
		Connect:        func() coordination.Store { return s.Connect() },
		Close:          s.Close,
		History:        history,
		Fence:          func(c coordination.Store) { c.(*pebblecoord.Client).Fence() },
		Expire:         func(id string) { e.Expire(id) },
		SetUnavailable: e.SetUnavailable,
		DropRequests:   e.DropRequests,
		LoseReplies:    e.LoseReplies,
		Pause:          e.Pause,
		Resume:         e.Resume,
	}
}

func TestConformance(t *testing.T) {
	coordinationtest.Run(t, coordinationtest.Config{New: func(t testing.TB) *coordinationtest.Server {
		return serve(t, vfs.NewMem(), "data")
	}})
}
