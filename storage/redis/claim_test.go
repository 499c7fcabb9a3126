package redis_test

import (
	"fmt"
	"testing"
	"time"

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
