package tasktest_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/memory"
	"github.com/pawlq/pawl/storage/sqlite"
	"github.com/pawlq/pawl/task"
	"github.com/pawlq/pawl/task/tasktest"
	"github.com/pawlq/pawl/worker"
)

// An account is what the handlers under test change.
type account struct {
	tally
	paid map[pawl.ID]bool
}

type tally struct{ Charged, Mailed int }

// charge is not idempotent, chargeOnce is.
func (a *account) charge(ctx context.Context) {
	a.Charged++
	tasktest.Effect(ctx, "charge")
}

func (a *account) chargeOnce(ctx context.Context, id pawl.ID) {
	if a.paid[id] {
		return
	}
	if a.paid == nil {
		a.paid = map[pawl.ID]bool{}
	}
	a.paid[id] = true
	a.charge(ctx)
}

func (a *account) mailOnce(ctx context.Context) {
	a.Mailed = 1
	tasktest.Effect(ctx, "mail")
}

type charge = func(ctx context.Context, a *account, job *task.Job[welcome]) error

func planted(ctx context.Context, a *account, _ *task.Job[welcome]) error {
	a.charge(ctx)
	a.mailOnce(ctx)
	return nil
}

func idempotent(ctx context.Context, a *account, job *task.Job[welcome]) error {
	a.chargeOnce(ctx, job.ID)
	a.mailOnce(ctx)
	return nil
}

// scenario charges one account by two jobs and returns what it has become.
func scenario(t *testing.T, f charge) func(c *tasktest.Chaos) tally {
	return func(c *tasktest.Chaos) tally {
		t.Helper()
		a := new(account)
		q, tasks := pawl.New(memory.New(nil), nil), task.NewMux()
		task.Register(tasks, func(ctx context.Context, job *task.Job[welcome]) error { return f(ctx, a, job) })
		for n := range 2 {
			enqueue(t, q, task.New(welcome{UserID: int64(n)}))
		}
		drain(t, q, tasks, c)
		for _, job := range endedJobs(t, q) {
			if job.State != pawl.Completed || job.Attempt != 1 {
				t.Errorf("the job is %v after attempt %d", job.State, job.Attempt)
			}
		}
		return a.tally
	}
}

func drain(t *testing.T, q *pawl.Queue, h worker.Handlers, c *tasktest.Chaos) []worker.Ran {
	t.Helper()
	ran, err := worker.Drain(t.Context(), q, h, &worker.DrainOptions{Retries: true, Middleware: []worker.Middleware{c.Middleware}})
	if err != nil {
		t.Fatal(err)
	}
	return ran
}

func endedJobs(t *testing.T, q *pawl.Queue) []*task.Job[welcome] {
	t.Helper()
	jobs, err := tasktest.Enqueued[welcome](t.Context(), q, pawl.Filter{States: pawl.States()})
	if err != nil || len(jobs) != 2 {
		t.Fatalf("%d jobs, %v", len(jobs), err)
	}
	return jobs
}

// TestChaosFindsPlantedHandler: under everything at once.
func TestChaosFindsPlantedHandler(t *testing.T) {
	if got := scenario(t, idempotent)(new(tasktest.Chaos)); got != (tally{Charged: 2, Mailed: 1}) {
		t.Errorf("the idempotent handler made %+v", got)
	}
	// For each of two jobs: stopped after the charge, after the mail, run to the
	// end twice.
	if got := scenario(t, planted)(new(tasktest.Chaos)); got != (tally{Charged: 8, Mailed: 1}) {
		t.Errorf("the planted handler made %+v", got)
	}
}

func TestIdempotent(t *testing.T) {
	tasktest.Idempotent(t, scenario(t, idempotent))
	for name, c := range map[string]struct {
		f    charge
		want string
	}{
		"planted": {planted, "not idempotent: each job was run to its end twice:\n" +
			"\tgot  {Charged:4 Mailed:1}\n\twant {Charged:2 Mailed:1}"},
		// It remembers the charge too late.
		"late": {func(ctx context.Context, a *account, job *task.Job[welcome]) error {
			if !a.paid[job.ID] {
				a.charge(ctx)
				a.paid = map[pawl.ID]bool{job.ID: true}
			}
			return nil
		}, `not idempotent: a run was stopped after effect "charge" of kind "welcome"`},
	} {
		if got := failure(t, func(t2 tasktest.TB) { tasktest.Idempotent(t2, scenario(t, c.f)) }); !strings.Contains(got, c.want) {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

func TestIdempotentOfBadScenarios(t *testing.T) {
	calls := 0
	for want, f := range map[string]func(c *tasktest.Chaos) int{
		"no handler ran": func(*tasktest.Chaos) int { return 0 },
		"no run could be stopped on its way": func(c *tasktest.Chaos) int {
			scenario(t, func(context.Context, *account, *task.Job[welcome]) error { return nil })(c)
			return 0
		},
		"ends differently": func(c *tasktest.Chaos) int { scenario(t, idempotent)(c); calls++; return calls },
		"another order": func(c *tasktest.Chaos) int {
			calls++
			scenario(t, func(ctx context.Context, _ *account, _ *task.Job[welcome]) error {
				tasktest.Effect(ctx, fmt.Sprint(calls))
				return nil
			})(c)
			return 0
		},
	} {
		if got := failure(t, func(t tasktest.TB) { tasktest.Idempotent(t, f) }); !strings.Contains(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestEffectOutsideOfChaos(t *testing.T) {
	tasktest.Effect(t.Context(), "nothing happens")
	if err := tasktest.Run(t.Context(), func(ctx context.Context, _ *task.Job[welcome]) error {
		tasktest.Effect(ctx, "nothing happens")
		return nil
	}, welcome{}); err != nil {
		t.Error(err)
	}
}

// TestChaosPassesEndsOn: what a handler does by itself stays what it is.
func TestChaosPassesEndsOn(t *testing.T) {
	q, tasks := pawl.New(memory.New(nil), &pawl.Options{MaxAttempts: 3}), task.NewMux()
	task.Register(tasks, func(_ context.Context, job *task.Job[welcome]) error {
		switch job.Attempt {
		case 1:
			return errFailed
		case 2:
			panic(errFailed)
		}
		runtime.Goexit() // as t.FailNow does
		return nil
	})
	enqueue(t, q, task.New(welcome{}))
	var ran []worker.Ran
	returned, done := false, make(chan struct{})
	go func() {
		defer close(done)
		c := new(tasktest.Chaos)
		for range 3 {
			one, err := worker.Drain(t.Context(), q, tasks, &worker.DrainOptions{Middleware: []worker.Middleware{c.Middleware}})
			if err != nil {
				t.Error(err)
			}
			ran = append(ran, one...)
			job := tasktest.AssertEnqueued[welcome](t, q, nil)
			if err := q.RunNow(t.Context(), job.Queue, job.ID); err != nil {
				t.Error(err)
			}
		}
		returned = true
	}()
	<-done
	if len(ran) != 2 || ran[0].Err != errFailed || ran[1].Err.Error() != "panic: failed" || returned {
		t.Errorf("ran %+v, returned %v", ran, returned)
	}
}

// TestChaosStopsGoroutines: an effect in a goroutine of the handler's ends that,
// the context the handler.
func TestChaosStopsGoroutines(t *testing.T) {
	q, tasks := pawl.New(memory.New(nil), nil), task.NewMux()
	var ended, stopped, finished int
	task.Register(tasks, func(ctx context.Context, job *task.Job[welcome]) error {
		done := make(chan struct{})
		go func() {
			defer func() { ended++; close(done) }()
			tasktest.Effect(ctx, "in a goroutine")
			finished++
		}()
		<-done
		if ctx.Err() != nil {
			stopped++
			tasktest.Effect(ctx, "too late")
			t.Error("an effect after the stop")
		}
		return nil
	})
	enqueue(t, q, task.New(welcome{}))
	ran := drain(t, q, tasks, new(tasktest.Chaos))
	var verbs []string
	for _, r := range ran {
		verbs = append(verbs, r.Verb.String())
	}
	if diff := cmp.Diff([]string{"snooze", "snooze", "ack"}, verbs); diff != "" {
		t.Error(diff)
	}
	if ended != 3 || stopped != 1 || finished != 2 {
		t.Errorf("goroutines: %d ended, %d were stopped, %d finished", ended, stopped, finished)
	}
}

// TestChaosInTransaction: an effect within the transaction that acks the job is
// undone with it, one after the commit comes too late to run the job again.
func TestChaosInTransaction(t *testing.T) {
	store, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "test.db"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	if _, err := store.DB().ExecContext(t.Context(), "CREATE TABLE charged (n INTEGER)"); err != nil {
		t.Fatal(err)
	}
	q, tasks := pawl.New(store, nil), task.NewMux()
	task.Register(tasks, func(ctx context.Context, job *task.Job[welcome]) error {
		err := store.InTx(ctx, func(tx *sql.Tx, w pawl.Writer) error {
			if _, err := tx.ExecContext(ctx, "INSERT INTO charged VALUES (1)"); err != nil {
				return err
			}
			tasktest.Effect(ctx, "insert")
			err := q.WithTx(w).Ack(ctx, job.Job, nil)
			tasktest.Effect(ctx, "ack")
			return err
		})
		tasktest.Effect(ctx, "commit")
		return err
	})
	receipt := enqueue(t, q, task.New(welcome{}))
	ran := drain(t, q, tasks, new(tasktest.Chaos))
	var n int
	if err := store.DB().QueryRowContext(t.Context(), "SELECT count(*) FROM charged").Scan(&n); err != nil || n != 1 || len(ran) != 3 {
		t.Errorf("%d rows after %d runs, %v, want 1 after 3", n, len(ran), err)
	}
	job, err := q.Get(t.Context(), receipt.Queue, receipt.ID)
	if err != nil || job.State != pawl.Completed || job.Counts.Snoozes != 2 {
		t.Errorf("got %+v, %v", job, err)
	}
}

// TestChaosInPool runs it where jobs are run in earnest.
func TestChaosInPool(t *testing.T) {
	q, tasks, a := pawl.New(memory.New(nil), nil), task.NewMux(), new(account)
	task.Register(tasks, func(ctx context.Context, job *task.Job[welcome]) error { return idempotent(ctx, a, job) })
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		var c tasktest.Chaos
		ended <- worker.New(q, tasks, &worker.Options{Concurrency: 1, Middleware: []worker.Middleware{c.Middleware}}).Run(ctx)
	}()
	receipt := enqueue(t, q, task.New(welcome{}))
	jobs, err := q.Wait(t.Context(), receipt.Queue, receipt.ID)
	stop()
	if err := errors.Join(err, <-ended); err != nil {
		t.Fatal(err)
	}
	// Stopped twice, and then run to the end twice.
	if job := jobs[0]; job.State != pawl.Completed || job.Counts.Snoozes != 3 || a.Charged != 1 || a.Mailed != 1 {
		t.Errorf("%v after %d snoozes, %+v", job.State, job.Counts.Snoozes, a)
	}
}
