//go:build !unix

package zkserver

import "errors"

var errPause = errors.New("zkserver: a server cannot be paused on this system")

// Pause is not possible here.
func (s *Server) Pause() error { return errPause }

// Resume is not possible here.
func (s *Server) Resume() error { return errPause }
