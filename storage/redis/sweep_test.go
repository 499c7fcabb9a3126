package redis_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/testserver"
	"github.com/pawlq/pawl/storage/redis"
)

// TestSweepBesideMany rescues the jobs whose leases are over among many whose are not, in
// steps that look at some thousands.
func TestSweepBesideMany(t *testing.T) {
	const claims, short = 15, 10 * time.Second
	now := time.Now()
	s := open(t, connect(t, testserver.Redis(t)), &redis.Options{
		Prefix: fmt.Sprint("test", installations.Add(1)), Clock: func() time.Time { return now },
	})
	for range claims {
		mustEnqueue(t, s, append(requests(pawl.MaxStep-1, pawl.Request{}), request(pawl.Request{Lease: short}))...)
		if n := len(mustClaim(t, s, pawl.MaxStep)); n != pawl.MaxStep {
			t.Fatalf("claimed %d jobs", n)
		}
	}
	now = now.Add(short)
	for _, want := range []struct {
		jobs int
		more bool
	}{{10, true}, {5, false}} {
		swept, err := s.Sweep(t.Context(), pawl.SweepSpec{Limit: 100})
		if err != nil || len(swept.Rescued) != want.jobs || swept.More != want.more {
			t.Errorf("rescued %d jobs, more %t, error %v; want %+v", len(swept.Rescued), swept.More, err, want)
		}
	}
	wantStats(t, s, pawl.QueueStats{Ready: claims, Running: claims * (pawl.MaxStep - 1)})
}
