package redis_test

import (
	"fmt"
	"testing"
	"time"

	client "github.com/redis/go-redis/v9"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/testserver"
	"github.com/pawlq/pawl/storage/redis"
)

// TestNodeDown ends a node and its replica of a cluster that goes on without them. Leases in
// queues on other nodes are extended, whatever the order, and their jobs are rescued.
func TestNodeDown(t *testing.T) {
	cluster := testserver.NewRedisCluster(t, &testserver.RedisOptions{
		Fsync: "off", Settings: map[string]string{"cluster-require-full-coverage": "no"},
	})
	c := cluster.Client(&client.ClusterOptions{MaxRedirects: 1, DialTimeout: time.Second})
	t.Cleanup(func() { _ = c.Close() })
	now := time.Now()
	s := open(t, c, &redis.Options{Clock: func() time.Time { return now }})
	down, err := cluster.MasterOf(t.Context(), "pawl:{down}:b")
	if err != nil {
		t.Fatal(err)
	}
	if has, err := cluster.MasterOf(t.Context(), s.Prefix()+":queues"); err != nil || has == down {
		t.Fatal("the register is on the node that is to end", err)
	}
	var renewals []pawl.Renewal
	up := make(map[string]bool)
	for i := range 10 {
		queue := fmt.Sprint("queue", i)
		if i == 5 {
			queue = "down"
		}
		has, err := cluster.MasterOf(t.Context(), "pawl:{"+queue+"}:b")
		if err != nil {
			t.Fatal(err)
		}
		if has != down {
			up[queue] = true
		}
		q := request(pawl.Request{})
		q.Queue = queue
		mustEnqueue(t, s, q)
		got, err := s.Claim(t.Context(), askingOf(queue, 1))
		if err != nil || len(got.Jobs) != 1 {
			t.Fatal(len(got.Jobs), err)
		}
		renewals = append(renewals, pawl.Renewal{Ref: got.Jobs[0].Ref, Lease: 2 * time.Minute})
	}
	if len(up) == 0 {
		t.Fatal("all queues are on the node that is to end")
	}
	for _, one := range cluster.Pair(down) {
		one.Kill()
	}
	if _, err := s.Extend(t.Context(), renewals); err == nil {
		t.Error("leases were extended on a node that is down")
	}
	for _, r := range renewals {
		if up[r.Ref.Queue] {
			jobs, err := s.Get(t.Context(), r.Ref.Queue, r.Ref.ID)
			if err != nil || jobs[0] == nil || jobs[0].Counts.Extends != 1 {
				t.Errorf("not extended in %s: %v", r.Ref.Queue, err)
			}
		}
	}
	now = now.Add(3 * time.Minute)
	swept, err := s.Sweep(t.Context(), pawl.SweepSpec{Limit: 100})
	if err == nil || len(swept.Rescued) != len(up) {
		t.Errorf("rescued %d jobs of %d: %v", len(swept.Rescued), len(up), err)
	}
}
