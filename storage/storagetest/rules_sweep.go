package storagetest

import (
	"fmt"
	"strings"
	"time"

	"github.com/pawlq/pawl"
)

func sweepRules() []testCase {
	return []testCase{
		{
			name: "sweep promotes",
			says: "Sweep promotes scheduled jobs whose time has come; until then a job is shown as Scheduled.",
			run:  sweepPromotes,
		},
		{
			name: "rescue",
			says: "A rescue ends the fence, gives the attempt back, adds 1 to Rescued and Counts.Rescues and an entry to Failures.",
			run:  sweepRescues,
		},
		{
			name: "rescue delay",
			says: "A rescued job waits again, at once the first time, later after RescueDelay(Rescued).",
			run:  sweepRescueDelay,
		},
		{
			name: "rescues are limited",
			says: "If Rescued was already MaxRescues, or that is NoRescues, the job is Buried with ReasonRescues instead, " +
				"and Rescued and Counts do not change.",
			run: sweepMaxRescues,
		},
		{
			name: "kick resets rescues",
			says: "Rescued counts the rescues since the job was enqueued or last kicked; Counts are never reset.",
			run:  sweepKicked,
		},
		{
			name: "sweep is bounded",
			says: "Sweep does at most spec.Limit jobs of each sort; More says that a limit was reached.",
			run:  sweepBounded,
		},
		{
			name: "sweep says when it is next needed",
			says: "NextDue is how long until something is due, over all queues and all that Sweep does; it is never shorter " +
				"than the truth by more than a millisecond.",
			run: sweepNextDue,
		},
		{
			name: "a window says when a buried job goes",
			says: "NextDue is never shorter than the truth by more than a millisecond, also where a unique window keeps a buried job beyond BuriedRetention.",
			run:  sweepNextWindow,
		},
		{
			name: "sweep covers all queues",
			says: "Sweep needs no leader and works on all queues, also paused ones.",
			run:  sweepQueues,
		},
		{
			name: "sweep of nothing",
			says: "A sweep of a storage with nothing due changes nothing.",
			run: func(w *world) {
				w.same("what was swept", w.sweep(), pawl.Swept{})
			},
		},
	}
}

func sweepPromotes(w *world) {
	id, other := w.add(pawl.Request{Delay: time.Second}), w.add(pawl.Request{Delay: time.Hour})
	w.clock.Advance(time.Second)
	w.inState(id, pawl.Scheduled)
	before := w.job(id)
	if n := w.sweep().Promoted; n != 1 {
		w.Fatalf("promoted %d jobs, want 1", n)
	}
	before.State = pawl.Ready
	w.same("the promoted job", w.job(id), before)
	w.inState(other, pawl.Scheduled)
}

func sweepRescues(w *world) {
	id := w.add(pawl.Request{})
	w.settled(pawl.Outcome{Ref: w.claimOne().Ref, Verb: pawl.Nack, Error: "e"})
	ref := w.claimOne().Ref
	w.clock.Advance(lease - time.Microsecond)
	w.same("rescued before the lease is over", w.sweep().Rescued, []pawl.Ref{})
	want := *w.job(id)
	w.clock.Advance(time.Microsecond)
	s := w.sweep()
	w.same("rescued", s.Rescued, []pawl.Ref{ref})
	w.same("buried", s.Buried, []pawl.Ref{})
	want.Fence, want.LeaseUntil, want.State, want.Reason = 0, time.Time{}, pawl.Ready, pawl.ReasonRescue
	want.Attempt, want.Rescued, want.RunAt = 1, 1, w.now()
	want.Counts.Rescues = 1
	got := w.job(id)
	want.Failures = append(want.Failures, pawl.Failure{At: w.now(), Attempt: 2, WorkerID: worker, Error: leaseExpired})
	if n := len(got.Failures); n == 2 && strings.Contains(got.Failures[1].Error, leaseExpired) {
		want.Failures[1].Error = got.Failures[1].Error
	}
	w.same("the rescued job", got, &want)
	if j := w.claimOne(); j.Attempt != 2 || j.Fence <= ref.Fence {
		w.Fatalf("claimed again: attempt %d, fence %d after %d", j.Attempt, j.Fence, ref.Fence)
	}
}

func sweepRescueDelay(w *world) {
	id := w.add(pawl.Request{MaxRescues: 12})
	for n := 1; n <= 12; n++ {
		w.claimOne()
		w.clock.Advance(lease)
		w.sweep()
		j := w.job(id)
		longest := time.Duration(0)
		if n > 1 {
			longest = min(time.Second<<(n-2), time.Minute)
		}
		if d := j.RunAt.Sub(w.now()); d < longest/2 || d > longest || j.Rescued != n {
			w.Fatalf("rescue %d (Rescued %d) waits for %v, want between %v and %v", n, j.Rescued, d, longest/2, longest)
		}
		if want := map[bool]pawl.State{true: pawl.Ready, false: pawl.Scheduled}[n == 1]; j.State != want {
			w.Fatalf("after rescue %d the job is %v, want %v", n, j.State, want)
		}
		w.clock.Set(j.RunAt)
	}
}

func sweepMaxRescues(w *world) {
	for _, c := range []struct{ limit, rescues int }{{pawl.NoRescues, 0}, {1, 1}, {3, 3}} {
		id := w.add(pawl.Request{MaxRescues: c.limit})
		for range c.rescues {
			w.claimOne()
			w.clock.Advance(lease)
			w.sweep()
			w.clock.Set(w.job(id).RunAt)
		}
		ref := w.claimOne().Ref
		w.clock.Advance(lease)
		s := w.sweep()
		w.same("buried", s.Buried, []pawl.Ref{ref})
		w.same("rescued", s.Rescued, []pawl.Ref{})
		j := w.job(id)
		if j.State != pawl.Buried || j.Reason != pawl.ReasonRescues || j.Attempt != 0 || !j.FinishedAt.Equal(w.now()) {
			w.Fatalf("MaxRescues %d: job is %v (%s), attempt %d, finished %v", c.limit, j.State, j.Reason, j.Attempt, j.FinishedAt)
		}
		if j.Rescued != c.rescues || j.Counts.Rescues != c.rescues || len(j.Failures) != c.rescues+1 {
			w.Fatalf("MaxRescues %d: Rescued %d, Counts.Rescues %d, %d failures", c.limit, j.Rescued, j.Counts.Rescues, len(j.Failures))
		}
	}
}

func sweepKicked(w *world) {
	id := w.add(pawl.Request{MaxRescues: 1})
	for range 2 {
		w.claimOne()
		w.clock.Advance(lease)
		w.sweep()
	}
	w.inState(id, pawl.Buried)
	w.changed(pawl.Kick, id)
	w.claimOne()
	w.clock.Advance(lease)
	w.sweep()
	if j := w.job(id); j.State != pawl.Ready || j.Rescued != 1 || j.Counts.Rescues != 2 || j.Counts.Kicks != 1 {
		w.Fatalf("job is %v, Rescued %d, Rescues %d, Kicks %d; want ready, 1, 2, 1", j.State, j.Rescued, j.Counts.Rescues, j.Counts.Kicks)
	}
}

func sweepBounded(w *world) {
	w.addN(5, pawl.Request{Retention: time.Second})
	w.addN(5, pawl.Request{})
	jobs := w.claim(10)
	for _, j := range jobs {
		if j.Retention == time.Second {
			w.settled(pawl.Outcome{Ref: j.Ref, Verb: pawl.Ack})
		}
	}
	w.addN(5, pawl.Request{StartBefore: w.now().Add(time.Second)})
	w.addN(5, pawl.Request{Delay: time.Second})
	w.clock.Advance(lease)
	var sum pawl.Swept
	sweeps := 0
	for more := true; more; sweeps++ {
		s := w.sweepBy(pawl.SweepSpec{Limit: 2})
		if s.Promoted > 2 || s.Expired > 2 || s.Purged > 2 || len(s.Rescued) > 2 {
			w.Fatalf("a sweep with limit 2 did more: %+v", s)
		}
		sum.Promoted, sum.Expired, sum.Purged = sum.Promoted+s.Promoted, sum.Expired+s.Expired, sum.Purged+s.Purged
		sum.Rescued = append(sum.Rescued, s.Rescued...)
		if more = s.More; sweeps > 20 {
			w.Fatalf("More is still set after %d sweeps", sweeps)
		}
	}
	got := fmt.Sprintf("%d promoted, %d expired, %d purged, %d rescued", sum.Promoted, sum.Expired, sum.Purged, len(sum.Rescued))
	if want := "5 promoted, 5 expired, 5 purged, 5 rescued"; got != want || sweeps < 3 {
		w.Fatalf("%d sweeps: %s; want %s in at least 3", sweeps, got, want)
	}
}

func sweepNextDue(w *world) {
	next := func(what string, want time.Duration, spec pawl.SweepSpec) {
		w.Helper()
		spec.Limit = 10
		if d := w.sweepBy(spec).NextDue - want; d < -time.Millisecond || d > time.Millisecond {
			w.Fatalf("%s: NextDue is %v off %v", what, d, want)
		}
	}
	done := w.add(pawl.Request{Retention: 8 * time.Hour})
	w.settled(pawl.Outcome{Ref: w.claimOne().Ref, Verb: pawl.Ack})
	next("a completed job", 8*time.Hour, pawl.SweepSpec{})
	bury := w.add(pawl.Request{})
	w.settled(pawl.Outcome{Ref: w.claimOne().Ref, Verb: pawl.Bury})
	next("a buried job, never deleted", 8*time.Hour, pawl.SweepSpec{})
	next("a buried job", 7*time.Hour, pawl.SweepSpec{BuriedRetention: 7 * time.Hour})
	w.add(pawl.Request{Queue: "b", Delay: 6 * time.Hour})
	next("a scheduled job", 6*time.Hour, pawl.SweepSpec{})
	w.add(pawl.Request{Queue: "c", StartBefore: w.now().Add(5 * time.Hour)})
	next("a job with StartBefore", 5*time.Hour, pawl.SweepSpec{})
	w.add(pawl.Request{Lease: 4 * time.Hour})
	w.claimOne()
	next("a lease", 4*time.Hour, pawl.SweepSpec{})
	w.changed(pawl.Delete, done, bury)
}

func sweepNextWindow(w *world) {
	next := func(want, retention time.Duration) {
		w.Helper()
		swept := w.sweepBy(pawl.SweepSpec{Limit: 10, BuriedRetention: retention})
		if d := swept.NextDue - want; d < -time.Millisecond || d > time.Millisecond || swept.Purged > 0 {
			w.Fatalf("purged %d jobs, and NextDue is %v off %v", swept.Purged, d, want)
		}
	}
	window := func(key string, d time.Duration) {
		w.Helper()
		w.finish(pawl.Request{UniqueKey: key, UniqueMode: pawl.UniqueUntilWindow, UniqueWindow: d}, pawl.Bury)
	}
	window("k", 4*time.Hour)
	next(5*time.Hour, 5*time.Hour)
	next(4*time.Hour, time.Hour)
	w.clock.Advance(2 * time.Hour)
	next(2*time.Hour, time.Hour) // its retention is over
	window("l", 90*time.Minute)
	next(90*time.Minute, time.Hour)
	w.finish(pawl.Request{}, pawl.Bury)
	next(time.Hour, time.Hour)
	next(2*time.Hour, 3*time.Hour)
}

func sweepQueues(w *world) {
	for i := range 5 {
		queue := fmt.Sprint("q", i)
		w.add(pawl.Request{Queue: queue})
		w.claimBy(asking(queue, 1))
		w.add(pawl.Request{Queue: queue, Delay: lease})
		w.pause(queue, i%2 == 0)
	}
	w.clock.Advance(lease)
	if s := w.sweep(); s.Promoted != 5 || len(s.Rescued) != 5 {
		w.Fatalf("promoted %d jobs and rescued %d, want 5 and 5", s.Promoted, len(s.Rescued))
	}
}
