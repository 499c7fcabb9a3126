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

// tales are runs and what is to be found in them.
var tales = []struct {
	name string
	tell func(*tale)
	want []string // the invariants that do not hold
}{
	{"completed", func(x *tale) { x.completed(load.Plain, load.Single, 100) }, nil},
	{"exactly", func(x *tale) { x.in.Exact = true; x.completed(load.Plain, load.Single, 100) }, nil},
	{"rescued", func(x *tale) { x.rescued(1500, 2900) }, nil},
	{"accepted and not there", func(x *tale) { x.enqueued(load.Plain, load.Single, 100) }, []string{Lost}},
	{"in the wrong state", func(x *tale) {
		s := x.enqueued(load.Plain, load.Single, 100)
		s.ends(pawl.Canceled, pawl.ReasonCancel, pawl.Counts{})
	}, []string{Lost}},
	{"gone without an ack", func(x *tale) {
		x.enqueued(load.Gone, load.Single, 100).claimed("worker-1", 1, 120, pawl.Counts{})
	}, []string{Lost}},
	{"order without its job", func(x *tale) {
		s := x.intended(load.Plain, load.InTx, 100)
		s.answer(history.Unknown, 0, 110)
		x.in.Orders = map[pawl.ID]int{s.id: 1}
	}, []string{Lost}},
	{"committed twice", func(x *tale) {
		s := x.completed(load.Plain, load.InTx, 100)
		x.in.Orders = map[pawl.ID]int{s.id: 2}
	}, []string{Lost}},
	{"job without its order", func(x *tale) {
		x.completed(load.Plain, load.InTx, 100)
		x.in.Orders = map[pawl.ID]int{}
	}, []string{Ghost}},
	{"of a transaction that was rolled back", func(x *tale) {
		s := x.intended(load.Plain, load.RollBack, 100)
		s.answer(history.RolledBack, 0, 110)
		s.claimed("worker-1", 1, 120, pawl.Counts{})
	}, []string{Ghost}},
	{"of nobody", func(x *tale) { (&subject{x: x, id: uuid.Must(uuid.NewV7())}).ends(pawl.Ready, "", pawl.Counts{}) }, []string{Ghost}},
	{"never resolved", func(x *tale) { x.intended(load.Plain, load.Single, 100).answer(history.Unknown, 0, 110) }, []string{Unresolved}},
	{"resolved by another process", func(x *tale) {
		s := x.intended(load.Plain, load.Single, 100)
		s.answer(history.Unknown, 0, 110)
		x.say("controller", history.Event{Kind: history.Resolved, At: 150 * ms, ID: s.id, A: int64(pawl.Stored)})
		s.claimed("worker-1", 1, 160, pawl.Counts{})
		s.settles("worker-1", pawl.Ack, history.Settled, 1, 170)
		s.ends(pawl.Completed, "", pawl.Counts{})
	}, nil},
	{"stored twice", func(x *tale) {
		x.completed(load.Plain, load.Single, 100).answer(history.Resolved, pawl.Stored, 200)
	}, []string{Unresolved}},
	{"ran more often than it counts", func(x *tale) {
		x.rescued(1500, 2900).j.Counts.Rescues = 0
	}, []string{Executions}},
	{"ran twice under a claim", func(x *tale) {
		s := x.completed(load.Plain, load.Single, 100)
		s.x.say("worker-1", history.Event{Kind: history.Start, At: 121 * ms, ID: s.id, Fence: 1})
	}, []string{Executions}},
	{"less often, without faults", func(x *tale) {
		x.in.Exact = true
		x.completed(load.Plain, load.Single, 100).j.Counts.Retries = 1
	}, []string{Executions}},
	{"a fence for two", func(x *tale) {
		s := x.completed(load.Plain, load.Single, 100)
		s.x.say("worker-2", history.Event{Kind: history.Claimed, At: 125 * ms, ID: s.id, Fence: 1})
	}, []string{Claims}},
	{"a stale outcome that was accepted", func(x *tale) {
		x.rescued(1500, 2900).settles("worker-3", pawl.Nack, history.Settled, 1, 2950)
	}, []string{StaleWrite}},
	{"one that was sent before", func(x *tale) {
		x.rescued(1500, 2900).settles("worker-3", pawl.Nack, history.Settled, 1, 2899)
	}, nil},
	{"a stale extension that was accepted", func(x *tale) {
		s := x.rescued(1500, 2900)
		x.say("worker-3", history.Event{Kind: history.Extended, At: 2950 * ms, ID: s.id, Fence: 1, A: 1_000_000})
	}, []string{StaleWrite}},
	{"an offered stale outcome that was accepted", func(x *tale) {
		s := x.completed(load.Plain, load.Single, 100)
		x.say("worker-2", history.Event{Kind: history.Forgiven, At: 200 * ms, ID: s.id, Fence: 1, A: int64(pawl.Nack)})
	}, []string{StaleWrite}},
	{"claimed again under the lease", func(x *tale) { x.rescued(1500, 2400) }, []string{Overlap}},
	{"claimed again under the lease of one who was refused", func(x *tale) {
		x.rescued(1500, 2400).settles("worker-3", pawl.Ack, history.Lost, 1, 2450)
	}, []string{Overlap}},
	{"claimed again under the lease of one who may have settled", func(x *tale) {
		x.rescued(1500, 2400).settles("worker-3", pawl.Ack, history.Open, 1, 1990)
	}, nil},
	{"claimed again under an extended lease", func(x *tale) {
		s := x.rescued(1500, 2900)
		x.say("worker-3", history.Event{Kind: history.Extended, At: 1900 * ms, ID: s.id, Fence: 1, A: 1_950_000, B: int64(time.Second)})
	}, []string{Overlap}},
	{"claimed after its end", func(x *tale) {
		x.completed(load.Plain, load.Single, 100).claimed("worker-2", 2, 200, pawl.Counts{})
	}, []string{Executions, Final}},
	{"an ack without its effect", func(x *tale) {
		x.completed(load.TxAck, load.Single, 100)
		x.in.Orders, x.in.Effects = map[pawl.ID]int{}, map[pawl.ID]int{}
	}, []string{Effects}},
	{"two effects", func(x *tale) {
		s := x.completed(load.TxAck, load.Single, 100)
		x.in.Orders, x.in.Effects = map[pawl.ID]int{}, map[pawl.ID]int{s.id: 2}
	}, []string{Effects}},
	{"started too early", func(x *tale) { x.completed(load.Delayed, load.Single, 100) }, []string{Early}},
	{"retried too early", func(x *tale) {
		s := x.enqueued(load.Plain, load.Single, 100)
		s.claimed("worker-1", 1, 120, pawl.Counts{})
		x.say("worker-1", history.Event{Kind: history.Offered, At: 130 * ms, ID: s.id, Fence: 1, A: int64(pawl.Nack), B: 50 * ms},
			history.Event{Kind: history.Settled, At: 131 * ms, ID: s.id, Fence: 1, A: int64(pawl.Nack)})
		s.claimed("worker-1", 2, 150, pawl.Counts{Retries: 1})
		s.settles("worker-1", pawl.Ack, history.Settled, 2, 160)
		s.ends(pawl.Completed, "", pawl.Counts{Retries: 1})
	}, []string{Early}},
	{"rescued too late", func(x *tale) { x.rescued(1500, 4000) }, []string{Recovery}},
	{"rescued late after an outage", func(x *tale) {
		x.rescued(1500, 4000)
		x.say("controller", history.Event{Kind: history.Down, At: 2500 * ms, Fence: 2_500_000},
			history.Event{Kind: history.Up, At: 3900 * ms, Fence: 3_900_000})
	}, nil},
	{"extended while it was rescued, where that may be", func(x *tale) {
		x.in.Hopeful = true
		s := x.rescued(1500, 2900)
		x.say("worker-3", history.Event{Kind: history.Extended, At: 1900 * ms, ID: s.id, Fence: 1, A: 1_950_000, B: int64(time.Second)})
	}, nil},
	{"rescued though nothing was wrong", func(x *tale) { x.rescuedFrom("worker-2", 1500, 2900) }, []string{Attribution}},
	{"rescued after a pause", func(x *tale) {
		x.rescuedFrom("worker-2", 1500, 2900)
		x.say("controller", history.Event{Kind: history.Fault, At: 1600 * ms, A: int64(Paused), B: 2, Fence: 2_900_000})
	}, nil},
	{"rescued after a pause of another", func(x *tale) {
		x.rescuedFrom("worker-2", 1500, 2900)
		x.say("controller", history.Event{Kind: history.Fault, At: 1600 * ms, A: int64(Paused), B: 1, Fence: 2_900_000})
	}, []string{Attribution}},
	{"rescued after a cut that did not matter", func(x *tale) {
		x.rescuedFrom("worker-2", 1500, 2900)
		x.say("controller", history.Event{Kind: history.Fault, At: 1600 * ms, A: int64(Cut), Fence: 1_700_000})
	}, []string{Attribution}},
	{"rescued after a cut in a settle", func(x *tale) {
		x.rescuedFrom("worker-2", 1500, 2900).settles("worker-2", pawl.Ack, history.Open, 1, 1600)
		x.say("controller", history.Event{Kind: history.Fault, At: 1601 * ms, A: int64(Cut), Fence: 1_700_000})
	}, nil},
	{"rescued after a call that took long", func(x *tale) {
		x.rescuedFrom("worker-2", 1500, 2900)
		x.say("worker-2", history.Event{Kind: history.Late, At: 1600 * ms, Fence: 2_600_000})
	}, nil},
	{"too many runs in vain", func(x *tale) {
		x.in.Slots, x.in.Buffer = 1, 1
		for range 3 {
			x.rescued(1500, 2900)
		}
	}, []string{Attribution}},
	{"something left open", func(x *tale) { x.say("worker-1", history.Event{Kind: history.Left, At: 3000 * ms, B: 1}) }, []string{Leaks}},
	{"nothing left open", func(x *tale) { x.say("worker-1", history.Event{Kind: history.Left, At: 3000 * ms, A: -1}) }, nil},
	{"too few in a count", func(x *tale) {
		x.completed(load.Plain, load.Single, 100)
		x.say("controller", history.Event{Kind: history.Counted, At: 200 * ms, Fence: 210 * ms, A: 0})
	}, []string{Counts}},
	{"too many in a count", func(x *tale) {
		x.completed(load.Plain, load.Single, 100)
		x.say("controller", history.Event{Kind: history.Counted, At: 20 * ms, Fence: 30 * ms, A: 1})
	}, []string{Counts}},
	{"two with a key", func(x *tale) {
		first := x.enqueued(load.Keyed, load.Single, 100)
		first.ends(pawl.Completed, "", pawl.Counts{})
		second := x.enqueued(load.Keyed, load.Single, 200)
		for load.Key(second.id) != load.Key(first.id) {
			second.ends(pawl.Completed, "", pawl.Counts{})
			second = x.enqueued(load.Keyed, load.Single, 200)
		}
		second.ends(pawl.Completed, "", pawl.Counts{})
	}, []string{Unique}},
	{"an innocent buried", func(x *tale) {
		s := x.enqueued(load.Plain, load.Single, 100)
		s.ends(pawl.Buried, pawl.ReasonRescues, pawl.Counts{Rescues: 5})
	}, []string{Buried}},
	{"a killer buried too late", func(x *tale) {
		s := x.enqueued(load.Poison, load.Single, 100)
		s.ends(pawl.Buried, pawl.ReasonRescues, pawl.Counts{Rescues: load.PoisonRescues + 1})
	}, []string{Buried}},
	{"left by a worker that stopped in order", func(x *tale) {
		x.rescued(1500, 2900)
		x.say("worker-3", history.Event{Kind: history.Stopped, At: 2000 * ms, Fence: 2_000_000})
	}, []string{Stop}},
	{"a change that must not be", func(x *tale) { x.in.Illegal = []string{"4 to 2"} }, []string{Transition}},
	{"a witness that was blind", func(x *tale) {
		x.completed(load.Plain, load.Single, 100)
		x.in.Witnessed = true
	}, []string{Transition}},
	{"completed twice", func(x *tale) { x.in.Twice = []pawl.ID{{}} }, []string{Transition}},
	{"orphans", func(x *tale) { x.in.Orphans = []string{"1 payload"} }, []string{Orphans}},
	{"another payload", func(x *tale) {
		s := x.completed(load.Plain, load.Single, 100)
		x.say("worker-1", history.Event{Kind: history.Corrupt, At: 122 * ms, ID: s.id, Fence: 1})
	}, []string{Payload}},
	{"not ended", func(x *tale) {
		x.in.Waiting = 1
		x.enqueued(load.Plain, load.Single, 100).ends(pawl.Ready, "", pawl.Counts{})
	}, []string{Drain}},
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
