package memory_test

import (
	"testing"

	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/coordination/coordinationtest"
	"github.com/tidemark-log/tidemark/coordination/memory"
)

func TestConformance(t *testing.T) {
	coordinationtest.Run(t, coordinationtest.Config{New: func(testing.TB) *coordinationtest.Server {
		const history = 500
		s := memory.New(memory.Options{History: history})
		return &coordinationtest.Server{
			Connect:        func() coordination.Store { return s.Connect() },
			Close:          s.Close,
			History:        history,
			Fence:          func(c coordination.Store) { c.(*memory.Client).Fence() },
			Expire:         func(id string) { s.ExpireSession(id) },
			SetUnavailable: s.SetUnavailable,
			DropRequests:   s.DropRequests,
			LoseReplies:    s.LoseReplies,
			Pause:          s.Pause,
			Resume:         s.Resume,
		}
	}})
}
