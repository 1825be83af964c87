package tcp

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/internal/devcert"
	"github.com/tidemark-log/tidemark/transport"
	"github.com/tidemark-log/tidemark/transport/transporttest"
)

func TestConformancePlain(t *testing.T) {
	transporttest.Run(t, transporttest.Config{Ordered: true, New: func(t testing.TB) transporttest.Join {
		return func(id int32) (transport.Transport, transport.Peer) {
			tr, err := New(Config{ID: id, Cluster: "c", Listen: "127.0.0.1:0", Plaintext: true})
			require.NoError(t, err)
			return tr, transport.Peer{ID: id, Address: tr.Addr().String()}
		}
	}})
}

func TestConformanceTLS(t *testing.T) {
	transporttest.Run(t, transporttest.Config{Ordered: true, New: func(t testing.TB) transporttest.Join {
		ca, err := devcert.NewAuthority("c")
		require.NoError(t, err)
		return func(id int32) (transport.Transport, transport.Peer) {
			c, err := ca.Config(id)
			require.NoError(t, err)
			tr, err := New(Config{ID: id, Cluster: "c", Listen: "127.0.0.1:0", TLS: c})
			require.NoError(t, err)
			return tr, transport.Peer{ID: id, Address: tr.Addr().String()}
		}
	}})
}
