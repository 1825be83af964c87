package etcd

import (
	"context"
	"time"

	"github.com/tidemark-log/tidemark/coordination"
)

// hedged calls f, which may safely be repeated, until it succeeds, ctx ends, or
// something other than the way to etcd is at fault. A call that has no answer after
// some time gets company, one for each endpoint: its connection may be dead, and what
// a member sends to a leader that is gone, in the time until it notices, is lost without
// a word.
func (s *Store) hedged(ctx context.Context, after time.Duration, f func(ctx context.Context) error) error {
	const pause = 20 * time.Millisecond
	ctx, cancel := context.WithCancel(ctx) // the others end with the first
	defer cancel()
	results := make(chan error, 1)
	call := func() bool {
		return s.start(func() {
			err := f(ctx)
			select {
			case results <- err:
			case <-ctx.Done():
			}
		})
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	next := 1
	for under := 0; ; {
		select {
		case <-timer.C:
			for range next {
				if !call() {
					return coordination.ErrClosed
				}
			}
			under += next
			next = min(len(s.c.Endpoints), 3)
			timer.Reset(jitter(after))
		case err := <-results:
			if !transient(err) {
				return err
			}
			if under--; under == 0 {
				timer.Reset(pause)
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
