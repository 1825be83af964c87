package main

import (
	"bytes"
	"encoding/json"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tidemark-log/tidemark/transport"
	"github.com/tidemark-log/tidemark/transport/transporttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestOverHTTP(t *testing.T) {
	transporttest.Run(t, transporttest.Config{New: func(t testing.TB) transporttest.Join {
		return func(id int32) (transport.Transport, transport.Peer) {
			mesh := newOverHTTP()
			server := httptest.NewServer(mesh)
			t.Cleanup(server.Close)
			return mesh, transport.Peer{ID: id, Address: server.URL}
		}
	}})
}

func TestCustomTransport(t *testing.T) {
	var stdout, stderr bytes.Buffer
	require.Zero(t, run(t.Context(), nil, &stdout, &stderr), stderr.String())
	var rep report
	require.NoError(t, json.Unmarshal(stdout.Bytes(), &rep))
	require.Equal(t, report{Acked: 300, InSync: brokers}, rep)
}

func TestBadInput(t *testing.T) {
	for _, args := range [][]string{{"x"}, {"-records", "2"}, {"-nothing"}} {
		var stdout, stderr bytes.Buffer
		require.Equal(t, 2, run(t.Context(), args, &stdout, &stderr))
		require.NotEmpty(t, stderr.String())
	}
}
