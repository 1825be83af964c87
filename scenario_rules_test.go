package tidemark

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/storage"
)

// Histories drawn for the properties below are logs of two replicas that obey
// log matching (INV-3): a common part, and behind it epochs that the other log
// does not have.
func drawLogs(t *rapid.T) (common, a, b []int32) {
	next := int32(0)
	grow := func(log []int32, label string, owner, owners int32) []int32 {
		for range rapid.IntRange(0, 5).Draw(t, label) {
			// An epoch has one leader, so that no epoch is in both tails.
			step := rapid.Int32Range(0, 2).Draw(t, "skip")
			epoch := (next/owners+1+step)*owners + owner
			next = epoch
			for range rapid.IntRange(1, 3).Draw(t, "records") {
				log = append(log, epoch)
			}
		}
		return log
	}
	common = grow(nil, "common epochs", 0, 1)
	from := next
	a = grow(common[:len(common):len(common)], "a", 0, 2)
	next = from
	b = grow(common[:len(common):len(common)], "b", 1, 2)
	if len(common) > 0 && rapid.Bool().Draw(t, "the last common epoch goes on in b") {
		// Its leader wrote more that reached b alone.
		b = joined(common, repeated(common[len(common)-1], rapid.IntRange(1, 3).Draw(t, "more")), b[len(common):])
	}
	return common, a, b
}

func historyOf(log []int32) (h epochHistory) {
	for i, epoch := range log {
		h.assign(epoch, int64(i))
	}
	return h
}

func lastOf(log []int32) int32 {
	if len(log) == 0 {
		return noEpoch
	}
	return log[len(log)-1]
}

func distinct(log []int32) int {
	n := 0
	for i := range log {
		if i == 0 || log[i] != log[i-1] {
			n++
		}
	}
	return n
}

// D12, FT-4: two logs that obey log matching agree after at most one round per epoch
// of the follower's tail, and nothing below their common part is cut.
func TestRuleTruncationMakesProgress(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		common, leader, follower := drawLogs(t)
		if rapid.Bool().Draw(t, "swap") {
			leader, follower = follower, leader
		}
		// The leader leads in an epoch above all, which is in its history.
		lh, end := historyOf(leader), int64(len(leader))
		lh.assign(max(lastOf(leader), lastOf(follower), 0)+1, end)
		same := 0
		for same < min(len(leader), len(follower)) && leader[same] == follower[same] {
			same++
		}
		require.GreaterOrEqual(t, same, len(common))
		rounds, bound := 0, distinct(follower[same:])
		if len(follower) > same && same > 0 && follower[same] == follower[same-1] {
			bound = max(bound, 1)
		}
		for {
			h := historyOf(follower)
			agreed, diverging, known := lh.diverges(position{int64(len(follower)), lastOf(follower)}, end)
			require.True(t, known)
			if !diverging {
				break
			}
			rounds++
			require.LessOrEqual(t, rounds, bound, "leader %v, follower %v", leader, follower)
			target := h.truncationTarget(agreed, 0, int64(len(follower)))
			require.Less(t, target, int64(len(follower)), "no progress")
			require.GreaterOrEqual(t, target, int64(same), "cuts what both have: leader %v, follower %v", leader, follower)
			follower = follower[:target]
		}
		require.True(t, slices.Equal(leader[:len(follower)], follower), "what is left is a prefix of the leader's log")
		require.LessOrEqual(t, same, len(follower))
	})
}

// The same with two whole replicas: their logs are equal in the end, byte for byte.
func TestRuleTwoReplicasAgree(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		_, leader, follower := drawLogs(rt)
		p := newPair(t, max(lastOf(leader), lastOf(follower), 0)+1, 0, 0, leader, follower)
		p.leader.append(AcksLeader, 1)
		p.leader.stored()
		p.leader.eff = effects{}
		p.talk(t)
		require.NotEqual(rt, roleFailed, p.follower.r.role, "%v", p.follower.r.fault)
		require.LessOrEqual(rt, len(p.cuts), distinct(follower))
		require.Equal(rt, p.leader.bytes(), p.follower.bytes())
		require.Equal(rt, p.leader.r.end, p.follower.r.end)
		require.Equal(rt, p.leader.r.end, p.follower.r.hw)
		require.Equal(rt, p.leader.r.end, p.leader.r.hw)
		for epoch := range lastOf(leader) + 2 {
			want, _ := p.leader.r.epochs.endOffsetFor(epoch, p.leader.r.end)
			got, _ := p.follower.r.epochs.endOffsetFor(epoch, p.follower.r.end)
			if want.Epoch == epoch {
				require.Equal(rt, want, got, "epoch %d", epoch)
			}
		}
	})
}

// epochTwin keeps the epoch of every record, and the epochs that have no record.
type epochTwin struct {
	start int64
	epoch []int32 // of the record at start+i
	empty int32   // an epoch that began at the end and has no record; noEpoch: none
}

func (w *epochTwin) end() int64 { return w.start + int64(len(w.epoch)) }

// endFor looks at every record.
func (w *epochTwin) endFor(epoch int32) (protocol.EpochEnd, bool) {
	last := max(lastOf(w.epoch), w.empty)
	switch {
	case epoch < 0 || epoch > last:
		return protocol.EpochEnd{Epoch: noEpoch, End: -1}, false
	case epoch == last:
		return protocol.EpochEnd{Epoch: epoch, End: w.end()}, true
	}
	floor, end := noEpoch, w.end()
	for i, e := range w.epoch {
		if e > epoch {
			end = w.start + int64(i)
			break
		}
		floor = e
	}
	if floor == noEpoch {
		return protocol.EpochEnd{Epoch: epoch, End: end}, true
	}
	return protocol.EpochEnd{Epoch: floor, End: end}, true
}

// The epoch history says of every epoch and offset what a list of all records says.
func TestRuleEpochHistoryTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var h epochHistory
		w := epochTwin{empty: noEpoch}
		epoch := int32(0)
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			switch rapid.IntRange(0, 6).Draw(t, "what") {
			case 0: // an election
				epoch += rapid.Int32Range(1, 3).Draw(t, "raise")
				h.assign(epoch, w.end())
				w.empty = epoch
			case 1: // a cut, as a follower makes it
				at := rapid.Int64Range(w.start, w.end()).Draw(t, "cut at")
				h.truncateFromEnd(at)
				w.epoch, w.empty = w.epoch[:at-w.start], noEpoch
			case 2: // the log start rises
				at := rapid.Int64Range(w.start, w.end()).Draw(t, "trim to")
				if at == w.end() {
					continue // then the last epoch's name stays, without a record: see TestS015
				}
				h.truncateFromStart(at)
				w.epoch, w.start = w.epoch[at-w.start:], at
			default: // records of the newest epoch
				epoch = max(epoch, lastOf(w.epoch))
				for range rapid.IntRange(1, 3).Draw(t, "records") {
					h.assign(epoch, w.end())
					w.epoch, w.empty = append(w.epoch, epoch), noEpoch
				}
			}
			for i := 1; i < len(h.entries); i++ {
				require.Less(t, h.entries[i-1].Epoch, h.entries[i].Epoch)
				require.Less(t, h.entries[i-1].Start, h.entries[i].Start)
			}
			require.Equal(t, max(lastOf(w.epoch), w.empty), h.last())
			for o := w.start; o < w.end(); o++ {
				require.Equal(t, w.epoch[o-w.start], h.epochAt(o), "epoch at %d", o)
			}
			for e := int32(-1); e <= epoch+1; e++ {
				want, ok := w.endFor(e)
				got, known := h.endOffsetFor(e, w.end())
				require.Equal(t, ok, known, "epoch %d in %v of %v", e, h.entries, w)
				require.Equal(t, want, got, "epoch %d in %v of %v", e, h.entries, w)
			}
		}
	})
}

// The tail of a log in memory answers as a plain list of batches would.
func TestRuleTailTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var tl tail
		var all []cachedBatch
		end, stored := int64(0), int64(0)
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			switch rapid.IntRange(0, 9).Draw(t, "what") {
			case 0: // stored up to somewhere
				stored = rapid.Int64Range(stored, end).Draw(t, "stored")
			case 1, 2: // evict
				size, ok := tl.evict(stored)
				want := len(all) > 0 && all[0].end <= stored
				require.Equal(t, want, ok)
				if ok {
					require.EqualValues(t, len(all[0].bytes), size)
					all = all[1:]
				}
			case 3: // cut at the boundary of a batch
				if len(all) == 0 || rapid.IntRange(0, 3).Draw(t, "rarely") > 0 {
					continue
				}
				at := all[rapid.IntRange(0, len(all)-1).Draw(t, "cut")].base
				var gone int64
				for len(all) > 0 && all[len(all)-1].base >= at {
					gone += int64(len(all[len(all)-1].bytes))
					all = all[:len(all)-1]
				}
				require.Equal(t, gone, tl.truncate(at))
				end, stored = at, min(stored, at)
			default:
				b := cachedBatch{base: end, end: end + rapid.Int64Range(1, 4).Draw(t, "records"), bytes: make([]byte, rapid.IntRange(1, 50).Draw(t, "size"))}
				tl.push(b)
				all, end = append(all, b), b.end
			}
			compareTail(t, &tl, all, end)
		}
	})
}

func compareTail(t *rapid.T, tl *tail, all []cachedBatch, end int64) {
	var size int64
	for _, b := range all {
		size += int64(len(b.bytes))
	}
	require.Equal(t, size, tl.bytes)
	start := end
	if len(all) > 0 {
		start = all[0].base
	}
	require.Equal(t, start, tl.start(end))
	from := rapid.Int64Range(max(start-2, 0), end+1).Draw(t, "from")
	limit := rapid.Int64Range(from, end+1).Draw(t, "limit")
	maxBytes := rapid.IntRange(0, 120).Draw(t, "max bytes")
	var want [][]byte
	found, sum := false, 0
	for _, b := range all {
		if b.end <= from {
			continue
		}
		if found = found || b.base <= from; !found || b.end > limit {
			break
		}
		sum += len(b.bytes) + protocol.BatchOverhead
		if len(want) > 0 && sum > maxBytes {
			break
		}
		want = append(want, b.bytes)
	}
	got, ok := tl.read(from, limit, maxBytes)
	require.Equal(t, found, ok, "from %d", from)
	require.Equal(t, len(want), len(got))
	for i := range want {
		require.Same(t, &want[i][0], &got[i][0])
	}
}

// D10: what the marks say about when a record was appended is never later than it
// was, and not much earlier either, while it matters.
func TestRuleMarksTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := rigConfig()
		var marks appendMarks
		var appended []time.Duration // when each offset was appended
		now, since := time.Hour, time.Hour
		for range rapid.IntRange(1, 25).Draw(t, "stretches") {
			pause := time.Duration(rapid.IntRange(0, 3_000).Draw(t, "pause")) * time.Millisecond
			for range rapid.IntRange(1, 60).Draw(t, "appends") {
				marks.add(now, int64(len(appended)), &cfg)
				appended = append(appended, now)
				now += pause / 20
			}
			if rapid.IntRange(0, 9).Draw(t, "late") == 0 {
				by := time.Duration(rapid.IntRange(1, 3000).Draw(t, "by")) * time.Millisecond
				marks.shift(by, now+by)
				since += by
				for i := range appended {
					appended[i] += by
				}
				now += by
			}
			// One mark per JoinWindow/4 of the recent past, one per MaxLag/32 of 2*MaxLag, and what came since the last thinning.
			require.LessOrEqual(t, len(marks.marks), marksBeforeThinning+int(2*cfg.MaxLag/(cfg.MaxLag/32))+8)
			for i := range 20 {
				o := i * (len(appended) - 1) / 19
				said, was := marks.appendedAt(int64(o), since), appended[o]
				require.LessOrEqual(t, said, was, "never later: a lag is never shown too small")
				age := now - was
				switch {
				case age <= cfg.JoinWindow-cfg.JoinWindow/4: // its mark is not older than JoinWindow
					require.LessOrEqual(t, was-said, cfg.JoinWindow/4)
				case age <= cfg.MaxLag:
					require.LessOrEqual(t, was-said, cfg.JoinWindow/4+cfg.MaxLag/32, "offset %d, %v ago", o, age)
				}
			}
		}
	})
}

// D6: a fetch of an epoch, or from a replica, that the broker has not been told of
// yet is held, and answered once it has.
func TestRuleHeldFetches(t *testing.T) {
	t.Run("of the next epoch", func(t *testing.T) {
		g := newRig(t, 0, 0, 0, 0)
		eff := g.fetchOf(2, protocol.Fetch{LeaderEpoch: 3, Offset: 2, Stored: 2})
		require.Nil(t, fetchAnswer(t, eff, 2))
		g.fetchOf(2, protocol.Fetch{LeaderEpoch: 3, Offset: 1, Stored: 1})
		require.Len(t, g.r.held, 1, "one per broker, the newest")
		g.state.ISR = []int32{1, 2}
		eff = g.leader(1, 3)
		require.Empty(t, g.r.held)
		require.NotNil(t, fetchAnswer(t, eff, 2), "greeted before `led` is durable, without a record")
		require.Empty(t, fetchAnswer(t, eff, 2).Batches)
		require.EqualValues(t, 1, g.r.remote(2).stored)
	})
	t.Run("from a replica that is assigned next", func(t *testing.T) {
		g := newRig(t, 0, 0, 0)
		g.state.Replicas = []int32{1, 2}
		g.lead(1, 1, 2)
		require.Nil(t, fetchAnswer(t, g.fetch(3, 0), 3))
		g.become(func(s *protocol.PartitionState) { s.Replicas = []int32{1, 2, 3} })
		require.EqualValues(t, 0, g.r.remote(3).stored)
		require.NotEmpty(t, g.cold)
		require.Len(t, fetchAnswer(t, g.read(), 3).Batches, 1)
	})
	t.Run("not over the end of the session", func(t *testing.T) {
		g := newRig(t, 0, 0, 0)
		g.fetchOf(2, protocol.Fetch{LeaderEpoch: 3, Offset: 1, Stored: 1})
		g.turn(func() { g.s.onLink(2, life(2), false) })
		require.Empty(t, g.r.held)
	})
	t.Run("not for another life", func(t *testing.T) {
		g := newRig(t, 0, 0, 0)
		g.fetchOf(2, protocol.Fetch{LeaderEpoch: 3, Offset: 1, Stored: 1})
		g.turn(func() { g.s.onBrokers(g.now, map[int32]int64{1: life(1), 2: life(2) + 10}) })
		g.leader(1, 3)
		require.EqualValues(t, -1, g.r.remote(2).stored)
	})
}

// D6: whoever shows a leader a newer epoch makes it step down and look the
// partition's key up; an append that does so is refused before it is stored.
func TestRuleDeposedByAppend(t *testing.T) {
	g := newRig(t, 0, 0)
	g.lead(1, 1, 2)
	waiting := g.append(AcksAll, 1)
	request := g.appendOf(protocol.Append{LeaderEpoch: 2, Batch: batchOf(t, 1, "v")})
	require.Equal(t, roleNone, g.r.role)
	require.Equal(t, []protocol.PartitionID{g.id}, g.eff.lookups)
	require.Equal(t, protocol.NotAppended, endedIn(&g.eff)[request].Outcome)
	require.Equal(t, protocol.Unknown, endedIn(&g.eff)[waiting].Outcome)
	require.Len(t, g.eff.notes, 1)
	require.Equal(t, noteResigned, g.eff.notes[0].kind)
}

// D13: a high watermark that no answer carries is sent within the turn, once, and
// then an idle partition is silent.
func TestRuleWatermarkIsSentAtOnce(t *testing.T) {
	g := newRig(t, 0, 0)
	g.lead(1, 1, 2, 3)
	g.fetch(2, 0)
	g.fetch(3, 0)
	g.append(AcksAll, 1)
	g.stored()
	g.fetch(3, 1)
	eff := g.fetch(2, 1)
	require.EqualValues(t, 1, g.r.hw)
	for _, follower := range []int32{2, 3} {
		require.Equal(t, []protocol.Watermark{{ID: g.id, LeaderEpoch: 1, HW: 1}}, eff.out[follower].Watermarks)
	}
	g.tick(g.s.env.cfg.MaxLag)
	for range 20 {
		require.Empty(t, g.turn(func() { g.r.touch() }).out, "once")
		require.Empty(t, g.tick(time.Minute).out, "silence")
	}
	require.Zero(t, g.s.next(0), "and not even a timer")

	f := newRigOf(t, 2, rigConfig(), 0, 0)
	f.leader(1, 1)
	f.answer(protocol.FetchAnswer{Batches: [][]byte{stamped(t, 0, 1, 1)}})
	f.stored()
	f.from(1, &protocol.Payload{Watermarks: []protocol.Watermark{{ID: f.id, LeaderEpoch: 1, HW: 1}}})
	require.EqualValues(t, 1, f.r.hw)
	require.Empty(t, f.eff.out, "a watermark asks for nothing")
	f.from(1, &protocol.Payload{Watermarks: []protocol.Watermark{{ID: f.id, LeaderEpoch: 0, HW: 9}}})
	require.EqualValues(t, 1, f.r.hw)
}

// D8: a follower's high watermark is bounded by what it has stored, and is not
// taken before the logs are known to agree.
func TestRuleFollowerWatermark(t *testing.T) {
	g := newRigOf(t, 2, rigConfig(), 0, 1, 0, 0)
	g.leader(1, 1)
	watermark := func(hw int64) {
		g.from(1, &protocol.Payload{Watermarks: []protocol.Watermark{{ID: g.id, LeaderEpoch: 1, HW: hw}}})
	}
	watermark(2)
	require.EqualValues(t, 1, g.r.hw, "nothing is agreed yet")
	g.answer(protocol.FetchAnswer{HW: 5, Batches: [][]byte{stamped(t, 2, 1, 3)}})
	require.EqualValues(t, 2, g.r.hw, "stored so far")
	g.stored()
	require.EqualValues(t, 5, g.r.hw)
	watermark(3)
	require.EqualValues(t, 5, g.r.hw, "within an epoch it only rises")
	g.leader(3, 2)
	g.answer(protocol.FetchAnswer{HW: 4})
	require.EqualValues(t, 4, g.r.hw, "another leader may begin lower (FT-9)")
}

// D14: a follower that has too much that is not stored asks for no more until it
// is, and goes on by itself.
func TestRuleUnstoredBytes(t *testing.T) {
	cfg := rigConfig()
	batch := stamped(t, 0, 1, 10)
	cfg.MaxUnstoredBytes = int64(len(batch)) + 1
	g := newRigOf(t, 2, cfg, 0, 0)
	require.NotNil(t, sentFetch(t, g.leader(1, 1), 1))
	eff := g.answer(protocol.FetchAnswer{Batches: [][]byte{batch}})
	require.NotNil(t, sentFetch(t, eff, 1), "one batch is below the bound")
	eff = g.answer(protocol.FetchAnswer{Batches: [][]byte{stamped(t, 10, 1, 10)}})
	require.Nil(t, sentFetch(t, eff, 1))
	require.Nil(t, sentFetch(t, g.tick(time.Hour), 1))
	f := sentFetch(t, g.stored(), 1)
	require.NotNil(t, f)
	require.Equal(t, [2]int64{20, 20}, [2]int64{f.Offset, f.Stored})
}

// D9: a report counts only if it fits the leader's log.
func TestRuleReportsAreVerified(t *testing.T) {
	for _, c := range []struct {
		stored int64
		epoch  int32
		counts bool
	}{{2, 0, true}, {4, 3, true}, {3, 0, false}, {4, 2, false}, {2, 1, false}, {5, 3, false}, {0, -1, true}, {4, 9, false}} {
		g := newRig(t, 0, 0, 0, 0, 3, 3)
		g.lead(4, 1, 2)
		g.fetchOf(2, protocol.Fetch{Offset: 0, LastEpoch: -1, Stored: -1, StoredEpoch: -1})
		g.from(2, &protocol.Payload{Reports: []protocol.Report{{ID: g.id, LeaderEpoch: 4, Stored: c.stored, StoredEpoch: c.epoch}}})
		require.Equal(t, c.counts, g.r.remote(2).stored == c.stored, "stored %d in epoch %d", c.stored, c.epoch)
	}
}

// D11: no record of an epoch is handed out before `led` is durable.
func TestRuleLedBeforeRecords(t *testing.T) {
	g := newRig(t, 0, 0, 0)
	g.state.ISR = []int32{1, 2}
	eff := g.leader(1, 1)
	require.Empty(t, eff.replies, "not accepted yet")
	require.Equal(t, storage.Meta, eff.ops[0].Kind)
	require.EqualValues(t, 1, *eff.ops[0].Led)
	g.append(AcksLeader, 1)
	eff = g.fetch(2, 1)
	require.Empty(t, fetchAnswer(t, eff, 2).Batches)
	require.Nil(t, fetchAnswer(t, g.fetch(2, 1), 2))
	eff = g.stored()
	require.Len(t, eff.replies, 1)
	require.True(t, eff.replies[0].Accepted)
	require.Len(t, fetchAnswer(t, eff, 2).Batches, 1)

	again := newRig(t, 0, 0, 0)
	again.r.led = 5
	again.state.ISR = []int32{1, 2}
	eff = again.leader(1, 5)
	require.Equal(t, []protocol.OrderReply{{ID: again.id, LeaderEpoch: 5, Above: 5, Code: protocol.LedBefore}}, eff.replies)
	require.Equal(t, roleNone, again.r.role)
	again.lead(6, 1, 2)
}

// Cold reads end where memory takes over, and what was read of another content of
// the log is thrown away.
func TestRuleColdReads(t *testing.T) {
	t.Run("limit", func(t *testing.T) {
		g := newRig(t, 0, 0, repeated(0, 5)...)
		g.lead(1, 1, 2)
		g.append(AcksLeader, 2)
		g.stored()
		g.fetch(2, 1)
		require.Len(t, g.cold, 1)
		require.Equal(t, coldRead{id: g.id, from: 1, limit: 5, maxBytes: 1 << 20, peer: 2, fetch: true}, g.cold[0])
		a := fetchAnswer(t, g.read(), 2)
		require.Len(t, a.Batches, 4, "up to 5: the store may be about to lose what lies beyond")
	})
	t.Run("generation", func(t *testing.T) {
		g := newRig(t, 0, 0, repeated(0, 5)...)
		g.lead(1, 1, 2)
		g.fetch(2, 1)
		c := g.cold[0]
		g.leader(2, 2)
		g.answer(protocol.FetchAnswer{Code: protocol.Diverging, Agreed: protocol.EpochEnd{Epoch: 0, End: 3}})
		require.EqualValues(t, 3, g.r.end)
		g.stored()
		g.lead(3, 1, 2)
		g.fetch(2, 1)
		require.NotEqual(t, c.gen, g.cold[1].gen)
		old := stamped(t, 1, 0, 1)
		eff := g.turn(func() { g.s.readDone(c, old, nil) })
		require.Nil(t, fetchAnswer(t, eff, 2), "read before the cut")
	})
	t.Run("damage", func(t *testing.T) {
		for name, result := range map[string]func(c coldRead, g *rig){
			"an error":     func(c coldRead, g *rig) { g.s.readDone(c, nil, storage.ErrDamaged) },
			"nothing":      func(c coldRead, g *rig) { g.s.readDone(c, nil, nil) },
			"not a batch":  func(c coldRead, g *rig) { g.s.readDone(c, []byte("none"), nil) },
			"another part": func(c coldRead, g *rig) { g.s.readDone(c, stamped(t, 9, 0, 1), nil) },
		} {
			g := newRig(t, 0, 0, repeated(0, 5)...)
			g.lead(1, 1, 2)
			g.fetch(2, 1)
			g.turn(func() { result(g.cold[0], g) })
			require.Equal(t, roleFailed, g.r.role, name)
			require.Len(t, g.eff.replies, 1, "and the Controller hears (D7)")
			require.Equal(t, protocol.StorageFailed, g.eff.replies[0].Code)
		}
	})
}

// What a log of its own tells about its soundness when it is opened (D3, D8, D12).
func TestRuleDamagedLogs(t *testing.T) {
	for name, s := range map[string]storage.State{
		"a saved high watermark above the log": {End: 6, HW: 7, Epochs: entries(0, 0), Led: -1},
		"records without epochs":               {End: 6, HW: 2, Led: -1},
	} {
		g := newRig(t, 0, 0)
		g.s.load(g.id, s)
		g.r = g.s.replicas[g.id]
		require.Equal(t, roleFailed, g.r.role, name)
		eff := g.leader(2, 1)
		require.Nil(t, sentFetch(t, eff, 2), "never cut, never refilled by itself")
		require.Empty(t, eff.ops)
		eff = g.leader(1, 2)
		require.Len(t, eff.replies, 1, fmt.Sprintf("%s: it refuses to lead", name))
		require.False(t, eff.replies[0].Accepted)
	}
	g := newRig(t, 0, 4, repeated(0, 6)...)
	require.EqualValues(t, 4, g.r.hw, "S-25: a stale one is where it begins")
	require.EqualValues(t, 6, g.r.stored, "what an open shows is durable (D8)")
}
