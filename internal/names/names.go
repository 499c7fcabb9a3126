// Package names bounds how many different names are used.
package names

import "sync"

// A Set holds the names that were used, and those that are about to be. The zero value
// is empty and ready to use.
type Set struct {
	mu sync.Mutex
	m  map[string]*name
}

type name struct {
	used  bool
	tries int // under way
}

// Try admits names if there are at most most different ones with them, and otherwise
// returns the first that is one too many. A caller whose names were admitted says by
// done whether it has used them.
func (s *Set) Try(names []string, most int) (done func(used bool), excess string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.m == nil {
		s.m = make(map[string]*name)
	}
	for i, key := range names {
		n := s.m[key]
		if n == nil && len(s.m) >= most {
			s.done(names[:i], false)
			return nil, key
		}
		if n == nil {
			n = new(name)
			s.m[key] = n
		}
		n.tries++
	}
	return func(used bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.done(names, used)
	}, ""
}

func (s *Set) done(names []string, used bool) {
	for _, key := range names {
		n := s.m[key]
		n.tries--
		if n.used = n.used || used; !n.used && n.tries == 0 {
			delete(s.m, key)
		}
	}
}
