package pebblestore

import (
	"errors"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/storage"
)

// result writes a group that changes nothing and waits for it.
func result(s *Store) error {
	done := make(chan error, 1)
	s.Write(nil, true, func(r storage.Result) { done <- r.Err })
	return <-done
}

// Who is told by a done that the store has failed finds it poisoned, also while the
// one who met the failure has not reported it yet.
func TestPoisonedBeforeDone(t *testing.T) {
	s, err := Open("d", Options{FS: vfs.NewMem()})
	require.NoError(t, err)
	failed, report := make(chan struct{}), make(chan struct{})
	s.guard.Notify(func(err error) {
		close(failed)
		<-report
		s.poison(err)
	})
	errDisk := errors.New("disk on fire")
	reported := make(chan struct{})
	go func() {
		defer close(reported)
		s.guard.Fail(errDisk)
	}()
	<-failed
	require.ErrorIs(t, result(s), storage.ErrPoisoned)
	require.ErrorIs(t, s.Health().Err, storage.ErrPoisoned)
	close(report)
	<-reported
	require.ErrorIs(t, s.Close(), errDisk)
}

// A group that meets the end of the store was not failed by the disk.
func TestFencedIsClosed(t *testing.T) {
	s, err := Open("d", Options{FS: vfs.NewMem()})
	require.NoError(t, err)
	s.guard.Fence() // the first that Fence does
	err = result(s)
	require.ErrorIs(t, err, storage.ErrClosed)
	require.NotErrorIs(t, err, storage.ErrPoisoned)
	require.NoError(t, s.Fence())
}
