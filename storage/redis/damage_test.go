package redis_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	client "github.com/redis/go-redis/v9"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/testserver"
	"github.com/pawlq/pawl/storage/redis"
)

// notRecords are what no Store writes in the place of a record: no array, a string, one that is as
// long as a record has fields, an array that is cut off, one of strings, no state, and
// strings of digits and NaN for numbers, which Lua reckons with.
var notRecords = map[string]string{
	"garbage": "garbage", "empty": "", "string": "\xa5hello", "long string": "\xd9\x28" + strings.Repeat("x", 40),
	"cut": "\xdc\x00\x24\x02\x00", "cut short": "\x95\x04\x01", "strings": "\x99" + strings.Repeat("\xa1x", 9),
	"map": "\x81\x01\x02", "no state": "\x99\x00\x00\x01\x01\x01\x01\x01\x01\x01",
	"number as text": "\x99\xa12\x00\x01\x01\x01\x01\x01\x01\x01", "retention as text": "\x99\x02\x00\x01\x01\x01\xa15\x01\x01\x01",
	"lease as text": "\x99\x02\x00\x01\x01\x01\x01\x01\x01\xa15", "time as text": "\x99\x02\x00\xa15\x01\x01\x01\x01\x01\x01",
	"NaN as state": "\x99" + nan + "\x00\x01\x01\x01\x01\x01\x01\x01", "NaN as time": "\x99\x02\x00" + nan + "\x01\x01\x01\x01\x01\x01",
	"NaN as lease":  "\x99\x02\x00\x01\x01\x01\x01\x01\x01" + nan,
	"short strings": "\x95" + strings.Repeat("\xa1x", 5), "endless": "\xdd\xff\xff\xff\xff",
}

const nan = "\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00"

// warnings collects what is logged.
type warnings struct {
	slog.Handler
	told *[]string
}

func (warnings) Enabled(context.Context, slog.Level) bool { return true }

func (w warnings) Handle(_ context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "id" {
			*w.told = append(*w.told, a.Value.String())
		}
		return true
	})
	return nil
}

// A victim is a Store whose records a test damages, and its clock.
type victim struct {
	*redis.Store
	t    *testing.T
	c    client.UniversalClient
	now  time.Time
	told []string // IDs that it has warned of
}

func newVictim(t *testing.T, c client.UniversalClient) *victim {
	t.Helper()
	v := &victim{t: t, c: c, now: time.Now().Truncate(time.Microsecond)}
	v.Store = open(t, c, &redis.Options{
		Prefix: fmt.Sprint("test", installations.Add(1)), Clock: func() time.Time { return v.now },
		Logger: slog.New(warnings{slog.DiscardHandler, &v.told}),
	})
	return v
}

// damage writes something in the place of what a key has of a job.
func (v *victim) damage(key string, id pawl.ID, what string) {
	v.t.Helper()
	if err := v.c.HSet(v.t.Context(), v.Prefix()+":{default}:"+key, string(id[:]), what).Err(); err != nil {
		v.t.Fatal(err)
	}
}

// damageKind leaves the head of a body, and not what is behind it.
func (v *victim) damageKind(id pawl.ID) {
	v.t.Helper()
	body, err := v.c.HGet(v.t.Context(), v.Prefix()+":{default}:b", string(id[:])).Result()
	at := strings.Index(body, "\x93\xa4test")
	if err != nil || at < 0 {
		v.t.Fatalf("body %q, %v", body, err)
	}
	v.damage("b", id, body[:at]+"\x93\xa4te")
}

// recorded enqueues jobs and hands them back, so that they have records.
func (v *victim) recorded(reqs ...*pawl.Request) {
	v.t.Helper()
	mustEnqueue(v.t, v.Store, reqs...)
	outcomes := acks(mustClaim(v.t, v.Store, len(reqs)))
	for i := range outcomes {
		outcomes[i].Verb = pawl.Release
	}
	mustSettle(v.t, v.Store, outcomes)
}

// sweep sweeps until all has been looked at, and again.
func (v *victim) sweep() {
	v.t.Helper()
	for range 30 {
		if _, err := v.Sweep(v.t.Context(), pawl.SweepSpec{Limit: 1000}); err != nil {
			v.t.Fatal(err)
		}
	}
}

// wantBuried wants a job to be buried so that it is seen, also by Lists with and without payloads.
func (v *victim) wantBuried(id pawl.ID) {
	v.t.Helper()
	got, err := v.Get(v.t.Context(), "default", id)
	if err != nil || got[0] == nil || got[0].State != pawl.Buried || got[0].Reason != pawl.ReasonBury || len(got[0].Failures) == 0 {
		v.t.Errorf("job %v: %+v, %v", id, got[0], err)
	}
	for _, payloads := range []bool{false, true} {
		page, err := v.List(v.t.Context(), pawl.ListSpec{
			Filter: pawl.Filter{Queue: "default", States: []pawl.State{pawl.Buried}}, Limit: 10, Payloads: payloads,
		})
		if err != nil || len(page.Jobs) != 1 || page.Jobs[0].ID != id {
			v.t.Errorf("listed %d jobs: %v", len(page.Jobs), err)
		}
	}
}

// TestDamagedClaim claims sound jobs and one that can't be read: they come, and it is buried.
func TestDamagedClaim(t *testing.T) {
	c := connect(t, testserver.Redis(t))
	ways := map[string]func(v *victim, id pawl.ID){"kind": (*victim).damageKind}
	for name, text := range notRecords {
		ways["record "+name] = func(v *victim, id pawl.ID) { v.damage("s", id, text) }
		ways["body "+name] = func(v *victim, id pawl.ID) { v.damage("b", id, text) }
		ways["both "+name] = func(v *victim, id pawl.ID) { v.damage("b", id, text); v.damage("s", id, text) }
	}
	for name, damage := range ways {
		for _, recorded := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/recorded=%t", name, recorded), func(t *testing.T) {
				v := newVictim(t, c)
				reqs := requests(10, pawl.Request{})
				if recorded {
					v.recorded(reqs...)
				} else {
					mustEnqueue(t, v.Store, reqs...)
				}
				bad := reqs[4].ID
				damage(v, bad)
				jobs := mustClaim(t, v.Store, 9)
				if len(jobs) == 9 {
					mustSettle(t, v.Store, acks(jobs))
				} else {
					t.Errorf("claimed %d jobs", len(jobs))
				}
				if got, err := v.Get(t.Context(), "default", bad); err != nil || got[0] != nil && !slices.Equal(v.told, []string{bad.String()}) {
					t.Errorf("warned of %v: %v", v.told, err)
				}
				v.sweep() // what looks like one that was acked is found only here
				v.wantBuried(bad)
				wantStats(t, v.Store, pawl.QueueStats{Buried: 1, Completed: 9})
				kick := pawl.Change{Verb: pawl.Kick, Queue: "default", IDs: []pawl.ID{bad}}
				if got, err := v.Change(t.Context(), kick); err != nil || got[0].Status != pawl.Done {
					t.Errorf("kicked: %+v, %v", got, err)
				}
				mustClaim(t, v.Store, 10)
				deletion := pawl.Change{Verb: pawl.Delete, Queue: "default", IDs: []pawl.ID{bad, jobs[0].ID}}
				if got, err := v.Change(t.Context(), deletion); err != nil || got[0].Status != pawl.Done || got[1].Status != pawl.Done {
					t.Errorf("deleted: %+v, %v", got, err)
				}
				v.now = v.now.Add(2 * time.Hour)
				v.sweep()
				v.sweep()
				wantStats(t, v.Store, pawl.QueueStats{})
				if left, err := c.Keys(t.Context(), v.Prefix()+":{default}:[bsx]").Result(); err != nil || len(left) > 0 {
					t.Errorf("left: %v, %v", left, err)
				}
			})
		}
	}
}

// TestDamagedExpired lets jobs wait until they are too late, one of which can't be read: it keeps
// no Claim and no Sweep from the others, nor from other queues.
func TestDamagedExpired(t *testing.T) {
	c := connect(t, testserver.Redis(t))
	for key := range map[string]bool{"s": true, "b": true} {
		for _, first := range []string{"claim", "sweep"} {
			t.Run(key+"/"+first, func(t *testing.T) {
				v := newVictim(t, c)
				reqs := requests(3, pawl.Request{StartBefore: v.now.Add(time.Minute)})
				other := request(pawl.Request{})
				other.Queue = "other"
				mustEnqueue(t, v.Store, append(reqs, other)...)
				if got, err := v.Claim(t.Context(), askingOf("other", 1)); err != nil || len(got.Jobs) != 1 {
					t.Fatal(len(got.Jobs), err)
				}
				v.damage(key, reqs[1].ID, "garbage")
				v.now = v.now.Add(2 * time.Minute)
				if first == "claim" {
					if jobs := mustClaim(t, v.Store, 10); len(jobs) > 0 {
						t.Errorf("claimed %d jobs", len(jobs))
					}
				}
				swept, err := v.Sweep(t.Context(), pawl.SweepSpec{Limit: 1000})
				if err != nil || len(swept.Rescued) != 1 {
					t.Errorf("rescued %d: %v", len(swept.Rescued), err)
				}
				mustClaim(t, v.Store, 10)
				v.wantBuried(reqs[1].ID)
				wantStats(t, v.Store, pawl.QueueStats{Buried: 1, Canceled: 2})
			})
		}
	}
}

// TestDamagedRunning damages one of three jobs that run. It is lost, and no other is.
func TestDamagedRunning(t *testing.T) {
	c := connect(t, testserver.Redis(t))
	for _, key := range []string{"s", "b"} {
		t.Run(key, func(t *testing.T) {
			v := newVictim(t, c)
			reqs := requests(3, pawl.Request{})
			if key == "s" {
				v.recorded(reqs...)
			} else {
				mustEnqueue(t, v.Store, reqs...)
			}
			spec := asking(3)
			got, err := v.Claim(t.Context(), spec)
			if err != nil || len(got.Jobs) != 3 {
				t.Fatal(len(got.Jobs), err)
			}
			jobs, bad := got.Jobs, got.Jobs[1]
			v.damage(key, bad.ID, "garbage")

			onlyBad := func(what string, lost []pawl.Ref, err error) {
				t.Helper()
				if err != nil || len(lost) != 1 || lost[0] != bad.Ref {
					t.Errorf("%s: lost %v, %v", what, lost, err)
				}
			}
			renewals := make([]pawl.Renewal, len(jobs))
			for i, j := range jobs {
				renewals[i] = pawl.Renewal{Ref: j.Ref, Lease: time.Minute}
			}
			lost, err := v.Extend(t.Context(), renewals)
			onlyBad("extend", lost, err)
			found, err := v.Get(t.Context(), "default", jobs[0].ID, bad.ID, jobs[2].ID)
			if err != nil || found[0] == nil || found[1] != nil || found[2] == nil {
				t.Errorf("found %v: %v", found, err)
			}
			spec.Repeat = true
			if got, err := v.Claim(t.Context(), spec); err != nil || len(got.Jobs) != 2 {
				t.Errorf("claimed %d jobs again: %v", len(got.Jobs), err)
			}
			changed, err := v.Change(t.Context(), pawl.Change{Verb: pawl.Cancel, Queue: "default", IDs: []pawl.ID{bad.ID, jobs[0].ID}})
			if err != nil || changed[0].Status != pawl.NotFound || changed[1].Status != pawl.Done {
				t.Errorf("changed %+v: %v", changed, err)
			}
			for i, r := range mustEnqueue(t, v.Store, reqs...) {
				if r.Status != pawl.Exists {
					t.Errorf("enqueued again: request %d was %v", i, r.Status)
				}
			}
			keyed := *reqs[1]
			keyed.UniqueKey = "k"
			if r := mustEnqueue(t, v.Store, &keyed); r[0].Status != pawl.Exists {
				t.Errorf("enqueued again with a key: %v", r[0].Status)
			}
			outcomes := acks(jobs[1:])
			for i := range outcomes {
				outcomes[i].Result, outcomes[i].Repeat = []byte("r"), true
			}
			lost, err = v.Settle(t.Context(), outcomes)
			onlyBad("settle", lost, err)
			v.now = v.now.Add(2 * time.Minute)
			v.sweep()
			v.wantBuried(bad.ID)
			wantStats(t, v.Store, pawl.QueueStats{Buried: 1, Canceled: 1, Completed: 1})
		})
	}
}

// TestDamagedFinal damages jobs that have ended: one that was completed or canceled goes when its
// retention is over, and one that was buried when that of buried jobs is.
func TestDamagedFinal(t *testing.T) {
	c := connect(t, testserver.Redis(t))
	v := newVictim(t, c)
	reqs := requests(3, pawl.Request{})
	v.recorded(reqs...)
	jobs := mustClaim(t, v.Store, 3)
	mustSettle(t, v.Store, []pawl.Outcome{{Ref: jobs[0].Ref, Verb: pawl.Ack}, {Ref: jobs[1].Ref, Verb: pawl.Bury}, {Ref: jobs[2].Ref, Verb: pawl.Ack}})
	for _, j := range jobs[:2] {
		v.damage("s", j.ID, "garbage")
	}
	spec := pawl.SweepSpec{Limit: 1000, BuriedRetention: 3 * time.Hour}
	sweep := func(want pawl.QueueStats) {
		t.Helper()
		for range 30 {
			if _, err := v.Sweep(t.Context(), spec); err != nil {
				t.Fatal(err)
			}
		}
		wantStats(t, v.Store, want)
	}
	sweep(pawl.QueueStats{Buried: 1, Completed: 1}) // what can't be read is in no index
	v.wantBuried(jobs[1].ID)
	v.now = v.now.Add(2 * time.Hour)
	sweep(pawl.QueueStats{Buried: 1})
	v.now = v.now.Add(2 * time.Hour)
	sweep(pawl.QueueStats{})
	if left, err := c.HLen(t.Context(), v.Prefix()+":{default}:b").Result(); err != nil || left > 0 {
		t.Errorf("%d bodies are left: %v", left, err)
	}
}

// TestDamagedFinalWarns lets the part of a Sweep that deletes what is too much or too old be the
// first to meet a damaged job: that is told too.
func TestDamagedFinalWarns(t *testing.T) {
	c := connect(t, testserver.Redis(t))
	told := 0
	s := open(t, c, &redis.Options{
		Prefix: fmt.Sprint("test", installations.Add(1)), Logger: slog.New(repairCount{slog.DiscardHandler, &told}),
	})
	mustEnqueue(t, s, request(pawl.Request{}))
	j := mustClaim(t, s, 1)[0]
	mustSettle(t, s, []pawl.Outcome{{Ref: j.Ref, Verb: pawl.Bury}})
	if err := c.HSet(t.Context(), s.Prefix()+":{default}:s", string(j.ID[:]), "garbage").Err(); err != nil {
		t.Fatal(err)
	}
	for range 30 {
		if _, err := s.Sweep(t.Context(), pawl.SweepSpec{Limit: 1000, BuriedRetention: time.Hour}); err != nil {
			t.Fatal(err)
		}
	}
	if told != 1 {
		t.Errorf("told of %d records", told)
	}
}

// repairCount counts the records that a Store says to have put right.
type repairCount struct {
	slog.Handler
	n *int
}

func (repairCount) Enabled(context.Context, slog.Level) bool { return true }

func (w repairCount) Handle(_ context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "records" {
			*w.n += int(a.Value.Int64())
		}
		return true
	})
	return nil
}

// TestDamagedHistory damages what is kept beside a record: it counts as none.
func TestDamagedHistory(t *testing.T) {
	v := newVictim(t, connect(t, testserver.Redis(t)))
	mustEnqueue(t, v.Store, request(pawl.Request{}))
	for i := range 2 {
		j := mustClaim(t, v.Store, 1)[0]
		mustSettle(t, v.Store, []pawl.Outcome{{Ref: j.Ref, Verb: pawl.Nack, Error: fmt.Sprint("error ", i)}})
		if got, err := v.Get(t.Context(), "default", j.ID); err != nil || len(got[0].Failures) != 1 || got[0].Failures[0].Error != fmt.Sprint("error ", i) {
			t.Errorf("failures %+v: %v", got[0].Failures, err)
		}
		if err := v.c.HSet(t.Context(), v.Prefix()+":{default}:x", "f"+string(j.ID[:]), "garbage").Err(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestDamagedEntries enters in the indexes of waiting jobs what no Store does. Sweeps take it away,
// and an Enqueue that drops the oldest job drops it.
func TestDamagedEntries(t *testing.T) {
	c := connect(t, testserver.Redis(t))
	for _, entry := range [][2]string{{"w", strings.Repeat("x", 29)}, {"w", "x"}, {"w", ""}, {"d", "x"}} {
		key, member := entry[0], entry[1]
		t.Run(fmt.Sprint(key, len(member)), func(t *testing.T) {
			v := newVictim(t, c)
			mustEnqueue(t, v.Store, request(pawl.Request{Delay: time.Minute}))
			if err := c.ZAdd(t.Context(), v.Prefix()+":{default}:"+key, client.Z{Member: member}).Err(); err != nil {
				t.Fatal(err)
			}
			v.now = v.now.Add(time.Hour)
			if _, err := v.Count(t.Context()); err != nil {
				t.Errorf("not counted: %v", err)
			}
			if key == "w" {
				q := request(pawl.Request{})
				q.MaxDepth, q.WhenFull = 2, pawl.DropOldest
				if r := mustEnqueue(t, v.Store, q); r[0].Status != pawl.Stored {
					t.Errorf("enqueued: %v", r[0].Status)
				}
				wantStats(t, v.Store, pawl.QueueStats{Scheduled: 1, Ready: 1})
			} else if jobs := mustClaim(t, v.Store, 10); len(jobs) != 1 {
				t.Errorf("claimed %d jobs", len(jobs))
			}
			v.sweep()
			if n := len(mustClaim(t, v.Store, 10)); key == "w" && n != 2 {
				t.Errorf("claimed %d jobs", n)
			}
		})
	}
}

// TestForeignBody puts among the bodies what is of no job. It is left alone, and seen nowhere.
func TestForeignBody(t *testing.T) {
	v := newVictim(t, connect(t, testserver.Redis(t)))
	mustEnqueue(t, v.Store, request(pawl.Request{}))
	if err := v.c.HSet(t.Context(), v.Prefix()+":{default}:b", "foo", "bar").Err(); err != nil {
		t.Fatal(err)
	}
	v.sweep()
	wantStats(t, v.Store, pawl.QueueStats{Ready: 1})
	page, err := v.List(t.Context(), pawl.ListSpec{Filter: pawl.Filter{Queue: "default", States: []pawl.State{pawl.Buried}}, Limit: 10})
	if err != nil || len(page.Jobs) > 0 {
		t.Errorf("buried: %v, %v", page.Jobs, err)
	}
}
