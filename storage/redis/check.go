package redis

import (
	"context"
	"fmt"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/pawlq/pawl"
)

// layoutVersion is that of the keys and what they hold.
const layoutVersion = 1

// check looks at the server and the layout before they are used.
func (s *Store) check(ctx context.Context) error {
	switch s.client.(type) {
	case *redis.ClusterClient:
		s.cluster = true
	case *redis.Ring:
		return fmt.Errorf("%w: a redis.Ring", pawl.ErrUnsupported)
	}
	return s.checkLayout(ctx)
}

// checkLayout enters the version of the layout, or compares it.
func (s *Store) checkLayout(ctx context.Context) error {
	if err := s.client.HSetNX(ctx, s.names.meta, "version", layoutVersion).Err(); err != nil {
		return err
	}
	have, err := s.client.HGet(ctx, s.names.meta, "version").Result()
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(have)
	if err != nil || n != layoutVersion {
		return &pawl.SchemaError{Have: n, Want: layoutVersion}
	}
	return nil
}
