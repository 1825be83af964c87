package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestDemo(t *testing.T) {
	defer goleak.VerifyNone(t)
	var stdout, stderr bytes.Buffer
	require.Zero(t, run(t.Context(), []string{"-demo", "-dir", t.TempDir()}, &stdout, &stderr), stderr.String())
	var rep report
	require.NoError(t, json.Unmarshal(stdout.Bytes(), &rep))
	require.Equal(t, clients*eachWrite, rep.Found)
	require.Zero(t, rep.Lost)
}

func TestBadInput(t *testing.T) {
	for _, args := range [][]string{{}, {"-demo", "x"}, {"-nothing"}} {
		var stdout, stderr bytes.Buffer
		require.Equal(t, 2, run(t.Context(), args, &stdout, &stderr))
		require.NotEmpty(t, stderr.String())
	}
}

// The service answers what it should, and a reader that waits for more does not
// hold the shutdown up.
func TestService(t *testing.T) {
	defer goleak.VerifyNone(t)
	ctx, cancel := context.WithCancel(t.Context())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	url := fmt.Sprintf("http://%s", listener.Addr())
	served := make(chan error, 1)
	go func() { served <- serve(ctx, t.TempDir(), listener, slog.New(slog.DiscardHandler)) }()
	client := &http.Client{}
	defer client.CloseIdleConnections()

	body := func(resp *http.Response, err error) string {
		t.Helper()
		require.NoError(t, err)
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return fmt.Sprint(resp.StatusCode, " ", strings.TrimSpace(string(b)))
	}
	require.Equal(t, `200 {"offset":0}`, body(client.Post(url+"/events", "text/plain", strings.NewReader("door opened"))))
	require.Equal(t, "200 ok", body(client.Get(url+"/healthz")))
	require.Contains(t, body(client.Get(url+"/events?from=x")), "400 ")
	require.Contains(t, body(client.Get(url+"/events?from=-1")), "400 ")
	require.Contains(t, body(client.Post(url+"/events", "text/plain", bytes.NewReader(make([]byte, maxEvent+1)))), "413 ")
	require.Contains(t, body(client.Get(url+"/events?from=100")), "out of range")

	resp, err := client.Get(url + "/events")
	require.NoError(t, err)
	defer resp.Body.Close()
	var e event
	follow := json.NewDecoder(resp.Body)
	require.NoError(t, follow.Decode(&e))
	require.Equal(t, "door opened", e.Value)
	cancel()
	require.NoError(t, <-served)
	require.ErrorIs(t, follow.Decode(&e), io.EOF)
}
