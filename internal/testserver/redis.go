package testserver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// RedisBinEnv names the folder of redis-server, to test another one than that of
// the PATH.
const RedisBinEnv = "PAWL_REDIS_BIN"

const redisPattern = "pawl-redis-*"

// RedisOptions are the settings of a Redis server. Zero fields are the defaults.
type RedisOptions struct {
	// Fsync is appendfsync: always, everysec, or no; empty is everysec. With
	// "off" the server keeps nothing.
	Fsync string
	// Settings are more lines of redis.conf.
	Settings map[string]string
	// Parent is where the server's folder is made; empty is where temporary ones are. The
	// path of a socket in it must be short.
	Parent string
}

// A RedisServer is a private Redis server. Its methods are for one goroutine at a
// time.
type RedisServer struct {
	dir, addr string
	args      []string
	as        *syscall.Credential
	p         *process
}

// sharedRedis is the server of [Redis].
var sharedRedis struct {
	mu    sync.Mutex
	s     *RedisServer
	users int
}

// Redis returns a server that the tests of one binary share. It keeps nothing on
// disk, and ends with the last test that uses it.
func Redis(t testing.TB) *RedisServer {
	t.Helper()
	g := &sharedRedis
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.s == nil {
		g.s = startRedis(t, &RedisOptions{Fsync: "off"})
	}
	g.users++
	t.Cleanup(func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.users--; g.users > 0 {
			return
		}
		if err := g.s.Stop(); err != nil {
			t.Error(err)
		}
		g.s = nil
	})
	return g.s
}

// NewRedis starts a server for one test.
func NewRedis(t testing.TB, o *RedisOptions) *RedisServer {
	t.Helper()
	s := startRedis(t, o)
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func startRedis(t testing.TB, o *RedisOptions) *RedisServer {
	t.Helper()
	if redisBin() == "" {
		missing(t, "Redis")
	}
	s, err := StartRedis(o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// StartRedis starts a server for a program that is not a test, which must Stop
// it.
func StartRedis(o *RedisOptions) (*RedisServer, error) {
	if redisBin() == "" {
		return nil, errors.New("testserver: Redis is not installed")
	}
	if o == nil {
		o = new(RedisOptions)
	}
	s, err := newRedis(o)
	if err != nil {
		return nil, fmt.Errorf("testserver: %w", err)
	}
	return s, nil
}

// redisBin finds the program redis-server.
func redisBin() string {
	if dir := os.Getenv(RedisBinEnv); dir != "" {
		path := filepath.Join(dir, "redis-server")
		if _, err := os.Stat(path); err != nil {
			return ""
		}
		return path
	}
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return ""
	}
	return path
}

func newRedis(o *RedisOptions) (s *RedisServer, err error) {
	s = new(RedisServer)
	if s.as, err = account(); err != nil {
		return nil, err
	}
	if s.dir, err = folderIn(o.Parent, redisPattern, s.as); err != nil {
		return nil, err
	}
	s.addr = filepath.Join(s.dir, "redis.sock")
	s.args = o.arguments(s.dir, map[string]string{"port": "0", "unixsocket": s.addr, "unixsocketperm": "777"})
	if err := s.Start(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(s.dir))
	}
	return s, nil
}

// arguments are those of the program redis-server.
func (o *RedisOptions) arguments(dir string, where map[string]string) []string {
	settings := map[string]string{
		"dir": dir, "save": "", "appendonly": "yes", "appendfsync": "everysec", "daemonize": "no",
		"maxmemory-policy": "noeviction", "loglevel": "warning",
	}
	switch o.Fsync {
	case "":
	case "off":
		settings["appendonly"] = "no"
	default:
		settings["appendfsync"] = o.Fsync
	}
	maps.Copy(settings, where)
	maps.Copy(settings, o.Settings)
	var args []string
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		args = append(args, "--"+name, settings[name])
	}
	return args
}

// Addr is the path of the server's socket.
func (s *RedisServer) Addr() string { return s.addr }

// Client connects to the server. A nil o means the defaults of the library.
func (s *RedisServer) Client(o *redis.Options) *redis.Client {
	f := redis.Options{}
	if o != nil {
		f = *o
	}
	f.Addr = s.addr
	if filepath.IsAbs(s.addr) {
		f.Network = "unix"
	}
	return redis.NewClient(&f)
}

// Start starts a server that was stopped or killed, and waits until it has loaded
// its data.
func (s *RedisServer) Start() error {
	p, err := start(redisBin(), s.args, s.dir, s.as)
	if err != nil {
		return err
	}
	s.p = p
	if s.answers(time.Now().Add(startTimeout)) {
		return nil
	}
	if p.running() {
		p.kill()
	}
	return fmt.Errorf("redis-server did not start within %v: %s", startTimeout, p.log)
}

// answers waits until the server has loaded its data, it ends, or time is up.
func (s *RedisServer) answers(end time.Time) bool {
	client := s.Client(&redis.Options{MaxRetries: -1})
	defer func() { _ = client.Close() }() // it has answered
	for s.p.running() && time.Now().Before(end) {
		if client.Ping(context.Background()).Err() == nil {
			return true
		}
		time.Sleep(startPoll)
	}
	return false
}

// Running reports whether the server has not ended.
func (s *RedisServer) Running() bool { return s.p.running() }

// Kill ends the server as a crash does.
func (s *RedisServer) Kill() { s.p.kill() }

// Pause stops the server in its tracks, as a machine that hangs does, until
// Resume.
func (s *RedisServer) Pause() error  { return syscall.Kill(s.p.pid, syscall.SIGSTOP) }
func (s *RedisServer) Resume() error { return syscall.Kill(s.p.pid, syscall.SIGCONT) }

// Stop ends the server and removes its folder.
func (s *RedisServer) Stop() error {
	if s.p != nil && s.p.running() {
		s.p.kill() // its data goes with the folder
	}
	return os.RemoveAll(s.dir)
}
