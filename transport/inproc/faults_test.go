package inproc

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/transport"
)

// TestFaults sends one message over each of the six directions between three
// brokers after each step, and compares the directions that delivered.
func TestFaults(t *testing.T) {
	all := []path{{1, 2}, {1, 3}, {2, 1}, {2, 3}, {3, 1}, {3, 2}}
	except := func(lost ...path) []path {
		var open []path
		for _, p := range all {
			keep := true
			for _, l := range lost {
				keep = keep && p != l
			}
			if keep {
				open = append(open, p)
			}
		}
		return open
	}
	always := func(*protocol.Message) bool { return true }
	steps := []struct {
		name string
		do   func(n *Network)
		want []path
	}{
		{"no fault", func(*Network) {}, all},
		{"cut", func(n *Network) { n.Cut(1, 2) }, except(path{1, 2}, path{2, 1})},
		{"cut twice", func(n *Network) { n.Cut(2, 1) }, except(path{1, 2}, path{2, 1})},
		{"heal one way", func(n *Network) { n.HealOneWay(2, 1) }, except(path{1, 2})},
		{"heal ends it, however it was cut", func(n *Network) { n.Heal(2, 1) }, all},
		{"cut one way", func(n *Network) { n.CutOneWay(3, 1) }, except(path{3, 1})},
		{"isolate on top", func(n *Network) { n.Isolate(2) }, []path{{1, 3}}},
		{"heal does not rejoin", func(n *Network) { n.Heal(1, 2); n.Heal(2, 3) }, []path{{1, 3}}},
		{"rejoin keeps the cut", func(n *Network) { n.Rejoin(2) }, except(path{3, 1})},
		{"two isolated", func(n *Network) { n.Isolate(2); n.Isolate(3) }, nil},
		{"heal all", func(n *Network) { n.HealAll() }, all},
		{"heal all again", func(n *Network) { n.HealAll() }, all},
		{"filter", func(n *Network) { n.SetDrop(1, 2, always) }, except(path{1, 2})},
		{"heal all keeps the filter", func(n *Network) { n.Cut(1, 2); n.HealAll() }, except(path{1, 2})},
		{"filter replaced", func(n *Network) {
			n.SetDrop(1, 2, func(m *protocol.Message) bool { return m.To != 2 })
		}, all},
		{"filter ended", func(n *Network) { n.SetDrop(1, 2, always); n.SetDrop(1, 2, nil) }, all},
		{"unknown broker", func(n *Network) { n.Isolate(7); n.Cut(7, 8); n.Rejoin(9); n.Heal(1, 9) }, all},
	}
	synctest.Test(t, func(t *testing.T) {
		n := New(Options{})
		ends := map[int32]transport.Transport{}
		boxes := map[int32]*inbox{}
		for id := int32(1); id <= 3; id++ {
			ends[id], boxes[id] = open(t, n, id)
		}
		for _, s := range steps {
			s.do(n)
			before := n.Stats()
			for _, p := range all {
				require.NoError(t, ends[p.from].Send(to(p.to), data(p.from, p.to, 0)), s.name)
			}
			for id := range ends { // a broker always reaches itself
				require.NoError(t, ends[id].Send(to(id), data(id, id, 0)))
			}
			synctest.Wait()
			var got []path
			for id, b := range boxes {
				for _, m := range b.take() {
					require.Equal(t, id, m.To)
					if m.From != m.To {
						got = append(got, path{m.From, m.To})
					}
				}
			}
			require.ElementsMatch(t, s.want, got, s.name)
			after := n.Stats()
			require.EqualValues(t, len(all)+3, after.Sent-before.Sent)
			require.EqualValues(t, len(all)-len(s.want), after.Dropped-before.Dropped, s.name)
		}
	})
}

func TestFaultsOutliveAnEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New(Options{})
		n.Isolate(2) // before the broker exists
		a, _ := open(t, n, 1)
		for range 2 {
			b := new(inbox)
			tr := n.Transport(2)
			require.NoError(t, tr.Start(b.handle))
			require.NoError(t, a.Send(to(2), data(1, 2, 0)))
			synctest.Wait()
			require.Empty(t, b.take())
			require.NoError(t, tr.Close())
		}
	})
}

// A filter may use the Network: no lock is held while it runs.
func TestFilterMayChangeFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New(Options{})
		a, _ := open(t, n, 1)
		_, b := open(t, n, 2)
		n.SetDrop(1, 2, func(m *protocol.Message) bool {
			n.SetDrop(1, 2, nil)
			return m.Seq == 1
		})
		for seq := range uint64(3) {
			require.NoError(t, a.Send(to(2), data(1, 2, seq+1)))
		}
		synctest.Wait()
		got := b.take()
		require.Len(t, got, 2)
		require.EqualValues(t, 2, got[0].Seq)
	})
}
