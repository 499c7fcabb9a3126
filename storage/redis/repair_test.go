package redis_test

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	client "github.com/redis/go-redis/v9"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/testserver"
	"github.com/pawlq/pawl/storage/redis"
)

// TestRepair takes each key of a queue away, as an eviction does, and sweeps until
// all is right: each job whose payload is still there can be worked off, and the
// numbers are those of the jobs.
func TestRepair(t *testing.T) {
	c := connect(t, testserver.Redis(t))
	for _, key := range []string{"b", "s", "x", "w", "d", "c", "o", "u", "n", "p", "e", "l", "q", "i", "z", "f"} {
		t.Run(key, func(t *testing.T) {
			now := time.Now()
			clock := func() time.Time { return now }
			s := open(t, c, &redis.Options{Prefix: fmt.Sprint("test", installations.Add(1)), Clock: clock, Logger: slog.New(slog.DiscardHandler)})
			damage(t, s)
			if err := c.Del(t.Context(), s.Prefix()+":{default}:"+key).Err(); err != nil {
				t.Fatal(err)
			}
			now = now.Add(2 * time.Minute) // leases are over
			for range 30 {                 // a round over bodies and indexes, and a second one
				if _, err := s.Sweep(t.Context(), pawl.SweepSpec{Limit: 1000}); err != nil {
					t.Fatal(err)
				}
			}
			workOff(t, s, key != "b")
			if key == "b" {
				wantStats(t, s, pawl.QueueStats{})
			}
			now = now.Add(2 * time.Hour)
			for range 30 {
				if _, err := s.Sweep(t.Context(), pawl.SweepSpec{Limit: 1000, BuriedRetention: time.Minute}); err != nil {
					t.Fatal(err)
				}
			}
			if st, err := s.Count(t.Context(), "default"); err != nil || st[0] != (pawl.QueueStats{Queue: "default"}) {
				t.Errorf("numbers at the end: %+v, %v", st, err)
			}
		})
	}
}

// TestPayloadsLost reads jobs whose payloads are gone: they are not there.
func TestPayloadsLost(t *testing.T) {
	c := connect(t, testserver.Redis(t))
	s := open(t, c, &redis.Options{Prefix: fmt.Sprint("test", installations.Add(1)), Logger: slog.New(slog.DiscardHandler)})
	damage(t, s)
	page, err := s.List(t.Context(), pawl.ListSpec{Limit: 10})
	if err != nil || len(page.Jobs) != 7 {
		t.Fatal(len(page.Jobs), err)
	}
	if err := c.Del(t.Context(), s.Prefix()+":{default}:b").Err(); err != nil {
		t.Fatal(err)
	}
	for _, j := range page.Jobs {
		if got, err := s.Get(t.Context(), "default", j.ID); err != nil || got[0] != nil {
			t.Errorf("a %v job: %+v, %v", j.State, got, err)
		}
	}
}

// damage stores jobs of each state.
func damage(t *testing.T, s *redis.Store) {
	t.Helper()
	reqs := []*pawl.Request{
		request(pawl.Request{}), request(pawl.Request{}), request(pawl.Request{}), request(pawl.Request{}), request(pawl.Request{}),
		request(pawl.Request{UniqueKey: "k", StartBefore: time.Now().Add(time.Hour)}), request(pawl.Request{Delay: time.Minute}),
	}
	if _, err := s.Enqueue(t.Context(), reqs); err != nil {
		t.Fatal(err)
	}
	got, err := s.Claim(t.Context(), asking(5))
	if err != nil || len(got.Jobs) != 5 {
		t.Fatal(len(got.Jobs), err)
	}
	lost, err := s.Settle(t.Context(), []pawl.Outcome{
		{Ref: got.Jobs[0].Ref, Verb: pawl.Ack, Result: []byte("r")}, {Ref: got.Jobs[1].Ref, Verb: pawl.Bury, Error: "e"},
		{Ref: got.Jobs[2].Ref, Verb: pawl.Nack, Delay: time.Second},
	})
	if err != nil || len(lost) > 0 {
		t.Fatal(lost, err)
	}
	if _, err := s.Change(t.Context(), pawl.Change{Verb: pawl.Cancel, Queue: "default", IDs: []pawl.ID{got.Jobs[3].ID}}); err != nil {
		t.Fatal(err)
	}
}

// workOff claims and acks what can be claimed: of the seven jobs four wait or run,
// unless their payloads are gone.
func workOff(t *testing.T, s *redis.Store, whole bool) {
	t.Helper()
	n := 0
	for {
		got, err := s.Claim(t.Context(), asking(10))
		if err != nil {
			t.Fatal(err)
		}
		if len(got.Jobs) == 0 {
			break
		}
		for _, j := range got.Jobs {
			if lost, err := s.Settle(t.Context(), []pawl.Outcome{{Ref: j.Ref, Verb: pawl.Ack}}); err != nil || len(lost) > 0 {
				t.Fatal(lost, err)
			}
			n++
		}
	}
	if whole && n < 4 {
		t.Errorf("%d jobs could be worked off, want 4", n)
	}
	if st, err := s.Count(t.Context(), "default"); err != nil || st[0].Running+st[0].Ready+st[0].Scheduled > 0 {
		t.Errorf("numbers after the work: %+v, %v", st, err)
	}
}

// TestRetryingRepaired takes away what makes sweeps enter jobs anew that will be tried again:
// they are counted once.
func TestRetryingRepaired(t *testing.T) {
	c := connect(t, testserver.Redis(t))
	for _, key := range []string{"e", "d", "entry"} {
		t.Run(key, func(t *testing.T) {
			v := newVictim(t, c)
			mustEnqueue(t, v.Store, requests(2, pawl.Request{StartBefore: v.now.Add(24 * time.Hour)})...)
			outcomes := acks(mustClaim(t, v.Store, 2))
			for i := range outcomes {
				outcomes[i].Verb, outcomes[i].Delay = pawl.Nack, time.Hour
			}
			mustSettle(t, v.Store, outcomes)
			v.damageIndex(key, outcomes[0].Ref.ID)
			v.sweep()
			wantStats(t, v.Store, pawl.QueueStats{Scheduled: 2, Retrying: 2})
			v.now = v.now.Add(2 * time.Hour)
			mustSettle(t, v.Store, acks(mustClaim(t, v.Store, 2)))
			wantStats(t, v.Store, pawl.QueueStats{Completed: 2})
		})
	}
}

// damageIndex takes an index away, or puts an entry of the later set in the place of another.
func (v *victim) damageIndex(key string, id pawl.ID) {
	v.t.Helper()
	name := v.Prefix() + ":{default}:"
	if key != "entry" {
		if err := v.c.Del(v.t.Context(), name+key).Err(); err != nil {
			v.t.Fatal(err)
		}
		return
	}
	entries, err := v.c.ZRangeWithScores(v.t.Context(), name+"d", 0, -1).Result()
	if err != nil {
		v.t.Fatal(err)
	}
	for _, e := range entries {
		member := e.Member.(string)
		if !strings.HasSuffix(member, string(id[:])) {
			continue
		}
		other := []byte(member)
		other[5] += 7 // its place
		if err := v.c.ZRem(v.t.Context(), name+"d", member).Err(); err != nil {
			v.t.Fatal(err)
		}
		if err := v.c.ZAdd(v.t.Context(), name+"d", client.Z{Score: e.Score, Member: string(other)}).Err(); err != nil {
			v.t.Fatal(err)
		}
	}
}
