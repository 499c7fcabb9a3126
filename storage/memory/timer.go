package memory

import "time"

// A timer is a sort of change that comes because time passed. A record is in a
// timer's tree while that change is ahead of it. Promotion has no timer: the
// scheduled jobs of each queue lie in order of time already.
type timer int

const (
	rescueTimer timer = iota // Running, at leaseUntil
	expireTimer              // waiting, at startBefore
	purgeTimer               // Completed or Canceled, at purgeAt
	numTimers
)

// due returns the first record of a timer if its time has come, else nil.
func (s *Store) due(t timer, now int64) *record {
	if it := s.timers[t].first(); it.v != 0 && it.at <= now {
		return s.records.at(it.v)
	}
	return nil
}

// An earliest is the earliest of the times that it was told.
type earliest struct {
	at  int64
	set bool
}

func (e *earliest) note(at int64) {
	if !e.set || at < e.at {
		e.at, e.set = at, true
	}
}

// first notes the first record of t, whose keys are times.
func (e *earliest) first(t *tree[slot]) {
	if it := t.first(); it.v != 0 {
		e.note(it.at)
	}
}

// come reports whether the time has come.
func (e *earliest) come(now int64) bool { return e.set && e.at <= now }

// in returns how long after now the time is, at least a microsecond; 0 if there
// is none.
func (e *earliest) in(now int64) time.Duration {
	if !e.set {
		return 0
	}
	return time.Duration(max(e.at-now, 1)) * time.Microsecond
}
