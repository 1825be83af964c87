package main

import (
	"fmt"
	"time"

	"github.com/tidemark-log/tidemark/chaos/history"
	"github.com/tidemark-log/tidemark/chaos/internal/nemesis"
)

// summary is the result of a run.
type summary struct {
	OK           bool    `json:"ok"`
	Seed         uint64  `json:"seed"`
	Coordination string  `json:"coordination"`
	Brokers      int     `json:"brokers"`
	Partitions   int     `json:"partitions"`
	TLS          bool    `json:"tls"`
	Seconds      float64 `json:"seconds"` // of load, faults included

	Acked   int   `json:"acked"`   // appends
	Failed  int   `json:"failed"`  // attempts that were refused: not in the log
	Unknown int   `json:"unknown"` // attempts of which nobody knew
	Reads   int64 `json:"reads"`   // records that readers got

	// What may not be; package history says what counts to which.
	Lost       int `json:"lost"`
	Duplicated int `json:"duplicated"`
	Reordered  int `json:"reordered"`
	Diverged   int `json:"diverged"`
	Aborted    int `json:"aborted"` // refused, and yet in the log

	Faults map[string]int `json:"faults"` // by kind
	// By kind, for two at once by both, for more "several": the longest time that a partition
	// acknowledged nothing, and of that what came after the end of the fault.
	UnavailableMs    map[string]int64 `json:"unavailable_ms"`
	RecoveryMs       map[string]int64 `json:"recovery_ms"`
	ResyncMs         int64            `json:"resync_ms"` // from the end of a fault until all replicas were in sync, at most
	BoundMs          int64            `json:"bound_ms"`  // session timeout, max lag and 5 s
	SessionTimeoutMs int64            `json:"session_timeout_ms"`
	MaxLagMs         int64            `json:"max_lag_ms"`

	InFlightAtResume int64 `json:"in_flight_at_resume"` // appends at processes that stood still, when they went on
	AckedAfterResume int64 `json:"acked_after_resume"`  // of these
	Restarts         int   `json:"restarts"`            // processes of brokers that ended before the end

	Late       []string `json:"late,omitempty"`       // what took longer than the bound
	Complaints []string `json:"complaints,omitempty"` // anything else that may not be
	Error      string   `json:"error,omitempty"`      // of the harness
	checkedAll bool
	planned    bool // no fault, or only graceful restarts: nobody may be left in doubt
}

func newSummary(o options) summary {
	return summary{
		Seed: o.seed, Coordination: o.coordination, Brokers: o.brokers, Partitions: o.partitions, TLS: o.tls,
		planned: len(o.only) == 1 && (o.only[0] == nemesis.None || o.only[0] == nemesis.Rolling),
		Faults:  map[string]int{}, UnavailableMs: map[string]int64{}, RecoveryMs: map[string]int64{},
		BoundMs: o.bound().Milliseconds(), SessionTimeoutMs: o.sessionTimeout.Milliseconds(), MaxLagMs: o.maxLag.Milliseconds(),
	}
}

// faults takes what the nemesis tells.
func (s *summary) faults(r nemesis.Report) {
	ms := func(to map[string]int64, from map[string]time.Duration) {
		for kind, d := range from {
			to[kind] = d.Milliseconds()
		}
	}
	s.Faults = r.Faults
	ms(s.UnavailableMs, r.Unavailable)
	ms(s.RecoveryMs, r.Recovery)
	s.ResyncMs, s.InFlightAtResume = r.Resync.Milliseconds(), r.InFlight
	s.Late = append(s.Late, r.Late...)
}

// checked takes what the checker tells.
func (s *summary) checked(r history.Report) {
	s.Acked, s.Failed, s.Unknown = r.Acked, r.Refused, r.Unknown
	s.Lost, s.Duplicated, s.Reordered, s.Diverged, s.Aborted = r.Lost, r.Duplicated, r.Reordered, r.Diverged, r.Aborted
	if r.Invalid > 0 {
		s.Complaints = append(s.Complaints, "the history contradicts itself: see the report")
	}
	if s.planned && s.Unknown > 0 {
		s.Complaints = append(s.Complaints, fmt.Sprintf("%d appends ended as unknown, though nothing failed", s.Unknown))
	}
	s.checkedAll = true
	s.OK = s.good()
}

// good reports whether everything held.
func (s *summary) good() bool {
	return s.checkedAll && s.Error == "" && s.Acked > 0 && s.Lost+s.Duplicated+s.Reordered+s.Diverged+s.Aborted == 0 &&
		len(s.Late) == 0 && len(s.Complaints) == 0
}
