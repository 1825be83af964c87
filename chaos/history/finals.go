package history

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// finalLog is what the replicas of a partition have in the end.
type finalLog struct {
	end    int64               // behind the longest log
	ends   []int64             // behind each, in the order of partition.finals
	at     map[int64]valueID   // what most replicas have at an offset
	others map[int64][]valueID // and what the others have there instead, where they differ
	of     map[valueID][]int64 // the offsets at which any replica has a value
}

// has reports whether any replica has the value at the offset. Where replicas differ,
// it is checkReplicas that says so.
func (l *finalLog) has(offset int64, value valueID) bool {
	v, ok := l.at[offset]
	return ok && (v == value || slices.Contains(l.others[offset], value))
}

// copied is a record and who has it.
type copied struct {
	record
	replica int32
}

// checkReplicas compares the replicas' logs, and makes one log of them.
func (c *partitionCheck) checkReplicas() {
	c.log = finalLog{at: make(map[int64]valueID), others: make(map[int64][]valueID), of: make(map[valueID][]int64)}
	var all []copied
	for _, log := range c.p.finals {
		c.checkOffsets(log)
		for _, r := range log.records {
			all = append(all, copied{r, log.replica})
		}
		end := endOf(log.records)
		c.log.ends, c.log.end = append(c.log.ends, end), max(c.log.end, end)
	}
	for i, log := range c.p.finals {
		if end := c.log.ends[i]; end < c.log.end {
			c.fail(ReplicasDiffer, "replica %d ends at %d, the longest at %d", log.replica, end, c.log.end)
		}
	}
	slices.SortStableFunc(all, func(a, b copied) int { return cmp.Compare(a.offset, b.offset) })
	for len(all) > 0 {
		n := 1
		for n < len(all) && all[n].offset == all[0].offset {
			n++
		}
		c.mergeOffset(all[:n])
		all = all[n:]
	}
}

func endOf(records []record) (end int64) {
	for _, r := range records {
		end = max(end, r.offset+1)
	}
	return end
}

// checkOffsets checks what can be seen of one log alone.
func (c *partitionCheck) checkOffsets(log replicaLog) {
	next := int64(0)
	for i, r := range log.records {
		switch {
		case r.offset > next:
			c.fail(LogGap, "replica %d has nothing from %d to %d", log.replica, next, r.offset-1)
		case r.offset < next:
			c.fail(LogGap, "replica %d has %s at %d, behind offset %d", log.replica, c.values.text(r.value), r.offset, next-1)
		}
		next = max(next, r.offset+1)
		if i > 0 && r.sum != 0 && r.epoch < log.records[i-1].epoch {
			c.fail(EpochFell, "replica %d has epoch %d at %d and epoch %d before it", log.replica, r.epoch, r.offset, log.records[i-1].epoch)
		}
	}
}

// mergeOffset compares what the replicas have at one offset.
func (c *partitionCheck) mergeOffset(copies []copied) {
	most, differ := mostOf(copies)
	if missing := c.missing(copies); len(missing) > 0 {
		c.fail(ReplicasDiffer, "offset %d: %s; nothing there has %s", copies[0].offset, c.describe(copies), strings.Join(missing, ", "))
	} else if differ {
		c.fail(ReplicasDiffer, "offset %d: %s", copies[0].offset, c.describe(copies))
	}
	offset := copies[0].offset
	c.log.at[offset] = most.value
	c.log.of[most.value] = append(c.log.of[most.value], offset)
	for _, o := range copies {
		if o.value != most.value && !slices.Contains(c.log.others[offset], o.value) {
			c.log.others[offset] = append(c.log.others[offset], o.value)
			c.log.of[o.value] = append(c.log.of[o.value], offset)
		}
	}
}

// missing names the replicas that have later offsets and not this one.
func (c *partitionCheck) missing(copies []copied) (names []string) {
	if len(copies) == len(c.p.finals) {
		return nil
	}
	for i, log := range c.p.finals {
		has := slices.ContainsFunc(copies, func(o copied) bool { return o.replica == log.replica })
		if !has && copies[0].offset < c.log.ends[i] {
			names = append(names, fmt.Sprintf("replica %d", log.replica))
		}
	}
	return names
}

// same leaves out what was not read from disk.
func same(a, b record) bool {
	return a.value == b.value && (a.sum == 0 || b.sum == 0 || a.sum == b.sum && a.epoch == b.epoch)
}

// mostOf returns what most have, of equals the first, and whether somebody has something else.
func mostOf(copies []copied) (most record, differ bool) {
	best := 0
	for _, one := range copies {
		n := 0
		for _, o := range copies {
			if same(one.record, o.record) {
				n++
			}
		}
		if n > best {
			best, most = n, one.record
		}
		differ = differ || n < len(copies)
	}
	return most, differ
}

func (c *partitionCheck) describe(copies []copied) string {
	var parts []string
	for _, o := range copies {
		part := fmt.Sprintf("replica %d has %s", o.replica, c.values.text(o.value))
		if o.sum != 0 {
			part += fmt.Sprintf(" (epoch %d, sum %08x)", o.epoch, o.sum)
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, ", ")
}
