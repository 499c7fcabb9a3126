package redis

import "github.com/pawlq/pawl"

// Place lets tests say in which shard the jobs of a queue are.
func (s *Store) Place(f func(queue string, shards int) int) { s.shards.place = f }

// Claiming is how many tokens have calls without an answer.
func (s *Store) Claiming() int {
	s.tokens.mu.Lock()
	defer s.tokens.mu.Unlock()
	return len(s.tokens.calls)
}

// ShardOf is in which of n shards the job of a request is.
func ShardOf(q *pawl.Request, n int) int { return shardOf(q.UniqueKey, q.ID, n) }
