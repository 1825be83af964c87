// Package pause waits.
package pause

import (
	"context"
	"time"
)

// For waits for d; less if ctx ends, and then returns why.
func For(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Shortly waits before something is looked at again.
func Shortly(ctx context.Context) error { return For(ctx, 5*time.Millisecond) }
