//go:build unix

package zkserver

import (
	"errors"
	"fmt"
	"syscall"
)

// Pause makes the server stand still until Resume, as a process does that gets no
// processor time: connections stay open and nothing answers. Sessions go on aging:
// ZooKeeper ends those that are overdue as soon as it goes on.
func (s *Server) Pause() error { return s.signal(syscall.SIGSTOP) }

// Resume ends Pause.
func (s *Server) Resume() error { return s.signal(syscall.SIGCONT) }

func (s *Server) signal(sig syscall.Signal) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process == nil {
		return errors.New("zkserver: server is down")
	}
	if err := s.process.cmd.Process.Signal(sig); err != nil {
		return fmt.Errorf("zkserver: %w", err)
	}
	return nil
}
