package history

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// randomStory is what a correct cluster could have shown: producers that overlap, wait
// or not, are refused, or do not hear how it ended, readers that begin anywhere, and
// replicas that have the same.
func randomStory(rnd *rand.Rand) *story {
	s := &story{}
	for partition := range int32(1 + rnd.IntN(3)) {
		g := &generator{Rand: rnd, story: s, partition: partition, number: int(partition) * 1000}
		g.produce(20 + rnd.IntN(60))
		g.read()
		g.finish()
	}
	return s
}

type generator struct {
	*rand.Rand
	*story
	partition int32
	number    int // of the next attempt
	log       []Record
	stored    []time.Duration // when a record came into the log, by offset
}

// produce takes one moment after the other in which a record comes into the log, and
// has it sent before that, and acked behind it.
func (g *generator) produce(n int) {
	epoch := int32(0)
	var now time.Duration
	for i := range n {
		now += time.Duration(10 + g.IntN(10))
		epoch += int32(g.IntN(10) / 9)
		a := Append{Producer: g.IntN(4), Partition: g.partition, Value: fmt.Sprintf("%d-%d", g.partition, i), Offset: int64(len(g.log))}
		for g.IntN(4) == 0 {
			a.Attempt, a.Outcome = g.next(), Refused
			a.Began = now - time.Duration(5+g.IntN(20))
			a.Ended = a.Began + time.Duration(g.IntN(4))
			g.appends = append(g.appends, a)
		}
		a.Attempt, a.Outcome = g.next(), Outcome(2*(g.IntN(5)/4))
		a.Began, a.Ended = now-time.Duration(g.IntN(30)), now+time.Duration(g.IntN(30))
		if a.Outcome == Unknown && g.IntN(2) == 0 { // and it is not in the log
			g.appends = append(g.appends, a)
			if g.IntN(2) == 0 {
				continue
			}
			a.Attempt, a.Outcome = g.next(), Acked // sent again
		}
		g.appends = append(g.appends, a)
		g.store(a.Value, epoch, now)
		if a.Outcome == Unknown && g.IntN(2) == 0 { // it is, and is sent again
			now++
			a.Attempt, a.Offset, a.Outcome = g.next(), int64(len(g.log)), Acked
			a.Began, a.Ended = now-1, now+5
			g.appends = append(g.appends, a)
			g.store(a.Value, epoch, now)
		}
	}
	g.Shuffle(len(g.appends), func(i, j int) { g.appends[i], g.appends[j] = g.appends[j], g.appends[i] })
}

func (g *generator) next() int {
	g.number++
	return g.number
}

func (g *generator) store(value string, epoch int32, now time.Duration) {
	g.log = append(g.log, Record{Offset: int64(len(g.log)), Value: value, Epoch: epoch, Sum: 1 + g.Uint32N(1e9)})
	g.stored = append(g.stored, now)
}

// read has the first reader begin at the start, so that nothing is overlooked.
func (g *generator) read() {
	for reader := range 1 + g.IntN(3) {
		from := 0
		if reader > 0 {
			from = g.IntN(len(g.log))
		}
		to, at := len(g.log), time.Duration(0)
		if reader > 0 {
			to = from + g.IntN(len(g.log)-from+1)
		}
		for o := from; o < to; o++ {
			at = max(at, g.stored[o]+time.Duration(g.IntN(50)))
			g.reads = append(g.reads, Read{Reader: int(g.partition)*10 + reader, Partition: g.partition, Offset: int64(o), Value: g.log[o].Value, At: at})
		}
	}
}

func (g *generator) finish() {
	for replica := range int32(3) {
		g.finals = append(g.finals, Final{Partition: g.partition, Replica: replica, Records: slices.Clone(g.log)})
	}
}

func TestRandomHistoriesAreClean(t *testing.T) {
	for seed := range uint64(1000) {
		s := randomStory(rand.New(rand.NewPCG(seed, 1)))
		r := s.check()
		require.True(t, r.OK(), "seed %d: %s", seed, r)
		require.NotZero(t, r.Acked)
		require.Equal(t, len(s.reads), r.Reads)
		require.NotZero(t, r.Records)
	}
}

// mutation makes a correct history wrong, and reports whether it found where.
type mutation func(*rand.Rand, *story) bool

// mutations are by what must notice them, among others.
var mutations = []struct {
	name   string
	checks []string // any of these
	mutate mutation
}{
	{"an acked record is another's in all logs", []string{LostWrite}, func(rnd *rand.Rand, s *story) bool {
		a := s.onceAcked(rnd)
		if a == nil {
			return false
		}
		s.unknown("other", a.Partition)
		s.eachRecord(a.Partition, a.Offset, func(r *Record) { r.Value = "other" })
		s.unread(a.Partition, a.Offset)
		return true
	}},
	{"all logs end earlier", []string{AckBeyondEnd, VanishedRead}, func(rnd *rand.Rand, s *story) bool {
		for i := range s.finals {
			if f := &s.finals[i]; f.Partition == 0 {
				f.Records = f.Records[:len(f.Records)-1]
			}
		}
		return true
	}},
	{"one log ends earlier", []string{ReplicasDiffer}, func(rnd *rand.Rand, s *story) bool {
		f := s.final(rnd)
		f.Records = f.Records[:rnd.IntN(len(f.Records))]
		return true
	}},
	{"one log lacks a record", []string{ReplicasDiffer}, func(rnd *rand.Rand, s *story) bool {
		f := s.final(rnd)
		i := rnd.IntN(len(f.Records))
		f.Records = slices.Delete(f.Records, i, i+1)
		return true
	}},
	{"all logs lack a record", []string{LogGap, AckBeyondEnd, VanishedRead}, func(rnd *rand.Rand, s *story) bool {
		i := rnd.IntN(len(s.finals[0].Records))
		for k := range s.finals {
			if f := &s.finals[k]; f.Partition == 0 {
				f.Records = slices.Delete(f.Records, i, i+1)
			}
		}
		return true
	}},
	{"a record is another's in one log", []string{ReplicasDiffer}, func(rnd *rand.Rand, s *story) bool {
		s.record(rnd).Value = s.appends[0].Value + "'"
		return true
	}},
	{"a bit of a batch", []string{ReplicasDiffer}, func(rnd *rand.Rand, s *story) bool {
		s.record(rnd).Sum ^= 1 << 31 // below it is never 0
		return true
	}},
	{"an epoch in one log", []string{ReplicasDiffer}, func(rnd *rand.Rand, s *story) bool {
		s.record(rnd).Epoch++
		return true
	}},
	{"an epoch falls in all logs", []string{EpochFell}, func(rnd *rand.Rand, s *story) bool {
		o := s.record(rnd).Offset
		s.eachRecord(0, o, func(r *Record) { r.Epoch += 1000 })
		return int(o) < len(s.finals[0].Records)-1
	}},
	{"a record once more in all logs", []string{Duplicate, AbortedRead}, func(rnd *rand.Rand, s *story) bool {
		a := s.onceAcked(rnd)
		for i := range s.finals {
			if f := &s.finals[i]; a != nil && f.Partition == a.Partition {
				again := f.Records[a.Offset]
				again.Offset, again.Epoch = int64(len(f.Records)), 1000
				f.Records = append(f.Records, again)
			}
		}
		return a != nil
	}},
	{"an ack at another offset", []string{Inconsistent}, func(rnd *rand.Rand, s *story) bool {
		a := s.onceAcked(rnd)
		if a != nil {
			a.Offset += 1 + rnd.Int64N(100)
		}
		return a != nil
	}},
	{"what was acked was refused", []string{AbortedRead}, func(rnd *rand.Rand, s *story) bool {
		a := s.onceAcked(rnd)
		if a != nil {
			a.Outcome = Refused
		}
		return a != nil
	}},
	{"an append that nobody made", []string{NeverSent}, func(rnd *rand.Rand, s *story) bool {
		a := s.onceAcked(rnd)
		if a == nil {
			return false
		}
		value := a.Value
		s.appends = slices.DeleteFunc(s.appends, func(a Append) bool { return a.Value == value })
		return true
	}},
	{"an append in another partition", []string{NeverSent}, func(rnd *rand.Rand, s *story) bool {
		a := s.onceAcked(rnd)
		if a == nil {
			return false
		}
		value := a.Value
		for i := range s.appends {
			if s.appends[i].Value == value {
				s.appends[i].Partition += 7
			}
		}
		return true
	}},
	{"two records change places everywhere", []string{ProducerOrder, RealTimeOrder}, swapInOrder},
	{"a reader leaves a record out", []string{SkippedRead}, func(rnd *rand.Rand, s *story) bool {
		i := 1 + rnd.IntN(len(s.reads)-2)
		ok := s.reads[i-1].Reader == s.reads[i+1].Reader
		s.reads = slices.Delete(s.reads, i, i+1)
		return ok
	}},
	{"all readers leave an acked record out", []string{UnreadWrite}, func(rnd *rand.Rand, s *story) bool {
		a := s.onceAcked(rnd)
		if a == nil || int(a.Offset) == len(s.log(a.Partition))-1 {
			return false
		}
		s.unread(a.Partition, a.Offset)
		return true
	}},
	{"a reader gets a record again", []string{NonmonotonicRead}, func(rnd *rand.Rand, s *story) bool {
		i := rnd.IntN(len(s.reads))
		s.reads = slices.Insert(s.reads, i, s.reads[i])
		return true
	}},
	{"a reader goes back", []string{NonmonotonicRead}, func(rnd *rand.Rand, s *story) bool {
		i := rnd.IntN(len(s.reads) - 1)
		s.reads[i], s.reads[i+1] = s.reads[i+1], s.reads[i]
		return s.reads[i].Reader == s.reads[i+1].Reader
	}},
	{"a reader gets another value", []string{Inconsistent}, func(rnd *rand.Rand, s *story) bool {
		r := &s.reads[rnd.IntN(len(s.reads))]
		s.unknown("other", r.Partition)
		r.Value = "other"
		return true
	}},
	{"a reader got a record before it was sent", []string{NeverSent, AbortedRead}, func(rnd *rand.Rand, s *story) bool {
		s.reads[rnd.IntN(len(s.reads))].At -= time.Hour
		return true
	}},
	{"an attempt was recorded twice", []string{BadRecord}, func(rnd *rand.Rand, s *story) bool {
		s.appends = append(s.appends, s.appends[rnd.IntN(len(s.appends))])
		return true
	}},
	{"a log was recorded twice", []string{BadRecord}, func(rnd *rand.Rand, s *story) bool {
		s.finals = append(s.finals, *s.final(rnd))
		return true
	}},
	{"no logs", []string{NoFinalLog}, func(rnd *rand.Rand, s *story) bool {
		s.finals = nil
		return true
	}},
}

func TestMutationsAreNoticed(t *testing.T) {
	for _, m := range mutations {
		t.Run(m.name, func(t *testing.T) {
			did := 0
			for seed := range uint64(120) {
				rnd := rand.New(rand.NewPCG(seed, 2))
				s := randomStory(rnd)
				if !m.mutate(rnd, s) {
					continue
				}
				did++
				r := s.check()
				require.True(t, slices.ContainsFunc(m.checks, func(check string) bool { return r.Count(check) > 0 }), "seed %d: %s", seed, r)
			}
			require.Greater(t, did, 40)
		})
	}
}

// swapInOrder picks two appends of which one was acked before the other began, and
// has everybody say that they are in the log the other way round.
func swapInOrder(rnd *rand.Rand, s *story) bool {
	a, b := s.onceAcked(rnd), s.onceAcked(rnd)
	for range 20 {
		if a == nil || b == nil || a.Partition == b.Partition && a.Ended < b.Began {
			break
		}
		a, b = b, s.onceAcked(rnd)
	}
	if a == nil || b == nil || a.Partition != b.Partition || a.Ended >= b.Began {
		return false
	}
	was, is := a.Offset, b.Offset
	a.Offset, b.Offset = is, was
	for i := range s.finals {
		if f := &s.finals[i]; f.Partition == a.Partition {
			f.Records[was].Value, f.Records[is].Value = b.Value, a.Value
		}
	}
	for i := range s.reads {
		switch r := &s.reads[i]; {
		case r.Partition != a.Partition:
		case r.Offset == was:
			r.Value = b.Value
		case r.Offset == is:
			r.Value = a.Value
		}
	}
	return true
}

// onceAcked picks an acked append of which the value was not sent otherwise, unless it
// was refused; nil when it cannot.
func (s *story) onceAcked(rnd *rand.Rand) *Append {
	for range 20 {
		a := &s.appends[rnd.IntN(len(s.appends))]
		others := slices.ContainsFunc(s.appends, func(o Append) bool {
			return o.Value == a.Value && o.Attempt != a.Attempt && o.Outcome != Refused
		})
		if a.Outcome == Acked && !others {
			return a
		}
	}
	return nil
}

func (s *story) final(rnd *rand.Rand) *Final { return &s.finals[rnd.IntN(len(s.finals))] }

// record picks a record of one log of partition 0.
func (s *story) record(rnd *rand.Rand) *Record {
	log := s.finals[rnd.IntN(3)].Records
	return &log[rnd.IntN(len(log))]
}

func (s *story) log(partition int32) []Record {
	return s.finals[slices.IndexFunc(s.finals, func(f Final) bool { return f.Partition == partition })].Records
}

func (s *story) eachRecord(partition int32, offset int64, change func(*Record)) {
	for i := range s.finals {
		if f := &s.finals[i]; f.Partition == partition {
			change(&f.Records[offset])
		}
	}
}

func (s *story) unread(partition int32, offset int64) {
	s.reads = slices.DeleteFunc(s.reads, func(r Read) bool { return r.Partition == partition && r.Offset == offset })
}

// unknown adds an append that may or may not be in the log.
func (s *story) unknown(value string, partition int32) {
	s.appends = append(s.appends, Append{Producer: 99, Partition: partition, Value: value, Outcome: Unknown, Ended: time.Hour})
}

// TestSameHistorySameReport: nothing depends on the order of a map.
func TestSameHistorySameReport(t *testing.T) {
	for i, m := range mutations {
		rnd := rand.New(rand.NewPCG(uint64(i), 3))
		s := randomStory(rnd)
		m.mutate(rnd, s)
		require.Equal(t, s.check(), s.check(), m.name)
	}
}
