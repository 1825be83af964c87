package history

import (
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// story is a history in a form that tests can change.
type story struct {
	appends []Append
	reads   []Read
	finals  []Final
}

func (s *story) check() Report {
	var h History
	for _, a := range s.appends {
		h.AddAppend(a)
	}
	for _, r := range s.reads {
		h.AddRead(r)
	}
	for _, f := range s.finals {
		h.AddFinal(f)
	}
	return h.Check()
}

// sent appends a value under the attempt's number, from second attempt to half a second later.
func sent(attempt int, value string, o Outcome, offset int64) Append {
	began := time.Duration(attempt) * time.Second
	return Append{Attempt: attempt, Value: value, Outcome: o, Offset: offset, Began: began, Ended: began + time.Second/2}
}

func by(producer int, a Append) Append {
	a.Producer = producer
	return a
}

func got(reader int, offset int64, value string) Read {
	return Read{Reader: reader, Offset: offset, Value: value, At: time.Hour}
}

// final is the log of a replica with these values from offset 0 on, all of epoch 1.
func final(replica int32, values ...string) Final {
	f := Final{Replica: replica}
	for i, v := range values {
		f.Records = append(f.Records, Record{Offset: int64(i), Value: v, Sum: 7, Epoch: 1})
	}
	return f
}

func (s story) with(change func(*story)) story {
	change(&s)
	return s
}

// smallest has, for each check, histories that this check finds, and no other.
var smallest = []struct {
	check string
	says  string // in the example
	story story
}{
	{LostWrite, "a (producer 0, attempt 1, acked, from 1s to 1.5s) is acked at 0; the log has b there, and that value nowhere", story{
		appends: []Append{sent(1, "a", Acked, 0), sent(2, "b", Unknown, 0)}, finals: []Final{final(1, "b")},
	}},
	{AckBeyondEnd, "acked at 0; the log ends at 0", story{
		appends: []Append{sent(1, "a", Acked, 0)}, finals: []Final{final(1)},
	}},
	{UnreadWrite, "acked at 0; nobody read that offset, and somebody read 1", story{
		appends: []Append{sent(1, "a", Acked, 0), sent(2, "b", Acked, 1)}, reads: []Read{got(1, 1, "b")}, finals: []Final{final(1, "a", "b")},
	}},
	{VanishedRead, "reader 1 got a at offset 0 at 1h0m0s; the log, which ends at 0", story{
		appends: []Append{sent(1, "a", Unknown, 0)}, reads: []Read{got(1, 0, "a")}, finals: []Final{final(1)},
	}},
	{Duplicate, "a is at offsets [0 1]; it was sent once", story{
		appends: []Append{sent(1, "a", Acked, 0)}, finals: []Final{final(1, "a", "a")},
	}},
	{Duplicate, "a is at offsets [0 1]", story{ // a refusal gives no second place
		appends: []Append{sent(1, "a", Refused, 0), sent(2, "a", Acked, 1)}, finals: []Final{final(1, "a", "a")},
	}},
	{ProducerOrder, "b (producer 0, attempt 2, acked, from 2s to 2.5s) is at 0; it began after the producer's own a", story{
		appends: []Append{sent(1, "a", Acked, 1), sent(2, "b", Acked, 0)}, finals: []Final{final(1, "b", "a")},
	}},
	{ProducerOrder, "b (producer 0, attempt 2, unknown, from 2s to 2.5s) is at 0", story{
		appends: []Append{sent(1, "a", Acked, 1), sent(2, "b", Unknown, 0)}, finals: []Final{final(1, "b", "a")},
	}},
	{RealTimeOrder, "b (producer 2, attempt 2, acked, from 2s to 2.5s) is at 0; it began after a (producer 1", story{
		appends: []Append{by(1, sent(1, "a", Acked, 1)), by(2, sent(2, "b", Acked, 0))}, finals: []Final{final(1, "b", "a")},
	}},
	{RealTimeOrder, "it began after reader 3 got a at offset 1 at 1.2s", story{
		appends: []Append{by(1, sent(1, "a", Unknown, 0)), by(2, sent(2, "b", Unknown, 0))},
		reads:   []Read{{Reader: 3, Offset: 1, Value: "a", At: 1200 * time.Millisecond}}, finals: []Final{final(1, "b", "a")},
	}},
	{NonmonotonicRead, "reader 1 got offset 0 (a) at 1h0m0s, after offset 1", story{
		appends: []Append{sent(1, "a", Acked, 0), sent(2, "b", Acked, 1)},
		reads:   []Read{got(1, 0, "a"), got(1, 1, "b"), got(1, 0, "a")}, finals: []Final{final(1, "a", "b")},
	}},
	{NonmonotonicRead, "after offset 0", story{
		appends: []Append{sent(1, "a", Acked, 0)}, reads: []Read{got(1, 0, "a"), got(1, 0, "a")}, finals: []Final{final(1, "a")},
	}},
	{SkippedRead, "reader 1 got offset 2 at 1h0m0s right after offset 0", story{
		appends: []Append{sent(1, "a", Acked, 0), sent(2, "b", Unknown, 0), sent(3, "c", Acked, 2)},
		reads:   []Read{got(1, 0, "a"), got(1, 2, "c")}, finals: []Final{final(1, "a", "b", "c")},
	}},
	{Inconsistent, "offset 0: reader 1 got a, reader 2 got b at 1h0m0s", story{
		appends: []Append{sent(1, "a", Unknown, 0), sent(2, "b", Unknown, 0)},
		reads:   []Read{got(1, 0, "a"), got(2, 0, "b")}, finals: []Final{final(1, "a"), final(2, "a")},
	}},
	{Inconsistent, "offset 0: reader 1 got a at 1h0m0s, the log has b", story{
		appends: []Append{sent(1, "a", Unknown, 0), sent(2, "b", Unknown, 0)},
		reads:   []Read{got(1, 0, "a")}, finals: []Final{final(1, "b")},
	}},
	{Inconsistent, "is acked there; the log has b there, and that value at 1", story{
		appends: []Append{sent(1, "a", Acked, 0), sent(2, "b", Unknown, 0)}, finals: []Final{final(1, "b", "a")},
	}},
	{Inconsistent, "offset 0: acked are both a (producer 0", story{
		appends: []Append{sent(1, "a", Acked, 0), {Attempt: 2, Value: "a", Outcome: Acked, Began: time.Second, Ended: time.Second}}, finals: []Final{final(1, "a")},
	}},
	{ReplicasDiffer, "offset 0: replica 1 has a (epoch 1, sum 00000007), replica 2 has b (epoch 1, sum 00000007)", story{
		appends: []Append{sent(1, "a", Acked, 0), sent(2, "b", Unknown, 0)}, finals: []Final{final(1, "a"), final(2, "b")},
	}},
	{ReplicasDiffer, "replica 2 ends at 1, the longest at 2", story{
		appends: []Append{sent(1, "a", Acked, 0), sent(2, "b", Acked, 1)}, finals: []Final{final(1, "a", "b"), final(2, "a")},
	}},
	{ReplicasDiffer, "sum 00000008", story{
		appends: []Append{sent(1, "a", Acked, 0)}, finals: []Final{final(1, "a"), final(2, "a")},
	}.with(func(s *story) { s.finals[1].Records[0].Sum = 8 })},
	{ReplicasDiffer, "epoch 2", story{
		appends: []Append{sent(1, "a", Acked, 0)}, finals: []Final{final(1, "a"), final(2, "a")},
	}.with(func(s *story) { s.finals[1].Records[0].Epoch = 2 })},
	{LogGap, "replica 1 has nothing from 1 to 1", story{
		appends: []Append{sent(1, "a", Acked, 0), sent(2, "b", Acked, 2)}, finals: []Final{final(1, "a", "b")},
	}.with(func(s *story) { s.finals[0].Records[1].Offset = 2 })},
	{LogGap, "replica 1 has a at 0, behind offset 0", story{
		appends: []Append{sent(1, "a", Acked, 0)}, finals: []Final{final(1, "a", "a")},
	}.with(func(s *story) { s.finals[0].Records[1].Offset = 0 })},
	{EpochFell, "replica 1 has epoch 1 at 1 and epoch 2 before it", story{
		appends: []Append{sent(1, "a", Acked, 0), sent(2, "b", Acked, 1)}, finals: []Final{final(1, "a", "b")},
	}.with(func(s *story) { s.finals[0].Records[0].Epoch = 2 })},
	{AbortedRead, "a is at offset 0; it was sent once and refused", story{
		appends: []Append{sent(1, "a", Refused, 0)}, finals: []Final{final(1, "a")},
	}},
	{AbortedRead, "a is at offset 0; it was sent 2 times and refused", story{
		appends: []Append{sent(1, "a", Refused, 0), sent(2, "a", Refused, 0)}, reads: []Read{got(1, 0, "a")}, finals: []Final{final(1, "a")},
	}},
	{AbortedRead, "reader 1 got a at 1.7s, when it had only been refused", story{
		appends: []Append{sent(1, "a", Refused, 0), sent(2, "a", Acked, 0)},
		reads:   []Read{{Reader: 1, Value: "a", At: 1700 * time.Millisecond}}, finals: []Final{final(1, "a")},
	}},
	{NeverSent, "a is at offset 0, and nobody sent it to this partition", story{finals: []Final{final(1, "a")}}},
	{NeverSent, "reader 1 got a at 900ms; it was sent at 1s", story{
		appends: []Append{sent(1, "a", Acked, 0)}, reads: []Read{{Reader: 1, Value: "a", At: 900 * time.Millisecond}}, finals: []Final{final(1, "a")},
	}},
	{NeverSent, "partition 1: a is at offset 0", story{
		appends: []Append{sent(1, "a", Acked, 0)}, finals: []Final{final(1, "a"), {Partition: 1, Records: []Record{{Value: "a"}}}},
	}},
	{BadRecord, "attempt 1 of producer 0 was recorded twice", story{
		appends: []Append{sent(1, "a", Refused, 0), sent(1, "b", Refused, 0)}, finals: []Final{final(1)},
	}},
	{BadRecord, "ended before it began", story{
		appends: []Append{{Value: "a", Outcome: Refused, Began: 2, Ended: 1}}, finals: []Final{final(1)},
	}},
	{BadRecord, "has outcome 3", story{appends: []Append{sent(1, "a", 3, 0)}, finals: []Final{final(1)}}},
	{BadRecord, "replica 1 has two final logs", story{finals: []Final{final(1), final(1)}}},
	{NoFinalLog, "1 appends and 0 reads", story{appends: []Append{sent(1, "a", Acked, 0)}}},
}

func TestSmallestBadHistories(t *testing.T) {
	for i, c := range smallest {
		t.Run(fmt.Sprintf("%d %s", i, c.check), func(t *testing.T) {
			r := c.story.check()
			require.Len(t, r.Findings, 1, r.String())
			require.Equal(t, c.check, r.Findings[0].Check)
			require.Equal(t, 1, r.Count(c.check), r.String())
			require.Contains(t, r.Findings[0].Examples[0], c.says)
			require.Equal(t, 1, r.Lost+r.Duplicated+r.Reordered+r.Diverged+r.Aborted+r.Invalid)
			require.False(t, r.OK())
		})
	}
}

// TestFoundBesideAnother has what cannot be wrong alone.
func TestFoundBesideAnother(t *testing.T) {
	noLog := story{appends: []Append{sent(1, "a", Acked, 0), sent(2, "b", Unknown, 0)}, reads: []Read{got(1, 0, "b")}}
	r := noLog.check()
	require.Equal(t, 1, r.Count(NoFinalLog))
	require.Equal(t, 1, r.Count(Inconsistent), r.String())
	require.Contains(t, r.String(), "is acked there, a reader got b")

	hole := story{appends: []Append{sent(1, "a", Acked, 0), sent(2, "b", Acked, 1)}, finals: []Final{final(1, "a", "b"), final(2, "a", "b")}}
	hole.finals[1].Records = hole.finals[1].Records[1:]
	r = hole.check()
	require.Equal(t, 1, r.Count(LogGap))
	require.Equal(t, 1, r.Count(ReplicasDiffer), r.String())
	require.Contains(t, r.String(), "offset 0: replica 1 has a (epoch 1, sum 00000007); nothing there has replica 2")
}

// TestEveryCheckHasASmallestHistory goes by the names that tests and reports use.
func TestEveryCheckHasASmallestHistory(t *testing.T) {
	names := []string{LostWrite, AckBeyondEnd, UnreadWrite, VanishedRead, Duplicate, ProducerOrder, RealTimeOrder, NonmonotonicRead, SkippedRead,
		Inconsistent, ReplicasDiffer, LogGap, EpochFell, AbortedRead, NeverSent, BadRecord, NoFinalLog}
	has := make(map[string]bool)
	for _, c := range smallest {
		has[c.check] = true
	}
	for _, name := range names {
		require.True(t, has[name], name)
	}
	require.Len(t, has, len(names))
}

// TestAllowed has what looks odd and may be.
func TestAllowed(t *testing.T) {
	for name, s := range map[string]story{
		"nothing at all":             {},
		"unknown and not there":      {appends: []Append{sent(1, "a", Unknown, 0)}, finals: []Final{final(1)}},
		"unknown and there":          {appends: []Append{sent(1, "a", Unknown, 0)}, reads: []Read{got(1, 0, "a")}, finals: []Final{final(1, "a")}},
		"sent twice, there twice":    {appends: []Append{sent(1, "a", Unknown, 0), sent(2, "a", Acked, 1)}, finals: []Final{final(1, "a", "a")}},
		"sent twice, there once":     {appends: []Append{sent(1, "a", Unknown, 0), sent(2, "a", Acked, 0)}, finals: []Final{final(1, "a")}},
		"refused, then acked":        {appends: []Append{sent(1, "a", Refused, 0), sent(2, "a", Acked, 0)}, finals: []Final{final(1, "a")}},
		"at once, the other way":     {appends: []Append{{Attempt: 1, Value: "a", Offset: 1, Ended: 5}, {Attempt: 2, Value: "b", Began: 5, Ended: 6}}, finals: []Final{final(1, "b", "a")}},
		"unknown comes late":         {appends: []Append{sent(1, "a", Unknown, 0), sent(2, "b", Acked, 0)}, finals: []Final{final(1, "b", "a")}},
		"a reader from the middle":   {appends: []Append{sent(1, "a", Acked, 0), sent(2, "b", Acked, 1)}, reads: []Read{got(1, 0, "a"), got(2, 1, "b"), got(1, 1, "b")}, finals: []Final{final(1, "a", "b")}},
		"not read yet":               {appends: []Append{sent(1, "a", Acked, 0), sent(2, "b", Acked, 1)}, reads: []Read{got(1, 0, "a")}, finals: []Final{final(1, "a", "b")}},
		"read through a broker":      {appends: []Append{sent(1, "a", Acked, 0)}, finals: []Final{final(1, "a"), {Replica: -1, Records: []Record{{Value: "a"}}}}},
		"the same in two partitions": {appends: []Append{sent(1, "a", Acked, 0), {Attempt: 2, Partition: 1, Value: "a"}}, finals: []Final{final(1, "a"), {Partition: 1, Records: []Record{{Value: "a"}}}}},
	} {
		t.Run(name, func(t *testing.T) {
			r := s.check()
			require.True(t, r.OK(), r.String())
		})
	}
}

func TestReport(t *testing.T) {
	s := story{finals: []Final{final(1)}}
	for i := range 30 {
		s.appends = append(s.appends, Append{Attempt: i, Value: fmt.Sprintf("p0-%d   \n...", i), Offset: int64(i)})
	}
	s.appends = append(s.appends, sent(40, "r", Refused, 0), sent(41, "u", Unknown, 0))
	r := s.check()
	require.Equal(t, 30, r.Lost)
	require.Len(t, r.Findings[0].Examples, 20)
	require.Contains(t, r.String(), "1 partitions, appends: 30 acked, 1 refused, 1 unknown; 0 reads; 0 records in logs")
	require.Contains(t, r.String(), "ack beyond the end: 30\n  partition 0: \"p0-0   \\n...\" (producer 0")
	require.Contains(t, r.String(), "and 10 more\n")

	data, err := json.Marshal(r)
	require.NoError(t, err)
	var back Report
	require.NoError(t, json.Unmarshal(data, &back))
	require.Equal(t, r, back)
	require.Contains(t, string(data), `"lost":30,"duplicated":0,"reordered":0,"diverged":0,"aborted":0,"invalid":0`)
	require.NotContains(t, (&story{finals: []Final{final(1)}}).check().String(), "and")
}

// TestLongValues: values that begin alike, and are longer than what is kept of them, differ.
func TestLongValues(t *testing.T) {
	long := func(end string) string { return fmt.Sprintf("%0100d%s", 0, end) }
	s := story{appends: []Append{sent(1, long("a"), Acked, 0), sent(2, long("b"), Acked, 1)}, finals: []Final{final(1, long("a"), long("b"))}}
	require.True(t, s.check().OK())
	s.finals[0].Records[0].Value = long("c")
	require.Equal(t, 1, s.check().Count(LostWrite))
	require.Equal(t, 1, s.check().Count(NeverSent))
}

func TestConcurrentUse(t *testing.T) {
	var h History
	var wg sync.WaitGroup
	const each = 200
	for p := range 4 {
		wg.Go(func() {
			for i := range each {
				value := fmt.Sprintf("p%d-%d", p, i)
				h.AddAppend(Append{Producer: p, Attempt: i, Partition: int32(p), Value: value, Offset: int64(i), Began: time.Duration(2 * i), Ended: time.Duration(2*i + 1)})
				h.AddRead(Read{Reader: p, Partition: int32(p), Offset: int64(i), Value: value, At: time.Duration(2*i + 1)})
				if i%100 == 0 {
					h.Check() // in the middle
				}
			}
		})
	}
	wg.Wait()
	for p := range int32(4) {
		f := Final{Partition: p}
		for i := range int64(each) {
			f.Records = append(f.Records, Record{Offset: i, Value: fmt.Sprintf("p%d-%d", p, i)})
		}
		h.AddFinal(f)
	}
	r := h.Check()
	require.True(t, r.OK(), r.String())
	require.Equal(t, 4*each, r.Acked)
	require.Equal(t, 4*each, r.Reads)
}
