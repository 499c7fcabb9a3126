package redis_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	client "github.com/redis/go-redis/v9"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/redis"
)

// byShard counts jobs by where they are.
func byShard(jobs []*pawl.Job) []int {
	n := make([]int, testShards+1)
	for _, j := range jobs {
		n[j.Locator]++
	}
	return n[1:]
}

// TestShardsOnCluster looks at what calls shards cost and get on a cluster.
func TestShardsOnCluster(t *testing.T) {
	c, _ := storageCluster(t)
	t.Run("routing", func(t *testing.T) { routing(t, c) })
	t.Run("fairness", func(t *testing.T) { fairness(t, c) })
	t.Run("order", func(t *testing.T) { orderPerShard(t, c) })
	t.Run("keys", func(t *testing.T) { keysByShard(t, c) })
	t.Run("atomic", func(t *testing.T) { atomicPerShard(t, c) })
	t.Run("woken", func(t *testing.T) { wokenByShard(t, c) })
	t.Run("divided meanwhile", func(t *testing.T) { dividedOnCluster(t, c) })
	t.Run("full", func(t *testing.T) { fullAfterStored(t, c) })
}

// commands counts what the nodes have been asked: scripts and look-ups.
func commands(t *testing.T, c *client.ClusterClient) (scripts, looks int64) {
	t.Helper()
	var a, b atomic.Int64
	if err := c.ForEachMaster(t.Context(), func(ctx context.Context, one *client.Client) error {
		text, err := one.Info(ctx, "commandstats").Result()
		for line := range strings.Lines(text) {
			var n int64
			if k, _ := fmt.Sscanf(line, "cmdstat_evalsha:calls=%d,", &n); k == 1 {
				a.Add(n)
			}
			if k, _ := fmt.Sscanf(line, "cmdstat_hexists:calls=%d,", &n); k == 1 {
				b.Add(n)
			}
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return a.Load(), b.Load()
}

// routing settles and extends with one call for each shard, by the Locator, and finds
// jobs without it, also those that are where their key belongs.
func routing(t *testing.T, c *client.ClusterClient) {
	s := openDivided(t, c)
	reqs := requests(40, pawl.Request{})
	for i := range 20 {
		reqs = append(reqs, request(pawl.Request{UniqueKey: fmt.Sprint("key", i)}))
	}
	mustEnqueue(t, s, reqs...)
	jobs := mustClaim(t, s, 60)
	if n := byShard(jobs); len(jobs) != 60 || slices.Contains(n, 0) {
		t.Fatalf("jobs by shard: %v", n)
	}
	scripts, looks := commands(t, c)
	renewals := make([]pawl.Renewal, len(jobs))
	for i, j := range jobs {
		renewals[i] = pawl.Renewal{Ref: j.Ref, Lease: time.Minute}
	}
	if lost, err := s.Extend(t.Context(), renewals); err != nil || len(lost) > 0 {
		t.Error(lost, err)
	}
	mustSettle(t, s, acks(jobs[:30]))
	scripts2, looks2 := commands(t, c)
	if scripts2-scripts > 2*testShards || looks2 != looks {
		t.Errorf("%d scripts and %d look-ups for two calls on %d shards", scripts2-scripts, looks2-looks, testShards)
	}
	for _, j := range jobs[30:] {
		j.Locator = 0
	}
	mustSettle(t, s, acks(jobs[30:]))
	wantStats(t, s, pawl.QueueStats{Completed: 60})
	ids := make([]pawl.ID, len(reqs))
	for i, q := range reqs {
		ids[i] = q.ID
	}
	got, err := s.Get(t.Context(), "", ids...)
	if err != nil || slices.Contains(got, nil) {
		t.Errorf("not all jobs were found: %v", err)
	}
}

// fairness claims little at a time of much: each shard comes in its turn.
func fairness(t *testing.T, c *client.ClusterClient) {
	s := openDivided(t, c)
	mustEnqueue(t, s, requests(1000, pawl.Request{})...)
	var all []*pawl.Job
	const rounds, turns = 2, 4 // as many claims as a Store makes in one shard before the next
	for range rounds * turns * testShards {
		all = append(all, mustClaim(t, s, 5)...)
	}
	for shard, n := range byShard(all) {
		if n != rounds*turns*5 {
			t.Errorf("shard %d gave %d jobs of %d", shard, n, len(all))
		}
	}
}

// orderPerShard has jobs of each shard come by priority and then in order.
func orderPerShard(t *testing.T, c *client.ClusterClient) {
	s := openDivided(t, c)
	reqs := make([]*pawl.Request, 200)
	place := make(map[pawl.ID]int)
	for i := range reqs {
		reqs[i] = request(pawl.Request{Priority: -(i / 100)})
		place[reqs[i].ID] = (i + 100) % 200
	}
	mustEnqueue(t, s, reqs...)
	last := make(map[int64]int)
	for len(place) > 0 {
		jobs := mustClaim(t, s, 7)
		if len(jobs) == 0 {
			t.Fatalf("%d jobs are missing", len(place))
		}
		for _, j := range jobs {
			if at := place[j.ID]; at < last[j.Locator] {
				t.Errorf("job %d came after %d", at, last[j.Locator])
			}
			last[j.Locator] = place[j.ID]
			delete(place, j.ID)
		}
	}
}

// keysByShard finds keys that are held.
func keysByShard(t *testing.T, c *client.ClusterClient) {
	s := openDivided(t, c)
	first, second := make([]*pawl.Request, 50), make([]*pawl.Request, 50)
	for i := range first {
		first[i] = request(pawl.Request{UniqueKey: fmt.Sprint("key", i)})
		second[i] = request(pawl.Request{UniqueKey: fmt.Sprint("key", i)})
	}
	mustEnqueue(t, s, first...)
	for i, r := range mustEnqueue(t, s, second...) {
		if r.Status != pawl.Duplicate || r.ID != first[i].ID {
			t.Errorf("receipt %+v of key %d", r, i)
		}
	}
	for i, r := range mustEnqueue(t, s, first...) {
		if r.Status != pawl.Exists {
			t.Errorf("receipt %+v of the same request %d", r, i)
		}
	}
}

// atomicPerShard refuses a call at a depth limit: of each shard's jobs all are there or
// none.
func atomicPerShard(t *testing.T, c *client.ClusterClient) {
	s := openDivided(t, c)
	reqs := requests(40, pawl.Request{MaxDepth: 25})
	for _, q := range reqs {
		q.MaxDepth = 25
	}
	if _, err := s.Enqueue(t.Context(), reqs); err == nil || !strings.Contains(err.Error(), pawl.ErrFull.Error()) {
		t.Fatalf("error %v", err)
	}
	there := mustClaim(t, s, 100)
	if len(there) == 0 || len(there) > 25 {
		t.Errorf("%d jobs are there", len(there))
	}
	// The same jobs without a limit lie in the same shards.
	for _, q := range reqs {
		q.MaxDepth = pawl.Unlimited
	}
	mustEnqueue(t, s, reqs...)
	before, rest := byShard(there), byShard(mustClaim(t, s, 100))
	for shard := range testShards {
		if before[shard] > 0 && rest[shard] > 0 {
			t.Errorf("shard %d had %d of its jobs and lacked %d", shard, before[shard], rest[shard])
		}
	}
}

// wokenByShard claims with one call what an event told of, wherever it is.
func wokenByShard(t *testing.T, c *client.ClusterClient) {
	s := openDivided(t, c)
	var at atomic.Int64
	s.Place(func(string, int) int { return int(at.Load()) })
	l := listen(t, open(t, c, &redis.Options{Prefix: s.Prefix()}))
	for i, shard := range []int64{3, 1, 2, 0, 3, 1, 2, 0} {
		at.Store(shard)
		l.idle(1)
		mustEnqueue(t, s, request(pawl.Request{}))
		for e := l.next(); e.Kind != pawl.EventReady || e.Queue != "default"; e = l.next() {
		}
		before, _ := commands(t, c)
		jobs := mustClaim(t, l.s, 1)
		after, _ := commands(t, c)
		if i < testShards {
			after-- // a Store enters a shard in the register when it first gets a job there
		}
		if len(jobs) != 1 || after-before != 1 {
			t.Errorf("claimed %d jobs of shard %d with %d calls", len(jobs), shard, after-before)
		}
	}
}

// dividedOnCluster divides one of the queues of calls, which are refused there alone: what
// they did for another queue before is not done twice.
func dividedOnCluster(t *testing.T, c *client.ClusterClient) {
	old := open(t, c, &redis.Options{Prefix: fmt.Sprint("test", installations.Add(1))})
	first := request(pawl.Request{})
	first.Queue = "other"
	mustEnqueue(t, old, first)
	spec := asking(1)
	spec.Queues[0].Queue = "other"
	got, err := old.Claim(t.Context(), spec)
	if err != nil || len(got.Jobs) != 1 {
		t.Fatal(len(got.Jobs), err)
	}
	s := open(t, c, dividing(old, testShards))
	mustEnqueue(t, s, request(pawl.Request{}))
	running := append(got.Jobs, mustClaim(t, s, 1)...)
	var renewals []pawl.Renewal
	for _, j := range running {
		renewals = append(renewals, pawl.Renewal{Ref: j.Ref, Lease: time.Minute})
	}
	if lost, err := old.Extend(t.Context(), renewals); err != nil || len(lost) > 0 {
		t.Error(lost, err)
	}
	jobs, err := s.Get(t.Context(), "other", running[0].ID)
	if err != nil || jobs[0].Counts.Extends != 1 {
		t.Errorf("extended %d times, %v", jobs[0].Counts.Extends, err)
	}

	old = open(t, c, &redis.Options{Prefix: fmt.Sprint("test", installations.Add(1))})
	open(t, c, dividing(old, testShards))
	other, home := request(pawl.Request{}), request(pawl.Request{})
	other.Queue = "other"
	for i, r := range mustEnqueue(t, old, other, home) {
		if r.Status != pawl.Stored {
			t.Errorf("receipt %d: %v", i, r.Status)
		}
	}
}

// fullAfterStored enqueues to a full queue, after another one has got its job: the error
// does not say that nothing was stored.
func fullAfterStored(t *testing.T, c *client.ClusterClient) {
	s := open(t, c, &redis.Options{Prefix: fmt.Sprint("test", installations.Add(1))})
	other, full := request(pawl.Request{}), request(pawl.Request{})
	other.Queue, full.MaxDepth = "other", 1
	mustEnqueue(t, s, request(pawl.Request{}))
	_, err := s.Enqueue(t.Context(), []*pawl.Request{other, full})
	if err == nil || errors.Is(err, pawl.ErrFull) {
		t.Errorf("the error is %v", err)
	}
	if jobs, err := s.Get(t.Context(), "other", other.ID); err != nil || jobs[0] == nil {
		t.Errorf("not stored: %v", err)
	}
	if _, err := s.Enqueue(t.Context(), []*pawl.Request{other, full}); !errors.Is(err, pawl.ErrFull) {
		t.Errorf("with nothing more to store, the error is %v", err)
	}
}
