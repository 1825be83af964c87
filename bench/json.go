package main

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"time"

	"github.com/tidemark-log/tidemark/bench/meter"
	"github.com/tidemark-log/tidemark/bench/scale"
)

// report is what -json writes.
type report struct {
	Machine   string                              `json:"machine"`
	Time      time.Time                           `json:"time"`
	Rounds    map[string]map[string][]meter.Round `json:"rounds"` // by workload and peer
	Verdicts  map[string][]verdict                `json:"verdicts"`
	Disturbed map[string][]string                 `json:"disturbed"`
	Large     []scale.Result                      `json:"large,omitempty"`
}

func newReport(all results, ran []workload, large []scale.Result) report {
	r := report{
		Machine: fmt.Sprintf("%s/%s, %d processors, %s", runtime.GOOS, runtime.GOARCH, runtime.GOMAXPROCS(0), runtime.Version()),
		Time:    time.Now().UTC(), Rounds: all, Large: large,
		Verdicts: make(map[string][]verdict), Disturbed: make(map[string][]string),
	}
	for i := range ran {
		w := &ran[i]
		r.Verdicts[w.name] = all.judge(w)
		for _, name := range others {
			if all.disturbed(w, name) {
				r.Disturbed[w.name] = append(r.Disturbed[w.name], name)
			}
		}
	}
	return r
}

func write(file string, r report) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	if err := os.WriteFile(file, append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	return nil
}
