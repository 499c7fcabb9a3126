package redis_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	client "github.com/redis/go-redis/v9"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/testserver"
	"github.com/pawlq/pawl/storage/redis"
)

// TestClaimPastMany makes more jobs due, and more of them late, than one step
// deals with: a claim still gets what it asked for, in order, and no more.
func TestClaimPastMany(t *testing.T) {
	const many = 25_000
	now := time.Now().Truncate(time.Microsecond)
	s := open(t, connect(t, testserver.Redis(t)), &redis.Options{
		Prefix: fmt.Sprint("test", installations.Add(1)), Clock: func() time.Time { return now },
	})
	fill := func(n int, r pawl.Request) {
		t.Helper()
		for range n / 1000 {
			reqs := make([]*pawl.Request, 1000)
			for i := range reqs {
				reqs[i] = request(r)
			}
			if _, err := s.Enqueue(t.Context(), reqs); err != nil {
				t.Fatal(err)
			}
		}
	}
	fill(many, pawl.Request{Priority: -1, StartBefore: now.Add(time.Second), Retention: pawl.DeleteNow})
	fill(many, pawl.Request{Delay: time.Second})
	first, last := request(pawl.Request{Priority: -2}), request(pawl.Request{Priority: -1, Delay: time.Second})
	first.Queue = "first"
	if _, err := s.Enqueue(t.Context(), []*pawl.Request{first, last}); err != nil {
		t.Fatal(err)
	}
	now = now.Add(time.Second)
	spec := asking(10)
	spec.Queues = []pawl.QueueAsk{{Queue: "first", Max: 1}, {Queue: "default", Max: 5}}
	got, err := s.Claim(t.Context(), spec)
	if err != nil || len(got.Jobs) != 6 || got.Jobs[0].ID != first.ID || got.Jobs[1].ID != last.ID {
		t.Fatalf("claimed %d jobs: %v", len(got.Jobs), err)
	}
	spec.Repeat = true
	again, err := s.Claim(t.Context(), spec)
	if err != nil || len(again.Jobs) != 6 || again.Jobs[5].ID != got.Jobs[5].ID {
		t.Fatalf("claimed %d jobs again: %v", len(again.Jobs), err)
	}
}

// TestClockSetBack makes a job ready, sets the clock back before its time, as a failover to
// a slower clock does, and changes it: it is in one place, and claimed once.
func TestClockSetBack(t *testing.T) {
	c := connect(t, testserver.Redis(t))
	change := func(verb pawl.ChangeVerb) func(s *redis.Store, q *pawl.Request) {
		return func(s *redis.Store, q *pawl.Request) {
			urgent := -5
			got, err := s.Change(t.Context(), pawl.Change{
				Verb: verb, Queue: "default", IDs: []pawl.ID{q.ID}, Edit: pawl.EditFields{Priority: &urgent},
			})
			if err != nil || got[0].Status != pawl.Done || got[0].Before != pawl.Ready {
				t.Error(got, err)
			}
		}
	}
	for name, o := range map[string]struct {
		do     func(s *redis.Store, q *pawl.Request)
		claims int
	}{
		"reschedule": {change(pawl.Reschedule), 1},
		"edit":       {change(pawl.Edit), 1},
		"cancel":     {change(pawl.Cancel), 0},
		"replace": {func(s *redis.Store, q *pawl.Request) {
			again := request(pawl.Request{UniqueKey: q.UniqueKey, OnDuplicate: pawl.Replace})
			if got := mustEnqueue(t, s, again); got[0].Status != pawl.Replaced {
				t.Error(got)
			}
		}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			now := time.Now()
			s := open(t, c, &redis.Options{Prefix: fmt.Sprint("test", installations.Add(1)), Clock: func() time.Time { return now }})
			q := request(pawl.Request{Delay: time.Second, UniqueKey: "key"})
			mustEnqueue(t, s, q)
			now = now.Add(time.Second)
			if got, err := s.Sweep(t.Context(), pawl.SweepSpec{Limit: 10}); err != nil || got.Promoted != 1 {
				t.Fatal(got, err)
			}
			now = now.Add(-10 * time.Millisecond)
			o.do(s, q)
			if jobs := mustClaim(t, s, 10); len(jobs) != o.claims {
				t.Errorf("claimed %d jobs, want %d", len(jobs), o.claims)
			}
			if st, err := s.Count(t.Context(), "default"); err != nil || st[0].Ready+st[0].Scheduled > 0 {
				t.Errorf("numbers %+v, %v", st, err)
			}
		})
	}
}

// TestEnteredTwice claims a job once that is ready in two places, as nothing of the
// package leaves it.
func TestEnteredTwice(t *testing.T) {
	c := connect(t, testserver.Redis(t))
	s := open(t, c, &redis.Options{Prefix: fmt.Sprint("test", installations.Add(1))})
	q := request(pawl.Request{})
	mustEnqueue(t, s, q)
	again := client.Z{Score: 5, Member: strings.Repeat("0", 13) + string(q.ID[:])}
	if err := c.ZAdd(t.Context(), s.Prefix()+":{default}:w", again).Err(); err != nil {
		t.Fatal(err)
	}
	if jobs := mustClaim(t, s, 10); len(jobs) != 1 {
		t.Errorf("claimed %d jobs", len(jobs))
	}
}

// TestFirstClaims claims jobs for the first time that differ in what a claim has for all of
// its jobs, some under a token that has jobs already: each is read as it was claimed, and
// acked under its fence alone.
func TestFirstClaims(t *testing.T) {
	s := open(t, connect(t, testserver.Redis(t)), &redis.Options{Prefix: fmt.Sprint("test", installations.Add(1))})
	mustEnqueue(t, s,
		request(pawl.Request{Retention: time.Hour}), request(pawl.Request{Retention: time.Hour, Lease: time.Hour}),
		request(pawl.Request{Retention: 2 * time.Hour}), request(pawl.Request{Retention: pawl.DeleteNow}),
		request(pawl.Request{Retention: time.Hour, Payload: bytes.Repeat([]byte("p"), 10_000)}),
		request(pawl.Request{Retention: time.Hour, UniqueKey: "k"}), request(pawl.Request{Retention: time.Hour}),
	)
	spec := asking(6)
	got, err := s.Claim(t.Context(), spec)
	if err != nil || len(got.Jobs) != 6 {
		t.Fatalf("claimed %d jobs: %v", len(got.Jobs), err)
	}
	more, err := s.Claim(t.Context(), spec) // under the same token
	if err != nil || len(more.Jobs) != 1 {
		t.Fatalf("claimed %d jobs: %v", len(more.Jobs), err)
	}
	jobs := append(got.Jobs, more.Jobs...)
	sameJobs(t, s, jobs)
	spec.Repeat = true
	again, err := s.Claim(t.Context(), spec)
	if diff := cmp.Diff(jobs, again.Jobs, exported); err != nil || diff != "" {
		t.Errorf("claimed again: %v\n%s", err, diff)
	}
	stale := acks(jobs)
	for i := range stale {
		stale[i].Ref.Fence--
	}
	if lost, err := s.Settle(t.Context(), stale); err != nil || len(lost) != len(jobs) {
		t.Errorf("%d of %d stale outcomes were lost: %v", len(lost), len(jobs), err)
	}
	sameJobs(t, s, jobs)
	for range 2 {
		mustSettle(t, s, acks(slices.DeleteFunc(slices.Clone(jobs), func(j *pawl.Job) bool { return j.Retention == pawl.DeleteNow })))
	}
	mustSettle(t, s, acks(jobs[3:4]))
	wantStats(t, s, pawl.QueueStats{Queue: "default", Completed: 6})
	for _, j := range jobs {
		kept := j.Retention != pawl.DeleteNow
		found, err := s.Get(t.Context(), "default", j.ID)
		if err != nil || (found[0] != nil) != kept || kept && !completed(found[0], j) {
			t.Errorf("job %+v is %+v: %v", j, found[0], err)
		}
	}
}

// exported leaves out what only a Queue knows of a job.
var exported = cmpopts.IgnoreUnexported(pawl.Job{})

// completed reports whether a job is what became of an earlier one by an ack.
func completed(j, before *pawl.Job) bool {
	want := *before
	want.State, want.Fence, want.LeaseUntil, want.FinishedAt = pawl.Completed, 0, time.Time{}, j.FinishedAt
	return cmp.Equal(&want, j, exported) && !j.FinishedAt.Before(before.ClaimedAt)
}

// sameJobs wants Get to tell of jobs what they are.
func sameJobs(t *testing.T, s *redis.Store, jobs []*pawl.Job) {
	t.Helper()
	var ids []pawl.ID
	for _, j := range jobs {
		ids = append(ids, j.ID)
	}
	found, err := s.Get(t.Context(), "default", ids...)
	if diff := cmp.Diff(jobs, found, exported); err != nil || diff != "" {
		t.Errorf("found: %v\n%s", err, diff)
	}
}
