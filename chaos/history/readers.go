package history

import (
	"maps"
	"slices"
)

// checkReaders checks each reader's own order, and readers against each other.
func (c *partitionCheck) checkReaders() {
	c.read = make(map[int64]valueID, c.p.reads)
	by := make(map[int64]int) // who read first what differs
	for _, reader := range slices.Sorted(maps.Keys(c.p.readers)) {
		reads := c.p.readers[reader]
		for i, s := range reads {
			if i > 0 {
				c.checkStep(reader, reads[i-1], s)
			}
			first, ok := c.read[s.offset]
			if !ok {
				c.read[s.offset] = s.value
				by[s.offset] = reader
			} else if first != s.value {
				c.fail(Inconsistent, "offset %d: reader %d got %s, reader %d got %s at %v", s.offset,
					by[s.offset], c.values.text(first), reader, c.values.text(s.value), short(s.at))
			}
		}
	}
}

func (c *partitionCheck) checkStep(reader int, was, is sighting) {
	switch {
	case is.offset <= was.offset:
		c.fail(NonmonotonicRead, "reader %d got offset %d (%s) at %v, after offset %d (%s) at %v", reader,
			is.offset, c.values.text(is.value), short(is.at), was.offset, c.values.text(was.value), short(was.at))
	case is.offset > was.offset+1:
		c.fail(SkippedRead, "reader %d got offset %d at %v right after offset %d at %v", reader, is.offset, short(is.at), was.offset, short(was.at))
	}
}

// checkReadsAgainstLog checks that what was read stayed.
func (c *partitionCheck) checkReadsAgainstLog() {
	if len(c.p.finals) == 0 {
		return
	}
	for _, reader := range slices.Sorted(maps.Keys(c.p.readers)) {
		for _, s := range c.p.readers[reader] {
			has, ok := c.log.at[s.offset]
			switch {
			case !ok:
				c.fail(VanishedRead, "reader %d got %s at offset %d at %v; the log, which ends at %d, does not have that offset", reader,
					c.values.text(s.value), s.offset, short(s.at), c.log.end)
			case !c.log.has(s.offset, s.value) && s.value == c.read[s.offset]: // else checkReaders said so
				c.fail(Inconsistent, "offset %d: reader %d got %s at %v, the log has %s", s.offset, reader,
					c.values.text(s.value), short(s.at), c.values.text(has))
			}
		}
	}
}

// checkUnread finds what was acked, and overlooked by all readers.
func (c *partitionCheck) checkUnread() {
	last := int64(-1)
	for offset := range c.read {
		last = max(last, offset)
	}
	for i := range c.p.appends {
		a := &c.p.appends[i]
		if a.outcome != Acked || a.offset > last {
			continue
		}
		if _, ok := c.read[a.offset]; !ok {
			c.fail(UnreadWrite, "%s is acked at %d; nobody read that offset, and somebody read %d", c.attempt(a), a.offset, last)
		}
	}
}
