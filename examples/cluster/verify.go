package main

import (
	"context"
	"fmt"
)

// summary is the result of the demo: that of the quickstart, and what more there is
// to say with processes.
type summary struct {
	Lines         int   `json:"lines"`
	Acked         int   `json:"acked"`          // lines acknowledged
	Read          int   `json:"read"`           // records read back
	Lost          int   `json:"lost"`           // lines that were acked and are not in the log
	Duplicated    int   `json:"duplicated"`     // records beyond the first one of their line
	OutOfOrder    int   `json:"out_of_order"`   // lines that first occur behind a later line of their partition
	ReplicasEqual bool  `json:"replicas_equal"` // all copies of every partition, byte for byte
	FailoverMs    int64 `json:"failover_ms"`    // from the SIGKILL to the next line of partition 0 under another leader
	RecoveryMs    int64 `json:"recovery_ms"`    // from the killed broker's start to its being in sync everywhere
	SessionMs     int64 `json:"session_timeout_ms"`
	ElapsedMs     int64 `json:"elapsed_ms"`
}

// good reports whether everything holds that the demo shows.
func (s summary) good() bool {
	return s.Acked == s.Lines && s.Lost == 0 && s.OutOfOrder == 0 && s.ReplicasEqual &&
		s.FailoverMs > 0 && s.FailoverMs <= s.SessionMs+1000
}

// verify reads everything back by way of one broker, and compares the copies of all.
func (d *show) verify(ctx context.Context, sum *summary) error {
	sum.ReplicasEqual = true
	for n := range partitions {
		values, err := d.clients[0].readAll(ctx, n)
		if err != nil {
			return fmt.Errorf("partition %d: %w", n, err)
		}
		sum.count(d.writers.lines[n][:d.writers.acked[n]], values)
		equal, err := d.compareReplicas(ctx, n)
		if err != nil {
			return fmt.Errorf("partition %d: %w", n, err)
		}
		sum.ReplicasEqual = sum.ReplicasEqual && equal
	}
	return nil
}

// count compares what was read of a partition with what was acknowledged.
func (s *summary) count(acked, values []string) {
	number := make(map[string]int, len(acked))
	for i, text := range acked {
		number[text] = i
	}
	seen, latest := make([]bool, len(acked)), -1
	for _, text := range values {
		i, ok := number[text]
		switch {
		case !ok:
			continue // it was not acknowledged
		case seen[i]:
			s.Duplicated++
			continue
		case i < latest:
			s.OutOfOrder++
		}
		seen[i], latest = true, max(latest, i)
	}
	for _, ok := range seen {
		if !ok {
			s.Lost++
		}
	}
	s.Acked += len(acked)
	s.Read += len(values)
}

func (d *show) compareReplicas(ctx context.Context, n int) (bool, error) {
	var first replicaStatus
	for i, c := range d.clients {
		r, err := c.replica(ctx, n)
		if err != nil {
			return false, err
		}
		if i == 0 {
			first = r
		}
		if r.LogEnd != first.LogEnd || r.SHA256 != first.SHA256 {
			d.say("partition %d: brokers %d and %d DIFFER: %+v, %+v", n, d.clients[0].id, c.id, first, r)
			return false, nil
		}
	}
	d.say("  partition %d: %d records, on all three brokers with SHA-256 %.16s...", n, first.LogEnd, first.SHA256)
	return true, nil
}
