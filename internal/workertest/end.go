package workertest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/worker"
)

// An end is what a handler does, and what becomes of its job.
type end struct {
	name    string
	request pawl.Request
	run     worker.RunFunc

	runs    int
	state   pawl.State // 0: the record is gone
	reason  pawl.Reason
	attempt int
	counts  pawl.Counts
	failure string // in the last of its failures
}

var errHandler = errors.New("no luck")

func ends() []end {
	// until fails runs with err for as long as again says so.
	until := func(again func(*pawl.Job) bool, err error) worker.RunFunc {
		return func(_ context.Context, j *pawl.Job) ([]byte, error) {
			if again(j) {
				return nil, err
			}
			return []byte("result of " + string(j.Payload)), nil
		}
	}
	always := func(*pawl.Job) bool { return true }
	never := func(*pawl.Job) bool { return false }
	return []end{
		{
			name: "completes", run: until(never, nil),
			runs: 1, state: pawl.Completed, attempt: 1,
		},
		{
			name: "completes and is deleted", run: until(never, nil), request: pawl.Request{Retention: pawl.DeleteNow},
			runs: 1,
		},
		{
			name: "retries", run: until(func(j *pawl.Job) bool { return j.Attempt < 3 }, errHandler),
			runs: 3, state: pawl.Completed, attempt: 3, counts: pawl.Counts{Retries: 2}, failure: "no luck",
		},
		{
			name: "retries when it wants to",
			run:  until(func(j *pawl.Job) bool { return j.Attempt < 2 }, pawl.RetryAfter(time.Millisecond, errHandler)),
			runs: 2, state: pawl.Completed, attempt: 2, counts: pawl.Counts{Retries: 1}, failure: "no luck",
		},
		{
			name: "snoozes", run: until(func(j *pawl.Job) bool { return j.Counts.Snoozes < 2 }, pawl.Snooze(time.Millisecond)),
			runs: 3, state: pawl.Completed, attempt: 1, counts: pawl.Counts{Snoozes: 2},
		},
		{
			name: "is buried after its attempts", run: until(always, errHandler), request: pawl.Request{MaxAttempts: 2},
			runs: 2, state: pawl.Buried, reason: pawl.ReasonAttempts, attempt: 2, counts: pawl.Counts{Retries: 1}, failure: "no luck",
		},
		{
			name: "is buried at once", run: until(always, pawl.Permanent(errHandler)),
			runs: 1, state: pawl.Buried, reason: pawl.ReasonBury, attempt: 1, failure: "no luck",
		},
		{
			name: "panics", request: pawl.Request{MaxAttempts: 1},
			run:  func(context.Context, *pawl.Job) ([]byte, error) { panic("ouch") },
			runs: 1, state: pawl.Buried, reason: pawl.ReasonAttempts, attempt: 1, failure: "panic: ouch",
		},
		{
			name: "times out", request: pawl.Request{MaxAttempts: 1, Timeout: time.Millisecond},
			run:  func(ctx context.Context, _ *pawl.Job) ([]byte, error) { <-ctx.Done(); return nil, ctx.Err() },
			runs: 1, state: pawl.Buried, reason: pawl.ReasonAttempts, attempt: 1, failure: "timed out after 1ms",
		},
	}
}

func endCases() (cases []testCase) {
	for _, e := range ends() {
		cases = append(cases, testCase{"job " + e.name, func(f *fixture) { f.endsAs(e) }})
	}
	return cases
}

func (f *fixture) endsAs(e end) {
	p := f.start(e.run, worker.Options{Heartbeat: time.Hour})
	e.request.Payload = []byte("job")
	id := f.add(e.request)
	f.await("job", e.runs)
	if e.state == pawl.Buried {
		receive(f, f.dead, "call of OnBury")
	}
	f.stop()
	if n := f.ran["job"]; n != e.runs {
		f.t.Errorf("%d runs, want %d", n, e.runs)
	}
	if s := p.Stats(); s.Started != int64(e.runs) || s.Lost != 0 || s.Rescued != 0 {
		f.t.Errorf("stats %+v", s)
	}
	if e.state == 0 {
		f.wantGone(id)
		return
	}
	j := f.want(id, e.state, e.reason)
	if diff := cmp.Diff(e.counts, j.Counts); diff != "" || j.Attempt != e.attempt {
		f.t.Errorf("attempt %d, want %d; counts (-want +got):\n%s", j.Attempt, e.attempt, diff)
	}
	if want := "result of job"; j.State == pawl.Completed && string(j.Result) != want {
		f.t.Errorf("result %q, want %q", j.Result, want)
	}
	if n := len(j.Failures); e.failure != "" && (n == 0 || !strings.Contains(j.Failures[n-1].Error, e.failure)) {
		f.t.Errorf("failures %v, want %s", j.Failures, e.failure)
	}
}

func (f *fixture) wantGone(id pawl.ID) {
	f.t.Helper()
	if _, err := f.q.Get(f.t.Context(), "", id); !errors.Is(err, pawl.ErrNotFound) {
		f.t.Errorf("Get: %v, want %v", err, pawl.ErrNotFound)
	}
}

// eachOnce lets two pools, on two handles where there can be two, run many jobs.
func (f *fixture) eachOnce() {
	const n = 300
	second := f.q
	if f.h.Reopen != nil {
		second = pawl.New(f.h.Reopen(f.t, f.s, time.Now), new(f.q.Options()))
	}
	a := f.start(f.run, worker.Options{})
	b := f.startOn(second, f.run, worker.Options{})
	reqs := make([]*pawl.Request, n)
	for i := range reqs {
		reqs[i] = &pawl.Request{Kind: "k", Payload: fmt.Append(nil, i)}
	}
	for some := range 3 {
		_, err := f.q.EnqueueMany(f.t.Context(), reqs[some*n/3:(some+1)*n/3])
		f.must(err)
	}
	for i := range n {
		f.await(fmt.Sprint(i), 1)
	}
	f.stop()
	f.wantOnce(n, a.Stats(), b.Stats())
}

func (f *fixture) foreignKind() {
	settles := make(chan string, 1)
	f.disturb(seeing(settles, "Settle", "Cycle"))
	p := f.start(f.run, worker.Options{})
	id := f.add(pawl.Request{Kind: "foreign"})
	receive(f, settles, "settle")
	f.stop()
	j, err := f.q.Get(f.t.Context(), "", id)
	f.must(err)
	if s := p.Stats(); j.Attempt != 0 || j.Counts.Skips < 1 || int64(j.Counts.Skips) != s.Skipped || s.Started != 0 {
		f.t.Errorf("attempt %d, counts %+v, stats %+v", j.Attempt, j.Counts, s)
	}
}

// ackInTx acks the job in a transaction of the handler's, which is lost the
// first time unless it commits.
func (f *fixture) ackInTx(commits bool) {
	var mu sync.Mutex
	run := func(ctx context.Context, j *pawl.Job) ([]byte, error) {
		mu.Lock() // for Begin may fail the test
		defer mu.Unlock()
		w, commit, rollback := f.h.Begin(f.t, f.s)
		err := f.pq.WithTx(w).Ack(ctx, j, nil)
		if err != nil || !commits && j.Attempt == 1 {
			return nil, errors.Join(err, rollback())
		}
		return nil, commit()
	}
	p := f.start(run, worker.Options{Heartbeat: time.Hour})
	id := f.enqueue("job")
	runs := 1
	if !commits {
		runs = 2
	}
	f.await("job", runs)
	f.stop()
	j := f.want(id, pawl.Completed, "")
	if s := p.Stats(); s.Completed != 1 || s.Failed != int64(runs-1) || s.Lost != 0 || f.ran["job"] != runs {
		f.t.Errorf("%d runs, stats %+v", f.ran["job"], s)
	}
	if !commits && (len(j.Failures) != 1 || j.Failures[0].Error != pawl.ErrNotCommitted.Error()) {
		f.t.Errorf("failures %v", j.Failures)
	}
}
