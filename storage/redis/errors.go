package redis

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/pawlq/pawl"
)

// ErrServer means that the server can't be used: it is too old, or its settings
// could lose jobs and Options says to refuse that.
var ErrServer = errors.New("pawl/redis: server can't be used")

// ErrShards means that a queue can't be divided as Options says, because it is in use
// or has another number of shards.
var ErrShards = errors.New("pawl/redis: queue can't be divided")

// isAnswer reports whether an error is what the server has said.
func isAnswer(err error) bool {
	var answer redis.Error
	return errors.As(err, &answer)
}

// explain says what failed. The errors of package pawl and of contexts pass
// through as they are.
func explain(what string, err error) error {
	for _, own := range []error{
		pawl.ErrFull, pawl.ErrInvalid, pawl.ErrClosed, pawl.ErrSchema, pawl.ErrUnsupported, ErrServer, ErrShards,
		context.Canceled, context.DeadlineExceeded,
	} {
		if errors.Is(err, own) {
			return err
		}
	}
	return fmt.Errorf("pawl/redis: %s: %w", what, err)
}
