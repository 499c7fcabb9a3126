package check

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/torture/history"
	"github.com/pawlq/pawl/torture/load"
)

// ms is a millisecond of the clock of histories, which began with the wall clock.
const ms = int64(time.Millisecond)

// A tale is a made-up run. Two workers have the numbers 1 and 2, a third one died.
type tale struct {
	t      *testing.T
	in     *Input
	events map[string][]history.Event
	jobs   []*pawl.Job
}

func newTale(t *testing.T) *tale {
	x := &tale{t: t, in: &Input{Dir: t.TempDir(), Lease: time.Second, Sweep: 100 * time.Millisecond, Slack: 100 * time.Millisecond},
		events: map[string][]history.Event{}}
	for i, name := range []string{"worker-1", "worker-2", "worker-3"} {
		x.say(name, history.Event{Kind: history.Began, At: ms, Fence: int64(i + 1), A: ms / 1000})
	}
	x.say("controller", history.Event{Kind: history.Fault, At: 2000 * ms, A: int64(Died), B: 3, Fence: 2_000_000})
	return x
}

func (x *tale) say(process string, events ...history.Event) {
	x.events[process] = append(x.events[process], events...)
}

// report writes the histories and checks them.
func (x *tale) report() *Report {
	x.t.Helper()
	for name, events := range x.events {
		w, err := history.Create(x.in.Dir, name)
		if err != nil {
			x.t.Fatal(err)
		}
		w.Write(events...)
		if err := w.Close(); err != nil {
			x.t.Fatal(err)
		}
	}
	x.in.Jobs = func(f func(*pawl.Job)) error {
		for _, j := range x.jobs {
			f(j)
		}
		return nil
	}
	r, err := Run(x.in)
	if err != nil {
		x.t.Fatal(err)
	}
	return r
}

// A subject is a job in a tale.
type subject struct {
	x  *tale
	id pawl.ID
	j  *pawl.Job
}

// enqueued adds a job that was enqueued at a time in ms and accepted 10 ms later.
func (x *tale) enqueued(class load.Class, way load.Way, at int64) *subject {
	s := x.intended(class, way, at)
	s.answer(history.Accepted, pawl.Stored, at+10)
	return s
}

func (x *tale) intended(class load.Class, way load.Way, at int64) *subject {
	id := uuid.Must(uuid.NewV7())
	x.say("producer-9", history.Event{Kind: history.Intend, At: at * ms, ID: id, A: int64(class), B: int64(way)})
	return &subject{x: x, id: id}
}

func (s *subject) answer(k history.Kind, status pawl.ReceiptStatus, at int64) {
	s.x.say("producer-9", history.Event{Kind: k, At: at * ms, ID: s.id, A: int64(status)})
}

// claimed lets a worker claim the job for a second and start it.
func (s *subject) claimed(worker string, fence, at int64, counts pawl.Counts) {
	s.x.say(worker, history.Event{Kind: history.Claimed, At: at * ms, ID: s.id, Fence: fence, A: history.Pack(counts), B: at*1000 + 1_000_000},
		history.Event{Kind: history.Start, At: at*ms + 1, ID: s.id, Fence: fence, A: at * 1000, B: at * 1000})
}

// settles sends an outcome, and has it answered 5 ms later.
func (s *subject) settles(worker string, verb pawl.Verb, answer history.Kind, fence, at int64) {
	s.x.say(worker, history.Event{Kind: history.Offered, At: at * ms, ID: s.id, Fence: fence, A: int64(verb)},
		history.Event{Kind: answer, At: (at + 5) * ms, ID: s.id, Fence: fence, A: int64(verb)})
}

// ends stores the job in its last state.
func (s *subject) ends(state pawl.State, reason pawl.Reason, counts pawl.Counts) {
	s.j = &pawl.Job{Ref: pawl.Ref{ID: s.id}, State: state, Reason: reason, Counts: counts}
	s.x.jobs = append(s.x.jobs, s.j)
}

// tells writes rescues from worker-3 into the job's history.
func (s *subject) tells(rescues int) {
	for range rescues {
		s.j.Failures = append(s.j.Failures, pawl.Failure{At: time.UnixMicro(2_500_000), WorkerID: "worker-3", Error: leaseExpired})
	}
}

// completed is the life of most jobs.
func (x *tale) completed(class load.Class, way load.Way, at int64) *subject {
	s := x.enqueued(class, way, at)
	s.claimed("worker-1", 1, at+20, pawl.Counts{})
	s.settles("worker-1", pawl.Ack, history.Settled, 1, at+30)
	s.ends(pawl.Completed, "", pawl.Counts{})
	return s
}

// rescued is a job whose first worker was worker-3, which died at 2 s.
func (x *tale) rescued(at, again int64) *subject { return x.rescuedFrom("worker-3", at, again) }

// rescuedFrom is one whose first worker was another.
func (x *tale) rescuedFrom(worker string, at, again int64) *subject {
	s := x.enqueued(load.Plain, load.Single, at)
	s.claimed(worker, 1, at+20, pawl.Counts{})
	s.claimed("worker-1", 2, again, pawl.Counts{Rescues: 1})
	s.settles("worker-1", pawl.Ack, history.Settled, 2, again+5)
	s.ends(pawl.Completed, "", pawl.Counts{Rescues: 1})
	s.j.Failures = []pawl.Failure{{At: time.UnixMicro(again * 1000), WorkerID: worker, Error: leaseExpired}}
	return s
}

// TestTales tells each tale and compares what is reported.
func TestTales(t *testing.T) {
	told := map[string]bool{}
	for _, c := range tales {
		t.Run(c.name, func(t *testing.T) {
			x := newTale(t)
			c.tell(x)
			r := x.report()
			got := slices.Sorted(maps.Keys(r.Broken))
			want := slices.Sorted(slices.Values(c.want))
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("broken invariants (-want +got):\n%s\n%v", d, r.Violations)
			}
		})
		for _, name := range c.want {
			told[name] = true
		}
	}
	for _, name := range []string{Lost, Ghost, Unresolved, Executions, Claims, StaleWrite, Overlap, Final, Effects, Early, Recovery, Counts, Unique,
		Buried, Attribution, Leaks, Stop, Transition, Orphans, Payload, Drain} {
		if !told[name] {
			t.Errorf("no tale breaks %s", name)
		}
	}
}

func TestReportIsPrinted(t *testing.T) {
	x := newTale(t)
	x.enqueued(load.Plain, load.Single, 100)
	var out strings.Builder
	x.report().Write(&out)
	for _, want := range []string{"VIOLATED lost: job ", "violations of lost: 1\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, &out)
		}
	}
}

// TestRecoveries takes one time of each death: that of the last job that was taken back.
func TestRecoveries(t *testing.T) {
	x := newTale(t)
	x.rescued(1500, 2900)
	x.rescued(1500, 3000)
	r := x.report()
	if want := (Recoveries{time.Second}); !slices.Equal(r.Recoveries, want) {
		t.Errorf("times of one death are %v", r.Recoveries)
	}
	all := make(Recoveries, 100)
	all[99] = time.Second
	if all[:99].Telling() || !all.Telling() || all.P99() != time.Second || all[:99].P99() != 0 {
		t.Errorf("of %d times p99 is %v", len(all), all.P99())
	}
}

// TestPhases lets a worker die with a job in each phase, and with some that are in none, and
// a producer in a call.
func TestPhases(t *testing.T) {
	x := newTale(t)
	x.say("producer-9", history.Event{Kind: history.Began, At: ms, Fence: 9, A: ms / 1000})
	x.completed(load.Plain, load.Single, 100)
	if got := x.report().Phases; got != (Phases{}) {
		t.Fatalf("nobody had anything, and phases are %v", got)
	}
	x.in.Dir = t.TempDir()
	waiting := x.enqueued(load.Plain, load.Single, 1500)
	x.say("worker-3", history.Event{Kind: history.Claimed, At: 1600 * ms, ID: waiting.id, Fence: 1, B: 2_600_000})
	x.enqueued(load.Plain, load.Single, 1500).claimed("worker-3", 1, 1600, pawl.Counts{})
	s := x.enqueued(load.Plain, load.Single, 1500)
	s.claimed("worker-3", 1, 1600, pawl.Counts{})
	x.say("worker-3", history.Event{Kind: history.Offered, At: 1610 * ms, ID: s.id, Fence: 1, A: int64(pawl.Ack)})
	x.intended(load.Plain, load.Single, 1900)
	x.say("controller", history.Event{Kind: history.Fault, At: 2000 * ms, A: int64(Died), B: 9, Fence: 2_000_000})
	r := x.report()
	if want := (Phases{1, 1, 1, 1}); r.Phases != want || r.WorkerDeaths != 1 || r.Deaths != 2 {
		t.Errorf("phases are %v of %d deaths, %d of workers", r.Phases, r.Deaths, r.WorkerDeaths)
	}
}

// TestReturns counts acks before a server goes away, and after it was back.
func TestReturns(t *testing.T) {
	x := newTale(t)
	x.in.Settle = time.Second
	s := x.enqueued(load.Plain, load.Single, 100)
	for at := int64(10_000); at < 50_000; at += 100 {
		if at >= 20_000 && at < 21_000 || at > 28_000 && at%200 == 0 {
			continue
		}
		x.say("worker-1", history.Event{Kind: history.Settled, At: at*ms + 1, ID: s.id, Fence: 1, A: int64(pawl.Ack)})
	}
	x.say("controller", history.Event{Kind: history.Down, At: 20_000 * ms, Fence: 20_000_000}, history.Event{Kind: history.Up, At: 21_000 * ms, Fence: 22_000_000},
		history.Event{Kind: history.Down, At: 48_000 * ms, Fence: 48_000_000}) // the last one never ends
	if got := x.report().Returns; !slices.Equal(got, []float64{0.5}) {
		t.Errorf("returns are %v", got)
	}
}
