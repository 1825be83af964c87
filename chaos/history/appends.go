package history

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// sends is what was done to append one value.
type sends struct {
	kept    int           // attempts that were not refused
	refused int           // attempts that were
	tried   time.Duration // when the first attempt began
	began   time.Duration // when the first began that was not refused
}

func (c *partitionCheck) gatherSends() {
	c.sent = make(map[valueID]*sends)
	for i := range c.p.appends {
		a := &c.p.appends[i]
		s := c.sent[a.value]
		if s == nil {
			s = &sends{tried: a.began}
			c.sent[a.value] = s
		}
		s.tried = min(s.tried, a.began)
		switch {
		case a.outcome == Refused:
			s.refused++
		case s.kept == 0 || a.began < s.began:
			s.began = a.began
			fallthrough
		default:
			s.kept++
		}
	}
}

// checkAcks checks that what was acked is where the acknowledgement said.
func (c *partitionCheck) checkAcks() {
	acked := make(map[int64]*attempt)
	for i := range c.p.appends {
		a := &c.p.appends[i]
		if a.outcome != Acked {
			continue
		}
		if other := acked[a.offset]; other != nil {
			c.fail(Inconsistent, "offset %d: acked are both %s and %s", a.offset, c.attempt(other), c.attempt(a))
		}
		acked[a.offset] = a
		if len(c.p.finals) > 0 {
			c.checkAckInLog(a)
		} else if got, ok := c.read[a.offset]; ok && got != a.value {
			c.fail(Inconsistent, "offset %d: %s is acked there, a reader got %s", a.offset, c.attempt(a), c.values.text(got))
		}
	}
}

func (c *partitionCheck) checkAckInLog(a *attempt) {
	if c.log.has(a.offset, a.value) {
		return
	}
	there := "nothing"
	if v, ok := c.log.at[a.offset]; ok {
		there = c.values.text(v)
	}
	switch elsewhere := c.log.of[a.value]; {
	case len(elsewhere) > 0:
		c.fail(Inconsistent, "offset %d: %s is acked there; the log has %s there, and that value at %s", a.offset, c.attempt(a), there, list(elsewhere))
	case a.offset >= c.log.end:
		c.fail(AckBeyondEnd, "%s is acked at %d; the log ends at %d", c.attempt(a), a.offset, c.log.end)
	default:
		c.fail(LostWrite, "%s is acked at %d; the log has %s there, and that value nowhere", c.attempt(a), a.offset, there)
	}
}

// checkSightings checks that each value that is in the log or was read may be there,
// and that often.
func (c *partitionCheck) checkSightings() {
	c.at = make(map[valueID][]int64)
	for offset, value := range c.log.at {
		c.at[value] = append(c.at[value], offset)
	}
	for offset, value := range c.read {
		if at, ok := c.log.at[offset]; !ok || at != value {
			c.at[value] = append(c.at[value], offset)
		}
	}
	for _, value := range slices.Sorted(maps.Keys(c.at)) {
		at, s, name := c.at[value], c.sent[value], c.values.text(value)
		slices.Sort(at)
		switch {
		case s == nil:
			c.fail(NeverSent, "%s is at offset %s, and nobody sent it to this partition", name, list(at))
		case s.kept == 0:
			c.fail(AbortedRead, "%s is at offset %s; it was sent %s and refused, the first time at %v", name, list(at), times(s.refused), short(s.tried))
		case len(at) > s.kept:
			c.failMany(Duplicate, len(at)-s.kept, "%s is at offsets %s; it was sent %s, and %d more that were refused, the first time at %v", name, list(at), times(s.kept), s.refused, short(s.tried))
		}
	}
	c.checkReadTimes()
}

// checkReadTimes finds what was read before it was sent.
func (c *partitionCheck) checkReadTimes() {
	for _, reader := range slices.Sorted(maps.Keys(c.p.readers)) {
		for _, r := range c.p.readers[reader] {
			s := c.sent[r.value]
			switch {
			case s == nil || s.kept == 0 || r.at >= s.began:
			case s.tried <= r.at:
				c.fail(AbortedRead, "reader %d got %s at %v, when it had only been refused; it was sent again at %v", reader, c.values.text(r.value), short(r.at), short(s.began))
			default:
				c.fail(NeverSent, "reader %d got %s at %v; it was sent at %v", reader, c.values.text(r.value), short(r.at), short(s.tried))
			}
		}
	}
}

// list names some offsets.
func list(offsets []int64) string {
	if len(offsets) > 5 {
		return fmt.Sprintf("%v and %d more", offsets[:5], len(offsets)-5)
	}
	if len(offsets) == 1 {
		return fmt.Sprint(offsets[0])
	}
	return fmt.Sprint(offsets)
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}
