package task_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"math"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/memory"
	"github.com/pawlq/pawl/storage/sqlite"
	"github.com/pawlq/pawl/task"
)

type size struct{ W, H int }

func TestResultRoundTrip(t *testing.T) {
	roundTrip(t, size{3, 4})
	roundTrip(t, &size{3, 4})
	roundTrip(t, []string{"a"})
	roundTrip(t, line("raw \x00"))
	roundTrip(t, struct{}{})
	roundTrip[any](t, json.Number("12345678901234567890"))
	roundTrip[*size](t, &size{})
}

func roundTrip[R any](t *testing.T, want R) {
	t.Helper()
	m := task.NewMux()
	task.RegisterResult(m, func(context.Context, *task.Job[welcome]) (R, error) { return want, nil })
	data, err := one(t, m).Run(t.Context(), claimed(welcome{}))
	if err != nil {
		t.Fatal(err)
	}
	got, err := task.Result[R](&pawl.Job{State: pawl.Completed, Result: data})
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
}

func TestResultOfFailedRun(t *testing.T) {
	m := task.NewMux()
	task.RegisterResult(m, func(context.Context, *task.Job[welcome]) (size, error) { return size{1, 2}, errRefused })
	if data, err := one(t, m).Run(t.Context(), claimed(welcome{})); data != nil || err != errRefused {
		t.Errorf("got %s, %v, want the error alone", data, err)
	}
}

func TestResultThatDoesNotEncode(t *testing.T) {
	m := task.NewMux()
	task.RegisterResult(m, func(context.Context, *task.Job[welcome]) (float64, error) { return math.Inf(1), nil })
	job := claimed(welcome{})
	data, err := one(t, m).Run(t.Context(), job)
	var e *task.EncodeError
	if data != nil || !errors.As(err, &e) || pawl.OutcomeOf(job, err, pawl.Exponential{}).Verb != pawl.Bury {
		t.Errorf("got %s, %v, want a burial for an EncodeError", data, err)
	}
}

func TestResultIsIgnoredAfterAckInTx(t *testing.T) {
	store, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "jobs.db"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	q := pawl.New(store, nil)
	m := task.NewMux()
	task.RegisterResult(m, func(ctx context.Context, job *task.Job[welcome]) (float64, error) {
		data, err := task.EncodeResult(size{1, 2})
		if err != nil {
			return 0, err
		}
		return math.NaN(), store.InTx(ctx, func(_ *sql.Tx, w pawl.Writer) error {
			return q.WithTx(w).Ack(ctx, job.Job, data)
		})
	})
	receipt := enqueueWelcome(t, q)
	if data, err := one(t, m).Run(t.Context(), claim(t, q)); data != nil || err != nil {
		t.Errorf("got %s, %v, want nothing", data, err)
	}
	if got, err := task.Wait[size](t.Context(), q, receipt); err != nil || got != (size{1, 2}) {
		t.Errorf("got %v, %v, want the result of the transaction", got, err)
	}
}

func TestErr(t *testing.T) {
	id := uuid.MustParse("0194fdc2-fa2f-7cc0-81d3-ff12045b73c8")
	job := func(s pawl.State, r pawl.Reason, failures ...string) *pawl.Job {
		j := &pawl.Job{Ref: pawl.Ref{ID: id}, Kind: "welcome", State: s, Reason: r}
		for _, text := range failures {
			j.Failures = append(j.Failures, pawl.Failure{Error: text})
		}
		return j
	}
	if err := task.Err(job(pawl.Completed, "", "first try failed")); err != nil {
		t.Errorf("completed: got %v", err)
	}
	for _, s := range []pawl.State{pawl.Scheduled, pawl.Ready, pawl.Running} {
		if err := task.Err(job(s, "")); !errors.Is(err, pawl.ErrInvalid) || !strings.Contains(err.Error(), s.String()) {
			t.Errorf("%v: got %v", s, err)
		}
	}
	prefix := `task: job 0194fdc2-fa2f-7cc0-81d3-ff12045b73c8 of kind "welcome" is `
	for want, j := range map[string]*pawl.Job{
		prefix + "buried (attempts): last": job(pawl.Buried, pawl.ReasonAttempts, "first", "last"),
		prefix + "canceled (expired)":      job(pawl.Canceled, pawl.ReasonExpired),
	} {
		_, err := task.Result[size](j)
		var e *task.FailedError
		if !errors.As(err, &e) || e.Error() != want || e.State != j.State || e.Reason != j.Reason || e.ID != id {
			t.Errorf("got  %v\nwant %v", err, want)
		}
	}
}

func TestResultOfOtherType(t *testing.T) {
	for _, data := range []string{"", `"hunter2"`} {
		_, err := task.Result[size](&pawl.Job{Kind: "k", State: pawl.Completed, Result: []byte(data)})
		var e *task.DecodeError
		if !errors.As(err, &e) || e.Part != "result" || e.Kind != "k" || strings.Contains(err.Error(), secret) {
			t.Errorf("%q: got %v", data, err)
		}
	}
}

func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(nil)
		defer store.Close()
		q := pawl.New(store, nil)
		receipt := enqueueWelcome(t, q)
		type outcome struct {
			size size
			err  error
		}
		waited := make(chan outcome, 1)
		go func() {
			got, err := task.Wait[size](t.Context(), q, receipt)
			waited <- outcome{got, err}
		}()
		job := claim(t, q)
		synctest.Wait()
		if len(waited) > 0 {
			t.Errorf("Wait did not wait: %v", <-waited)
		}
		if err := q.Ack(t.Context(), job, []byte(`{"W":3,"H":4}`)); err != nil {
			t.Fatal(err)
		}
		if got := <-waited; got.err != nil || got.size != (size{3, 4}) {
			t.Errorf("got %v", got)
		}
	})
}

func TestWaitErrors(t *testing.T) {
	q := pawl.New(memory.New(nil), nil)
	receipt := enqueueWelcome(t, q)
	if err := q.Bury(t.Context(), claim(t, q), errRefused); err != nil {
		t.Fatal(err)
	}
	var failed *task.FailedError
	if _, err := task.Wait[size](t.Context(), q, receipt); !errors.As(err, &failed) || failed.Last != "refused" {
		t.Errorf("buried: got %v", err)
	}
	if _, err := task.Wait[size](t.Context(), q, pawl.Receipt{ID: uuid.New()}); !errors.Is(err, pawl.ErrNotFound) {
		t.Errorf("unknown: got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	receipt = enqueueWelcome(t, q)
	cancel()
	if _, err := task.Wait[size](ctx, q, receipt); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: got %v", err)
	}
}

func enqueueWelcome(t *testing.T, q *pawl.Queue) pawl.Receipt {
	t.Helper()
	receipt, err := q.Enqueue(t.Context(), task.New(welcome{7}))
	if err != nil {
		t.Fatal(err)
	}
	return receipt
}

func claim(t *testing.T, q *pawl.Queue) *pawl.Job {
	t.Helper()
	job, err := q.Claim(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return job
}
