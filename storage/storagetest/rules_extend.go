package storagetest

import (
	"time"

	"github.com/pawlq/pawl"
)

func extendRules() []testCase {
	return []testCase{
		{
			name: "extend renews the lease",
			says: "Extend sets LeaseUntil = now + Renewal.Lease for each current claim and counts it in Counts.Extends.",
			run:  extendRenews,
		},
		{
			name: "extend stores progress",
			says: "Extend stores Progress if given; it is kept until it is overwritten, or the job is claimed again.",
			run:  extendProgress,
		},
		{
			name: "extend of an expired lease",
			says: "An expired lease that was not yet given away is good again.",
			run:  extendExpired,
		},
		{
			name: "extend returns what is lost",
			says: "Refs that are not current come back as lost, in order, and do not hinder the others.",
			run:  extendLost,
		},
	}
}

func extendRenews(w *world) {
	id := w.add(pawl.Request{})
	ref := w.claimOne().Ref
	for i, d := range []time.Duration{time.Hour, pawl.MaxLease, pawl.MinLease, lease} {
		w.clock.Advance(time.Millisecond)
		w.same("lost refs", w.extend(pawl.Renewal{Ref: ref, Lease: d}), []pawl.Ref{})
		j := w.job(id)
		if want := w.now().Add(d); !j.LeaseUntil.Equal(want) || j.Counts.Extends != i+1 {
			w.Fatalf("LeaseUntil is %v, Extends %d; want %v, %d", j.LeaseUntil, j.Counts.Extends, want, i+1)
		}
	}
	w.clock.Advance(lease - time.Microsecond)
	w.same("rescued", w.sweep().Rescued, []pawl.Ref{})
	w.clock.Advance(time.Microsecond)
	w.same("rescued", w.sweep().Rescued, []pawl.Ref{ref})
}

func extendProgress(w *world) {
	id := w.add(pawl.Request{})
	ref := w.claimOne().Ref
	p := pawl.Progress{Percent: 33.25, Stage: "läuft", Message: "m", Counters: map[string]int64{"a": -1, "b": 1 << 60}}
	w.extend(pawl.Renewal{Ref: ref, Lease: lease, Progress: &p})
	want := p
	want.At = w.now()
	w.same("progress", w.job(id).Progress, &want)
	w.clock.Advance(time.Second)
	w.extend(pawl.Renewal{Ref: ref, Lease: lease})
	w.same("progress after an extend without", w.job(id).Progress, &want)
	w.extend(pawl.Renewal{Ref: ref, Lease: lease, Progress: &pawl.Progress{Percent: 100}})
	w.same("progress overwritten", w.job(id).Progress, &pawl.Progress{Percent: 100, At: w.now()})
	w.settled(pawl.Outcome{Ref: ref, Verb: pawl.Release})
	if w.job(id).Progress == nil {
		w.Fatalf("the progress of a released job is gone before it is claimed again")
	}
	if j := w.claimOne(); j.Progress != nil {
		w.Fatalf("a job claimed again has progress %+v", j.Progress)
	}
}

func extendExpired(w *world) {
	w.add(pawl.Request{})
	ref := w.claimOne().Ref
	w.clock.Advance(3 * lease)
	w.same("lost refs", w.extend(pawl.Renewal{Ref: ref, Lease: lease}), []pawl.Ref{})
	w.same("rescued", w.sweep().Rescued, []pawl.Ref{})
	w.settled(pawl.Outcome{Ref: ref, Verb: pawl.Ack})
}

func extendLost(w *world) {
	w.addN(3, pawl.Request{})
	jobs := w.claim(3)
	w.settled(pawl.Outcome{Ref: jobs[0].Ref, Verb: pawl.Ack})
	w.changed(pawl.Delete, jobs[1].ID)
	foreign := jobs[2].Ref
	foreign.Fence++
	var renewals []pawl.Renewal
	refs := []pawl.Ref{jobs[1].Ref, foreign, jobs[2].Ref, jobs[0].Ref}
	for _, ref := range refs {
		renewals = append(renewals, pawl.Renewal{Ref: ref, Lease: time.Hour, Progress: &pawl.Progress{Percent: 1}})
	}
	w.same("lost refs", w.extend(renewals...), []pawl.Ref{refs[0], refs[1], refs[3]})
	if j := w.job(jobs[2].ID); !j.LeaseUntil.Equal(w.now().Add(time.Hour)) || j.Counts.Extends != 1 {
		w.Fatalf("the current claim was not extended once: until %v, %d", j.LeaseUntil, j.Counts.Extends)
	}
	if j := w.job(jobs[0].ID); j.Progress != nil || j.Counts.Extends != 0 {
		w.Fatalf("a lost renewal changed the job: %+v, %d", j.Progress, j.Counts.Extends)
	}
}
