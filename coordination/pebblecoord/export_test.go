package pebblecoord

import "github.com/tidemark-log/tidemark/coordination/internal/engine"

// Engine gives the tests the fault switches.
func (s *Store) Engine() *engine.Engine { return s.engine }
