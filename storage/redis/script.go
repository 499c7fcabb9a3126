package redis

import (
	"context"
	"crypto/sha1" // #nosec G505 -- it is how Redis names scripts
	"encoding/hex"
	"errors"
	"fmt"
	"sync"

	"github.com/redis/go-redis/v9"
)

// A script is what the server runs as one step.
type script struct {
	source string
	sha    string
}

// newScript puts a script together: its flags, what all share, and its own part.
func newScript(name, flags string) *script { return withFlags(flags, assemble(name)) }

// bare is a script that uses nothing of what the others share.
func bare(name, flags string) *script { return withFlags(flags, squeeze(readSource(name))) }

func withFlags(flags, text string) *script {
	head := "#!lua"
	if flags != "" {
		head += " flags=" + flags
	}
	source := head + "\n" + text
	sum := sha1.Sum([]byte(source)) // #nosec G401
	return &script{source, hex.EncodeToString(sum[:])}
}

// Flags of scripts. Without one the server refuses a script while its memory is
// full, before the first write: so enqueues fail then, and all else goes on.
const (
	readOnly = "no-writes"
	whenFull = "allow-oom"
)

// scripts are all scripts of a Store.
type scripts struct {
	enqueue, plain, cycle, extend, sweep, change, get, list, count, configure, divide, forget, enter, unregister *script
}

// compiled are the scripts, which are put together once: it takes tens of milliseconds.
var compiled = sync.OnceValue(newScripts)

func newScripts() *scripts {
	return &scripts{
		enqueue:    newScript("enqueue", ""),
		plain:      newScript("plain", ""),
		cycle:      newScript("cycle", whenFull),
		extend:     newScript("extend", whenFull),
		sweep:      newScript("sweep", whenFull),
		change:     newScript("change", whenFull),
		get:        newScript("get", readOnly),
		list:       newScript("list", readOnly),
		count:      newScript("count", readOnly),
		configure:  newScript("configure", whenFull),
		divide:     newScript("divide", whenFull),
		forget:     newScript("forget", whenFull),
		enter:      bare("enter", whenFull),
		unregister: bare("unregister", whenFull),
	}
}

// once is a command that the client library must not repeat by itself: it can't
// know whether the first try had an effect.
type once struct{ *redis.Cmd }

func (once) NoRetry() bool { return true }

// run runs a script on its keys. A server that does not know it, because it was
// restarted or its cache was emptied, is sent it.
func (s *Store) run(ctx context.Context, sc *script, keys []any, args ...any) (any, error) {
	return s.runOr(ctx, func(func() (any, error)) {}, sc, keys, args...)
}

// runOr is run that calls left if ctx ends before the answer, with what waits for it.
func (s *Store) runOr(ctx context.Context, left func(wait func() (any, error)), sc *script, keys []any, args ...any) (any, error) {
	reply, err := s.eval(ctx, left, "evalsha", sc.sha, keys, args)
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		reply, err = s.eval(ctx, left, "eval", sc.source, keys, args)
	}
	return reply, err
}

func (s *Store) eval(ctx context.Context, left func(wait func() (any, error)), command, what string, keys []any, args []any) (any, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	full := make([]any, 0, 3+len(keys)+len(args))
	full = append(full, command, what, len(keys))
	full = append(append(full, keys...), args...)
	cmd := redis.NewCmd(ctx, full...)
	if len(keys) > 0 {
		cmd.SetFirstKeyPos(3)
	}
	reply, err := awaitOr(ctx, func() (any, error) {
		err := s.client.Process(ctx, once{cmd})
		return cmd.Val(), err
	}, left)
	if err != nil && !errors.Is(err, context.Canceled) { // which says nothing of the server
		s.unreachable(ctx, err)
	}
	return reply, err
}

// unreachable makes a client of a cluster ask for its nodes anew after an error
// that is no answer. By itself it does so once a minute, and learns of a failover
// that late.
func (s *Store) unreachable(ctx context.Context, err error) {
	var answer redis.Error
	if c, ok := s.client.(*redis.ClusterClient); ok && !errors.As(err, &answer) {
		c.ReloadState(ctx)
	}
}

// errReply means that a script returned something else than it should.
var errReply = errors.New("pawl/redis: unexpected reply of a script")

// items takes a reply that is a list.
func items(reply any, least int) ([]any, error) {
	l, ok := reply.([]any)
	if !ok || len(l) < least {
		return nil, fmt.Errorf("%w: %T", errReply, reply)
	}
	return l, nil
}

// number takes an integer; anything else is 0.
func number(v any) int64 {
	n, _ := v.(int64)
	return n
}

// str takes a string; anything else is empty.
func str(v any) string {
	s, _ := v.(string)
	return s
}
