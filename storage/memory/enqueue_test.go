package memory

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/pawlq/pawl"
)

// TestEnqueueTakesAllBack fails an Enqueue at its last request, after it has
// stored, replaced and dropped jobs.
func TestEnqueueTakesAllBack(t *testing.T) {
	s, clock := newStore(t)
	unique := func(r *pawl.Request) {
		r.UniqueKey, r.OnDuplicate = "key", pawl.Replace
		r.Meta = map[string]string{"first": "yes"}
		r.StartBefore = clock.now().Add(time.Hour)
	}
	enqueue(t, s,
		newRequest(unique),
		newRequest(func(r *pawl.Request) { r.Queue = "kept" }),
		newRequest(func(r *pawl.Request) { r.Queue, r.Retention = "gone", pawl.DeleteNow }))
	clock.advance(time.Second)
	before, stats := snapshot(t, s)

	drop := func(queue string) func(r *pawl.Request) {
		return func(r *pawl.Request) {
			r.Queue, r.MaxDepth, r.WhenFull, r.Retention = queue, 1, pawl.DropOldest, pawl.DeleteNow
		}
	}
	_, err := s.Enqueue(ctx, []*pawl.Request{
		newRequest(func(r *pawl.Request) { unique(r); r.Delay, r.StartBefore = time.Minute, time.Time{} }),
		newRequest(drop("kept")),
		newRequest(drop("kept")), // drops the one before
		newRequest(drop("gone")),
		newRequest(func(r *pawl.Request) { r.Queue = "new" }),
		newRequest(func(r *pawl.Request) { r.MaxDepth = 1 }),
	})
	var full *pawl.FullError
	if !errors.As(err, &full) || full.Queue != "q" || full.Limit != 1 {
		t.Fatalf("error %v", err)
	}
	check(t, s)
	after, statsAfter := snapshot(t, s)
	if diff := cmp.Diff(before, after, ignoreUnexported); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(stats, statsAfter); diff != "" {
		t.Error(diff)
	}
}

func snapshot(t *testing.T, s *Store) ([]*pawl.Job, []pawl.QueueStats) {
	t.Helper()
	jobs, _ := listAll(t, s, pawl.ListSpec{Limit: 100, Payloads: true})
	stats, err := s.Count(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return jobs, stats
}

// TestTermsAreShared sees that jobs alike share what they have in common, and
// that an Edit of one leaves the others alone.
func TestTermsAreShared(t *testing.T) {
	s, _ := newStore(t)
	a, b := newRequest(nil), newRequest(nil)
	enqueue(t, s, a, b)
	if s.get(a.ID).terms != s.get(b.ID).terms {
		t.Error("two jobs alike have terms of their own")
	}
	timeout := time.Second
	change(t, s, pawl.Change{Verb: pawl.Edit, IDs: []pawl.ID{a.ID}, Edit: pawl.EditFields{Timeout: &timeout}})
	if got := get(t, s, a.ID).Timeout; got != timeout {
		t.Errorf("Timeout of the edited job is %v", got)
	}
	if got := get(t, s, b.ID).Timeout; got != 0 {
		t.Errorf("Timeout of the other job is %v", got)
	}
}
