package meter

import (
	"cmp"
	"slices"
	"time"
)

// Round is what one round of a workload showed.
type Round struct {
	Records int64         `json:"records"` // appended and acknowledged in the time measured
	Bytes   int64         `json:"bytes"`   // of their values
	Elapsed time.Duration `json:"elapsed_ns"`
	Latency Percentiles   `json:"latency"`
	CPU     time.Duration `json:"cpu_ns"`     // of the whole process
	Disk    int64         `json:"disk_bytes"` // as the kernel counts them, over all replicas
	Written int64         `json:"file_bytes"` // written to files, over all replicas
	Syncs   int64         `json:"syncs"`      // over all replicas
	Checked int64         `json:"read_back"`  // records that were read back and compared, warm-up included
}

// RecordRate is records per second.
func (r Round) RecordRate() float64 { return perSecond(r.Records, r.Elapsed) }

// MBRate is megabytes (10^6) of values per second.
func (r Round) MBRate() float64 { return perSecond(r.Bytes, r.Elapsed) / 1e6 }

func perSecond(n int64, d time.Duration) float64 {
	if d <= 0 {
		return 0
	}
	return float64(n) / d.Seconds()
}

// PerByte is n per byte appended, or Unknown.
func (r Round) PerByte(n int64) float64 {
	if n < 0 || r.Bytes == 0 {
		return Unknown
	}
	return float64(n) / float64(r.Bytes)
}

// Median returns the middle one of the values, the lower of the middle two of an even
// number, the zero value of none.
func Median[T cmp.Ordered](values []T) T {
	var zero T
	if len(values) == 0 {
		return zero
	}
	sorted := slices.Clone(values)
	slices.Sort(sorted)
	return sorted[(len(sorted)-1)/2]
}

// MedianBy is the median of what of returns for each round.
func MedianBy[T cmp.Ordered](rounds []Round, of func(Round) T) T {
	values := make([]T, len(rounds))
	for i, r := range rounds {
		values[i] = of(r)
	}
	return Median(values)
}
