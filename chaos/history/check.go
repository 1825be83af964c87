package history

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"
)

// Check looks at everything that was added so far. It may be called again when there
// is more; while it runs nothing can be added.
func (h *History) Check() Report {
	h.mu.Lock()
	defer h.mu.Unlock()
	var r Report
	found := make(findings)
	for _, id := range slices.Sorted(maps.Keys(h.partitions)) {
		p := h.partitions[id]
		c := &partitionCheck{id: id, p: p, values: &h.values, found: found}
		c.run()
		r.Partitions++
		r.Reads += p.reads
		for _, log := range p.finals {
			r.Records += len(log.records)
		}
		for _, a := range p.appends {
			switch a.outcome {
			case Acked:
				r.Acked++
			case Refused:
				r.Refused++
			default:
				r.Unknown++
			}
		}
	}
	checkAttemptsOnce(h.partitions, found)
	found.into(&r)
	return r
}

// partitionCheck checks one partition.
type partitionCheck struct {
	id     int32
	p      *partition
	values *valueTable
	found  findings

	log  finalLog          // what the replicas have
	read map[int64]valueID // what was read at an offset, by whoever came first
	sent map[valueID]*sends
	at   map[valueID][]int64 // offsets at which a value is in the log or was read
}

func (c *partitionCheck) run() {
	c.checkRecords()
	c.checkReplicas()
	c.gatherSends()
	c.checkReaders()
	c.checkReadsAgainstLog()
	c.checkAcks()
	c.checkUnread()
	c.checkSightings()
	c.checkOrder()
}

// checkRecords finds what no cluster can be the cause of.
func (c *partitionCheck) checkRecords() {
	for i := range c.p.appends {
		a := &c.p.appends[i]
		switch {
		case a.outcome > Unknown:
			c.fail(BadRecord, "%s has outcome %d, which is none", c.attempt(a), a.outcome)
		case a.ended < a.began:
			c.fail(BadRecord, "%s ended before it began", c.attempt(a))
		}
	}
	for i, log := range c.p.finals {
		if slices.ContainsFunc(c.p.finals[:i], func(o replicaLog) bool { return o.replica == log.replica }) {
			c.fail(BadRecord, "replica %d has two final logs", log.replica)
		}
	}
	if len(c.p.finals) == 0 {
		c.fail(NoFinalLog, "%d appends and %d reads are checked only against each other", len(c.p.appends), c.p.reads)
	}
}

// checkAttemptsOnce finds attempts that were recorded twice, which would pass for two.
func checkAttemptsOnce(partitions map[int32]*partition, found findings) {
	type name struct{ producer, attempt int }
	var names []name
	for _, p := range partitions {
		for _, a := range p.appends {
			names = append(names, name{a.producer, a.number})
		}
	}
	slices.SortFunc(names, func(a, b name) int {
		return cmp.Or(cmp.Compare(a.producer, b.producer), cmp.Compare(a.attempt, b.attempt))
	})
	for i := 1; i < len(names); i++ {
		if names[i] == names[i-1] {
			found.add(BadRecord, 1, "attempt %d of producer %d was recorded twice", names[i].attempt, names[i].producer)
		}
	}
}

func (c *partitionCheck) fail(check, format string, args ...any) {
	c.failMany(check, 1, format, args...)
}

// failMany adds n findings of a check, with one text for them.
func (c *partitionCheck) failMany(check string, n int, format string, args ...any) {
	c.found.add(check, n, "partition %d: %s", c.id, fmt.Sprintf(format, args...))
}

// attempt names an attempt such that it can be found in the harness's own log.
func (c *partitionCheck) attempt(a *attempt) string {
	return fmt.Sprintf("%s (producer %d, attempt %d, %s, from %v to %v)", c.values.text(a.value), a.producer, a.number, a.outcome, short(a.began), short(a.ended))
}

func short(d time.Duration) time.Duration { return d.Round(time.Microsecond) }
