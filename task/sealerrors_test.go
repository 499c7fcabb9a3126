package task_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/memory"
	"github.com/pawlq/pawl/task"
	"github.com/pawlq/pawl/worker"
)

var errCard = errors.New("card 4111 refused")

// TestSealErrors looks at what is stored of failures and panics.
func TestSealErrors(t *testing.T) {
	old, current := newKey("old:1"), newKey("new:2")
	keys := keyring(t, old)
	q := pawl.New(memory.New(nil), &pawl.Options{MaxAttempts: 3})
	var hook error
	tasks := task.NewMux()
	task.Register(tasks, func(_ context.Context, job *task.Job[welcome]) error {
		switch job.Attempt {
		case 1:
			return pawl.RetryAfter(0, errCard)
		case 2:
			panic(errCard)
		}
		return pawl.Permanent(errors.New("card 4111 " + strings.Repeat("ö", 5000)))
	}, &task.Options[welcome]{OnBury: func(_ context.Context, _ *task.Job[welcome], err error) { hook = err }})
	tasks.Use(keys.SealErrors)
	receipt, err := q.Enqueue(t.Context(), task.New(welcome{7}))
	if err != nil {
		t.Fatal(err)
	}
	ran, err := worker.Drain(t.Context(), q, tasks, &worker.DrainOptions{Retries: true})
	if err != nil {
		t.Fatal(err)
	}
	if len(ran) != 3 || !errors.Is(ran[0].Err, errCard) || !errors.Is(ran[1].Err, errCard) || ran[2].Verb != pawl.Bury {
		t.Errorf("ran %+v", ran)
	}
	job, err := q.Get(t.Context(), receipt.Queue, receipt.ID)
	if err != nil || len(job.Failures) != 3 || job.State != pawl.Buried {
		t.Fatalf("got %+v, %v", job, err)
	}
	keys = keyring(t, current, old) // rotated meanwhile
	var texts []string
	for _, f := range job.Failures {
		if strings.Contains(f.Error+f.Stack, "4111") || len(f.Error) == pawl.MaxErrorText {
			t.Errorf("stored %q %q", f.Error, f.Stack)
		}
		s, err := keys.OpenError(job.ID, f.Error)
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, s[:min(len(s), 24)])
	}
	if diff := cmp.Diff([]string{"card 4111 refused", "panic: card 4111 refused", "card 4111 ööööööö"}, texts); diff != "" {
		t.Error(diff)
	}
	if hook == nil || strings.Contains(hook.Error(), "4111") {
		t.Errorf("the hook got %v", hook)
	}
	checkOpenError(t, keys, job)
}

func checkOpenError(t *testing.T, keys *task.Keyring, job *pawl.Job) {
	t.Helper()
	if s, err := keys.OpenError(job.ID, "worker: handler timed out"); err != nil || s != "worker: handler timed out" {
		t.Errorf("a plain text: got %q, %v", s, err)
	}
	sealed := job.Failures[0].Error
	if s, err := keys.OpenError(pawl.ID{1}, sealed); err == nil {
		t.Errorf("the text of another job: %q", s)
	}
	for _, plain := range []string{"", "sealed:", "sealed:x", "sealed:\n:x", "the box is sealed: x:y"} {
		if s, err := keys.OpenError(job.ID, plain); s != plain || err != nil {
			t.Errorf("%q became %q, %v", plain, s, err)
		}
	}
	for _, damaged := range []string{sealed[:len(sealed)-1], sealed + "x", "a: " + sealed[:len(sealed)-4] + ": b", strings.Replace(sealed, "old", "odd", 1)} {
		if s, err := keys.OpenError(job.ID, damaged); err == nil {
			t.Errorf("%q became %q", damaged, s)
		}
	}
	if s, err := keys.OpenError(job.ID, "a:"+sealed+":5 and "+sealed+"!"); err != nil || s != "a:"+errCard.Error()+":5 and "+errCard.Error()+"!" {
		t.Errorf("got %q, %v", s, err)
	}
}

// failureOf returns what is stored when a pool has run a job that is buried.
func failureOf(t *testing.T, q *pawl.Queue, tasks *task.Mux) (pawl.ID, string) {
	t.Helper()
	r := task.New(welcome{7})
	r.MaxAttempts = 1
	receipt, err := q.Enqueue(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- worker.New(q, tasks, nil).Run(ctx) }()
	jobs, err := q.Wait(t.Context(), receipt.Queue, receipt.ID)
	if stop(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if len(jobs[0].Failures) != 1 {
		t.Fatalf("got %+v", jobs[0])
	}
	return receipt.ID, jobs[0].Failures[0].Error
}

// TestSealErrorsOfTimeouts: the pool puts its own words before the text, which has
// room for them, whatever its length.
func TestSealErrorsOfTimeouts(t *testing.T) {
	for _, more := range []int{0, 5000} {
		synctest.Test(t, func(t *testing.T) {
			keys := keyring(t, newKey(strings.Repeat("k", 64)))
			tasks := task.NewMux()
			task.Register(tasks, func(ctx context.Context, _ *task.Job[welcome]) error {
				<-ctx.Done()
				return fmt.Errorf("%w %s: %w", errCard, strings.Repeat("x", more), ctx.Err())
			}, &task.Options[welcome]{Timeout: 1234567 * time.Microsecond})
			tasks.Use(keys.SealErrors)
			id, stored := failureOf(t, pawl.New(memory.New(nil), nil), tasks)
			if strings.Contains(stored, "4111") {
				t.Errorf("stored %q", stored)
			}
			s, err := keys.OpenError(id, stored)
			if err != nil || !strings.Contains(s, "timed out after 1.234567s: "+errCard.Error()) || len(s) < min(more, 1250) {
				t.Errorf("%q became %q, %v", stored, s, err)
			}
		})
	}
}

// TestSealErrorByHand covers what handlers settle themselves.
func TestSealErrorByHand(t *testing.T) {
	keys := keyring(t, newKey("k"))
	q := pawl.New(memory.New(nil), nil)
	tasks := task.NewMux()
	task.Register(tasks, func(ctx context.Context, job *task.Job[welcome]) error {
		return q.WithTx(q.Storage()).Bury(ctx, job.Job, keys.SealError(job.ID, errCard))
	})
	id, stored := failureOf(t, q, tasks)
	if strings.Contains(stored, "4111") {
		t.Errorf("stored %q", stored)
	}
	if s, err := keys.OpenError(id, stored); s != errCard.Error() || err != nil {
		t.Errorf("got %q, %v", s, err)
	}
	if err := keys.SealError(id, nil); err != nil {
		t.Errorf("nil became %v", err)
	}
	once := keys.SealError(id, errCard)
	if twice := keys.SealError(id, pawl.Permanent(once)); twice.Error() != once.Error() || !errors.Is(twice, errCard) {
		t.Errorf("sealed twice: %v", twice)
	}
	if err := keys.SealError(id, fmt.Errorf("%w of 4111", once)); strings.Contains(err.Error(), "4111") {
		t.Errorf("words around a sealed text are plain: %v", err)
	}
	_, decode := task.Decode[welcome](&pawl.Job{Payload: []byte("4111")})
	for _, plain := range []error{decode, pawl.Permanent(decode), pawl.Snooze(time.Second), pawl.Snooze(0)} {
		if got := keys.SealError(id, plain); got != plain {
			t.Errorf("%v became %v", plain, got)
		}
		around := keys.SealError(id, fmt.Errorf("card 4111: %w", plain))
		if strings.Contains(around.Error(), "4111") || !errors.Is(around, plain) {
			t.Errorf("words around what is plain became %v", around)
		}
	}
	if err := new(task.Keyring).SealError(id, errCard); strings.Contains(err.Error(), "4111") || !errors.Is(err, errCard) {
		t.Errorf("without keys: %v", err)
	}
}
