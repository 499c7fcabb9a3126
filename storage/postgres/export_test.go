package postgres

// RescueLock is the key of the lock that rescues share.
func (s *Store) RescueLock() int64 { return s.rescueHash() }

// RescueWait is how long Extend waits for them.
const RescueWait = rescueWait
