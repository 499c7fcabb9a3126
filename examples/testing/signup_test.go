package signup

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/sqlite"
	"github.com/pawlq/pawl/task"
	"github.com/pawlq/pawl/task/tasktest"
	"github.com/pawlq/pawl/worker"
)

// A fakeMailer keeps what is sent. It forgets the keys if it is told to, as a
// mailer does that knows none.
type fakeMailer struct {
	sent   []string
	keys   map[string]bool
	forget bool
	err    error
}

func (m *fakeMailer) Send(ctx context.Context, key, to, text string) error {
	if m.err != nil {
		return m.err
	}
	if !m.keys[key] || m.forget {
		m.keys[key] = true
		m.sent = append(m.sent, to+" "+text)
	}
	tasktest.Effect(ctx, text) // here the chaos test stops the handler
	return nil
}

// A fixture is a Service on a new file, with a clock to be moved.
type fixture struct {
	*Service
	mail  *fakeMailer
	clock *tasktest.Clock
	rec   tasktest.Recorder
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{mail: &fakeMailer{keys: map[string]bool{}}, clock: tasktest.NewClock(time.Now())}
	f.rec.Clock = f.clock.Now
	store, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "test.db"), &sqlite.Options{Clock: f.clock.Now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	q := pawl.New(store, &pawl.Options{Middleware: []pawl.EnqueueMiddleware{f.rec.Middleware}})
	if f.Service, err = New(t.Context(), store, q, f.mail); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *fixture) signUp(t *testing.T, email string) int64 {
	t.Helper()
	id, err := f.SignUp(t.Context(), email)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// drain runs what is due, without a pool.
func (f *fixture) drain(t *testing.T, middleware ...worker.Middleware) []worker.Ran {
	t.Helper()
	ran, err := worker.Drain(t.Context(), f.q, f.Tasks(), &worker.DrainOptions{Middleware: middleware})
	if err != nil {
		t.Fatal(err)
	}
	return ran
}

// A handler alone, without a storage for its job.
func TestWelcome(t *testing.T) {
	f := newFixture(t)
	id := f.signUp(t, "ada@example.org")
	if err := tasktest.Run(t.Context(), f.welcome, Welcome{id}); err != nil {
		t.Fatal(err)
	}
	if want := []string{"ada@example.org Welcome!"}; !slices.Equal(f.mail.sent, want) {
		t.Errorf("sent %q", f.mail.sent)
	}
	err := tasktest.Run(t.Context(), f.welcome, Welcome{id + 1})
	if pawl.OutcomeOf(&pawl.Job{}, err, pawl.Constant(0)).Verb != pawl.Bury {
		t.Errorf("an unknown user: got %v, want it to be buried", err)
	}
}

// What was enqueued.
func TestSignUpEnqueues(t *testing.T) {
	f := newFixture(t)
	id := f.signUp(t, "ada@example.org")
	tasktest.AssertEnqueued(t, f.q, func(w Welcome) bool { return w.User == id })
	later := tasktest.AssertEnqueued(t, f.q, func(r Remind) bool { return r.User == id })
	if wait := later.RunAt.Sub(f.clock.Now()).Round(time.Second); wait != RemindAfter {
		t.Errorf("reminded after %v", wait)
	}
	tasktest.RefuteEnqueued(t, f.q, func(w Welcome) bool { return w.User != id })
}

// What was enqueued in a transaction that is still open, and what is left of it
// after a rollback.
func TestSignUpRollsBack(t *testing.T) {
	f := newFixture(t)
	failure := errors.New("no")
	err := f.store.InTx(t.Context(), func(tx *sql.Tx, w pawl.Writer) error {
		q := f.q.WithTx(w)
		if _, err := f.Service.signUp(t.Context(), tx, q, "ada@example.org"); err != nil {
			return err
		}
		tasktest.AssertEnqueuedTx[Welcome](t, q, &f.rec, nil)
		return failure
	})
	if !errors.Is(err, failure) {
		t.Fatal(err)
	}
	tasktest.RefuteEnqueued[Welcome](t, f.q, nil)
	tasktest.RefuteEnqueued[Remind](t, f.q, nil)
}

// Three days in no time.
func TestReminder(t *testing.T) {
	f := newFixture(t)
	f.signUp(t, "ada@example.org")
	bob := f.signUp(t, "bob@example.org")
	f.drain(t)
	if len(f.mail.sent) != 2 {
		t.Fatalf("sent %q, want the two welcomes", f.mail.sent)
	}
	if _, err := f.store.DB().ExecContext(t.Context(), "UPDATE users SET active = 1 WHERE id = ?", bob); err != nil {
		t.Fatal(err)
	}
	f.clock.Advance(RemindAfter - time.Second)
	if ran := f.drain(t); len(ran) != 0 {
		t.Errorf("%d jobs ran too early", len(ran))
	}
	f.clock.Advance(time.Second)
	f.drain(t)
	if got := f.mail.sent[2:]; !slices.Equal(got, []string{"ada@example.org Come back!"}) {
		t.Errorf("sent %q", got)
	}
}

// Failures, and their backoff.
func TestMailerDown(t *testing.T) {
	f := newFixture(t)
	f.signUp(t, "ada@example.org")
	f.mail.err = errors.New("mailer is down")
	if ran := f.drain(t); len(ran) != 1 || ran[0].Err == nil || ran[0].Verb != pawl.Nack {
		t.Fatalf("ran %+v", ran)
	}
	f.mail.err = nil
	job := tasktest.AssertEnqueued[Welcome](t, f.q, nil)
	if job.Failures[0].Error != "mailer is down" || job.Reason != pawl.ReasonRetry {
		t.Errorf("got %+v", job.Job)
	}
	f.clock.Advance(job.RunAt.Sub(f.clock.Now()))
	f.drain(t)
	if len(f.mail.sent) != 1 {
		t.Errorf("sent %q", f.mail.sent)
	}
}

// Processes that die at the worst moment.
func TestHandlersAreIdempotent(t *testing.T) { tasktest.Idempotent(t, mailsUnderChaos(t, false)) }

func mailsUnderChaos(t *testing.T, forget bool) func(c *tasktest.Chaos) []string {
	return func(c *tasktest.Chaos) []string {
		f := newFixture(t)
		f.mail.forget = forget
		f.signUp(t, "ada@example.org")
		f.clock.Advance(RemindAfter)
		f.drain(t, c.Middleware)
		slices.Sort(f.mail.sent)
		return f.mail.sent
	}
}

// That the test above would fail with a mailer that ignores the key, which is
// not a test that a program needs.
func TestChaosFinds(t *testing.T) {
	fake := &fakeTB{TB: t}
	func() {
		defer func() { recover() }()
		tasktest.Idempotent(fake, mailsUnderChaos(t, true))
	}()
	if !strings.Contains(fake.text, "not idempotent: each job was run to its end twice") {
		t.Errorf("got %q", fake.text)
	}
}

type fakeTB struct {
	testing.TB
	text string
}

func (t *fakeTB) Fatalf(format string, args ...any) {
	t.text = fmt.Sprintf(format, args...)
	panic(t)
}

// The kinds that the service knows, so that none is forgotten in Tasks.
func TestTasks(t *testing.T) {
	var got []string
	for _, k := range newFixture(t).Tasks().Kinds() {
		got = append(got, k.Name)
	}
	if want := []string{task.New(Remind{}).Kind, task.New(Welcome{}).Kind}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
