package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	client "github.com/redis/go-redis/v9"

	"github.com/pawlq/pawl/internal/testserver"
	"github.com/pawlq/pawl/storage/redis"
)

// redisPool is how many connections a system has, pawl as its peers: one for each of
// the callers and slots of any cell, and some more.
const redisPool = 256

// A redisServer is the private Redis of one system, which writes an AOF and syncs it
// every second, and does not rewrite it, so that its size is what was written. No cell finds what another has left.
type redisServer struct {
	server *testserver.RedisServer // nil if another process has started it
	addr   string
	admin  *client.Client
}

// startRedis starts the server of a place, or finds it if the place is joined.
func startRedis(p *Place) (*redisServer, error) {
	if p.Joined {
		s := &redisServer{addr: p.Redis}
		s.admin = s.connect()
		return s, nil
	}
	server, err := testserver.StartRedis(&testserver.RedisOptions{Settings: map[string]string{"auto-aof-rewrite-percentage": "0"}})
	if err != nil {
		return nil, err
	}
	p.Redis = server.Addr()
	return &redisServer{server, p.Redis, server.Client(nil)}, nil
}

// connect makes a client of its own.
func (s *redisServer) connect() *client.Client {
	return client.NewClient(&client.Options{Network: "unix", Addr: s.addr, PoolSize: redisPool})
}

func (s *redisServer) stop() error {
	err := s.admin.Close()
	if s.server != nil {
		err = errors.Join(err, s.server.Stop())
	}
	return err
}

// ServerCPU implements [onServer].
func (s *redisServer) ServerCPU(ctx context.Context) (time.Duration, error) {
	var sum time.Duration
	for _, name := range []string{"used_cpu_sys", "used_cpu_user"} {
		seconds, err := s.number(ctx, "cpu", name)
		if err != nil {
			return 0, err
		}
		sum += time.Duration(seconds * float64(time.Second))
	}
	return sum, nil
}

// Bytes implements [onServer]: jobs live in memory.
func (s *redisServer) Bytes(ctx context.Context) (int64, error) {
	n, err := s.number(ctx, "memory", "used_memory")
	return int64(n), err
}

// Logged implements [onServer]: bytes of the append-only file.
func (s *redisServer) Logged(ctx context.Context) (figure string, n int64, err error) {
	size, err := s.number(ctx, "persistence", "aof_current_size")
	return "aof-per-job", int64(size), err
}

// number reads a number of INFO.
func (s *redisServer) number(ctx context.Context, section, name string) (float64, error) {
	text, err := s.admin.Info(ctx, section).Result()
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), name+":"); ok {
			return strconv.ParseFloat(value, 64)
		}
	}
	return 0, fmt.Errorf("no %s in INFO", name)
}

// describeRedis says what the private servers are, of which each is like the others.
func describeRedis(ctx context.Context) (string, error) {
	s, err := startRedis(new(Place))
	if err != nil {
		return "", err
	}
	info, err := s.admin.InfoMap(ctx, "server").Result()
	if err != nil {
		return "", errors.Join(err, s.stop())
	}
	settings, err := s.admin.ConfigGet(ctx, "append*").Result()
	about := fmt.Sprintf("%s, appendonly %s, appendfsync %s", info["Server"]["redis_version"], settings["appendonly"], settings["appendfsync"])
	return about, errors.Join(err, s.stop())
}

// onServer are systems on a server that tells what it costs.
type onServer interface {
	ServerCPU(ctx context.Context) (time.Duration, error)
	Bytes(ctx context.Context) (int64, error)
	// Logged is how much its log has grown, and the name of the figure.
	Logged(ctx context.Context) (figure string, n int64, err error)
}

// pawlOnRedis is pawl on a server of its own.
type pawlOnRedis struct {
	*pawlSystem
	*redisServer
}

func pawlRedis() *Contender {
	return &Contender{Name: "pawl", Storage: "redis", Variants: pawlVariants,
		Open: func(ctx context.Context, p *Place, v Variant) (System, error) { return openPawlRedis(ctx, p, v) }}
}

func engineRedis() *Contender {
	return &Contender{Name: "engine", Storage: "redis", Variants: engineVariants,
		Open: func(ctx context.Context, p *Place, v Variant) (System, error) {
			s, err := openPawlRedis(ctx, p, v)
			if err != nil {
				return nil, err
			}
			return &engineOnRedis{&engine{s.pawlSystem, v.Batch}, s.redisServer}, nil
		}}
}

type engineOnRedis struct {
	*engine
	*redisServer
}

// openPawlRedis opens one Store, or two on clients of their own if the variant is
// apart.
func openPawlRedis(ctx context.Context, p *Place, v Variant) (*pawlOnRedis, error) {
	server, err := startRedis(p)
	if err != nil {
		return nil, err
	}
	closes := []func() error{server.stop}
	closeAll := func() (err error) {
		for i := len(closes) - 1; i >= 0; i-- {
			err = errors.Join(err, closes[i]())
		}
		return err
	}
	open := func() (*redis.Store, error) {
		c := server.connect()
		closes = append(closes, c.Close)
		s, err := redis.New(ctx, c, &redis.Options{Logger: quiet()})
		if err == nil {
			closes = append(closes, s.Close)
		}
		return s, err
	}
	a, err := open()
	b := a
	if err == nil && v.Apart {
		b, err = open()
	}
	if err != nil {
		return nil, errors.Join(err, closeAll())
	}
	return &pawlOnRedis{newPawl(v, a, b, closeAll), server}, nil
}
