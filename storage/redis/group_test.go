package redis_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	client "github.com/redis/go-redis/v9"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/testserver"
	"github.com/pawlq/pawl/storage/redis"
)

// calls returns how many scripts the server has run.
func calls(t *testing.T, c *client.Client) (n int) {
	t.Helper()
	text, err := c.Info(t.Context(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(text, "\n") {
		var one int
		if k, _ := fmt.Sscanf(line, "cmdstat_evalsha:calls=%d,", &one); k == 1 {
			n += one
		}
	}
	return n
}

// underWay waits for n calls of a server that is held up.
func underWay(t *testing.T, c *client.Client, n uint32) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d calls under way", n), func() bool {
		st := c.PoolStats()
		return st.TotalConns-st.IdleConns >= n
	})
}

// TestSharedEnqueues lets many callers enqueue while the server is held up: all
// get their own receipts, of few calls.
func TestSharedEnqueues(t *testing.T) {
	server := testserver.NewRedis(t, nil)
	c := connect(t, server)
	s := open(t, c, nil)
	const callers = 60
	if _, err := s.Enqueue(t.Context(), []*pawl.Request{request(pawl.Request{UniqueKey: "taken"})}); err != nil {
		t.Fatal(err)
	}
	before := calls(t, c)
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range callers {
		if i == callers/2 {
			underWay(t, c, 1)
		}
		wg.Go(func() {
			r := pawl.Request{Payload: fmt.Append(nil, i)}
			want := pawl.Stored
			if i%10 == 0 {
				r.UniqueKey, want = "taken", pawl.Duplicate
			}
			q := request(r)
			got, err := s.Enqueue(t.Context(), []*pawl.Request{q})
			if err != nil || len(got) != 1 || got[0].Status != want || want == pawl.Stored && got[0].ID != q.ID {
				t.Errorf("receipts %v, error %v", got, err)
			}
		})
	}
	// When two calls are under way, a caller whose context ends is not held up.
	underWay(t, c, 2)
	over, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	never := request(pawl.Request{})
	if _, err := s.Enqueue(over, []*pawl.Request{never}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	if err := server.Resume(); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if n := calls(t, c) - before; n > callers/2 {
		t.Errorf("%d calls for %d callers", n, callers)
	}
	if jobs, err := s.Get(t.Context(), "default", never.ID); err != nil || jobs[0] != nil {
		t.Errorf("what was given up is there: %v", err)
	}
	if st, err := s.Count(t.Context(), "default"); err != nil || st[0].Ready != callers-callers/10+1 {
		t.Errorf("numbers %+v, %v", st, err)
	}
}

// TestSharedLimits keeps from others what can make a call fail.
func TestSharedLimits(t *testing.T) {
	s := open(t, connect(t, testserver.Redis(t)), &redis.Options{Prefix: fmt.Sprint("test", installations.Add(1))})
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			q := request(pawl.Request{})
			if i%2 == 1 {
				q.Queue, q.MaxDepth = "full", 1
			}
			if _, err := s.Enqueue(t.Context(), []*pawl.Request{q}); err != nil && (i%2 == 0 || !errors.Is(err, pawl.ErrFull)) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	st, err := s.Count(t.Context(), "default", "full")
	if err != nil || st[0].Ready != 20 || st[1].Ready != 1 {
		t.Errorf("numbers %+v, %v", st, err)
	}
}

// TestBatchJobs bounds the calls that are shared.
func TestBatchJobs(t *testing.T) {
	const callers = 40
	server := testserver.NewRedis(t, nil)
	c := connect(t, server)
	for _, o := range []struct {
		options redis.Options
		least   int
	}{
		{redis.Options{BatchJobs: 1}, callers},
		{redis.Options{BatchJobs: 4}, callers / 4},
		{redis.Options{BatchBytes: 2}, callers / 2},
	} {
		s := open(t, c, &o.options)
		mustEnqueue(t, s, request(pawl.Request{})) // enters the queue in the register
		before := calls(t, c)
		if err := server.Pause(); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for range callers {
			wg.Go(func() {
				if _, err := s.Enqueue(t.Context(), []*pawl.Request{request(pawl.Request{Payload: []byte("x")})}); err != nil {
					t.Error(err)
				}
			})
		}
		underWay(t, c, 1)
		if err := server.Resume(); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		if n := calls(t, c) - before; n < o.least {
			t.Errorf("%d calls for %d callers with %+v", n, callers, o.options)
		}
	}
}
