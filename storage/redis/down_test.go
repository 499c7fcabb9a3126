package redis_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	client "github.com/redis/go-redis/v9"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/testserver"
	"github.com/pawlq/pawl/storage/redis"
	"github.com/pawlq/pawl/worker"
)

// TestNodeDown ends a node and its replica of a cluster that goes on without them. Leases in
// queues on other nodes are extended, whatever the order, and their jobs are rescued. Claims and
// pools go on there.
func TestNodeDown(t *testing.T) {
	cluster := testserver.NewRedisCluster(t, &testserver.RedisOptions{
		Fsync: "off", Settings: map[string]string{"cluster-require-full-coverage": "no"},
	})
	c := cluster.Client(&client.ClusterOptions{MaxRedirects: 1, DialTimeout: time.Second})
	t.Cleanup(func() { _ = c.Close() })
	now := time.Now()
	told := goingOn{slog.DiscardHandler, new(atomic.Int64)}
	s := open(t, c, &redis.Options{Clock: func() time.Time { return now }, Logger: slog.New(told)})
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
	claimBesideDown(t, s, slices.Sorted(maps.Keys(up))[0])
	if n := told.n.Load(); n != 1 {
		t.Errorf("told %d times that claims go on", n)
	}
}

// goingOn counts how often a Store says that claims go on.
type goingOn struct {
	slog.Handler
	n *atomic.Int64
}

func (goingOn) Enabled(context.Context, slog.Level) bool { return true }

func (g goingOn) Handle(_ context.Context, r slog.Record) error {
	if strings.Contains(r.Message, "claims go on") {
		g.n.Add(1)
	}
	return nil
}

// claimBesideDown claims from a queue, and from one whose node is down.
func claimBesideDown(t *testing.T, s *redis.Store, up string) {
	t.Helper()
	asks := func(queues ...string) pawl.ClaimSpec {
		spec := asking(10)
		spec.Queues = nil
		for _, queue := range queues {
			spec.Queues = append(spec.Queues, pawl.QueueAsk{Queue: queue, Max: 10})
		}
		return spec
	}
	fill := func() {
		for range 2 {
			q := request(pawl.Request{})
			q.Queue = up
			mustEnqueue(t, s, q)
		}
	}
	var refs []pawl.Outcome
	for _, spec := range []pawl.ClaimSpec{asks(up, "down"), asks("down", up)} {
		fill()
		got, err := s.Claim(t.Context(), spec)
		if err != nil || len(got.Jobs) < 2 {
			t.Fatalf("claimed %d jobs: %v", len(got.Jobs), err)
		}
		spec.Repeat = true
		again, err := s.Claim(t.Context(), spec)
		if err != nil || len(again.Jobs) != len(got.Jobs) {
			t.Errorf("claimed %d jobs again of %d: %v", len(again.Jobs), len(got.Jobs), err)
		}
		refs = append(refs, acks(got.Jobs)...)
	}
	spec := asks(up, "down")
	if _, err := s.Claim(t.Context(), spec); err == nil {
		t.Error("a claim without jobs did not tell that a node is down")
	}
	fill()
	spec.Repeat = true // as a pool does after the error
	got, err := s.Claim(t.Context(), spec)
	if err != nil || len(got.Jobs) != 2 {
		t.Errorf("a repeated claim got %d new jobs: %v", len(got.Jobs), err)
	}
	refs = append(refs, acks(got.Jobs)...)
	settleBesideDown(t, s, refs, asks(up), fill)
	workBesideDown(t, s, up, fill)
}

// settleBesideDown settles a job on the node that is down with others: the error is told with
// what was claimed.
func settleBesideDown(t *testing.T, s *redis.Store, outcomes []pawl.Outcome, spec pawl.ClaimSpec, fill func()) {
	t.Helper()
	fill()
	lostNode := pawl.Outcome{Ref: pawl.Ref{Queue: "down", ID: outcomes[0].Ref.ID, Fence: 1}, Verb: pawl.Ack}
	_, got, err := s.Cycle(t.Context(), append(slices.Clone(outcomes), lostNode), spec)
	if err == nil || len(got.Jobs) != 2 {
		t.Errorf("a Cycle claimed %d jobs: %v", len(got.Jobs), err)
	}
	mustSettle(t, s, repeated(append(outcomes, acks(got.Jobs)...)))
}

func repeated(outcomes []pawl.Outcome) []pawl.Outcome {
	for i := range outcomes {
		outcomes[i].Repeat = true
	}
	return outcomes
}

// workBesideDown lets a pool work on both queues.
func workBesideDown(t *testing.T, s *redis.Store, up string, fill func()) {
	t.Helper()
	ran := make(chan struct{}, 100)
	q := pawl.New(s, &pawl.Options{Logger: slog.New(slog.DiscardHandler)})
	pool := worker.New(q, worker.Func(func(context.Context, *pawl.Job) error {
		ran <- struct{}{}
		return nil
	}), &worker.Options{Queues: []worker.Queue{{Name: up}, {Name: "down"}}, Lease: time.Minute})
	ended := make(chan error, 1)
	go func() { ended <- pool.Run(context.Background()) }()
	late := time.After(patience)
	for range 3 {
		fill()
		for range 2 {
			select {
			case <-ran:
			case <-late:
				t.Fatal("the pool does not work")
			}
		}
	}
	if err := pool.Stop(context.Background()); err != nil {
		t.Error(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
