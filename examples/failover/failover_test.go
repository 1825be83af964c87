package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestFailover(t *testing.T) {
	defer goleak.VerifyNone(t)
	for _, redraw := range []bool{false, true} {
		var stdout, stderr bytes.Buffer
		require.Zero(t, run(t.Context(), []string{"-rounds", "1", "-pause", "10ms"}, &stdout, &stderr, redraw), stderr.String())
		lines := strings.Split(strings.TrimSpace(stdout.String()), "\n")
		var sum summary
		require.NoError(t, json.Unmarshal([]byte(lines[len(lines)-1]), &sum))
		require.True(t, sum.good(), stdout.String())
		require.Len(t, sum.FailoverMs, 1)
		require.Contains(t, stdout.String(), "down")
		require.Equal(t, redraw, strings.Contains(stdout.String(), "\x1b["))
	}
}

func TestBadInput(t *testing.T) {
	for _, args := range [][]string{{"x"}, {"-rounds", "0"}, {"-pause", "-1s"}, {"-nothing"}} {
		var stdout, stderr bytes.Buffer
		require.Equal(t, 2, run(t.Context(), args, &stdout, &stderr, false))
		require.NotEmpty(t, stderr.String())
	}
}
