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
const layoutVersion = 1

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
	text, err := await(ctx, func() (string, error) { return c.Info(ctx).Result() })
	if err != nil {
		return err
	}
	info := parseInfo(text)
	major, _, _ := strings.Cut(info["redis_version"], ".")
	if n, err := strconv.Atoi(major); err != nil || n < minVersion {
		return fmt.Errorf("%w: version %q, need %d.0 or newer", ErrServer, info["redis_version"], minVersion)
	}
	if role := info["role"]; role != "master" {
		return fmt.Errorf("%w: %w, %s", ErrServer, errRole, role)
	}
	if info["cluster_enabled"] == "1" && !s.cluster {
		return fmt.Errorf("%w: it is a node of a cluster, which needs a redis.ClusterClient", ErrServer)
	}
	for _, what := range risks(info, fsyncPolicy(ctx, c)) {
		if strict {
			return fmt.Errorf("%w: %s", ErrServer, what)
		}
		s.log.WarnContext(ctx, "pawl/redis: jobs may be lost: "+what)
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

// fsyncPolicy is the server's appendfsync, empty where it does not say.
func fsyncPolicy(ctx context.Context, c redis.UniversalClient) string {
	config, err := await(ctx, func() (map[string]string, error) { return c.ConfigGet(ctx, "appendfsync").Result() })
	if err != nil {
		return "" // hosted servers don't let everyone ask
	}
	return config["appendfsync"]
}

// risks says what of a server's settings can lose accepted jobs.
func risks(info map[string]string, fsync string) (all []string) {
	if policy := info["maxmemory_policy"]; info["maxmemory"] != "0" && policy != "noeviction" {
		all = append(all, "maxmemory-policy is "+policy+", which deletes jobs when the memory is full; set noeviction")
	}
	switch {
	case info["aof_enabled"] != "1":
		all = append(all, "appendonly is off, so a crash of the server loses what is newer than its last snapshot; set appendonly yes")
	case fsync == "no":
		all = append(all, "appendfsync is no, so a loss of power loses what the system has not yet written; set everysec or always")
	}
	return all
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
