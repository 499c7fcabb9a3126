package postgres

import (
	"sync"
	"time"
)

// refreshPause is how often calls that failed open the connections anew.
const refreshPause = time.Second

// refreshes tell when the pool was emptied last.
type refreshes struct {
	mu   sync.Mutex
	last time.Time
}

// refresh lets the pool open its connections anew, since others may be as old as one that
// was found cut, or lead to a server that refuses to write. The pool is the program's: a call that
// began before the last time met what was removed then, and what fails on has its pause.
func (s *Store) refresh(begun time.Time, pause time.Duration) {
	r := &s.refreshes
	r.mu.Lock()
	defer r.mu.Unlock()
	if begun.Before(r.last.Add(pause)) {
		return
	}
	s.pool.Reset()
	r.last = time.Now()
}
