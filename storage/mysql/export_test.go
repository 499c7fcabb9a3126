package mysql

// Races says how many candidates the claims of s have read, and how many of them
// others were faster with.
func (s *Store) Races() (candidates, lost int64) {
	s.window.mu.Lock()
	defer s.window.mu.Unlock()
	return s.window.candidates, s.window.lost
}

// SlowWay makes s do without what only MariaDB can, as on MySQL.
func (s *Store) SlowWay() { s.mariaDB = false }
