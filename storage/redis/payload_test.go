package redis_test

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	client "github.com/redis/go-redis/v9"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/testserver"
	"github.com/pawlq/pawl/storage/redis"
)

// memory returns a number of bytes that the server tells.
func memory(t *testing.T, c *client.Client, name string) int {
	t.Helper()
	info, err := c.InfoMap(t.Context(), "memory").Result()
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(info["Memory"][name])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestBigPayloads works on jobs with big payloads without holding them all in memory,
// where it needs to know the jobs alone.
func TestBigPayloads(t *testing.T) {
	const jobs, size, most = 64, 1 << 20, 16 << 20
	c := connect(t, testserver.NewRedis(t, nil))
	now := time.Now()
	s := open(t, c, &redis.Options{Clock: func() time.Time { return now }})
	payload := bytes.Repeat([]byte("x"), size)
	for i := range jobs {
		r := pawl.Request{Payload: payload, Delay: time.Hour}
		if i%2 == 0 {
			r.StartBefore = now.Add(30 * time.Minute)
		}
		mustEnqueue(t, s, request(r))
	}
	step := func(what string, f func() error) {
		t.Helper()
		before := memory(t, c, "used_memory")
		began := time.Now()
		if err := f(); err != nil {
			t.Fatal(what, err)
		}
		t.Logf("%s: %v, %d MiB more at most", what, time.Since(began), (memory(t, c, "used_memory_peak")-before)>>20)
		if more := memory(t, c, "used_memory_peak") - before; more > most {
			t.Errorf("%s took %d MiB", what, more>>20)
		}
	}
	sweep := func() error {
		_, err := s.Sweep(t.Context(), pawl.SweepSpec{Limit: 1000})
		return err
	}
	step("sweep", sweep)
	step("list", func() error {
		page, err := s.List(t.Context(), pawl.ListSpec{Limit: 1000})
		if len(page.Jobs) != jobs {
			return fmt.Errorf("%d jobs: %w", len(page.Jobs), err)
		}
		return err
	})
	step("reschedule", func() error {
		page, err := s.List(t.Context(), pawl.ListSpec{Limit: 1000})
		change := pawl.Change{Verb: pawl.Reschedule, Queue: "default", Delay: 45 * time.Minute}
		for _, j := range page.Jobs {
			change.IDs = append(change.IDs, j.ID)
		}
		if err == nil {
			_, err = s.Change(t.Context(), change)
		}
		return err
	})
	now = now.Add(time.Hour)
	step("expire", sweep)
	wantStats(t, s, pawl.QueueStats{Ready: jobs / 2, Canceled: jobs / 2})
	got := mustClaim(t, s, 1)
	if len(got) != 1 || !bytes.Equal(got[0].Payload, payload) || got[0].Attempt != 1 {
		t.Errorf("claimed %d jobs", len(got))
	}
	mustSettle(t, s, acks(got))
}

// TestBigResults settles with more results than the server is given at once. What is
// settled twice in one call is settled, also if the first time removed it.
func TestBigResults(t *testing.T) {
	const jobs, size, most = 40, 1 << 20, 32 << 20
	c := connect(t, testserver.NewRedis(t, &testserver.RedisOptions{Fsync: "off"}))
	s := open(t, c, nil)
	keep := request(pawl.Request{})
	mustEnqueue(t, s, append(requests(jobs, pawl.Request{Retention: pawl.DeleteNow}), keep)...)
	outcomes := acks(mustClaim(t, s, jobs+1))
	for i := range outcomes {
		outcomes[i].Result = bytes.Repeat([]byte{byte(i)}, size)
	}
	foreign := outcomes[jobs/2]
	foreign.Ref.Fence++
	outcomes = slices.Concat(outcomes[:jobs/2], []pawl.Outcome{foreign}, outcomes[jobs/2:], outcomes)
	mustEnqueue(t, s, request(pawl.Request{}))
	before := memory(t, c, "used_memory")
	lost, claimed, err := s.Cycle(t.Context(), outcomes, asking(5))
	if err != nil || !slices.Equal(lost, []pawl.Ref{foreign.Ref}) || len(claimed.Jobs) != 1 {
		t.Fatalf("lost %v, claimed %d, error %v", lost, len(claimed.Jobs), err)
	}
	if more := memory(t, c, "used_memory_peak") - before; more > most {
		t.Errorf("it took %d MiB", more>>20)
	}
	got, err := s.Get(t.Context(), "default", keep.ID)
	if err != nil || got[0] == nil || !bytes.Equal(got[0].Result, bytes.Repeat([]byte{jobs}, size)) {
		t.Errorf("the result is not there: %v", err)
	}
	wantStats(t, s, pawl.QueueStats{Running: 1, Completed: 1})
}
