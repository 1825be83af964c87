package transporttest

import (
	"sync"
	"time"
)

// limit is when something that must happen has not happened.
func (e *env) limit() <-chan time.Time { return time.After(e.c.Limit) }

// quiet is long enough for most of what must not happen to have happened. A
// transport that behaves well passes whatever its length.
func (e *env) quiet() <-chan time.Time { return time.After(50 * time.Millisecond) }

// retry is how long something may take until it is tried once more. It grows.
const retry = 20 * time.Millisecond

// repeat calls attempt until it succeeds or the limit is reached. What an attempt
// waits for, it waits for until pause.
func (e *env) repeat(attempt func(pause <-chan time.Time) bool) bool {
	start := time.Now()
	for wait := retry; time.Since(start) < e.c.Limit; wait = min(2*wait, 10*retry) {
		if attempt(time.After(wait)) {
			return true
		}
	}
	return false
}

// pause lets others work before another attempt.
func pause() { <-time.After(time.Millisecond) }

// gate stops whoever comes until it is opened.
type gate struct {
	once sync.Once
	c    chan struct{}
}

func newGate() *gate { return &gate{c: make(chan struct{})} }

func (g *gate) wait() { <-g.c }

func (g *gate) open() { g.once.Do(func() { close(g.c) }) }

// parallel runs f n times at once.
func parallel(n int, f func(i int)) {
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { f(i) })
	}
	all.Wait()
}
