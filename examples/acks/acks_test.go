package main

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestAcks(t *testing.T) {
	defer goleak.VerifyNone(t)
	var stdout, stderr bytes.Buffer
	require.Zero(t, run(t.Context(), []string{"-v"}, &stdout, &stderr), stderr.String())
	lines := strings.Split(strings.TrimSpace(stdout.String()), "\n")
	require.JSONEq(t, `{"none":{"acked":3,"lost":2},"leader":{"acked":2,"lost":1},"all":{"acked":1,"lost":0}}`, lines[len(lines)-1])
	require.Equal(t, 3, strings.Count(stdout.String(), "LOST"), stdout.String())
}

func TestBadInput(t *testing.T) {
	for _, args := range [][]string{{"x"}, {"-nothing"}} {
		var stdout, stderr bytes.Buffer
		require.Equal(t, 2, run(t.Context(), args, &stdout, &stderr))
		require.NotEmpty(t, stderr.String())
		require.Empty(t, stdout.String())
	}
}

func TestInterrupted(t *testing.T) {
	defer goleak.VerifyNone(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("interrupted"))
	var stdout, stderr bytes.Buffer
	require.Equal(t, 1, run(ctx, nil, &stdout, &stderr))
}
