package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/local"
)

// TestService asks the service as the README does with curl, before a cluster that is
// all in this process.
func TestService(t *testing.T) {
	cluster, err := local.Open(t.Context(), t.TempDir(), local.Options{Brokers: brokers})
	require.NoError(t, err)
	defer cluster.Close()
	server := httptest.NewServer((&service{cluster.Broker(2)}).handler())
	defer server.Close()
	defer server.Client().CloseIdleConnections()
	ask := func(method, path, body string) string {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, server.URL+path, strings.NewReader(body))
		require.NoError(t, err)
		resp, err := server.Client().Do(req)
		require.NoError(t, err)
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return fmt.Sprint(resp.StatusCode, " ", strings.TrimSpace(string(b)))
	}

	require.Equal(t, `404 tidemark: append to lines/0: unknown topic: "lines" (records: not appended)`, ask("POST", "/lines/0", "x"))
	require.Contains(t, ask("GET", "/lines/0", ""), "404 ")
	require.Contains(t, ask("PUT", "/lines?partitions=x", ""), "400 ")
	require.Contains(t, ask("PUT", "/lines?partitions=-1", ""), "400 ")
	require.Equal(t, "200 ", ask("PUT", "/lines?partitions=2", ""))
	require.Equal(t, "200 ", ask("PUT", "/lines?partitions=2", ""))
	require.Contains(t, ask("PUT", "/lines?partitions=5", ""), "409 ")
	require.Contains(t, ask("POST", "/lines/2", "x"), "404 ")
	require.Contains(t, ask("POST", "/lines/x", "x"), "400 ")

	require.Equal(t, "200 ", ask("GET", "/lines/1", ""))
	require.Contains(t, ask("POST", "/lines/1", "door opened"), `200 {"offset":0,"epoch":`)
	require.Contains(t, ask("POST", "/lines/1", "door closed"), `200 {"offset":1,"epoch":`)
	require.Regexp(t, `^200 {"offset":0,"epoch":\d+,"value":"door opened"}\n{"offset":1,"epoch":\d+,"value":"door closed"}$`, ask("GET", "/lines/1", ""))
	require.Regexp(t, `^200 {"offset":1,"epoch":\d+,"value":"door closed"}$`, ask("GET", "/lines/1?offset=1", ""))
	require.Equal(t, "200 ", ask("GET", "/lines/1?offset=2", ""))
	require.Contains(t, ask("GET", "/lines/1?offset=3", ""), "416 ")
	require.Contains(t, ask("GET", "/lines/1?offset=x", ""), "400 ")
	require.Contains(t, ask("GET", "/lines/1?offset=-1", ""), "400 ")
	require.Contains(t, ask("POST", "/lines/1", string(bytes.Repeat([]byte("x"), maxRecord+1))), "413 ")

	waiting := make(chan string, 1)
	go func() { waiting <- ask("GET", "/lines/1?offset=2&wait=1", "") }()
	require.Contains(t, ask("POST", "/lines/1", "third"), `200 {"offset":2,`)
	require.Contains(t, <-waiting, `"value":"third"}`)

	require.Regexp(t, `^200 {"leader":[123],"epoch":\d+,"isr":\[\d,\d,\d\],"high_watermark":3,"log_end":3}$`, ask("GET", "/lines/1/status", ""))
	require.Regexp(t, `^200 {"leader":[123],`, ask("GET", "/lines/0/status", ""))
	require.Eventually(t, func() bool {
		return strings.Contains(ask("GET", "/lines/1/replica", ""), `"high_watermark":3,"log_end":3,"stored_end":3,"sha256":"`)
	}, 10*time.Second, 10*time.Millisecond)
	require.Contains(t, ask("GET", "/lines/7/replica", ""), "404 ")
}
