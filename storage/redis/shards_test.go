package redis_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	client "github.com/redis/go-redis/v9"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/testserver"
	"github.com/pawlq/pawl/storage/redis"
)

// openDivided opens a Store whose queue "default" is divided.
func openDivided(t *testing.T, c client.UniversalClient) *redis.Store {
	t.Helper()
	prefix := fmt.Sprint("test", installations.Add(1))
	return open(t, c, &redis.Options{Prefix: prefix, Shards: map[string]int{"default": testShards}})
}

func dividing(s *redis.Store, shards int) *redis.Options {
	return &redis.Options{Prefix: s.Prefix(), Shards: map[string]int{"default": shards}}
}

// requests makes n requests.
func requests(n int, r pawl.Request) []*pawl.Request {
	reqs := make([]*pawl.Request, n)
	for i := range reqs {
		reqs[i] = request(r)
	}
	return reqs
}

func mustEnqueue(t *testing.T, s *redis.Store, reqs ...*pawl.Request) []pawl.Receipt {
	t.Helper()
	receipts, err := s.Enqueue(t.Context(), reqs)
	if err != nil {
		t.Fatal(err)
	}
	return receipts
}

func mustClaim(t *testing.T, s *redis.Store, n int) []*pawl.Job {
	t.Helper()
	got, err := s.Claim(t.Context(), asking(n))
	if err != nil {
		t.Fatal(err)
	}
	return got.Jobs
}

func acks(jobs []*pawl.Job) []pawl.Outcome {
	outcomes := make([]pawl.Outcome, len(jobs))
	for i, j := range jobs {
		outcomes[i] = pawl.Outcome{Ref: j.Ref, Verb: pawl.Ack}
	}
	return outcomes
}

func mustSettle(t *testing.T, s *redis.Store, outcomes []pawl.Outcome) {
	t.Helper()
	if lost, err := s.Settle(t.Context(), outcomes); err != nil || len(lost) > 0 {
		t.Fatalf("lost %d: %v", len(lost), err)
	}
}

func wantStats(t *testing.T, s *redis.Store, want pawl.QueueStats) {
	t.Helper()
	want.Queue = "default"
	got, err := s.Count(t.Context(), "default")
	if err != nil {
		t.Fatal(err)
	}
	got[0].OldestReady = 0
	if got[0] != want {
		t.Errorf("numbers %+v, want %+v", got[0], want)
	}
}

// TestShardsRecorded opens an installation with other numbers of shards than it
// has: what is in use stays as it is.
func TestShardsRecorded(t *testing.T) {
	c := connect(t, testserver.Redis(t))
	s := openDivided(t, c)
	mustEnqueue(t, s, requests(100, pawl.Request{})...)
	for _, n := range []int{2, 8} {
		if _, err := redis.New(t.Context(), c, dividing(s, n)); !errors.Is(err, redis.ErrShards) {
			t.Errorf("with %d shards the error is %v", n, err)
		}
	}
	for _, n := range []int{-1, 0, 1, redis.MaxShards + 1} {
		if _, err := redis.New(t.Context(), c, dividing(s, n)); !errors.Is(err, pawl.ErrInvalid) {
			t.Errorf("with %d shards the error is %v", n, err)
		}
	}
	same := open(t, c, dividing(s, testShards))
	learns := open(t, c, &redis.Options{Prefix: s.Prefix()})
	for _, other := range []*redis.Store{s, same, learns} {
		wantStats(t, other, pawl.QueueStats{Ready: 100})
	}
	if jobs := mustClaim(t, learns, 100); len(jobs) != 100 {
		t.Errorf("claimed %d jobs", len(jobs))
	}
}

// TestDivideInUse divides no queue that holds something.
func TestDivideInUse(t *testing.T) {
	c := connect(t, testserver.Redis(t))
	s := open(t, c, &redis.Options{Prefix: fmt.Sprint("test", installations.Add(1))})
	refused := func(why string) {
		t.Helper()
		if _, err := redis.New(t.Context(), c, dividing(s, 4)); !errors.Is(err, redis.ErrShards) {
			t.Errorf("%s: the error is %v", why, err)
		}
	}
	mustEnqueue(t, s, request(pawl.Request{}))
	refused("a ready job")
	jobs := mustClaim(t, s, 1)
	refused("a running job")
	mustSettle(t, s, acks(jobs))
	refused("a completed job")
	if _, err := s.Change(t.Context(), pawl.Change{Verb: pawl.Delete, Queue: "default", IDs: []pawl.ID{jobs[0].ID}}); err != nil {
		t.Fatal(err)
	}
	paused, resumed := true, false
	for _, p := range []*bool{&paused, &resumed} {
		if err := s.Configure(t.Context(), "default", pawl.QueueSettings{Paused: p}); err != nil {
			t.Fatal(err)
		}
		if p == &paused {
			refused("a pause")
		}
	}
	open(t, c, dividing(s, 4))
}

// TestDividedMeanwhile divides a queue under a Store that has used it as a whole: each
// of its calls finds the shards.
func TestDividedMeanwhile(t *testing.T) {
	c := connect(t, testserver.Redis(t))
	job := request(pawl.Request{Retention: pawl.DeleteNow})
	jobs := map[string]func(old *redis.Store, running *pawl.Job) error{
		"enqueue": func(old *redis.Store, _ *pawl.Job) error {
			_, err := old.Enqueue(context.Background(), []*pawl.Request{request(pawl.Request{})})
			return err
		},
		"claim": func(old *redis.Store, _ *pawl.Job) error {
			got, err := old.Claim(context.Background(), asking(1))
			if len(got.Jobs) != 1 {
				return fmt.Errorf("%d jobs: %w", len(got.Jobs), err)
			}
			return err
		},
		"settle": func(old *redis.Store, running *pawl.Job) error {
			lost, err := old.Settle(context.Background(), acks([]*pawl.Job{running}))
			if len(lost) > 0 {
				return fmt.Errorf("lost: %w", err)
			}
			return err
		},
		"extend": func(old *redis.Store, running *pawl.Job) error {
			lost, err := old.Extend(context.Background(), []pawl.Renewal{{Ref: running.Ref, Lease: time.Minute}})
			if len(lost) > 0 {
				return fmt.Errorf("lost: %w", err)
			}
			return err
		},
		"get": func(old *redis.Store, running *pawl.Job) error {
			got, err := old.Get(context.Background(), "default", running.ID)
			if err == nil && got[0] == nil {
				return errors.New("not found")
			}
			return err
		},
		"change": func(old *redis.Store, running *pawl.Job) error {
			got, err := old.Change(context.Background(), pawl.Change{Verb: pawl.Cancel, Queue: "default", IDs: []pawl.ID{running.ID}})
			if err == nil && got[0].Status != pawl.Done {
				return errors.New(got[0].Status.String())
			}
			return err
		},
		"list": func(old *redis.Store, _ *pawl.Job) error {
			got, err := old.List(context.Background(), pawl.ListSpec{Filter: pawl.Filter{Queue: "default"}, Limit: 10})
			if err == nil && len(got.Jobs) != 2 {
				return fmt.Errorf("%d jobs", len(got.Jobs))
			}
			return err
		},
	}
	for name, f := range jobs {
		t.Run(name, func(t *testing.T) {
			old := open(t, c, &redis.Options{Prefix: fmt.Sprint("test", installations.Add(1))})
			mustEnqueue(t, old, job)
			mustSettle(t, old, acks(mustClaim(t, old, 1)))
			s := open(t, c, dividing(old, testShards))
			mustEnqueue(t, s, request(pawl.Request{}))
			running := mustClaim(t, s, 1)[0]
			mustEnqueue(t, s, request(pawl.Request{}))
			if err := f(old, running); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestChangeDivided changes jobs of all queues by Stores that do not know a division: what
// was done in another queue before stays told.
func TestChangeDivided(t *testing.T) {
	c := connect(t, testserver.Redis(t))
	old := open(t, c, &redis.Options{Prefix: fmt.Sprint("test", installations.Add(1))})
	first, second := request(pawl.Request{}), request(pawl.Request{})
	first.Queue = "another"
	mustEnqueue(t, old, first)
	mustEnqueue(t, open(t, c, dividing(old, testShards)), second)
	got, err := old.Change(t.Context(), pawl.Change{Verb: pawl.Cancel, IDs: []pawl.ID{first.ID, second.ID}})
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range got {
		if one.Status != pawl.Done || one.Before != pawl.Ready {
			t.Errorf("changed: %+v", one)
		}
	}
}

// TestShardsForgotten sweeps until nothing is left of what has not been used for
// long. The queue stays divided.
func TestShardsForgotten(t *testing.T) {
	c := connect(t, testserver.Redis(t))
	now := time.Now()
	o := &redis.Options{Prefix: fmt.Sprint("test", installations.Add(1)), Clock: func() time.Time { return now }}
	old := open(t, c, o)
	mustEnqueue(t, old, request(pawl.Request{Retention: pawl.DeleteNow}))
	mustSettle(t, old, acks(mustClaim(t, old, 1)))
	o.Shards = map[string]int{"default": testShards}
	s := open(t, c, o)
	mustEnqueue(t, s, requests(20, pawl.Request{Retention: pawl.DeleteNow})...)
	mustSettle(t, s, acks(mustClaim(t, s, 20)))
	now = now.Add(2 * time.Hour)
	if _, err := s.Sweep(t.Context(), pawl.SweepSpec{Limit: 1000}); err != nil {
		t.Fatal(err)
	}
	if n := c.HLen(t.Context(), o.Prefix+":queues").Val(); n != 0 {
		t.Errorf("%d entries are in the register", n)
	}
	o.Shards = nil
	other := open(t, c, o)
	mustEnqueue(t, other, requests(20, pawl.Request{})...)
	wantStats(t, s, pawl.QueueStats{Ready: 20})
	if _, err := redis.New(t.Context(), c, dividing(s, 2)); !errors.Is(err, redis.ErrShards) {
		t.Errorf("with another number of shards the error is %v", err)
	}
}

// TestListShards reads pages of jobs that are spread.
func TestListShards(t *testing.T) {
	s := openDivided(t, connect(t, testserver.Redis(t)))
	const n = 120
	reqs := make([]*pawl.Request, n)
	for i := range reqs {
		reqs[i] = request(pawl.Request{Priority: i % 3, Delay: time.Duration(i%2) * time.Hour, Payload: []byte("p")})
	}
	mustEnqueue(t, s, reqs...)
	for _, limit := range []int{1, 7, 1000} {
		seen := make(map[pawl.ID]bool)
		var last *pawl.Job
		spec := pawl.ListSpec{Limit: limit, Payloads: true}
		for more := true; more; more = spec.Cursor != "" {
			page, err := s.List(t.Context(), spec)
			if err != nil {
				t.Fatal(err)
			}
			for _, j := range page.Jobs {
				if seen[j.ID] || last != nil && before(j, last) {
					t.Errorf("job %v: seen before %t, or behind %v", j.ID, seen[j.ID], last.ID)
				}
				seen[j.ID], last = true, j
			}
			spec.Cursor = page.Next
		}
		if len(seen) != n {
			t.Errorf("pages of %d have %d jobs", limit, len(seen))
		}
	}
}

// before reports whether a should be listed before b.
func before(a, b *pawl.Job) bool {
	if a.State != b.State || a.State == pawl.Scheduled {
		return a.State < b.State || a.State == b.State && a.RunAt.Before(b.RunAt)
	}
	return a.Priority < b.Priority || a.Priority == b.Priority && a.RunAt.Before(b.RunAt)
}

// TestMaxBuriedShards deletes the oldest buried jobs of all shards.
func TestMaxBuriedShards(t *testing.T) {
	s := openDivided(t, connect(t, testserver.Redis(t)))
	const n, most = 200, 50
	mustEnqueue(t, s, requests(n, pawl.Request{})...)
	outcomes := acks(mustClaim(t, s, n))
	for i := range outcomes {
		outcomes[i].Verb = pawl.Bury
	}
	mustSettle(t, s, outcomes)
	if _, err := s.Sweep(t.Context(), pawl.SweepSpec{Limit: 1000, MaxBuried: most}); err != nil {
		t.Fatal(err)
	}
	st, err := s.Count(t.Context(), "default")
	if err != nil || st[0].Buried < most || st[0].Buried > most+testShards {
		t.Errorf("%+v: %v", st, err)
	}
}

// TestRepairShard damages one shard.
func TestRepairShard(t *testing.T) {
	c := connect(t, testserver.Redis(t))
	var warned atomic.Bool
	s := open(t, c, &redis.Options{
		Prefix: fmt.Sprint("test", installations.Add(1)), Shards: map[string]int{"default": testShards},
		Logger: slog.New(repairs{slog.DiscardHandler, &warned}),
	})
	mustEnqueue(t, s, requests(100, pawl.Request{})...)
	if err := c.Del(t.Context(), s.Prefix()+":{default#1}:w").Err(); err != nil {
		t.Fatal(err)
	}
	for range 30 {
		if _, err := s.Sweep(t.Context(), pawl.SweepSpec{Limit: 1000}); err != nil {
			t.Fatal(err)
		}
	}
	wantStats(t, s, pawl.QueueStats{Ready: 100})
	if !warned.Load() {
		t.Error("nothing was put right")
	}
}

type repairs struct {
	slog.Handler
	seen *atomic.Bool
}

func (r repairs) Enabled(context.Context, slog.Level) bool { return true }

func (r repairs) Handle(_ context.Context, rec slog.Record) error {
	if strings.Contains(rec.Message, "put right") {
		r.seen.Store(true)
	}
	return nil
}

// TestWakeFromShards tells of a job in each shard.
func TestWakeFromShards(t *testing.T) {
	c := connect(t, testserver.Redis(t))
	s := openDivided(t, c)
	var at atomic.Int64
	s.Place(func(string, int) int { return int(at.Load()) })
	l := listen(t, open(t, c, &redis.Options{Prefix: s.Prefix()}))
	for shard := range testShards {
		at.Store(int64(shard))
		l.idle(1)
		job := request(pawl.Request{})
		mustEnqueue(t, s, job)
		for e := l.next(); e.Kind != pawl.EventReady || e.Queue != "default"; e = l.next() {
		}
		jobs := mustClaim(t, l.s, 1)
		if len(jobs) != 1 || jobs[0].ID != job.ID {
			t.Fatalf("claimed %v", jobs)
		}
		if _, err := s.Change(t.Context(), pawl.Change{Verb: pawl.Cancel, Queue: "default", IDs: []pawl.ID{job.ID}}); err != nil {
			t.Fatal(err)
		}
		e := l.next()
		for ; e.Kind != pawl.EventEnded; e = l.next() {
		}
		if e.Ref != jobs[0].Ref {
			t.Errorf("ended %+v, want %+v", e.Ref, jobs[0].Ref)
		}
	}
}
