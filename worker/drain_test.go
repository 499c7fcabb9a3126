package worker_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/worker"
)

func TestDrain(t *testing.T) {
	failure := errors.New("failed")
	type ran struct {
		Kind, Verb, Err string
	}
	cases := []struct {
		name    string
		options *worker.DrainOptions
		want    []ran
		err     string
	}{
		{"due", nil, []ran{
			{"parent", "ack", ""}, {"fails", "nack", "failed"}, {"foreign", "skip", ""}, {"child", "ack", ""},
		}, ""},
		{"retries", &worker.DrainOptions{Retries: true}, []ran{
			{"parent", "ack", ""}, {"fails", "nack", "failed"}, {"foreign", "skip", ""}, {"child", "ack", ""},
			{"fails", "nack", "failed"}, {"fails", "nack", "failed"},
		}, ""},
		{"scheduled", &worker.DrainOptions{Scheduled: true}, []ran{
			{"parent", "ack", ""}, {"fails", "nack", "failed"}, {"foreign", "skip", ""}, {"child", "ack", ""},
			{"fails", "nack", "failed"}, {"later", "ack", ""}, {"fails", "nack", "failed"},
		}, ""},
		{"bounded", &worker.DrainOptions{MaxRuns: 2}, []ran{
			{"parent", "ack", ""}, {"fails", "nack", "failed"}, {"foreign", "skip", ""},
		}, "ended after 2 runs"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := prepare(t, cycling)
				ok := func(context.Context, *pawl.Job) ([]byte, error) { return nil, nil }
				var failed, buried int
				h := kinds{
					{Name: "parent", Run: func(ctx context.Context, _ *pawl.Job) ([]byte, error) {
						_, err := f.q.Enqueue(ctx, &pawl.Request{Kind: "child"})
						return []byte("done"), err
					}},
					{Name: "child", Run: ok},
					{Name: "later", Run: ok},
					{
						Name: "fails", Run: func(context.Context, *pawl.Job) ([]byte, error) { return nil, failure },
						OnError: func(context.Context, *pawl.Job, error) { failed++ },
						OnBury:  func(context.Context, *pawl.Job, error) { buried++ },
					},
				}
				parent := f.enqueue(&pawl.Request{Kind: "parent"})
				fails := f.enqueue(&pawl.Request{Kind: "fails", MaxAttempts: 3})
				f.enqueue(&pawl.Request{Kind: "foreign"})
				f.enqueue(&pawl.Request{Kind: "later", Delay: 2 * time.Hour})
				all, err := worker.Drain(t.Context(), f.q, h, c.options)
				if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
					t.Errorf("Drain: %v", err)
				}
				var got []ran
				for _, r := range all {
					one := ran{Kind: r.Job.Kind, Verb: r.Verb.String()}
					if r.Err != nil {
						one.Err = r.Err.Error()
					}
					got = append(got, one)
				}
				if diff := cmp.Diff(c.want, got); diff != "" {
					t.Errorf("ran (-want +got):\n%s", diff)
				}
				if j := f.wantState(parent, pawl.Completed, ""); string(j.Result) != "done" {
					t.Errorf("result %q", j.Result)
				}
				if j := f.get(fails); len(j.Failures) != failed || (j.State == pawl.Buried) != (buried == 1) {
					t.Errorf("%d failures, %v; OnError called %d times, OnBury %d times", len(j.Failures), j.State, failed, buried)
				}
			})
		})
	}
}

func TestDrainOfSpecialRuns(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := prepare(t, bare)
		h := kinds{{Run: func(ctx context.Context, j *pawl.Job) ([]byte, error) {
			switch string(j.Payload) {
			case "panic":
				panic("ouch")
			case "timeout":
				<-ctx.Done()
				return nil, context.Cause(ctx)
			case "big":
				return make([]byte, 2<<20), nil
			case "tx":
				return nil, f.q.WithTx(write{f.storage, false}).Ack(ctx, j, nil)
			case "rolled back":
				return nil, f.q.WithTx(write{f.storage, true}).Ack(ctx, j, nil)
			}
			return nil, nil
		}}}
		want := map[string]string{
			"panic": "nack: panic: ouch", "timeout": "nack: worker: handler timed out after 1m0s",
			"big": "nack: pawl: Result must be at most 1048576 bytes", "tx": "ack: ",
			"rolled back": "nack: " + pawl.ErrNotCommitted.Error(),
		}
		for payload := range want {
			f.enqueue(&pawl.Request{Queue: "q", Payload: []byte(payload), Timeout: time.Minute})
		}
		all, err := worker.Drain(t.Context(), f.q, h, &worker.DrainOptions{Queues: []string{"q"}})
		if err != nil {
			t.Error(err)
		}
		got := make(map[string]string)
		for _, r := range all {
			text := ""
			if r.Err != nil {
				text = r.Err.Error()
			}
			got[string(r.Job.Payload)] = r.Verb.String() + ": " + text
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("ran (-want +got):\n%s", diff)
		}
	})
}

// A claim that was lost is settled by nothing, whatever the handler returned.
func TestDrainOfLostClaims(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := prepare(t, bare)
		var told int
		h := kinds{{
			Name: "k", Queue: "default",
			Run: func(ctx context.Context, j *pawl.Job) ([]byte, error) {
				tx := f.q.WithTx(write{f.storage, false})
				var err error
				switch string(j.Payload) {
				case "fails":
					err = pawl.Permanent(errStorage)
				case "acks":
					err = tx.Ack(ctx, j, nil)
				case "buries":
					err = tx.Bury(ctx, j, errStorage)
				}
				// Another has the last word.
				return nil, errors.Join(err, f.q.Delete(ctx, j.Queue, j.ID))
			},
			OnBury: func(context.Context, *pawl.Job, error) { told++ },
		}}
		for _, payload := range []string{"returns", "fails", "acks", "buries"} {
			f.enqueue(&pawl.Request{Payload: []byte(payload)})
		}
		ran, err := worker.Drain(t.Context(), f.q, h, nil)
		if err != nil || len(ran) != 4 {
			t.Fatalf("ran %+v, error %v", ran, err)
		}
		for _, r := range ran {
			if r.Verb != 0 {
				t.Errorf("%s: told as %v", r.Job.Payload, r.Verb)
			}
		}
		if told > 0 {
			t.Errorf("OnBury called %d times", told)
		}
	})
}

// Hooks are told of what the handler did in its own transaction, as by a pool.
func TestDrainOfBurialsInTransactions(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := prepare(t, bare)
		var told []string
		h := kinds{{
			Name: "k", Queue: "default",
			Run: func(ctx context.Context, j *pawl.Job) ([]byte, error) {
				tx := f.q.WithTx(write{f.storage, false})
				if string(j.Payload) == "buries" {
					return nil, tx.Bury(ctx, j, errStorage)
				}
				return nil, errors.Join(errStorage, tx.Nack(ctx, j, errStorage))
			},
			OnBury: func(_ context.Context, j *pawl.Job, err error) {
				told = append(told, string(j.Payload)+": "+err.Error())
			},
		}}
		for _, r := range []*pawl.Request{{Payload: []byte("buries")}, {Payload: []byte("nacks")}, {Payload: []byte("nacks last"), MaxAttempts: 1}} {
			f.enqueue(r)
		}
		if _, err := worker.Drain(t.Context(), f.q, h, nil); err != nil {
			t.Fatal(err)
		}
		want := []string{"buries: storage is out of order", "nacks last: " + errStorage.Error()}
		if diff := cmp.Diff(want, told); diff != "" {
			t.Errorf("OnBury (-want +got):\n%s", diff)
		}
	})
}

func TestDrainReturnsErrors(t *testing.T) {
	for _, op := range []string{"claim", "settle", "context"} {
		t.Run(op, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := prepare(t, bare)
				f.enqueue(&pawl.Request{})
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				want := errStorage
				if op == "context" {
					cancel()
					want = context.Canceled
				}
				f.storage.fail(false, op)
				if _, err := worker.Drain(ctx, f.q, returning(nil), nil); !errors.Is(err, want) {
					t.Errorf("Drain: %v", err)
				}
			})
		})
	}
}

// A timeout ends a handler in Drain as it does in a pool.
func TestDrainTimesOutAsAPool(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var causes, errs []error
		var deadlines []time.Duration
		h := worker.Func(func(ctx context.Context, _ *pawl.Job) error {
			d, _ := ctx.Deadline()
			deadlines = append(deadlines, time.Until(d))
			<-ctx.Done()
			causes, errs = append(causes, context.Cause(ctx)), append(errs, ctx.Err())
			return ctx.Err()
		})
		f := prepare(t, cycling)
		drained := f.enqueue(&pawl.Request{Timeout: time.Second})
		ran, err := worker.Drain(t.Context(), f.q, h, nil)
		if err != nil || len(ran) != 1 || !errors.Is(ran[0].Err, worker.ErrTimeout) {
			t.Errorf("ran %v, error %v", ran, err)
		}
		pooled := f.enqueue(&pawl.Request{Timeout: time.Second})
		f.start(h, nil)
		rest(5 * time.Second)
		f.stop()
		if len(causes) != 2 || causes[0] != causes[1] || errs[0] != errs[1] || deadlines[0] != deadlines[1] {
			t.Errorf("causes %v, errors %v, deadlines %v", causes, errs, deadlines)
		}
		one, two := f.get(drained).Failures, f.get(pooled).Failures
		if len(one) != 1 || len(two) != 1 || one[0].Error != two[0].Error {
			t.Errorf("failures %v and %v", one, two)
		}
	})
}
