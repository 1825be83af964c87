package tidemark

import (
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/coordination/memory"
	"github.com/tidemark-log/tidemark/storage/memstore"
	"github.com/tidemark-log/tidemark/transport"
	"github.com/tidemark-log/tidemark/transport/inproc"
)

func goodConfig(t *testing.T) Config {
	store, err := memstore.NewDisk(memstore.Manual()).Open()
	require.NoError(t, err)
	return Config{ID: 1, Store: store, Coordination: memory.New(memory.Options{Manual: true}).Connect()}
}

func TestConfigDefaults(t *testing.T) {
	c := goodConfig(t)
	require.NoError(t, c.Validate())
	d := c.withDefaults()
	require.Equal(t, 9*time.Second, d.SessionTimeout)
	require.Equal(t, 10*time.Second, d.MaxLag)
	require.Equal(t, 200*time.Millisecond, d.JoinWindow)
	require.Equal(t, 4500*time.Millisecond, d.StoreStallLimit)
	require.Equal(t, 2*time.Second, d.ProposalTimeout)
	require.Equal(t, 1<<20, d.MaxRecordBytes)
	require.Equal(t, 1<<20, d.MaxBatchBytes)
	require.Equal(t, int64(64<<20), d.MaxUncommittedBytes)
	require.Equal(t, int64(512<<20), d.MemoryBudget)
	require.Equal(t, min(runtime.GOMAXPROCS(0), 8), d.Loops)
	require.NotNil(t, d.Logger)
	require.Equal(t, Config{ID: 1, Store: c.Store, Coordination: c.Coordination}, c, "the configuration itself was changed")

	short := Config{SessionTimeout: time.Second, MaxLag: 200 * time.Millisecond}.withDefaults()
	require.Equal(t, 2*time.Second, short.StoreStallLimit, "never under 2 s (D16)")
	require.Equal(t, 100*time.Millisecond, short.JoinWindow, "never above MaxLag/2")
}

func TestConfigFaults(t *testing.T) {
	spoils := map[string]func(*Config){
		"ID must":                  func(c *Config) { c.ID = -1 },
		"Store is required":        func(c *Config) { c.Store = nil },
		"Coordination is required": func(c *Config) { c.Coordination = nil },
		"SessionTimeout must":      func(c *Config) { c.SessionTimeout = 99 * time.Millisecond },
		"MaxLag must":              func(c *Config) { c.MaxLag = -time.Second },
		"JoinWindow must":          func(c *Config) { c.JoinWindow = time.Hour },
		"StoreStallLimit must":     func(c *Config) { c.StoreStallLimit = time.Second },
		"ProposalTimeout must":     func(c *Config) { c.ProposalTimeout = time.Millisecond },
		"MaxRecordBytes must":      func(c *Config) { c.MaxRecordBytes = -1 },
		"MaxBatchBytes must":       func(c *Config) { c.MaxBatchBytes = 2 << 30 },
		"MaxUncommittedBytes must": func(c *Config) { c.MaxUncommittedBytes = 1 << 10 },
		"MemoryBudget must":        func(c *Config) { c.MemoryBudget = 5 },
		"Loops must":               func(c *Config) { c.Loops = -1 },
		"Transport must": func(c *Config) {
			c.Transport = inproc.New(inproc.Options{MaxMessageBytes: 1 << 10}).Transport(1)
		},
	}
	for what, spoil := range spoils {
		t.Run(what, func(t *testing.T) {
			c := goodConfig(t)
			spoil(&c)
			before := c
			err := c.Validate()
			require.ErrorIs(t, err, ErrInvalidConfig)
			require.ErrorContains(t, err, what)
			require.Equal(t, before, c)
			_, openErr := Open(t.Context(), c)
			require.ErrorIs(t, openErr, ErrInvalidConfig)
			if what != "MaxBatchBytes must" && what != "MaxLag must" { // other bounds follow from these
				require.Equal(t, 1, strings.Count(err.Error(), "must")+strings.Count(err.Error(), "required"), err.Error())
			}
		})
	}
	t.Run("all at once", func(t *testing.T) {
		c := goodConfig(t)
		for what, spoil := range spoils {
			if what != "MaxLag must" { // JoinWindow's bound follows from it
				spoil(&c)
			}
		}
		before := c
		err := c.Validate()
		for what := range spoils {
			if what != "MaxLag must" {
				require.ErrorContains(t, err, what)
			}
		}
		require.Equal(t, before, c)
	})
	t.Run("bounds that hold", func(t *testing.T) {
		c := goodConfig(t)
		c.SessionTimeout, c.MaxLag, c.StoreStallLimit, c.Loops = 100*time.Millisecond, 100*time.Millisecond, 2*time.Second, 256
		c.MaxRecordBytes, c.MaxBatchBytes = 10, 1
		require.NoError(t, c.Validate())
		require.GreaterOrEqual(t, c.largestBatch(), 10, "one record of MaxRecordBytes always fits")
	})
}

// busyTransport refuses to start.
type busyTransport struct{ transport.Transport }

var errBusyAddress = errors.New("address is in use")

func (busyTransport) MaxMessageBytes() int          { return 4 << 20 }
func (busyTransport) Start(transport.Handler) error { return errBusyAddress }
func (busyTransport) Close() error                  { return nil }

func TestOpenFailsWithItsTransport(t *testing.T) {
	c := goodConfig(t)
	c.Transport = busyTransport{}
	_, err := Open(t.Context(), c)
	require.ErrorIs(t, err, errBusyAddress)
}

// A directory that belongs to another broker is refused before anything starts.
func TestOpenRefusesAnotherBrokersDirectory(t *testing.T) {
	c := goodConfig(t)
	node := c.Store.Node()
	node.Cluster[0], node.BrokerID, node.BrokerEpoch = 1, 7, 3
	require.NoError(t, c.Store.SetNode(node))
	_, err := Open(t.Context(), c)
	require.ErrorIs(t, err, ErrWrongCluster)
}
