package redis

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pawlq/pawl"
)

// layoutVersion is that of the keys and what they hold.
const layoutVersion = 2

// minVersion is the first major version of Redis that runs the scripts.
const minVersion = 7

// check looks at the server, or all masters of a cluster, and at the layout
// before they are used.
func (s *Store) check(ctx context.Context, strict bool) error {
	look := func(ctx context.Context, c redis.UniversalClient) error { return s.checkServer(ctx, c, strict) }
	var err error
	switch c := s.client.(type) {
	case *redis.Ring:
		return fmt.Errorf("%w: a redis.Ring", pawl.ErrUnsupported)
	case *redis.ClusterClient:
		if c.Options().ReadOnly { // RouteByLatency and RouteRandomly set it too
			return fmt.Errorf("%w: a redis.ClusterClient that reads from replicas", pawl.ErrUnsupported)
		}
		s.cluster = true
		err = s.checkMasters(ctx, c, look)
	default:
		err = look(ctx, c)
	}
	if err != nil {
		return err
	}
	if err := s.checkChannels(ctx); err != nil {
		return err
	}
	return s.checkLayout(ctx)
}

// While a master hands over to its replica, the client may take the one for the other
// until all nodes know.
const (
	roleTries = 20
	rolePause = 100 * time.Millisecond
)

var errRole = errors.New("it is no master")

// checkMasters looks at all masters of a cluster.
func (s *Store) checkMasters(ctx context.Context, c *redis.ClusterClient, look func(context.Context, redis.UniversalClient) error) error {
	for try := 1; ; try++ {
		err := c.ForEachMaster(ctx, func(ctx context.Context, one *redis.Client) error { return look(ctx, one) })
		if !errors.Is(err, errRole) || try == roleTries {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(rolePause):
		}
		c.ReloadState(ctx)
	}
}

func (s *Store) checkServer(ctx context.Context, c redis.UniversalClient, strict bool) error {
	if err := s.checkKind(ctx, c); err != nil {
		return err
	}
	all, err := risks(ctx, c)
	if err != nil {
		return err
	}
	for _, what := range all {
		if strict {
			return fmt.Errorf("%w: %s", ErrServer, what)
		}
		s.log.WarnContext(ctx, "pawl/redis: jobs may be lost: "+what)
	}
	return nil
}

// checkKind asks with HELLO what the server is. INFO, which says it too, is refused to many
// users.
func (s *Store) checkKind(ctx context.Context, c redis.UniversalClient) error {
	server, err := await(ctx, func() (map[string]any, error) {
		hello := redis.NewMapStringInterfaceCmd(ctx, "hello")
		err := c.Process(ctx, hello)
		return hello.Val(), err
	})
	if err != nil {
		return err
	}
	major, _, _ := strings.Cut(str(server["version"]), ".")
	if n, err := strconv.Atoi(major); err != nil || n < minVersion {
		return fmt.Errorf("%w: version %q, need %d.0 or newer", ErrServer, server["version"], minVersion)
	}
	if role := server["role"]; role != "master" {
		return fmt.Errorf("%w: %w, %v", ErrServer, errRole, role)
	}
	if server["mode"] == "cluster" && !s.cluster {
		return fmt.Errorf("%w: it is a node of a cluster, which needs a redis.ClusterClient", ErrServer)
	}
	return nil
}

// parseInfo reads the lines "name:value" of INFO.
func parseInfo(text string) map[string]string {
	info := make(map[string]string)
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			info[name] = value
		}
	}
	return info
}

// risks says what of a server's settings can lose accepted jobs. What it refuses to tell
// counts as a risk.
func risks(ctx context.Context, c redis.UniversalClient) (all []string, err error) {
	text, err := await(ctx, func() (string, error) { return c.Info(ctx).Result() })
	if redis.IsPermissionError(err) {
		return []string{"the user may not ask for the server's settings: " + err.Error()}, nil
	}
	if err != nil {
		return nil, err
	}
	info := parseInfo(text)
	if policy := info["maxmemory_policy"]; info["maxmemory"] != "0" && policy != "noeviction" {
		all = append(all, "maxmemory-policy is "+policy+", which deletes jobs when the memory is full; set noeviction")
	}
	if info["aof_enabled"] != "1" {
		return append(all, "appendonly is off, so a crash of the server loses what is newer than its last snapshot; set appendonly yes"), nil
	}
	config, err := await(ctx, func() (map[string]string, error) { return c.ConfigGet(ctx, "appendfsync").Result() })
	var refused redis.Error
	switch {
	case errors.As(err, &refused): // hosted servers don't let everyone ask
		return append(all, "appendfsync is not known, and may be no: "+err.Error()), nil
	case err != nil:
		return nil, err
	case config["appendfsync"] == "no":
		all = append(all, "appendfsync is no, so a loss of power loses what the system has not yet written; set everysec or always")
	}
	return all, nil
}

// checkChannels warns if wake-ups are refused to the user, as they are by default to those
// that were made for Redis 7.
func (s *Store) checkChannels(ctx context.Context) error {
	_, err := await(ctx, func() (int64, error) { return s.client.Publish(ctx, s.names.channel+":-", "").Result() })
	if redis.IsPermissionError(err) {
		s.log.WarnContext(ctx, "pawl/redis: no wake-ups, workers only poll; give the user the channels &"+s.names.channel+"*", "err", err)
		return nil
	}
	return err
}

// checkLayout enters the version of the layout, or compares it.
func (s *Store) checkLayout(ctx context.Context) error {
	if err := s.enter(ctx, "HSETNX", s.names.meta, "version", strconv.Itoa(layoutVersion)); err != nil {
		return err
	}
	have, err := await(ctx, func() (string, error) { return s.client.HGet(ctx, s.names.meta, "version").Result() })
	if errors.Is(err, redis.Nil) {
		return &pawl.SchemaError{Have: 0, Want: layoutVersion}
	}
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(have)
	if err != nil || n != layoutVersion {
		return &pawl.SchemaError{Have: n, Want: layoutVersion}
	}
	return nil
}
