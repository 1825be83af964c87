package tidemark

import "math/rand/v2"

// simChoices is where everything that a simulated world leaves open comes from.
// The same choices give the same run.
type simChoices interface {
	// intn returns a number in [0, n).
	intn(n int) int
	// spent reports that the source has nothing more to say: the run begins to heal.
	spent() bool
}

// seedChoices draws from a seed, without end.
type seedChoices struct{ rng *rand.Rand }

func newSeedChoices(seed uint64) *seedChoices { return &seedChoices{rand.New(rand.NewPCG(seed, 2))} }

func (c *seedChoices) intn(n int) int { return c.rng.IntN(n) }
func (c *seedChoices) spent() bool    { return false }

// tapeChoices reads from a tape of bytes, so that a fuzzer drives the run and
// shrinks the tape. A byte decides among up to 256 possibilities, two among more.
type tapeChoices struct{ tape []byte }

func (c *tapeChoices) next() int {
	if len(c.tape) == 0 {
		return 0
	}
	b := c.tape[0]
	c.tape = c.tape[1:]
	return int(b)
}

func (c *tapeChoices) intn(n int) int {
	switch {
	case n <= 1:
		return 0
	case n <= 256:
		return c.next() % n
	}
	return (c.next()<<8 | c.next()) % n
}

func (c *tapeChoices) spent() bool { return len(c.tape) == 0 }

// everyChoice goes through all combinations of choices, one run after the other,
// like an odometer whose wheels have as many digits as there were possibilities.
type everyChoice struct {
	wheels []wheel
	at     int
}

type wheel struct{ digit, of int }

func (c *everyChoice) intn(n int) int {
	if c.at == len(c.wheels) {
		c.wheels = append(c.wheels, wheel{of: n})
	}
	w := c.wheels[c.at]
	c.at++
	return w.digit
}

func (c *everyChoice) spent() bool { return false }

// next turns to the next combination; false when there is none.
func (c *everyChoice) next() bool {
	c.wheels, c.at = c.wheels[:c.at], 0
	for len(c.wheels) > 0 {
		last := &c.wheels[len(c.wheels)-1]
		if last.digit++; last.digit < last.of {
			return true
		}
		c.wheels = c.wheels[:len(c.wheels)-1]
	}
	return false
}
