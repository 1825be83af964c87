package peers_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/bench/peers"
)

// Every peer keeps the order of what it is given, and gives back what it acknowledged.
func TestPeers(t *testing.T) {
	for _, name := range peers.Known() {
		for _, background := range []bool{false, true} {
			if name == peers.Raft && background {
				continue
			}
			t.Run(fmt.Sprintf("%s background=%v", name, background), func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				partitions := 2
				if name == peers.Ceiling {
					partitions = 1
				}
				const n = 500
				p, err := peers.Open(ctx, name, peers.Config{
					Dir: t.TempDir(), Partitions: partitions, InFlight: n * partitions, ValueBytes: 200, Background: background,
				})
				require.NoError(t, err)
				defer func() { require.NoError(t, p.Close()) }()
				value := func(i int) []byte { return binary.BigEndian.AppendUint64(make([]byte, 192), uint64(i)) }

				if log, ok := p.(peers.Log); ok {
					var ended sync.WaitGroup
					for i := range n * partitions {
						ended.Add(1)
						log.Append(ctx, i%partitions, value(i/partitions), func(err error) {
							if err != nil {
								t.Error(err)
							}
							ended.Done()
						})
					}
					ended.Wait()
				} else {
					for i := range n {
						require.NoError(t, p.AppendWait(ctx, 0, value(i)))
					}
				}
				for part := range partitions {
					require.NoError(t, p.AppendWait(ctx, part, value(n)))
				}
				for part := range partitions {
					next := 0
					require.NoError(t, p.Read(ctx, part, func(v []byte) error {
						require.Equal(t, value(next), v)
						next++
						return nil
					}))
					require.Equal(t, n+1, next)
				}
			})
		}
	}
	_, err := peers.Open(t.Context(), "nobody", peers.Config{})
	require.ErrorContains(t, err, "none of")
	_, err = peers.Open(t.Context(), peers.Raft, peers.Config{Dir: t.TempDir(), Background: true})
	require.Error(t, err)
}
