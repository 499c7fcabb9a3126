package storagetest

import (
	"time"

	"github.com/pawlq/pawl"
)

func countRules() []testCase {
	return []testCase{
		{
			name: "count",
			says: "Count returns the numbers of the named queues, or of all queues known, by name.",
			run:  countQueues,
		},
		{
			name: "count conserves",
			says: "Nothing vanishes: the numbers of all states add up to what was stored less what was purged or deleted.",
			run:  countConserves,
		},
		{
			name: "count tells retrying jobs",
			says: "Retrying are those of the scheduled that wait for ReasonRetry or ReasonRescue.",
			run:  countRetrying,
		},
		{
			name: "count tells the oldest",
			says: "OldestReady is how long the longest due ready job has been due.",
			run:  countOldest,
		},
		{
			name: "queues are forgotten",
			says: "A queue is known while it holds a job or a setting.",
			run:  countForgets,
		},
	}
}

func countQueues(w *world) {
	w.addN(3, pawl.Request{Queue: "b"})
	w.add(pawl.Request{Queue: "b", Delay: time.Second})
	w.add(pawl.Request{Queue: "c"})
	w.add(pawl.Request{})
	w.claim(1)
	w.pause("c", true)
	a, c := pawl.QueueStats{Queue: queueA, Running: 1}, pawl.QueueStats{Queue: "c", Paused: true, Ready: 1}
	b := pawl.QueueStats{Queue: "b", Ready: 3, Scheduled: 1}
	all, err := w.s.Count(w.ctx)
	w.ok(err)
	w.same("all queues", all, []pawl.QueueStats{a, b, c})
	some, err := w.s.Count(w.ctx, "c", queueA)
	w.ok(err)
	w.same("two queues", some, []pawl.QueueStats{a, c})
	none, err := w.s.Count(w.ctx, "none")
	w.ok(err)
	w.same("an unknown queue", none, []pawl.QueueStats{{Queue: "none"}})
}

func countConserves(w *world) {
	const n = 60
	w.addN(n, pawl.Request{MaxAttempts: 2, MaxRescues: 1})
	check := func(what string, want int64) {
		w.Helper()
		s := w.stats()
		if sum := s.Scheduled + s.Ready + s.Running + s.Completed + s.Buried + s.Canceled; sum != want {
			w.Fatalf("%s: %d jobs, want %d: %+v", what, sum, want, s)
		}
	}
	for round := range 6 {
		for i, j := range w.claim(n / 2) {
			if v := pawl.Verb(i%7 + 1); v <= pawl.Skip {
				w.settled(pawl.Outcome{Ref: j.Ref, Verb: v, Delay: time.Duration(i) * time.Second, Error: "e"})
			}
		}
		check("settled", n)
		w.clock.Advance(lease)
		for w.sweep().More {
		}
		check("swept", n)
		if round%2 == 1 {
			buried := w.list(pawl.ListSpec{Limit: n, Filter: pawl.Filter{States: []pawl.State{pawl.Buried}}})
			w.changed(pawl.Kick, idsOf(buried)...)
			check("kicked", n)
		}
	}
	completed := w.stats().Completed
	w.clock.Advance(2 * DefaultRetention)
	purged := 0
	for more := true; more; {
		s := w.sweep()
		purged += s.Purged
		more = s.More
	}
	if int64(purged) != completed || completed == 0 {
		w.Fatalf("purged %d of %d completed jobs", purged, completed)
	}
	check("purged", n-completed)
}

func countRetrying(w *world) {
	w.addN(5, pawl.Request{})
	w.add(pawl.Request{Delay: time.Hour})
	jobs := w.claim(4)
	w.settled(
		pawl.Outcome{Ref: jobs[0].Ref, Verb: pawl.Nack, Delay: time.Hour},
		pawl.Outcome{Ref: jobs[1].Ref, Verb: pawl.SnoozeFor, Delay: time.Hour},
		pawl.Outcome{Ref: jobs[2].Ref, Verb: pawl.Nack},
	)
	w.clock.Advance(lease)
	w.sweep() // the fourth waits again, at once
	want := pawl.QueueStats{Queue: queueA, Scheduled: 3, Ready: 3, Retrying: 1, OldestReady: lease}
	w.same("numbers", w.stats(), want)
	w.claim(3)
	w.clock.Advance(lease)
	w.sweep() // of three rescued, one for the second time
	want = pawl.QueueStats{Queue: queueA, Scheduled: 4, Ready: 2, Retrying: 2}
	w.same("numbers", w.stats(), want)
}

func countOldest(w *world) {
	w.add(pawl.Request{Delay: 3 * time.Second})
	if d := w.stats().OldestReady; d != 0 {
		w.Fatalf("OldestReady is %v without a ready job", d)
	}
	w.clock.Advance(5 * time.Second)
	w.sweep()
	w.add(pawl.Request{Priority: -1})
	w.clock.Advance(time.Second)
	if d := w.stats().OldestReady; d != 3*time.Second {
		w.Fatalf("OldestReady is %v, want 3 s", d)
	}
}

func countForgets(w *world) {
	known := func(want ...string) {
		w.Helper()
		all, err := w.s.Count(w.ctx)
		w.ok(err)
		var names []string
		for _, s := range all {
			names = append(names, s.Queue)
		}
		w.same("queues known", names, want)
	}
	known()
	id := w.add(pawl.Request{})
	purged := w.add(pawl.Request{Queue: "b"})
	w.pause("c", true)
	known(queueA, "b", "c")
	w.changed(pawl.Delete, id)
	known("b", "c")
	w.settled(pawl.Outcome{Ref: w.claimBy(asking("b", 1))[0].Ref, Verb: pawl.Ack})
	known("b", "c")
	w.clock.Advance(DefaultRetention)
	w.sweep()
	jobs, err := w.s.Get(w.ctx, "b", purged)
	w.ok(err)
	w.same("the purged job", jobs, []*pawl.Job{nil})
	known("c")
}
