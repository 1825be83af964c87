package history

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// placed is an append of which we know the offset.
type placed struct {
	*attempt
	offset int64 // an ack's, or where the log has it
}

// fact is that an offset was taken at a time: what is sent later is behind it.
type fact struct {
	at     time.Duration
	offset int64
	by     *attempt // nil: it was read
	reader int
	value  valueID
}

// checkOrder checks that what began after something was acked, or read, is behind it.
func (c *partitionCheck) checkOrder() {
	appends, facts := c.placed(), c.facts()
	slices.SortStableFunc(appends, func(a, b placed) int { return cmp.Compare(a.began, b.began) })
	slices.SortStableFunc(facts, func(a, b fact) int { return cmp.Compare(a.at, b.at) })
	highest := make(map[int]fact) // by producer
	var first, second fact        // the highest, and the highest that is not of first's producer
	first.offset, second.offset = -1, -1
	for _, a := range appends {
		for len(facts) > 0 && facts[0].at < a.began {
			f := facts[0]
			facts = facts[1:]
			if f.by != nil {
				if h, ok := highest[f.by.producer]; !ok || f.offset > h.offset {
					highest[f.by.producer] = f
				}
			}
			switch {
			case f.offset > first.offset && sameSource(f, first):
				first = f
			case f.offset > first.offset:
				first, second = f, first
			case f.offset > second.offset && !sameSource(f, first):
				second = f
			}
		}
		if own, ok := highest[a.producer]; ok && own.offset > a.offset {
			c.fail(ProducerOrder, "%s is at %d; it began after the producer's own %s was acked at %d", c.attempt(a.attempt), a.offset, c.attempt(own.by), own.offset)
		}
		other := first
		if first.by != nil && first.by.producer == a.producer {
			other = second
		}
		if other.offset > a.offset {
			c.failRealTime(a, other)
		}
	}
}

func (c *partitionCheck) failRealTime(a placed, f fact) {
	if f.by != nil {
		c.fail(RealTimeOrder, "%s is at %d; it began after %s was acked at %d", c.attempt(a.attempt), a.offset, c.attempt(f.by), f.offset)
		return
	}
	c.fail(RealTimeOrder, "%s is at %d; it began after reader %d got %s at offset %d at %v", c.attempt(a.attempt), a.offset, f.reader, c.values.text(f.value), f.offset, short(f.at))
}

// sameSource tells whether two facts are one producer's. All readers are one source.
func sameSource(a, b fact) bool {
	if a.by == nil || b.by == nil {
		return a.by == b.by
	}
	return a.by.producer == b.by.producer
}

// placed returns the appends of which the offset is known: those that were acked, and
// those of unknown outcome that are in the log.
func (c *partitionCheck) placed() []placed {
	acked := make(map[valueID][]int64)
	for i := range c.p.appends {
		if a := &c.p.appends[i]; a.outcome == Acked {
			acked[a.value] = append(acked[a.value], a.offset)
		}
	}
	var all []placed
	for i := range c.p.appends {
		switch a := &c.p.appends[i]; a.outcome {
		case Acked:
			all = append(all, placed{a, a.offset})
		case Unknown:
			// With two attempts of unknown outcome it cannot be told whose it is.
			others := acked[a.value]
			if len(others)+1 != c.sent[a.value].kept {
				continue
			}
			for _, offset := range c.at[a.value] {
				if !slices.Contains(others, offset) {
					all = append(all, placed{a, offset})
				}
			}
		}
	}
	return all
}

func (c *partitionCheck) facts() []fact {
	all := make([]fact, 0, len(c.p.appends)+c.p.reads)
	for i := range c.p.appends {
		if a := &c.p.appends[i]; a.outcome == Acked {
			all = append(all, fact{at: a.ended, offset: a.offset, by: a})
		}
	}
	for _, reader := range slices.Sorted(maps.Keys(c.p.readers)) {
		for _, s := range c.p.readers[reader] {
			all = append(all, fact{at: s.at, offset: s.offset, reader: reader, value: s.value})
		}
	}
	return all
}
