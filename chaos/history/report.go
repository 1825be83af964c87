package history

import (
	"fmt"
	"slices"
	"strings"
)

// maxExamples is how many examples of a finding a report has.
const maxExamples = 20

// Names of the checks.
const (
	LostWrite        = "lost write"          // an acked value is nowhere in the final log
	AckBeyondEnd     = "ack beyond the end"  // and its offset is not in the log either
	UnreadWrite      = "unread write"        // nobody read an acked value, though somebody read what is behind it
	VanishedRead     = "vanished read"       // what was read is at an offset that the final log does not have
	Duplicate        = "duplicate"           // a value is at more offsets than it had attempts that were not refused
	ProducerOrder    = "producer order"      // a producer sent a value after another was acked, and it is before that
	RealTimeOrder    = "real-time order"     // likewise with another producer's, or with what somebody had read
	NonmonotonicRead = "nonmonotonic read"   // a reader's offsets fell, or one came again
	SkippedRead      = "skipped read"        // a reader left offsets out
	Inconsistent     = "inconsistent offset" // acks, readers and logs do not agree on what is at an offset
	ReplicasDiffer   = "replicas differ"     // in a value, a checksum, an epoch, or their length
	LogGap           = "gap in the log"      // a replica's offsets are not 0, 1, 2, and so on
	EpochFell        = "epoch fell"          // a record's epoch is lower than that of the record before it
	AbortedRead      = "aborted read"        // a value of which all attempts were refused is in the log, or was read
	NeverSent        = "never sent"          // a value that nobody had sent is in the log, or was read
	BadRecord        = "bad record"          // the history contradicts itself: the fault is the harness's
	NoFinalLog       = "no final log"        // so that most checks of this partition could not be made
)

// Groups of checks; the names of Report's sums.
const (
	groupLost       = "lost"
	groupDuplicated = "duplicated"
	groupReordered  = "reordered"
	groupDiverged   = "diverged"
	groupAborted    = "aborted"
	groupInvalid    = "invalid"
)

// checks says in which order findings are reported, and to which sum they count.
var checks = []struct{ name, group string }{
	{LostWrite, groupLost}, {AckBeyondEnd, groupLost}, {UnreadWrite, groupLost}, {VanishedRead, groupLost},
	{Duplicate, groupDuplicated},
	{ProducerOrder, groupReordered}, {RealTimeOrder, groupReordered}, {NonmonotonicRead, groupReordered}, {SkippedRead, groupReordered},
	{Inconsistent, groupDiverged}, {ReplicasDiffer, groupDiverged}, {LogGap, groupDiverged}, {EpochFell, groupDiverged},
	{AbortedRead, groupAborted}, {NeverSent, groupAborted},
	{BadRecord, groupInvalid}, {NoFinalLog, groupInvalid},
}

// Report is what Check found.
type Report struct {
	Partitions int `json:"partitions"`
	Acked      int `json:"acked"`   // attempts, as are the next two
	Refused    int `json:"refused"` //
	Unknown    int `json:"unknown"` //
	Reads      int `json:"reads"`
	Records    int `json:"records"` // of all replicas' logs

	// Sums of the findings below, each of which counts to one of them.
	Lost       int `json:"lost"`       // lost and unread writes, acks beyond the end, vanished reads
	Duplicated int `json:"duplicated"` //
	Reordered  int `json:"reordered"`  // order of producers, in real time, of reads, and skipped ones
	Diverged   int `json:"diverged"`   // inconsistent offsets, replicas, gaps, epochs
	Aborted    int `json:"aborted"`    // values that were refused or never sent
	Invalid    int `json:"invalid"`    // the history is of no use: not a fault of the cluster

	Findings []Finding `json:"findings,omitempty"`
}

// Finding is what one check found.
type Finding struct {
	Check    string   `json:"check"` // one of the names above
	Count    int      `json:"count"`
	Examples []string `json:"examples"` // the first 20, in order of partition
}

// OK reports whether nothing was found.
func (r Report) OK() bool { return len(r.Findings) == 0 }

// Count returns how often a check found something.
func (r Report) Count(check string) int {
	i := slices.IndexFunc(r.Findings, func(f Finding) bool { return f.Check == check })
	if i < 0 {
		return 0
	}
	return r.Findings[i].Count
}

// String tells everything, a line for each example.
func (r Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d partitions, appends: %d acked, %d refused, %d unknown; %d reads; %d records in logs\n",
		r.Partitions, r.Acked, r.Refused, r.Unknown, r.Reads, r.Records)
	if r.OK() {
		b.WriteString("nothing found\n")
	}
	for _, f := range r.Findings {
		fmt.Fprintf(&b, "%s: %d\n", f.Check, f.Count)
		for _, e := range f.Examples {
			fmt.Fprintf(&b, "  %s\n", e)
		}
		if more := f.Count - len(f.Examples); more > 0 {
			fmt.Fprintf(&b, "  and %d more\n", more)
		}
	}
	return b.String()
}

// findings gathers what the checks find.
type findings map[string]*Finding

func (f findings) add(check string, n int, format string, args ...any) {
	found := f[check]
	if found == nil {
		found = &Finding{Check: check}
		f[check] = found
	}
	found.Count += n
	if len(found.Examples) < maxExamples {
		found.Examples = append(found.Examples, fmt.Sprintf(format, args...))
	}
}

// into puts the findings into a report, and counts them.
func (f findings) into(r *Report) {
	sums := map[string]*int{
		groupLost: &r.Lost, groupDuplicated: &r.Duplicated, groupReordered: &r.Reordered,
		groupDiverged: &r.Diverged, groupAborted: &r.Aborted, groupInvalid: &r.Invalid,
	}
	for _, c := range checks {
		if found := f[c.name]; found != nil {
			r.Findings = append(r.Findings, *found)
			*sums[c.group] += found.Count
		}
	}
}
