package worker_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/worker"
)

// write is a transaction of nothing: what it settles is settled at once, or
// with lost set never.
type write struct {
	pawl.Writer
	rolledBack bool
}

func (w write) Settle(ctx context.Context, outcomes []pawl.Outcome) ([]pawl.Ref, error) {
	if w.rolledBack {
		return nil, nil
	}
	return w.Writer.Settle(ctx, outcomes)
}

func TestSettledInTransaction(t *testing.T) {
	failure := errors.New("failed after that")
	cases := []struct {
		name       string
		rolledBack bool
		bury       bool
		err        error
		retention  time.Duration
		window     time.Duration
		meddle     func(f *fixture, j *pawl.Job)
		state      pawl.State // 0: gone
		reason     pawl.Reason
		text       string
		count      worker.Stats
	}{
		{name: "committed", state: pawl.Completed, count: worker.Stats{Completed: 1}},
		{name: "committed, then an error", err: failure, state: pawl.Completed, count: worker.Stats{Completed: 1}},
		{name: "committed and deleted", retention: pawl.DeleteNow, count: worker.Stats{Completed: 1}},
		{name: "committed and purged", retention: 30 * time.Second, count: worker.Stats{Completed: 1}},
		{name: "committed and kept by its window", retention: pawl.DeleteNow, window: time.Hour, state: pawl.Completed, count: worker.Stats{Completed: 1}},
		{name: "buried", bury: true, state: pawl.Buried, reason: pawl.ReasonBury, count: worker.Stats{Failed: 1, Buried: 1}},
		{name: "rolled back", rolledBack: true, state: pawl.Scheduled, reason: pawl.ReasonRetry, text: pawl.ErrNotCommitted.Error(), count: worker.Stats{Failed: 1}},
		{name: "rolled back with an error", rolledBack: true, err: failure, state: pawl.Scheduled, reason: pawl.ReasonRetry, text: failure.Error(), count: worker.Stats{Failed: 1}},
		{name: "canceled meanwhile", rolledBack: true, state: pawl.Canceled, reason: pawl.ReasonCancel, count: worker.Stats{Lost: 1},
			meddle: func(f *fixture, j *pawl.Job) { f.q.Cancel(context.Background(), "", j.ID) }},
		{name: "deleted meanwhile, kept by a window", retention: pawl.DeleteNow, window: time.Hour, rolledBack: true, count: worker.Stats{Lost: 1},
			meddle: func(f *fixture, j *pawl.Job) { f.q.Delete(context.Background(), "", j.ID) }},
		{name: "deleted meanwhile", rolledBack: true, count: worker.Stats{Lost: 1},
			meddle: func(f *fixture, j *pawl.Job) { f.q.Delete(context.Background(), "", j.ID) }},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := prepare(t, cycling)
				r := &pawl.Request{Retention: c.retention}
				if c.window > 0 {
					r.UniqueKey, r.UniqueMode, r.UniqueWindow = "key", pawl.UniqueUntilWindow, c.window
				}
				id := f.enqueue(r)
				h := worker.Func(func(ctx context.Context, j *pawl.Job) error {
					tx := f.q.WithTx(write{f.storage, c.rolledBack})
					settle := func() error { return tx.Ack(ctx, j, nil) }
					if c.bury {
						settle = func() error { return tx.Bury(ctx, j, failure) }
					}
					if err := settle(); err != nil {
						t.Error(err)
					}
					if c.meddle != nil {
						c.meddle(f, j)
					}
					time.Sleep(time.Minute) // heartbeats must not mistake the commit for a loss
					if ctx.Err() != nil && c.meddle == nil {
						t.Errorf("context ended: %v", context.Cause(ctx))
					}
					return c.err
				})
				var failOnce atomic.Bool
				f.storage.disturb(func(_ context.Context, op string, call func() error) error {
					if op == "get" && failOnce.CompareAndSwap(false, true) {
						return errStorage
					}
					return call()
				})
				f.start(h, nil)
				rest(61 * time.Second)
				if c.state != 0 {
					j := f.wantState(id, c.state, c.reason)
					if c.text != "" && (len(j.Failures) != 1 || j.Failures[0].Error != c.text) {
						t.Errorf("failures %v", j.Failures)
					}
				} else if _, err := f.q.Get(context.Background(), "", id); !errors.Is(err, pawl.ErrNotFound) {
					t.Errorf("Get: %v", err)
				}
				f.stop()
				s := f.p.Stats()
				got := worker.Stats{Completed: s.Completed, Failed: s.Failed, Buried: s.Buried, Lost: s.Lost}
				if diff := cmp.Diff(c.count, got); diff != "" {
					t.Errorf("stats (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// TestSettledAndTooMany: the record of a job that ended in a transaction may be gone
// before the pool looks, because there is a limit to their number or time.
func TestSettledAndTooMany(t *testing.T) {
	for _, c := range []struct {
		name  string
		bury  bool
		limit pawl.SweepSpec // of the queue's Options
		takes time.Duration  // the handler, after that
		count worker.Stats
	}{
		{name: "completed", limit: pawl.SweepSpec{MaxCompleted: 1}, count: worker.Stats{Completed: 1}},
		{name: "buried", bury: true, limit: pawl.SweepSpec{MaxBuried: 1}, count: worker.Stats{Failed: 1, Buried: 1}},
		{name: "buried long ago", bury: true, limit: pawl.SweepSpec{BuriedRetention: 30 * time.Second}, takes: time.Minute, count: worker.Stats{Failed: 1, Buried: 1}},
		{name: "buried just now", bury: true, limit: pawl.SweepSpec{BuriedRetention: time.Hour}, takes: time.Minute, count: worker.Stats{Lost: 1}},
		{name: "completed with another limit", limit: pawl.SweepSpec{MaxBuried: 1}, count: worker.Stats{Lost: 1}},
		{name: "buried with another limit", bury: true, limit: pawl.SweepSpec{MaxCompleted: 1}, count: worker.Stats{Lost: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := prepare(t, cycling)
				o := f.q.Options()
				o.MaxCompleted, o.MaxBuried, o.BuriedRetention = c.limit.MaxCompleted, c.limit.MaxBuried, c.limit.BuriedRetention
				f.q = pawl.New(f.q.Storage(), &o)
				f.enqueue(&pawl.Request{})
				f.start(worker.Func(func(ctx context.Context, j *pawl.Job) error {
					tx := f.q.WithTx(write{f.storage, false})
					settle := func() error { return tx.Ack(ctx, j, nil) }
					if c.bury {
						settle = func() error { return tx.Bury(ctx, j, errors.New("failed")) }
					}
					if err := settle(); err != nil {
						t.Error(err)
					}
					// What a sweep does that finds newer ones.
					if err := f.q.Delete(ctx, "", j.ID); err != nil {
						t.Error(err)
					}
					time.Sleep(c.takes)
					return nil
				}), nil)
				rest(c.takes + time.Second)
				f.stop()
				s := f.p.Stats()
				got := worker.Stats{Completed: s.Completed, Failed: s.Failed, Buried: s.Buried, Lost: s.Lost}
				if diff := cmp.Diff(c.count, got); diff != "" {
					t.Errorf("stats (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// A pool that can't find out what became of a transaction stops all the same.
func TestVerifyEndsWithThePool(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := prepare(t, cycling)
		f.enqueue(&pawl.Request{})
		f.storage.fail(false, "get")
		f.start(worker.Func(func(ctx context.Context, j *pawl.Job) error {
			return f.q.WithTx(write{f.storage, false}).Ack(ctx, j, nil)
		}), nil)
		synctest.Wait()
		err := f.p.Stop(context.Background())
		if err != nil {
			t.Error(err)
		}
		var left *worker.StopError
		if err := <-f.result; !errors.As(err, &left) || len(left.Running) != 0 || len(left.Unsettled) != 1 {
			t.Errorf("Run: %v", err)
		}
	})
}

// A handler that has returned is not given up, however long it takes to find out
// what became of its transaction, or a Backoff to answer.
func TestDeadlinesEndWithTheHandler(t *testing.T) {
	const patience, returned = 10 * time.Second, time.Second / 2
	t.Run("verify", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			f := prepare(t, cycling)
			f.storage.fail(false, "get")
			f.start(kinds{{Name: "k", Run: func(ctx context.Context, j *pawl.Job) ([]byte, error) {
				time.Sleep(returned)
				return nil, f.q.WithTx(write{f.storage, false}).Ack(ctx, j, nil)
			}, OnError: func(_ context.Context, _ *pawl.Job, err error) { t.Errorf("OnError: %v", err) }}}, nil)
			f.enqueue(&pawl.Request{Timeout: time.Second, Lease: 2 * time.Second})
			rest(patience)
			f.storage.heal()
			rest(patience)
			f.wantReturned(worker.Stats{Completed: 1}, "completed", returned)
		})
	})
	t.Run("backoff", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			told := 0
			f := start(t, cycling, kinds{{Name: "k", Run: func(context.Context, *pawl.Job) ([]byte, error) {
				time.Sleep(returned)
				return nil, errStorage
			}, Backoff: pawl.BackoffFunc(func(int, error) time.Duration { time.Sleep(patience); return time.Hour }),
				OnError: func(_ context.Context, _ *pawl.Job, err error) {
					if told++; err != errStorage || told > 1 {
						t.Errorf("OnError: %v, call %d", err, told)
					}
				}}}, nil)
			f.enqueue(&pawl.Request{Timeout: time.Second, Lease: 2 * time.Second})
			rest(2 * patience)
			f.wantReturned(worker.Stats{Failed: 1}, "failed", returned)
		})
	})
}

// wantReturned checks the numbers and the last event of the one job, whose handler
// was not given up, and stops.
func (f *fixture) wantReturned(want worker.Stats, last string, took time.Duration) {
	f.t.Helper()
	s := f.p.Stats()
	got := worker.Stats{Completed: s.Completed, Failed: s.Failed, Lost: s.Lost, Stuck: s.Stuck}
	if diff := cmp.Diff(want, got); diff != "" {
		f.t.Errorf("stats (-want +got):\n%s", diff)
	}
	if n := f.log.count("given up"); n != 0 {
		f.t.Errorf("logged %d times as given up", n)
	}
	events := f.drain()
	if e := events[len(events)-1]; e.Type.String() != last || e.Duration != took {
		f.t.Errorf("last event %+v, want %s after %v", e, last, took)
	}
	f.told = nil
	f.stop()
}

// A nack or a burial in the handler's transaction is a failure as any other to
// hooks and events.
func TestFailureInTransactionIsTold(t *testing.T) {
	own, returned := errors.New("own"), errors.New("returned")
	for name, c := range map[string]struct {
		verb pawl.Verb
		err  error
		want error
	}{
		"nack":               {pawl.Nack, nil, own},
		"nack with an error": {pawl.Nack, returned, returned},
		"bury":               {pawl.Bury, nil, own},
		"bury with an error": {pawl.Bury, returned, returned},
	} {
		for _, drain := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/drain=%v", name, drain), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					f := prepare(t, cycling)
					var failed, buried []string
					h := kinds{{Name: "k", Run: func(ctx context.Context, j *pawl.Job) ([]byte, error) {
						tx := f.q.WithTx(write{f.storage, false})
						if c.verb == pawl.Nack {
							return nil, errors.Join(tx.Nack(ctx, j, own), c.err)
						}
						return nil, errors.Join(tx.Bury(ctx, j, own), c.err)
					},
						OnError: func(_ context.Context, _ *pawl.Job, err error) { failed = append(failed, err.Error()) },
						OnBury:  func(_ context.Context, _ *pawl.Job, err error) { buried = append(buried, err.Error()) },
					}}
					f.enqueue(&pawl.Request{})
					want := []string{c.want.Error()}
					if drain {
						if _, err := worker.Drain(t.Context(), f.q, h, nil); err != nil {
							t.Error(err)
						}
					} else {
						f.start(h, nil)
						rest(time.Minute)
						for _, e := range f.drain() {
							if ended := e.Type == worker.EventFailed || e.Type == worker.EventBuried; ended && e.Error != want[0] {
								t.Errorf("event %+v, want error %s", e, want[0])
							}
						}
						f.told = nil
						f.stop()
					}
					if diff := cmp.Diff(want, failed); diff != "" {
						t.Errorf("OnError (-want +got):\n%s", diff)
					}
					if c.verb == pawl.Nack {
						want = nil
					}
					if diff := cmp.Diff(want, buried); diff != "" {
						t.Errorf("OnBury (-want +got):\n%s", diff)
					}
				})
			})
		}
	}
}

// A handler that goes on for ever after its commit is given up, and its job is
// what the transaction has made of it.
func TestStuckAfterItsCommit(t *testing.T) {
	for _, sort := range sorts {
		t.Run(sort.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				release := make(chan struct{})
				f := prepare(t, sort.make)
				f.start(kinds{{Name: "k", Run: func(ctx context.Context, j *pawl.Job) ([]byte, error) {
					err := f.q.WithTx(write{f.storage, false}).Ack(ctx, j, nil)
					<-release
					return nil, err
				}, OnError: func(_ context.Context, _ *pawl.Job, err error) { t.Errorf("OnError: %v", err) }}}, nil)
				id := f.enqueue(&pawl.Request{Timeout: time.Second})
				rest(time.Minute)
				f.wantState(id, pawl.Completed, "")
				if s := f.p.Stats(); s.Completed != 1 || s.Lost != 0 || s.Failed != 0 || s.Stuck != 1 {
					t.Errorf("stats %+v", s)
				}
				close(release)
				rest(time.Second)
				f.stop()
				if s := f.p.Stats(); s.Completed != 1 || s.Lost != 0 || s.Failed != 0 || s.Stuck != 0 {
					t.Errorf("stats %+v", s)
				}
			})
		})
	}
}

// A stuck handler whose transaction is still open when it is given up may yet commit
// it: then it has not failed, whatever was to be settled meanwhile.
func TestStuckBeforeItsCommit(t *testing.T) {
	for _, sort := range sorts {
		for _, verb := range []pawl.Verb{pawl.Ack, pawl.Bury} {
			t.Run(fmt.Sprint(sort.name, " ", verb), func(t *testing.T) {
				bubble(t, func(t *testing.T) { stuckBeforeItsCommit(t, sort.make, verb) })
			})
		}
	}
}

func stuckBeforeItsCommit(t *testing.T, sort func(*disturbed) pawl.Storage, verb pawl.Verb) {
	own := errors.New("own")
	open, told := atomic.Bool{}, []string(nil)
	f := prepare(t, sort)
	f.storage.disturb(func(ctx context.Context, op string, call func() error) error {
		if o := outcomesOf(ctx); len(o) > 0 && open.Load() { // which holds the job
			return &pawl.BusyError{Refs: []pawl.Ref{o[0].Ref}}
		}
		return call()
	})
	f.start(kinds{{Name: "k", Run: func(ctx context.Context, j *pawl.Job) ([]byte, error) {
		tx := f.q.WithTx(write{f.storage, true})
		settle, o := func() error { return tx.Ack(ctx, j, nil) }, pawl.Outcome{Ref: j.Ref, Verb: verb}
		if verb == pawl.Bury {
			settle, o.Error = func() error { return tx.Bury(ctx, j, own) }, own.Error()
		}
		open.Store(true)
		err := settle()
		time.Sleep(10 * time.Second) // the commit takes long and heeds nothing
		lost, committed := f.storage.Storage.Settle(context.Background(), []pawl.Outcome{o})
		if committed != nil || len(lost) > 0 {
			t.Errorf("lost %v, error %v", lost, committed)
		}
		open.Store(false)
		return nil, err
	}, OnError: func(_ context.Context, _ *pawl.Job, err error) { told = append(told, err.Error()) }}}, nil)
	f.enqueue(&pawl.Request{Timeout: time.Second, MaxAttempts: 1})
	rest(30 * time.Second)
	want, hooks := worker.Stats{Completed: 1}, []string(nil)
	if verb == pawl.Bury {
		want, hooks = worker.Stats{Failed: 1, Buried: 1}, []string{own.Error()}
	}
	s := f.p.Stats()
	got := worker.Stats{Completed: s.Completed, Failed: s.Failed, Buried: s.Buried, Lost: s.Lost, Stuck: s.Stuck}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("stats (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(hooks, told); diff != "" {
		t.Errorf("OnError (-want +got):\n%s", diff)
	}
	f.stop()
}

// A stuck handler that was given up for another reason than its timeout, and has
// settled its claim after that reason arose, is told by what it did.
func TestStuckAfterItsLeaseAndCommit(t *testing.T) {
	for name, c := range map[string]struct {
		rolledBack bool
		state      pawl.State
		want       worker.Stats
	}{
		"committed":   {false, pawl.Completed, worker.Stats{Completed: 1, Stuck: 1}},
		"rolled back": {true, pawl.Running, worker.Stats{Lost: 1, Stuck: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				release := make(chan struct{})
				f := prepare(t, bare)
				f.storage.fail(false, "extend")
				f.start(worker.Func(func(ctx context.Context, j *pawl.Job) error {
					<-ctx.Done()
					err := f.q.WithTx(write{f.storage, c.rolledBack}).Ack(context.Background(), j, nil)
					<-release
					return err
				}), &worker.Options{SweepEvery: time.Hour})
				id := f.enqueue(&pawl.Request{})
				rest(time.Minute)
				f.wantState(id, c.state, "")
				s := f.p.Stats()
				got := worker.Stats{Completed: s.Completed, Failed: s.Failed, Lost: s.Lost, Stuck: s.Stuck}
				if diff := cmp.Diff(c.want, got); diff != "" {
					t.Errorf("stats (-want +got):\n%s", diff)
				}
				f.storage.heal()
				close(release)
				rest(time.Second)
				f.stop()
			})
		})
	}
}
