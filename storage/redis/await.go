package redis

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// await asks the server and returns when it has answered, or when ctx ends: the
// client library heeds deadlines only with ContextTimeoutEnabled, and no
// cancellations. An ask that is left alone ends by the timeouts of the client, so
// it must use nothing that others may change meanwhile.
func await[T any](ctx context.Context, ask func() (T, error)) (T, error) {
	return awaitOr(ctx, ask, func(func() (T, error)) {})
}

// awaitOr is await that calls left if an ask is left alone, with what waits for its
// answer.
func awaitOr[T any](ctx context.Context, ask func() (T, error), left func(wait func() (T, error))) (T, error) {
	if ctx.Done() == nil {
		return ask()
	}
	type answer struct {
		value T
		err   error
	}
	c := make(chan answer, 1)
	go func() {
		value, err := ask()
		c <- answer{value, err}
	}()
	select {
	case a := <-c:
		return a.value, a.err
	case <-ctx.Done():
	}
	select {
	case a := <-c: // both were there
		return a.value, a.err
	default:
		left(func() (T, error) { a := <-c; return a.value, a.err })
		var none T
		return none, ctx.Err()
	}
}

// pipelined sends the commands that fill adds in one go.
func (s *Store) pipelined(ctx context.Context, fill func(p redis.Pipeliner)) error {
	p := s.client.Pipeline()
	fill(p)
	_, err := await(ctx, func() ([]redis.Cmder, error) { return p.Exec(ctx) })
	return err
}
