package tidemark

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// DeleteTopic returns once the deletion is recorded, also when the first broker of
// the client does not hear from the Controller.
func TestDeleteTopicBesideABrokerThatHearsNothing(t *testing.T) {
	attack(t, 3, nil, func(t *testing.T, r *attackRig) {
		r.create("t", 1)
		if r.controllerID() == 1 {
			r.kill(1, 0)
			r.until("another", func() bool { s, err := r.client.Controller().Status(); return err == nil && s.Broker > 1 })
			r.start(1)
			r.healthy("t", 1)
		}
		r.net.hosts.Lock()
		delete(r.net.at, 1) // what is sent to it is lost
		r.net.hosts.Unlock()
		pause(3 * time.Second)
		began := time.Now()
		err := r.client.Controller().DeleteTopic(r.within(time.Minute), "t")
		require.Empty(t, r.storeKeys(topicKey("t")+"/"), "it is recorded")
		require.NoError(t, err)
		require.LessOrEqual(t, time.Since(began), 10*time.Second)
	})
}
