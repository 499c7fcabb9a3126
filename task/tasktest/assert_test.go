package tasktest_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/memory"
	"github.com/pawlq/pawl/storage/sqlite"
	"github.com/pawlq/pawl/task"
	"github.com/pawlq/pawl/task/tasktest"
)

// A fakeTB keeps what the assertion says and leaves it by a panic, as Fatalf
// must not return.
type fakeTB struct {
	testing.TB
	text string
}

func (t *fakeTB) Fatalf(format string, args ...any) {
	t.text = fmt.Sprintf(format, args...)
	panic(t)
}

// failure returns what an assertion in f fails with, or "".
func failure(t *testing.T, f func(t tasktest.TB)) (text string) {
	t.Helper()
	fake := &fakeTB{TB: t}
	defer func() {
		if v := recover(); v != nil && v != any(fake) {
			panic(v)
		}
		text = fake.text
	}()
	f(fake)
	return ""
}

func id(n int64) func(welcome) bool { return func(w welcome) bool { return w.UserID == n } }

func newQueue(rec *tasktest.Recorder) *pawl.Queue {
	return pawl.New(memory.New(nil), &pawl.Options{Middleware: []pawl.EnqueueMiddleware{rec.Middleware}})
}

func enqueue(t *testing.T, q interface {
	Enqueue(context.Context, *pawl.Request) (pawl.Receipt, error)
}, r *pawl.Request) pawl.Receipt {
	t.Helper()
	receipt, err := q.Enqueue(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return receipt
}

func TestAssertEnqueued(t *testing.T) {
	var rec tasktest.Recorder
	q := newQueue(&rec)
	later := task.New(welcome{UserID: 8})
	later.Delay = time.Hour
	enqueue(t, q, task.New(welcome{UserID: 7}))
	enqueue(t, q, task.New(resize{200}))
	enqueue(t, q, later)

	for name, job := range map[string]*task.Job[welcome]{
		"enqueued": tasktest.AssertEnqueued(t, q, id(8)),
		"recorded": tasktest.AssertRecorded(t, &rec, id(8)),
	} {
		if job.Args.UserID != 8 || job.State != pawl.Scheduled || job.RunAt.Before(time.Now().Add(time.Minute)) {
			t.Errorf("%s: got %+v", name, job)
		}
	}
	tasktest.AssertEnqueued[welcome](t, q, nil)
	tasktest.AssertRecorded[resize](t, &rec, nil)
	tasktest.RefuteEnqueued(t, q, id(9))
	tasktest.RefuteRecorded(t, &rec, id(9))
}

func TestAssertionTexts(t *testing.T) {
	var rec tasktest.Recorder
	q := newQueue(&rec)
	nothing := "tasktest: no job of kind \"welcome\" matches; enqueued:\n\tnothing"
	if got := failure(t, func(t tasktest.TB) { tasktest.AssertEnqueued[welcome](t, q, nil) }); got != nothing {
		t.Errorf("got %q", got)
	}
	enqueue(t, q, task.New(welcome{UserID: 7}))
	enqueue(t, q, task.New(resize{200}))
	list := `
	kind "welcome", queue "default", ready, tasktest_test.welcome{UserID:7 Extra:<nil>}
	kind "resize", queue "pictures", ready, payload of 13 bytes`
	assert := `tasktest: no job of kind "welcome" matches; enqueued:` + list
	refute := `tasktest: a job of kind "welcome" matches: {UserID:7 Extra:<nil>}; enqueued:` + list
	for name, c := range map[string]struct {
		f    func(tasktest.TB)
		want string
	}{
		"AssertEnqueued": {func(t tasktest.TB) { tasktest.AssertEnqueued(t, q, id(9)) }, assert},
		"AssertRecorded": {func(t tasktest.TB) { tasktest.AssertRecorded(t, &rec, id(9)) }, assert},
		"RefuteEnqueued": {func(t tasktest.TB) { tasktest.RefuteEnqueued(t, q, id(7)) }, refute},
		"RefuteRecorded": {func(t tasktest.TB) { tasktest.RefuteRecorded(t, &rec, id(7)) }, refute},
	} {
		if diff := cmp.Diff(c.want, failure(t, c.f)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestAssertionListsSomeOnly(t *testing.T) {
	var rec tasktest.Recorder
	q := newQueue(&rec)
	for range 25 {
		enqueue(t, q, task.New(resize{1}))
	}
	got := failure(t, func(t tasktest.TB) { tasktest.AssertEnqueued[welcome](t, q, nil) })
	if !strings.HasSuffix(got, "\n\tand 5 more") || strings.Count(got, "\n") != 21 {
		t.Errorf("got %s", got)
	}
}

func TestAssertUndecodable(t *testing.T) {
	var rec tasktest.Recorder
	q := newQueue(&rec)
	enqueue(t, q, &pawl.Request{Kind: "welcome", Payload: []byte("hunter2")})
	got := failure(t, func(t tasktest.TB) { tasktest.AssertEnqueued[welcome](t, q, nil) })
	if !strings.Contains(got, `payload of kind "welcome" (7 bytes) does not decode`) || strings.Contains(got, "hunter2") {
		t.Errorf("got %s", got)
	}
	var e *task.DecodeError
	if _, err := tasktest.Enqueued[welcome](t.Context(), q, pawl.Filter{}); !errors.As(err, &e) {
		t.Errorf("Enqueued: got %v", err)
	}
	if _, err := tasktest.Recorded[welcome](&rec); !errors.As(err, &e) {
		t.Errorf("Recorded: got %v", err)
	}
}

func TestAssertOnBrokenStorage(t *testing.T) {
	store := memory.New(nil)
	q := pawl.New(store, nil)
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	got := failure(t, func(t tasktest.TB) { tasktest.AssertEnqueued[welcome](t, q, nil) })
	if !strings.Contains(got, pawl.ErrClosed.Error()) {
		t.Errorf("got %s", got)
	}
	if _, err := tasktest.Enqueued[welcome](t.Context(), q, pawl.Filter{}); !errors.Is(err, pawl.ErrClosed) {
		t.Errorf("got %v", err)
	}
}

func TestEnqueued(t *testing.T) {
	q := newQueue(new(tasktest.Recorder))
	for n := range 3 {
		r := task.New(welcome{UserID: int64(n)})
		r.Queue = fmt.Sprint("q", n%2)
		enqueue(t, q, r)
	}
	enqueue(t, q, task.New(resize{1}))
	running, err := q.Claim(t.Context(), &pawl.ClaimOptions{Queues: []string{"q0"}})
	if err != nil {
		t.Fatal(err)
	}
	get := func(f pawl.Filter) (users []int64) {
		jobs, err := tasktest.Enqueued[welcome](t.Context(), q, f)
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range jobs {
			users = append(users, j.Args.UserID)
		}
		return users
	}
	if diff := cmp.Diff([]int64{2, 1}, get(pawl.Filter{})); diff != "" {
		t.Errorf("waiting: %s", diff)
	}
	if diff := cmp.Diff([]int64{1}, get(pawl.Filter{Queue: "q1"})); diff != "" {
		t.Errorf("of one queue: %s", diff)
	}
	if diff := cmp.Diff([]int64{0}, get(pawl.Filter{States: []pawl.State{pawl.Running}})); diff != "" {
		t.Errorf("running: %s", diff)
	}
	if err := q.Ack(t.Context(), running, nil); err != nil {
		t.Error(err)
	}
}

func TestEnqueuedReadsAllPages(t *testing.T) {
	q := newQueue(new(tasktest.Recorder))
	var reqs []*pawl.Request
	for n := range pawl.MaxStep + 1 {
		reqs = append(reqs, task.New(welcome{UserID: int64(n)}))
	}
	if _, err := q.EnqueueMany(t.Context(), reqs); err != nil {
		t.Fatal(err)
	}
	if jobs, err := tasktest.Enqueued[welcome](t.Context(), q, pawl.Filter{}); len(jobs) != len(reqs) || err != nil {
		t.Errorf("got %d jobs, %v, want %d", len(jobs), err, len(reqs))
	}
}

func TestRecorder(t *testing.T) {
	var rec tasktest.Recorder
	q := newQueue(&rec)
	replace := func(n int64) *pawl.Request {
		r := task.New(welcome{UserID: n})
		r.UniqueKey, r.OnDuplicate = "one", pawl.Replace
		return r
	}
	keep := replace(3)
	keep.OnDuplicate = pawl.KeepFirst
	first := enqueue(t, q, replace(1))
	enqueue(t, q, replace(2))
	enqueue(t, q, keep)
	if _, err := q.Enqueue(t.Context(), &pawl.Request{Kind: "not valid"}); err == nil {
		t.Fatal("an invalid request was enqueued")
	}

	var statuses []pawl.ReceiptStatus
	for _, e := range rec.Entries() {
		statuses = append(statuses, e.Receipt.Status)
	}
	if diff := cmp.Diff([]pawl.ReceiptStatus{pawl.Stored, pawl.Replaced, pawl.Duplicate}, statuses); diff != "" {
		t.Error(diff)
	}
	jobs, err := tasktest.Recorded[welcome](&rec)
	if err != nil || len(jobs) != 1 || jobs[0].Args.UserID != 2 || jobs[0].ID != first.ID {
		t.Errorf("got %v, %v, want the job as it was replaced", jobs, err)
	}
	rec.Reset()
	if n := len(rec.Entries()); n != 0 {
		t.Errorf("%d entries after Reset", n)
	}
}

func TestRecorderInTransaction(t *testing.T) {
	store, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "jobs.db"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	var rec tasktest.Recorder
	q := pawl.New(store, &pawl.Options{Middleware: []pawl.EnqueueMiddleware{rec.Middleware}})
	err = store.InTx(t.Context(), func(_ *sql.Tx, w pawl.Writer) error {
		receipt := enqueue(t, q.WithTx(w), task.New(welcome{UserID: 7}))
		if job := tasktest.AssertRecorded(t, &rec, id(7)); job.ID != receipt.ID || job.Queue != pawl.DefaultQueue {
			t.Errorf("got %+v, want %v", job, receipt)
		}
		return errFailed
	})
	if err != errFailed {
		t.Fatalf("got %v, want the error that rolls back", err)
	}
	tasktest.RefuteEnqueued[welcome](t, q, nil)
}

func TestRecorderSeesWhatTheProgramMade(t *testing.T) {
	var rec tasktest.Recorder
	encrypt := func(next pawl.EnqueueFunc) pawl.EnqueueFunc {
		return func(ctx context.Context, reqs []*pawl.Request) ([]pawl.Receipt, error) {
			for _, r := range reqs {
				r.Payload = []byte("encrypted")
			}
			return next(ctx, reqs)
		}
	}
	q := pawl.New(memory.New(nil), &pawl.Options{Middleware: []pawl.EnqueueMiddleware{rec.Middleware, encrypt}})
	enqueue(t, q, task.New(welcome{UserID: 7}))
	tasktest.AssertRecorded(t, &rec, id(7))
}

// What the program, or middleware after the Recorder, does to a request later
// changes nothing of what was recorded.
func TestRecorderKeepsItsOwn(t *testing.T) {
	var rec tasktest.Recorder
	trace := task.InjectTrace(func(_ context.Context, meta map[string]string) { meta["trace"] = "x" })
	q := pawl.New(memory.New(nil), &pawl.Options{Middleware: []pawl.EnqueueMiddleware{rec.Middleware, trace}})
	r := &pawl.Request{Kind: "k", Payload: []byte("one"), Meta: map[string]string{"a": "b"}}
	enqueue(t, q, r)
	copy(r.Payload, "two")
	got := rec.Entries()[0].Request
	if string(got.Payload) != "one" || len(got.Meta) != 1 {
		t.Errorf("recorded %q, %v", got.Payload, got.Meta)
	}
}

// A Recorder that no Queue knows fails all assertions, also those that nothing was
// enqueued.
func TestRecorderWithoutQueue(t *testing.T) {
	var rec tasktest.Recorder
	q := pawl.New(memory.New(nil), nil)
	enqueue(t, q, task.New(welcome{UserID: 7}))
	for name, f := range map[string]func(t tasktest.TB){
		"AssertRecorded":   func(t tasktest.TB) { tasktest.AssertRecorded(t, &rec, id(7)) },
		"RefuteRecorded":   func(t tasktest.TB) { tasktest.RefuteRecorded(t, &rec, id(8)) },
		"AssertEnqueuedTx": func(t tasktest.TB) { tasktest.AssertEnqueuedTx(t, q.WithTx(q.Storage()), &rec, id(7)) },
		"AssertCommitted":  func(t tasktest.TB) { tasktest.AssertCommitted(t, q, &rec, id(7)) },
	} {
		const want = "tasktest: the Recorder's Middleware is in no Queue: it goes first into pawl.Options.Middleware"
		if got := failure(t, f); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}
