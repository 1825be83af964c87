package tidemark

import (
	"bytes"
	"container/heap"
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/coordination/memory"
	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/storage/memstore"
	"github.com/tidemark-log/tidemark/transport/inproc"
)

// Loss, doubles, delays, cuts and sleeps, with payloads of dozens of fragments.
func TestLinkChaosWithFragments(t *testing.T) {
	fragments := 0
	linkChaos(t, 40, func(s *linkSim) {
		s.big = 60 << 10
		for _, e := range s.ends {
			e.cfg.maxMessage = 2 << 10
		}
		s.lose = func(_ int, m *protocol.Message) bool {
			if len(m.Fragment) > 0 {
				fragments++
			}
			return false
		}
	})
	require.Greater(t, fragments, 10_000)
}

// linkItem is a payload of one item of about size bytes.
func linkItem(request uint64, size int) protocol.Payload {
	return protocol.Payload{Commands: []protocol.Command{{Request: request, Kind: protocol.CreateTopic,
		Topic: protocol.Topic{ID: protocol.UUID{1}, Name: string(linkBulk[:size])}}}}
}

// A large item between others: whole, once, and in its place.
func TestLinkFragmentsKeepTheirPlace(t *testing.T) {
	s := upLinks(t)
	large := linkItem(2, 60<<10)
	out, in := &linkOut{}, &linkOut{}
	require.True(t, s.ends[0].send(s.now, protocol.Payload{Commands: append(linkItem(1, 10).Commands, large.Commands...)}, out))
	require.True(t, s.ends[0].send(s.now, linkItem(3, 10), out))
	require.Len(t, out.send, 1+4+1)
	for i, m := range out.send {
		require.LessOrEqual(t, m.Size(), linkMaxMsg)
		require.Equal(t, uint64(i+1), m.Seq)
		require.NoError(t, m.ValidHeader())
		require.Equal(t, i >= 1 && i < 4, m.More)
	}
	for _, i := range []int{4, 3, 1, 1, 5, 2, 0} {
		require.Empty(t, in.deliver)
		s.ends[1].receive(s.now, out.send[i], in)
	}
	require.Len(t, in.deliver, 3)
	require.Equal(t, large, in.deliver[1])
	require.Equal(t, []uint64{1, 3}, []uint64{in.deliver[0].Commands[0].Request, in.deliver[2].Commands[0].Request})
	require.Zero(t, in.unsound)
	require.Nil(t, s.ends[1].partial)
}

// A payload far larger than the window leaves in the measure in which the peer
// takes it. Bulk that is sent meanwhile leaves behind it, control at once.
func TestLinkFragmentsWaitForCredit(t *testing.T) {
	s := upLinks(t)
	a, b := s.ends[0], s.ends[1]
	most := 0
	s.lose = func(to int, m *protocol.Message) bool {
		most = max(most, a.inFlight)
		return false
	}
	require.True(t, s.put(0, 60<<10))
	out := &linkOut{}
	require.True(t, a.send(s.now, protocol.Payload{Appends: []protocol.Append{{Request: 7, Batch: linkBulk[:1<<20]}}}, out))
	mixed := linkItem(8, 10)
	mixed.Appends = []protocol.Append{{Request: 9, Batch: linkBulk[:10]}}
	require.True(t, a.send(s.now, mixed, out))
	require.Less(t, a.credit(), -900<<10, "what waits is not credit")
	for _, m := range out.send {
		s.transmit(1, m)
	}
	// The peer's side by hand: its payloads are not those of put.
	var got []protocol.Payload
	for len(s.events) > 0 {
		ev := heap.Pop(&s.events).(linkEvent)
		out := &linkOut{}
		s.ends[ev.to].receive(s.now, ev.m, out)
		if ev.to == 1 {
			got = append(got, out.deliver...)
		}
		for _, m := range out.send {
			s.transmit(1-ev.to, m)
		}
	}
	require.Len(t, got, 4)
	require.Equal(t, linkItem(8, 10), got[1])
	require.Equal(t, uint64(7), got[2].Appends[0].Request)
	require.Equal(t, uint64(9), got[3].Appends[0].Request)
	require.Less(t, most, linkWin+linkMaxMsg)
	require.Greater(t, most, linkWin/2)
	require.Empty(t, a.waiting)
	require.Zero(t, a.queued)
	require.GreaterOrEqual(t, a.credit(), linkWin*3/4-linkMaxMsg)
	require.True(t, a.isUp() && b.isUp())

	// The end of the session ends what waits.
	require.True(t, a.send(s.now, protocol.Payload{Appends: []protocol.Append{{Batch: linkBulk[:1<<20]}}}, &linkOut{}))
	require.NotEmpty(t, a.waiting)
	a.receive(s.now, linkPeer(a.link, protocol.Message{Kind: protocol.Reset, Session: a.session}), &linkOut{})
	require.Empty(t, a.waiting)
	require.Zero(t, a.credit())
}

// Control keeps its order, also where some of it is as large as bulk.
func TestLinkControlKeepsItsOrder(t *testing.T) {
	s := upLinks(t)
	a, b := s.ends[0], s.ends[1]
	out := &linkOut{}
	for _, p := range []protocol.Payload{{Appends: []protocol.Append{{Request: 1, Batch: linkBulk[:200<<10]}}},
		linkItem(2, 10), linkItem(3, 60<<10), linkItem(4, 10), {Appends: []protocol.Append{{Request: 5, Batch: linkBulk[:10]}}}, linkItem(6, 10)} {
		require.True(t, a.send(s.now, p, out))
	}
	require.Equal(t, 3+4-1, a.controls)
	var got []uint64
	for len(out.send) > 0 {
		in := &linkOut{}
		for _, m := range out.send {
			b.receive(s.now, m, in)
		}
		for _, p := range in.deliver {
			for _, c := range p.Commands {
				got = append(got, c.Request)
			}
			for _, c := range p.Appends {
				got = append(got, c.Request)
			}
		}
		*out = linkOut{}
		for _, m := range in.send {
			a.receive(s.now, m, out)
		}
	}
	require.Equal(t, []uint64{2, 1, 3, 4, 5, 6}, got)
	require.Zero(t, a.controls)
}

// However small its fragments are, one payload never overruns the peer's reorder window.
func TestLinkFragmentsSpareTheReorderWindow(t *testing.T) {
	s := upLinks(t)
	a, b := s.ends[0], s.ends[1]
	a.cfg.maxMessage, a.pace.window = 150, 16<<20
	out := &linkOut{}
	require.True(t, a.send(s.now, linkItem(1, 60<<10), out))
	var got []protocol.Payload
	for len(out.send) > 0 {
		require.LessOrEqual(t, len(out.send), linkReorder*3/4)
		slices.Reverse(out.send) // the first one is overtaken by all others
		in := &linkOut{}
		for _, m := range out.send {
			b.receive(s.now, m, in)
		}
		got = append(got, in.deliver...)
		*out = linkOut{}
		for _, m := range in.send {
			a.receive(s.now, m, out)
		}
	}
	require.Equal(t, []protocol.Payload{linkItem(1, 60<<10)}, got)
	require.Equal(t, uint64(1), b.stats().sessions)
	require.Zero(t, b.stats().gaps)
}

// linkFragments is what a peer sends for p, in parts of size bytes.
func linkFragments(t *testing.T, p protocol.Payload, size int) (parts []protocol.Message) {
	b, err := p.MarshalBinary()
	require.NoError(t, err)
	for part := range slices.Chunk(b, size) {
		parts = append(parts, protocol.Message{Kind: protocol.Data, Session: 5, Seq: uint64(len(parts) + 1), Fragment: part, More: true})
	}
	parts[len(parts)-1].More = false
	return parts
}

func TestLinkFaultyFragments(t *testing.T) {
	sound := linkFragments(t, linkItem(1, 1000), 300)
	for name, c := range map[string]struct {
		spoil func(parts []protocol.Message)
		why   string
	}{
		"an end too early":    {func(parts []protocol.Message) { parts[1].More = false }, "cut short"},
		"another form":        {func(parts []protocol.Message) { parts[0].Fragment = append([]byte{0, 9}, parts[0].Fragment[2:]...) }, "payload of unknown version 9"},
		"more than its limit": {func(parts []protocol.Message) { parts[2].Fragment = make([]byte, 900) }, errOversized.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			l, out := newLink(linkPairConfig(2), 0, 1), &linkOut{}
			l.cfg.maxPayload = 1200
			l.receive(0, linkHello(l, 1, 5), out)
			*out = linkOut{}
			parts := slices.Clone(sound)
			c.spoil(parts)
			for i, m := range parts {
				m.Session, m.Seq = 5, uint64(i+1)
				if l.isUp() {
					l.receive(0, linkPeer(l, m), out)
				}
			}
			require.True(t, out.down && !l.isUp())
			require.ErrorContains(t, out.trouble, c.why)
			require.Equal(t, out.trouble, l.trouble)
			require.Empty(t, out.deliver)
			require.Equal(t, []protocol.Kind{protocol.Reset}, linkKinds(out))
			require.Equal(t, uint64(1), l.stats().faults)
			require.Nil(t, l.partial)

			l.receive(0, linkHello(l, 2, 5), out)
			*out = linkOut{}
			for _, m := range sound {
				l.receive(0, linkPeer(l, m), out)
			}
			require.Equal(t, []protocol.Payload{linkItem(1, 1000)}, out.deliver, "nothing of the old session is left")
			require.NoError(t, out.trouble)
			require.NoError(t, l.trouble)
		})
	}
}

// What cannot be written ends the session: to leave it out would be a silent loss.
func TestLinkPayloadWithoutBinaryForm(t *testing.T) {
	s := upLinks(t)
	state := protocol.PartitionState{Version: 1 << 40, Replicas: make([]int32, linkMaxMsg/2)}
	out := &linkOut{}
	require.False(t, s.ends[0].send(s.now, protocol.Payload{Verdicts: []protocol.Verdict{{State: &state}}}, out))
	require.True(t, out.down)
	require.ErrorContains(t, out.trouble, "a number of more than 32 bits")
	require.Equal(t, uint64(1), s.ends[0].stats().faults)
}

// Nobody could look at the items before the last fragment had come.
func TestLinkLooksAtItemsOfFragments(t *testing.T) {
	l, out := newLink(linkPairConfig(2), 0, 1), &linkOut{}
	l.receive(0, linkHello(l, 1, 5), out)
	id := protocol.PartitionID{Topic: protocol.UUID{1}}
	p := protocol.Payload{Appends: []protocol.Append{{Request: 9, ID: id, Batch: bytes.Repeat([]byte{7}, 5000)}},
		Reports: []protocol.Report{{ID: id, Stored: -5}, {ID: id, Stored: 5}}}
	for _, m := range linkFragments(t, p, 300) {
		l.receive(0, linkPeer(l, m), out)
	}
	require.Len(t, out.deliver, 1)
	require.Equal(t, 2, out.unsound)
	require.Error(t, out.why)
	require.Nil(t, out.deliver[0].Appends[0].Batch, "the leader refuses it, and the client hears")
	require.Equal(t, p.Reports[1:], out.deliver[0].Reports)
	require.NoError(t, out.trouble, "the session goes on")
}

func TestConfigOfTheSmallestTransport(t *testing.T) {
	c := goodConfig(t)
	c.MaxRecordBytes = 1 << 30
	c.MaxUncommittedBytes = 2 << 30
	c.Transport = inproc.New(inproc.Options{MaxMessageBytes: minMessage}).Transport(1)
	require.NoError(t, c.Validate(), "no batch is too large for fragments")
	d := c.withDefaults()
	require.Equal(t, int32(1<<20), d.core().FetchBytes)
	require.Greater(t, maxPayload(&c), 1<<30)
	c.Transport = inproc.New(inproc.Options{MaxMessageBytes: minMessage - 1}).Transport(1)
	require.ErrorIs(t, c.Validate(), ErrInvalidConfig)
	require.ErrorContains(t, c.Validate(), "Transport must take messages of 16384 bytes, not 16383")
}

// A cluster over a transport that takes no more than the least, in no order and
// twice now and then: records far larger than a message, one of them larger than
// what a link sends ahead, and a cluster image of many parts.
func TestClusterOverTheSmallestTransport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		coord := memory.New(memory.Options{})
		defer func() { require.NoError(t, coord.Close()) }()
		network := inproc.New(inproc.Options{MaxMessageBytes: minMessage})
		network.SetFaults(inproc.Any, inproc.Any, inproc.Faults{Delay: time.Millisecond, Jitter: 3 * time.Millisecond, Double: 0.02})
		var brokers []*Broker
		for id := range int32(3) {
			store, err := memstore.NewDisk().Open()
			require.NoError(t, err)
			defer func() { require.NoError(t, store.Close()) }()
			b, err := Open(ctx, Config{ID: id, Store: store, Coordination: coord.Connect(), Transport: network.Transport(id), MaxRecordBytes: 20 << 20, Loops: 1})
			require.NoError(t, err)
			defer func() { require.NoError(t, b.Close()) }()
			brokers = append(brokers, b)
		}
		for _, b := range brokers {
			require.NoError(t, b.Ready(ctx))
		}
		require.NoError(t, brokers[0].Controller().CreateTopic(ctx, "many", TopicConfig{Partitions: 1000, ReplicationFactor: 3, MinISR: 2}))
		require.NoError(t, brokers[0].Controller().CreateTopic(ctx, "large", TopicConfig{Partitions: 1, ReplicationFactor: 3, MinISR: 3}))

		for n, size := range []int{20 << 20, 10, 300 << 10, 1 << 20} {
			value := bytes.Repeat([]byte{byte(n + 1)}, size)
			for i, b := range brokers { // two of them reach the leader through their links
				if size > 1<<20 && i > 0 {
					break
				}
				_, err := b.Partition("large", 0).Append(ctx, Record{Value: value})
				require.NoError(t, err)
			}
		}
		for _, b := range brokers {
			var sizes []int
			for rec, err := range b.Partition("large", 0).Records(ctx, Earliest()) {
				require.NoError(t, err)
				if sizes = append(sizes, len(rec.Value)); len(sizes) == 10 {
					break
				}
			}
			require.Equal(t, []int{20 << 20, 10, 10, 10, 300 << 10, 300 << 10, 300 << 10, 1 << 20, 1 << 20, 1 << 20}, sizes)
			for _, l := range b.links.all() {
				c := l.link.stats()
				require.Equal(t, uint64(1), c.sessions, "no session ended: %+v", c)
			}
			require.Zero(t, b.links.refused.Load())
			require.Zero(t, b.links.unsound.Load())
		}
	})
}
