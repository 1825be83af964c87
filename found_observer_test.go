package tidemark

import (
	"fmt"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
)

// D4: while the Observer does not return, topics that come and go must not gather
// without bound: of each, the newest event waits, also when the topic is long gone.
func TestObserverQueueIsBoundedOverTopics(t *testing.T) {
	w := newObserving(&Observer{Leadership: func(LeadershipEvent) {}}, 1, slog.New(slog.DiscardHandler))
	for i := range 100_000 {
		w.leadership(LeadershipEvent{Topic: fmt.Sprint("t", i), Leading: true})
		w.leadership(LeadershipEvent{Topic: fmt.Sprint("t", i)})
	}
	require.Less(t, w.queue.Len(), 30_000)
}
