package tidemark

import "time"

// storeLook is when the store was looked at. A look that comes late shows that this
// process stood still: a write that was under way then may have been answered long
// ago, with nobody there to see it. The time that passed without a look is not held
// against the store, but never twice running: a store that hangs must show (D16).
type storeLook struct {
	last  time.Duration // 0: never yet
	since time.Duration // writes count as begun then at the earliest
	late  bool          // the last look was
}

// fair is the age of the oldest write as it counts; every is how often looks are due.
func (l *storeLook) fair(now, age, every time.Duration) time.Duration {
	late := l.last != 0 && now-l.last > 2*every
	if late && !l.late {
		l.since = now
	}
	l.last, l.late = now, late
	return min(age, now-l.since)
}
