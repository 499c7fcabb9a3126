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

// loseRegister takes the queue from the register, as a failover of the node that has it
// does to what is newest there.
func loseRegister(t *testing.T, c *client.Client, s *redis.Store) {
	t.Helper()
	if n, err := c.HDel(t.Context(), s.Prefix()+":queues", "default").Result(); err != nil || n != 1 {
		t.Fatal(n, err)
	}
}

// TestRegisterLost uses queues that the register has lost: a Store enters them again
// when it first meets them, and after a minute.
func TestRegisterLost(t *testing.T) {
	c := connect(t, testserver.Redis(t))
	for name, use := range map[string]func(t *testing.T, s *redis.Store, running *pawl.Job){
		"enqueue": func(t *testing.T, s *redis.Store, _ *pawl.Job) { mustEnqueue(t, s, request(pawl.Request{})) },
		"claim":   func(t *testing.T, s *redis.Store, _ *pawl.Job) { mustClaim(t, s, 1) },
		"extend": func(t *testing.T, s *redis.Store, running *pawl.Job) {
			lost, err := s.Extend(t.Context(), []pawl.Renewal{{Ref: running.Ref, Lease: time.Minute}})
			if err != nil || len(lost) > 0 {
				t.Fatal(lost, err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			now := time.Now()
			o := &redis.Options{Prefix: fmt.Sprint("test", installations.Add(1)), Clock: func() time.Time { return now }}
			s := open(t, c, o)
			mustEnqueue(t, s, requests(4, pawl.Request{})...)
			running := mustClaim(t, s, 1)[0]
			loseRegister(t, c, s)
			other := open(t, c, o)
			use(t, other, running)
			wantKnown(t, other, 1)

			loseRegister(t, c, s)
			now = now.Add(59 * time.Second)
			use(t, other, running)
			wantKnown(t, other, 0)
			now = now.Add(time.Second)
			use(t, other, running)
			wantKnown(t, other, 1)

			now = now.Add(time.Hour)
			if got, err := s.Sweep(t.Context(), pawl.SweepSpec{Limit: 10}); err != nil || len(got.Rescued) == 0 {
				t.Errorf("rescued %d: %v", len(got.Rescued), err)
			}
		})
	}
}

func wantKnown(t *testing.T, s *redis.Store, want int) {
	t.Helper()
	if known, err := s.Count(t.Context()); err != nil || len(known) != want {
		t.Errorf("%d queues are known, want %d: %v", len(known), want, err)
	}
}
