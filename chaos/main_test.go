package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// TestMain is also the main of the processes that a run starts: they are this test's
// executable.
func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[2] == "-config" {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		os.Exit(command(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// play runs the harness and returns its exit code and its line.
func play(t *testing.T, args ...string) (int, summary) {
	defer goleak.VerifyNone(t, goleak.IgnoreTopFunction("os/signal.loop"))
	var stdout, stderr bytes.Buffer
	code := command(t.Context(), args, strings.NewReader(""), &stdout, &stderr)
	var sum summary
	require.NoError(t, json.Unmarshal(stdout.Bytes(), &sum), stderr.String())
	if t.Failed() || testing.Verbose() {
		t.Log(stderr.String())
	}
	return code, sum
}

// Real processes, killed, paused and cut off: nothing is lost.
func TestChaos(t *testing.T) {
	if testing.Short() {
		t.Skip("takes 20 s")
	}
	dir := t.TempDir() + "/run"
	code, sum := play(t, "-duration", "14s", "-seed", "3", "-only", "kill-leader,pause,cut,oneway,diskfull,outage", "-dir", dir)
	require.Zero(t, code, "%+v", sum)
	require.True(t, sum.OK)
	require.Positive(t, sum.Acked)
	require.GreaterOrEqual(t, sum.Reads, int64(sum.Acked))
	require.NotEmpty(t, sum.Faults)
	require.NotEmpty(t, sum.UnavailableMs)
	require.NoDirExists(t, dir)
}

// A leader that stood still for twice its session finds appends when it goes on, and
// acknowledges none that is not in the log in the end.
func TestPausedLeader(t *testing.T) {
	if testing.Short() {
		t.Skip("takes 8 s")
	}
	code, sum := play(t, "-duration", "5s", "-seed", "1", "-only", "pause", "-dir", t.TempDir()+"/run")
	require.Zero(t, code, "%+v", sum)
	require.NotZero(t, sum.Faults["pause"])
	require.Positive(t, sum.InFlightAtResume)
	require.Zero(t, sum.Lost)
}

// A cluster that acknowledges what is not on the disk is found out.
func TestPlantedBug(t *testing.T) {
	if testing.Short() {
		t.Skip("takes 10 s")
	}
	dir := t.TempDir() + "/run"
	code, sum := play(t, "-duration", "6s", "-seed", "1", "-only", "allkill", "-plant", "early-ack", "-dir", dir)
	require.Equal(t, 1, code)
	require.False(t, sum.OK)
	require.Positive(t, sum.Lost, "%+v", sum)
	require.DirExists(t, dir, "what went wrong is kept")
}

func TestBadInput(t *testing.T) {
	for _, args := range [][]string{
		{"x"}, {"-nothing"}, {"-only", "earthquake"}, {"-coordination", "consul"}, {"-brokers", "2"}, {"-partitions", "0"},
		{"-duration", "0s"}, {"-plant", "tree"}, {"-session-timeout", "10ms"}, {"-rate", "0"},
	} {
		var stdout, stderr bytes.Buffer
		require.Equal(t, 2, command(t.Context(), args, strings.NewReader(""), &stdout, &stderr), args)
		require.NotEmpty(t, stderr.String(), args)
		require.Empty(t, stdout.String(), args)
	}
}
