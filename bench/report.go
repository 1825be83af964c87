package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/tidemark-log/tidemark/bench/meter"
)

// results are the rounds by workload and peer.
type results map[string]map[string][]meter.Round

// median is a figure of a peer at a workload; false when that did not run.
func (r results) median(workload, peer string, f figure) (float64, bool) {
	rounds := r[workload][peer]
	return meter.MedianBy(rounds, f.of), len(rounds) > 0
}

// reference is what a bound of one of our peers is a multiple of, and whose that is.
func (r results) reference(w *workload, peer string, b bound) (value float64, whose string, ok bool) {
	if own, found := strings.CutPrefix(b.against, "own "); found {
		value, ok = r.median(own, peer, b.figure)
		return value, b.against, ok
	}
	candidates := []string{b.against}
	if b.against == bestPeer {
		candidates = logs
	}
	for _, name := range candidates {
		v, ran := r.median(w.name, name, b.figure)
		if ran && (!ok || (v < value) == b.figure.less) {
			value, whose, ok = v, name, true
		}
	}
	return value, whose, ok
}

// verdict says how far a bound is reached.
type verdict struct {
	Peer  string  `json:"peer"`
	Bound string  `json:"bound"`
	Is    float64 `json:"is"` // the ratio, or the figure where the bound is one
	Met   bool    `json:"met"`
	Note  string  `json:"note,omitempty"`
}

// judge compares our peers with a workload's bounds, as far as what they need has run.
func (r results) judge(w *workload) (all []verdict) {
	for _, peer := range ours {
		for _, b := range w.bounds {
			is, ran := r.median(w.name, peer, b.figure)
			if !ran {
				continue
			}
			v := verdict{Peer: peer, Bound: b.String()}
			if b.against != "" {
				value, whose, ok := r.reference(w, peer, b)
				if !ok || value == 0 {
					continue
				}
				is /= value
				if b.against == bestPeer {
					v.Note = whose
				}
				if r.disturbed(w, whose) {
					v.Note = strings.TrimSpace(whose + " disturbed")
				}
			}
			v.Is = is
			v.Met = is >= b.factor
			if b.figure.less {
				v.Met = is <= b.factor
			}
			all = append(all, v)
		}
	}
	return all
}

// disturbed reports whether a peer was slower than 0.8 times what is usual: then the
// run was disturbed, or this machine is another one, and its ratios mean little.
func (r results) disturbed(w *workload, peer string) bool {
	usual, known := w.usual[peer]
	if !known {
		return false
	}
	is, ran := r.median(w.name, peer, w.figure)
	if !ran {
		return false
	}
	if w.figure.less {
		return is*0.8 > usual
	}
	return is < usual*0.8
}

// print writes a workload's table and verdicts.
func (r results) print(out io.Writer, w *workload, names []string) error {
	fmt.Fprintf(out, "\n%s: %s\n", w.name, w.title)
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "\trecords/s\tMB/s\tp50\tp99\tp99.9\tmax\tCPU s\tCPU ns/B\tfiles B/B\tdisk B/B\tsyncs\tours ÷\t")
	base := slices.IndexFunc(ours, func(p string) bool { return len(r[w.name][p]) > 0 })
	for _, name := range names {
		rounds := r[w.name][name]
		if len(rounds) == 0 {
			continue
		}
		ratio := "-"
		if base >= 0 {
			own, _ := r.median(w.name, ours[base], records)
			if is, _ := r.median(w.name, name, records); is > 0 {
				ratio = fmt.Sprintf("%.2f", own/is)
			}
		}
		mark := ""
		if r.disturbed(w, name) {
			mark = " disturbed"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", name, row(rounds), ratio, mark)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, v := range r.judge(w) {
		met := "NOT MET"
		if v.Met {
			met = "met"
		}
		note := ""
		if v.Note != "" {
			note = " (" + v.Note + ")"
		}
		if _, err := fmt.Fprintf(out, "  %-7s %s: %s, is %.3g%s\n", met, v.Peer, v.Bound, v.Is, note); err != nil {
			return err
		}
	}
	return nil
}

// row is the medians of a peer's rounds.
func row(rounds []meter.Round) string {
	of := func(f func(meter.Round) float64) float64 { return meter.MedianBy(rounds, f) }
	ms := func(f func(meter.Percentiles) time.Duration) string {
		return fmt.Sprintf("%.2f", of(func(r meter.Round) float64 { return f(r.Latency).Seconds() * 1e3 }))
	}
	known := func(format string, v float64) string {
		if v < 0 {
			return "-"
		}
		return fmt.Sprintf(format, v)
	}
	return strings.Join([]string{
		fmt.Sprintf("%.0f", of(meter.Round.RecordRate)),
		fmt.Sprintf("%.1f", of(meter.Round.MBRate)),
		ms(func(p meter.Percentiles) time.Duration { return p.P50 }),
		ms(func(p meter.Percentiles) time.Duration { return p.P99 }),
		ms(func(p meter.Percentiles) time.Duration { return p.P999 }),
		ms(func(p meter.Percentiles) time.Duration { return p.Max }),
		fmt.Sprintf("%.2f", of(func(r meter.Round) float64 { return r.CPU.Seconds() })),
		fmt.Sprintf("%.1f", of(func(r meter.Round) float64 { return r.PerByte(int64(r.CPU)) })),
		known("%.2f", of(func(r meter.Round) float64 { return r.PerByte(r.Written) })),
		known("%.2f", of(func(r meter.Round) float64 { return r.PerByte(r.Disk) })),
		known("%.0f", of(func(r meter.Round) float64 { return float64(r.Syncs) })),
	}, "\t")
}
