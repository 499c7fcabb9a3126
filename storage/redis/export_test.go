package redis

// Place lets tests say in which shard the jobs of a queue are.
func (s *Store) Place(f func(queue string, shards int) int) { s.shards.place = f }
