package testserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	clusterMasters = 3
	clusterSlots   = 16384
	// nodeTimeout is after how many milliseconds a node counts as failed.
	nodeTimeout = 1500
	// clusterTimeout is until a new cluster has come together.
	clusterTimeout = 60 * time.Second
)

// A RedisClusterServer is a private Redis Cluster of three masters, each with a
// replica. Its methods are for one goroutine at a time.
type RedisClusterServer struct {
	dir   string
	nodes []*RedisServer // the masters, then their replicas
}

// NewRedisCluster starts a cluster for one test.
func NewRedisCluster(t testing.TB, o *RedisOptions) *RedisClusterServer {
	t.Helper()
	if redisBin() == "" {
		missing(t, "Redis")
	}
	if o == nil {
		o = new(RedisOptions)
	}
	c, err := startCluster(o)
	if err != nil {
		t.Fatalf("testserver: %v", err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func startCluster(o *RedisOptions) (c *RedisClusterServer, err error) {
	as, err := account()
	if err != nil {
		return nil, err
	}
	c = new(RedisClusterServer)
	if c.dir, err = folder(redisPattern, as); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Stop())
		}
	}()
	for i := range 2 * clusterMasters {
		s := &RedisServer{as: as, dir: filepath.Join(c.dir, strconv.Itoa(i))}
		if err := s.prepareNode(o); err != nil {
			return c, err
		}
		if err := s.Start(); err != nil {
			return c, err
		}
		c.nodes = append(c.nodes, s)
	}
	return c, c.form()
}

// prepareNode makes the folder and the arguments of a node.
func (s *RedisServer) prepareNode(o *RedisOptions) error {
	if err := os.Mkdir(s.dir, 0o700); err != nil {
		return err
	}
	if err := own(s.dir, s.as); err != nil {
		return err
	}
	ports, err := freePorts(2)
	if err != nil {
		return err
	}
	s.addr = net.JoinHostPort("127.0.0.1", ports[0])
	s.args = o.arguments(s.dir, map[string]string{
		"bind": "127.0.0.1", "port": ports[0], "cluster-port": ports[1], "cluster-enabled": "yes",
		"cluster-node-timeout": strconv.Itoa(nodeTimeout), "cluster-replica-validity-factor": "0",
		"repl-diskless-sync-delay": "0",
	})
	return nil
}

// freePorts finds ports that nobody listens on.
func freePorts(n int) (ports []string, err error) {
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		ports = append(ports, strconv.Itoa(l.Addr().(*net.TCPAddr).Port))
	}
	return ports, nil
}

// form makes a cluster of the nodes.
func (c *RedisClusterServer) form() error {
	ctx, cancel := context.WithTimeout(context.Background(), clusterTimeout)
	defer cancel()
	clients := make([]*redis.Client, len(c.nodes))
	for i, s := range c.nodes {
		clients[i] = s.Client(nil)
		defer clients[i].Close()
		host, port, _ := net.SplitHostPort(c.nodes[0].addr)
		if err := clients[i].Do(ctx, "cluster", "meet", host, port, c.nodes[0].busPort()).Err(); err != nil {
			return err
		}
	}
	for i := range clusterMasters {
		from, to := i*clusterSlots/clusterMasters, (i+1)*clusterSlots/clusterMasters-1
		if err := clients[i].Do(ctx, "cluster", "addslotsrange", from, to).Err(); err != nil {
			return err
		}
	}
	for i, replica := range clients[clusterMasters:] {
		id, err := clients[i].Do(ctx, "cluster", "myid").Text()
		if err != nil {
			return err
		}
		// It must first have heard of its master.
		if err := until(ctx, func() error { return replica.Do(ctx, "cluster", "replicate", id).Err() }); err != nil {
			return err
		}
	}
	return c.ready(ctx)
}

func (s *RedisServer) busPort() string {
	for i, arg := range s.args {
		if arg == "--cluster-port" {
			return s.args[i+1]
		}
	}
	return ""
}

// Ready waits until all nodes know a master for each slot, and each master that
// runs has at least one replica in step, or all others have ended.
func (c *RedisClusterServer) Ready() error {
	ctx, cancel := context.WithTimeout(context.Background(), clusterTimeout)
	defer cancel()
	return c.ready(ctx)
}

func (c *RedisClusterServer) ready(ctx context.Context) error {
	all := true
	for _, s := range c.nodes {
		all = all && s.p.running()
	}
	for _, s := range c.nodes {
		if !s.p.running() {
			continue
		}
		client := s.Client(nil)
		defer client.Close()
		if err := until(ctx, func() error { return nodeReady(ctx, client, all) }); err != nil {
			return err
		}
	}
	return nil
}

// nodeReady says why a node is not ready.
func nodeReady(ctx context.Context, client *redis.Client, all bool) error {
	info, err := client.ClusterInfo(ctx).Result()
	if err != nil {
		return err
	}
	if !strings.Contains(info, "cluster_state:ok") || !strings.Contains(info, "cluster_known_nodes:6") {
		return errors.New(info)
	}
	link, err := client.Info(ctx, "replication").Result()
	if err != nil {
		return err
	}
	if all && !strings.Contains(link, "master_link_status:up") && !strings.Contains(link, "state=online") {
		return errors.New(link)
	}
	return nil
}

// until repeats f until it returns nil.
func until(ctx context.Context, f func() error) error {
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		case <-time.After(startPoll):
		}
	}
}

// Client connects to the cluster. A nil o means the defaults of the library.
func (c *RedisClusterServer) Client(o *redis.ClusterOptions) *redis.ClusterClient {
	f := redis.ClusterOptions{}
	if o != nil {
		f = *o
	}
	for _, s := range c.nodes {
		f.Addrs = append(f.Addrs, s.addr)
	}
	return redis.NewClusterClient(&f)
}

// MasterOf returns the node that is the master of the slot of a key.
func (c *RedisClusterServer) MasterOf(ctx context.Context, key string) (*RedisServer, error) {
	client := c.Client(nil)
	defer client.Close()
	master, err := client.MasterForKey(ctx, key)
	if err != nil {
		return nil, err
	}
	for _, s := range c.nodes {
		if s.addr == master.Options().Addr {
			return s, nil
		}
	}
	return nil, fmt.Errorf("testserver: no node at %s", master.Options().Addr)
}

// Pair returns a node and the one that was its replica or master at the start.
func (c *RedisClusterServer) Pair(s *RedisServer) []*RedisServer {
	i := slices.Index(c.nodes, s)
	return []*RedisServer{s, c.nodes[(i+clusterMasters)%len(c.nodes)]}
}

// MoveSlot moves the slot of a key to another master, as resharding does. It calls
// between when the move has begun and no key has moved, and again when all have and
// the move has not ended.
func (c *RedisClusterServer) MoveSlot(ctx context.Context, key string, between func()) error {
	from, err := c.MasterOf(ctx, key)
	if err != nil {
		return err
	}
	masters := c.nodes[:clusterMasters]
	to := masters[(slices.Index(masters, from)+1)%len(masters)]
	m := &slotMove{ctx: ctx, from: from.Client(nil), to: to.Client(nil), target: to}
	defer func() { _ = errors.Join(m.from.Close(), m.to.Close()) }() // they have answered
	if m.slot, err = m.from.ClusterKeySlot(ctx, key).Result(); err != nil {
		return err
	}
	if err := m.begin(); err != nil {
		return err
	}
	between()
	if err := m.keys(); err != nil {
		return err
	}
	between()
	return m.end(masters)
}

// slotMove is a move of a slot between two masters.
type slotMove struct {
	ctx      context.Context
	from, to *redis.Client
	target   *RedisServer
	slot     int64
	id       string // of the target
}

func (m *slotMove) begin() (err error) {
	if m.id, err = m.to.Do(m.ctx, "cluster", "myid").Text(); err != nil {
		return err
	}
	source, err := m.from.Do(m.ctx, "cluster", "myid").Text()
	if err != nil {
		return err
	}
	if err := m.to.Do(m.ctx, "cluster", "setslot", m.slot, "importing", source).Err(); err != nil {
		return err
	}
	return m.from.Do(m.ctx, "cluster", "setslot", m.slot, "migrating", m.id).Err()
}

// keys moves all keys of the slot.
func (m *slotMove) keys() error {
	host, port, err := net.SplitHostPort(m.target.addr)
	if err != nil {
		return err
	}
	for {
		keys, err := m.from.ClusterGetKeysInSlot(m.ctx, int(m.slot), 100).Result()
		if err != nil || len(keys) == 0 {
			return err
		}
		args := []any{"migrate", host, port, "", 0, migrateTimeout, "keys"}
		for _, key := range keys {
			args = append(args, key)
		}
		if err := m.from.Do(m.ctx, args...).Err(); err != nil {
			return err
		}
	}
}

// migrateTimeout is how many milliseconds a step of a move may take.
const migrateTimeout = 30_000

// end tells all masters who has the slot, the new owner first.
func (m *slotMove) end(masters []*RedisServer) error {
	tell := func(client *redis.Client) error {
		return client.Do(m.ctx, "cluster", "setslot", m.slot, "node", m.id).Err()
	}
	if err := errors.Join(tell(m.to), tell(m.from)); err != nil {
		return err
	}
	for _, s := range masters {
		client := s.Client(nil)
		if err := errors.Join(tell(client), client.Close()); err != nil {
			return err
		}
	}
	return nil
}

// Stop ends all nodes and removes their folders.
func (c *RedisClusterServer) Stop() error {
	var errs []error
	for _, s := range c.nodes {
		errs = append(errs, s.Stop())
	}
	return errors.Join(append(errs, os.RemoveAll(c.dir))...)
}
