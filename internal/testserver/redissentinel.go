package testserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/redis/go-redis/v9"
)

const (
	sentinelName   = "pawl" // of the master, to the sentinels
	sentinels      = 3
	sentinelQuorum = 2
)

// A RedisSentinelServer is a private master and its replica, which three sentinels
// watch over. Its methods are for one goroutine at a time.
type RedisSentinelServer struct {
	dir       string
	as        *syscall.Credential
	nodes     []*RedisServer // the first master, then its replica
	sentinels []*RedisServer
}

// NewRedisSentinel starts them for one test.
func NewRedisSentinel(t testing.TB, o *RedisOptions) *RedisSentinelServer {
	t.Helper()
	if redisBin() == "" {
		missing(t, "Redis")
	}
	if o == nil {
		o = new(RedisOptions)
	}
	s, err := startSentinel(o)
	if err != nil {
		t.Fatalf("testserver: %v", err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func startSentinel(o *RedisOptions) (s *RedisSentinelServer, err error) {
	as, err := account()
	if err != nil {
		return nil, err
	}
	s = &RedisSentinelServer{as: as}
	if s.dir, err = folder(redisPattern, as); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Stop())
		}
	}()
	for i := range 2 {
		if err := s.startNode(i, o); err != nil {
			return s, err
		}
	}
	for i := range sentinels {
		if err := s.startWatcher(i); err != nil {
			return s, err
		}
	}
	return s, s.Ready()
}

// startNode starts the master or the replica.
func (s *RedisSentinelServer) startNode(i int, o *RedisOptions) error {
	n, port, err := s.place(strconv.Itoa(i))
	if err != nil {
		return err
	}
	where := map[string]string{"bind": "127.0.0.1", "port": port, "repl-diskless-sync-delay": "0"}
	n.args = o.arguments(n.dir, where)
	if i > 0 {
		host, master, err := net.SplitHostPort(s.nodes[0].addr)
		if err != nil {
			return err
		}
		n.args = append(n.args, "--replicaof", host, master)
	}
	if err := n.Start(); err != nil {
		return err
	}
	s.nodes = append(s.nodes, n)
	return nil
}

// startWatcher starts a sentinel, which keeps what it learns in its settings.
func (s *RedisSentinelServer) startWatcher(i int) error {
	n, port, err := s.place("sentinel" + strconv.Itoa(i))
	if err != nil {
		return err
	}
	host, master, err := net.SplitHostPort(s.nodes[0].addr)
	if err != nil {
		return err
	}
	settings := strings.Join([]string{
		"bind 127.0.0.1", "port " + port, "dir " + n.dir, "loglevel warning",
		fmt.Sprintln("sentinel monitor", sentinelName, host, master, sentinelQuorum),
		fmt.Sprintln("sentinel down-after-milliseconds", sentinelName, nodeTimeout),
		fmt.Sprintln("sentinel failover-timeout", sentinelName, 4*nodeTimeout),
	}, "\n")
	path := filepath.Join(n.dir, "sentinel.conf")
	if err := os.WriteFile(path, []byte(settings), 0o600); err != nil {
		return err
	}
	if err := own(path, s.as); err != nil {
		return err
	}
	n.args = []string{path, "--sentinel"}
	if err := n.Start(); err != nil {
		return err
	}
	s.sentinels = append(s.sentinels, n)
	return nil
}

// place makes the folder of a server and finds a port for it.
func (s *RedisSentinelServer) place(name string) (n *RedisServer, port string, err error) {
	ports, err := freePorts(1)
	if err != nil {
		return nil, "", err
	}
	n = &RedisServer{as: s.as, dir: filepath.Join(s.dir, name), addr: net.JoinHostPort("127.0.0.1", ports[0])}
	if err := os.Mkdir(n.dir, 0o700); err != nil {
		return nil, "", err
	}
	return n, ports[0], own(n.dir, s.as)
}

// own gives a file or folder to the account.
func own(path string, as *syscall.Credential) error {
	if as == nil {
		return nil
	}
	return os.Chown(path, int(as.Uid), int(as.Gid))
}

// Ready waits until the sentinels know each other, and a master with a replica in
// step.
func (s *RedisSentinelServer) Ready() error {
	ctx, cancel := context.WithTimeout(context.Background(), clusterTimeout)
	defer cancel()
	for _, n := range s.sentinels {
		client := n.ask()
		defer client.Close()
		if err := until(ctx, func() error { return watcherReady(ctx, client) }); err != nil {
			return err
		}
	}
	return nil
}

// watcherReady says why a sentinel is not ready.
func watcherReady(ctx context.Context, client *redis.SentinelClient) error {
	master, err := client.Master(ctx, sentinelName).Result()
	if err != nil {
		return err
	}
	if master["flags"] != "master" || master["num-other-sentinels"] != strconv.Itoa(sentinels-1) {
		return fmt.Errorf("master %v", master)
	}
	replicas, err := client.Replicas(ctx, sentinelName).Result()
	if err != nil {
		return err
	}
	if len(replicas) != 1 || replicas[0]["flags"] != "slave" || replicas[0]["master-link-status"] != "ok" {
		return fmt.Errorf("replicas %v", replicas)
	}
	return nil
}

// ask connects to a sentinel.
func (s *RedisServer) ask() *redis.SentinelClient {
	return redis.NewSentinelClient(&redis.Options{Addr: s.addr})
}

// Client connects to the master that the sentinels name. A nil o means the defaults of
// the library.
func (s *RedisSentinelServer) Client(o *redis.FailoverOptions) *redis.Client {
	f := redis.FailoverOptions{}
	if o != nil {
		f = *o
	}
	f.MasterName = sentinelName
	for _, n := range s.sentinels {
		f.SentinelAddrs = append(f.SentinelAddrs, n.addr)
	}
	return redis.NewFailoverClient(&f)
}

// Master returns the node that the first sentinel takes for the master.
func (s *RedisSentinelServer) Master(ctx context.Context) (*RedisServer, error) {
	client := s.sentinels[0].ask()
	defer client.Close()
	at, err := client.GetMasterAddrByName(ctx, sentinelName).Result()
	if err != nil {
		return nil, err
	}
	for _, n := range s.nodes {
		if len(at) == 2 && n.addr == net.JoinHostPort(at[0], at[1]) {
			return n, nil
		}
	}
	return nil, fmt.Errorf("testserver: no node at %v", at)
}

// Stop ends all and removes their folders.
func (s *RedisSentinelServer) Stop() error {
	var errs []error
	for _, n := range append(s.sentinels, s.nodes...) {
		errs = append(errs, n.Stop())
	}
	return errors.Join(append(errs, os.RemoveAll(s.dir))...)
}
