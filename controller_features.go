package tidemark

import (
	"context"
	"fmt"
	"math"

	"github.com/tidemark-log/tidemark/protocol"
)

// Features are the feature levels of a cluster. What brokers of different versions
// say to each other, and write to their disks, is bound by the level in force; it
// is raised when every broker runs a version that supports the next one.
type Features struct {
	Level int // in force
	// Min and Max are what every registered broker supports. Max above Level: RaiseLevel
	// would succeed.
	Min, Max int
}

// Features returns the feature levels as a broker at hand knows them. It waits
// until that broker is registered.
func (c *Controller) Features(ctx context.Context) (Features, error) {
	ctx = given(ctx)
	var l levelView
	err := c.until(ctx, func(v *view) (bool, <-chan struct{}) {
		var changed <-chan struct{}
		l, changed = v.featureLevels()
		return l.known, changed
	})
	if err == nil {
		err = l.err
	}
	if err != nil {
		return Features{}, err
	}
	return Features{Level: int(l.inForce), Min: int(l.supported.min), Max: int(l.supported.max)}, nil
}

// RaiseLevel raises the feature level of the cluster, for good: a broker that does
// not support it cannot register any more. ErrUnsupportedLevel says which registered
// broker does not support the level, or that a higher one is in force; levels only
// rise. When the context ends first, the level may or may not be raised, now or later.
func (c *Controller) RaiseLevel(ctx context.Context, level int) error {
	ctx = given(ctx)
	if level < 1 || level > math.MaxInt32 {
		return fmt.Errorf("%w: %d", ErrUnsupportedLevel, level)
	}
	a, err := c.command(ctx, protocol.Command{Kind: protocol.RaiseLevel, Level: int32(level)})
	switch {
	case err != nil:
		return err
	case a.Code != protocol.OK:
		return answerError(&a)
	}
	return c.shown(ctx, func(v *view) (bool, <-chan struct{}) {
		l, changed := v.featureLevels()
		return l.inForce >= int32(level), changed
	})
}
