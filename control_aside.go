package tidemark

import (
	"context"
	"time"

	"github.com/tidemark-log/tidemark/coordination"
)

// release gives up the Controller's key while this broker stands aside (D18), as
// often as it takes.
func (c *controlLoop) release() {
	claim, held := c.claim()
	if !held || claim.Broker != c.b.cfg.ID {
		return
	}
	c.standAt = min(c.standAt, c.b.now()+c.b.cfg.SessionTimeout/10)
	stale := c.registry.controller
	c.call(func(ctx context.Context) func(time.Duration) {
		_, err := c.b.cfg.Coordination.Do(ctx, withoutKey(stale))
		if err != nil {
			c.b.log.Warn("could not give up the controller's key", "broker", c.b.cfg.ID, "error", err)
		}
		return nil
	})
}

// withoutKey deletes a key at its revision.
func withoutKey(kv coordination.KV) coordination.Txn {
	return coordination.Txn{
		Guards: []coordination.Guard{{Key: kv.Key, Revision: kv.Revision}},
		Ops:    []coordination.Op{{Key: kv.Key, Delete: true}},
	}
}
