package scale

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// Result is what a workload showed.
type Result struct {
	Workload string        `json:"workload"`
	Scale    float64       `json:"scale"`
	Took     time.Duration `json:"took_ns"`
	Figures  []Figure      `json:"figures"`
	Points   []Point       `json:"points,omitempty"` // of growth
}

// Figure is one number, and the bound that it has to keep, if any.
type Figure struct {
	Name  string
	Value float64
	Unit  string
	Bound Bound
}

// Bound is what a Figure must reach, or must not exceed. The zero value is none.
type Bound struct {
	Kind  BoundKind
	Limit float64
}

// BoundKind says which side of the limit is good.
type BoundKind uint8

const (
	NoBound BoundKind = iota
	AtMost
	AtLeast
)

func atMost(limit float64) Bound  { return Bound{AtMost, limit} }
func atLeast(limit float64) Bound { return Bound{AtLeast, limit} }

// String is such as "<= 2.6".
func (b Bound) String() string {
	switch b.Kind {
	case AtMost:
		return fmt.Sprintf("<= %g", b.Limit)
	case AtLeast:
		return fmt.Sprintf(">= %g", b.Limit)
	}
	return ""
}

// Met reports whether the bound is kept; without one, it is.
func (f Figure) Met() bool {
	switch f.Bound.Kind {
	case AtMost:
		return f.Value <= f.Bound.Limit
	case AtLeast:
		return f.Value >= f.Bound.Limit
	}
	return true
}

// String is one line for people.
func (f Figure) String() string {
	s := fmt.Sprintf("%s: %.4g %s", f.Name, f.Value, f.Unit)
	switch {
	case f.Bound.Kind == NoBound:
		return s
	case f.Met():
		return s + " (" + f.Bound.String() + ", met)"
	}
	return s + " (" + f.Bound.String() + ", NOT MET)"
}

// MarshalJSON writes the bound as text, and whether it is met, where there is one.
func (f Figure) MarshalJSON() ([]byte, error) {
	out := struct {
		Name  string  `json:"name"`
		Value float64 `json:"value"`
		Unit  string  `json:"unit"`
		Bound string  `json:"bound,omitempty"`
		Met   *bool   `json:"met,omitempty"`
	}{Name: f.Name, Value: f.Value, Unit: f.Unit, Bound: f.Bound.String()}
	if f.Bound.Kind != NoBound {
		met := f.Met()
		out.Met = &met
	}
	return json.Marshal(out)
}

// Point is what was measured at one place of a plot.
type Point struct {
	Against string   `json:"against"` // what is on the x axis
	X       float64  `json:"x"`
	Figures []Figure `json:"figures"`
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// worst is the largest of several durations.
func worst(all []time.Duration) time.Duration {
	if len(all) == 0 {
		return 0
	}
	return slices.MaxFunc(all, cmp.Compare[time.Duration])
}
