package tidemark_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark"
	"github.com/tidemark-log/tidemark/local"
)

func TestElectPreferred(t *testing.T) {
	inWorld(t, local.Options{}, func(w *world) {
		p := w.topic("t", threeReplicas)
		first := w.status(p).Replicas[0]
		require.Equal(t, first, w.status(p).Leader)
		c := w.Controller()
		require.ErrorIs(t, c.ElectPreferred(w.ctx, "t", 0), tidemark.ErrElectionNotNeeded)
		w.kill(first)
		w.until("another leads", func() bool { s := w.status(p); return s.Leader >= 0 && s.Leader != first })
		require.ErrorIs(t, c.ElectPreferred(w.ctx, "t", 0), tidemark.ErrPreferredUnavailable)
		w.restart(first)
		w.healthy(p)
		require.NotEqual(t, first, w.status(p).Leader)
		epoch := w.status(p).LeaderEpoch
		require.NoError(t, c.ElectPreferred(w.ctx, "t", 0))
		w.until("it leads", func() bool { return w.status(p).Leader == first })
		require.Equal(t, "leader", w.replica(first, p).Role, "it has accepted before the call returned")
		require.Equal(t, epoch+1, w.status(p).LeaderEpoch)
		require.ElementsMatch(t, w.status(p).Replicas, w.status(p).ISR)
		w.append(p, tidemark.AcksAll, "v0")

		require.ErrorIs(t, c.ElectPreferred(w.ctx, "t", 1), tidemark.ErrUnknownPartition)
		require.ErrorIs(t, c.ElectPreferred(w.ctx, "t", -1), tidemark.ErrUnknownPartition)
		require.ErrorIs(t, c.ElectPreferred(w.ctx, "u", 0), tidemark.ErrUnknownTopic)
	})
}

// S-86: what only the dead leader had is lost, and all logs are equal afterwards.
func TestElectUnclean(t *testing.T) {
	for name, c := range map[string]struct{ bySetting, named bool }{
		"by the topic's setting": {bySetting: true}, "by order": {}, "by order, and whom": {named: true},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, local.Options{Brokers: 4}, func(w *world) {
				cfg := tidemark.TopicConfig{Partitions: 1, ReplicationFactor: 2, MinISR: 1, UncleanElection: c.bySetting}
				p := w.topic("t", cfg)
				w.append(p, tidemark.AcksAll, "first")
				w.equalLogs(p)
				s := w.status(p)
				a, b := s.Replicas[0], s.Replicas[1]
				w.kill(b)
				w.until("alone in sync", func() bool { return slices.Equal(w.status(p).ISR, []int32{a}) })
				w.append(p, tidemark.AcksAll, "second")
				w.kill(a)
				w.restart(b)
				admin := w.Controller()
				if !c.bySetting {
					w.until("nobody leads", func() bool { return w.status(p).Leader < 0 })
					<-time.After(2 * missionSession)
					require.Equal(t, int32(-1), w.status(p).Leader)
					require.ErrorIs(t, admin.ElectUnclean(w.ctx, "t", 0, a), tidemark.ErrNoCandidate)
					require.ErrorIs(t, admin.ElectUnclean(w.ctx, "t", 0, 99), tidemark.ErrNoCandidate)
					whom := int32(-1)
					if c.named {
						whom = b
					}
					require.NoError(t, admin.ElectUnclean(w.ctx, "t", 0, whom))
				}
				w.until("b leads", func() bool { return w.status(p).Leader == b })
				require.ErrorIs(t, admin.ElectUnclean(w.ctx, "t", 0, -1), tidemark.ErrElectionNotNeeded)
				w.append(p, tidemark.AcksAll, "third")
				w.restart(a)
				w.equalLogs(p)
				require.Equal(t, []string{"first", "third"}, w.read(p))
			})
		})
	}
}
