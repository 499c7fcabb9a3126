package worker_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pawlq/pawl"
)

func TestBusyOutcomesAreSettledLater(t *testing.T) {
	for _, sort := range sorts {
		bubble(t, func(t *testing.T) {
			var c counting
			f := prepare(t, sort.make)
			ids := make([]pawl.ID, 10)
			for i := range ids {
				ids[i] = f.enqueue(&pawl.Request{})
			}
			held := true
			f.storage.disturb(func(ctx context.Context, op string, call func() error) error {
				outcomes := outcomesOf(ctx)
				i := slices.IndexFunc(outcomes, func(o pawl.Outcome) bool { return o.Ref.ID == ids[3] })
				if !held || i < 0 {
					return call()
				}
				// The others are settled, as the contract says.
				rest := slices.Delete(slices.Clone(outcomes), i, i+1)
				if _, err := f.storage.Storage.Settle(ctx, rest); err != nil {
					return err
				}
				return &pawl.BusyError{Refs: []pawl.Ref{outcomes[i].Ref}}
			})
			f.start(&c, nil)
			rest(time.Minute)
			for i, id := range ids {
				if i != 3 {
					f.wantState(id, pawl.Completed, "")
				}
			}
			f.wantState(ids[3], pawl.Running, "")
			f.storage.heal()
			rest(time.Second)
			f.wantState(ids[3], pawl.Completed, "")
			f.stop()
			c.want(t, len(ids))
			if s := f.p.Stats(); s.Completed != 10 {
				t.Errorf("%s: stats %+v", sort.name, s)
			}
		})
	}
}

// An outcome that no call can settle does not hinder others, and ends as a
// failure of its job.
func TestGuiltyOutcome(t *testing.T) {
	for _, sort := range sorts {
		for _, guilt := range []error{errStorage, &pawl.InvalidError{Field: "Result", Limit: "storable"}} {
			bubble(t, func(t *testing.T) {
				var c counting
				f := prepare(t, sort.make)
				ids := make([]pawl.ID, 40)
				for i := range ids {
					ids[i] = f.enqueue(&pawl.Request{})
				}
				guilty := ids[5]
				f.storage.disturb(func(ctx context.Context, op string, call func() error) error {
					for _, o := range outcomesOf(ctx) {
						if o.Ref.ID == guilty && o.Verb == pawl.Ack {
							return guilt
						}
					}
					return call()
				})
				f.start(&c, nil)
				rest(5 * time.Second)
				for _, id := range ids {
					if id != guilty {
						f.wantState(id, pawl.Completed, "")
					}
				}
				for range 90 { // others go on succeeding
					f.enqueue(&pawl.Request{})
					rest(time.Second)
				}
				rest(2 * time.Second)
				j := f.wantState(guilty, pawl.Scheduled, pawl.ReasonRetry)
				if len(j.Failures) != 1 || !strings.Contains(j.Failures[0].Error, guilt.Error()) {
					t.Errorf("failures %v", j.Failures)
				}
				f.stop()
				if s := f.p.Stats(); s.Completed != 129 || s.Failed != 1 {
					t.Errorf("%s: stats %+v", sort.name, s)
				}
			})
		}
	}
}

// A job that can't be handed back is left to its lease, unspent.
func TestHopelessHandBack(t *testing.T) {
	for _, sort := range sorts {
		for _, guilt := range []error{errStorage, &pawl.InvalidError{Field: "Delay", Limit: "storable"}} {
			bubble(t, func(t *testing.T) {
				f := prepare(t, sort.make)
				foreign := f.enqueue(&pawl.Request{Kind: "foreign", MaxAttempts: 1, MaxRescues: 100})
				f.storage.disturb(func(ctx context.Context, op string, call func() error) error {
					for _, o := range outcomesOf(ctx) {
						if o.Verb == pawl.Skip {
							return guilt
						}
					}
					return call()
				})
				ok := func(context.Context, *pawl.Job) ([]byte, error) { return nil, nil }
				f.start(kinds{{Name: "k", Run: ok}}, nil)
				for range 3 * 60 { // others go on succeeding
					f.enqueue(&pawl.Request{})
					rest(time.Second)
				}
				j := f.get(foreign)
				if j.Counts.Rescues < 1 || j.Counts.Retries > 0 || j.Attempt > 1 {
					t.Errorf("%s: attempt %d, counts %+v", sort.name, j.Attempt, j.Counts)
				}
				for _, failure := range j.Failures {
					if failure.Error != "lease expired" {
						t.Errorf("%s: failure %+v", sort.name, failure)
					}
				}
				if n := f.log.count("panic"); n > 0 {
					t.Errorf("%d panics", n)
				}
				f.storage.heal()
				rest(5 * time.Minute)
				f.stop()
				if s := f.p.Stats(); s.Completed != 180 || s.Failed != 0 || s.Skipped == 0 {
					t.Errorf("%s: stats %+v", sort.name, s)
				}
			})
		}
	}
}

// An outcome that can't be stored in any form is given up.
func TestHopelessOutcome(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var c counting
		f := prepare(t, cycling)
		id := f.enqueue(&pawl.Request{MaxRescues: pawl.NoRescues})
		f.storage.disturb(func(ctx context.Context, op string, call func() error) error {
			for _, o := range outcomesOf(ctx) {
				if o.Ref.ID == id {
					return &pawl.InvalidError{Field: "Outcome", Limit: "storable"}
				}
			}
			return call()
		})
		f.start(&c, nil)
		rest(time.Minute)
		f.wantState(id, pawl.Buried, pawl.ReasonRescues)
		f.stop()
	})
}
