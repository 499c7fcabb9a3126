package storagetest

import (
	"slices"
	"time"

	"github.com/pawlq/pawl"
)

// A storage may do some of Sweep's work in a Claim: which part of it, for which
// jobs, and whether before or after it chooses what to return, is its own
// affair. The model looks at what became of the jobs and follows.

// adoptRescues lets the model follow the rescues that a claim must have made
// before it chose: those of jobs that it returned and, if it was a repeated
// one, those of jobs that it would have returned otherwise. later takes over
// all the rest.
func (p *pair) adoptRescues(spec pawl.ClaimSpec, got []*pawl.Job) (later func()) {
	p.Helper()
	due := p.m.where(func(r *record) bool {
		return r.abandoned(p.now()) || r.expired(p.now()) || r.due(p.now()) || r.over(0, p.now())
	})
	found := p.find(due)
	for _, r := range due {
		i := slices.IndexFunc(got, func(j *pawl.Job) bool { return j.ID == r.ID })
		if i >= 0 && got[i].Fence != r.Fence || i < 0 && spec.Repeat && r.token == spec.Token {
			p.followRescue(r, found[r.ID])
		}
	}
	return func() {
		p.Helper()
		for _, r := range due {
			p.follow(r, found[r.ID])
		}
	}
}

// find returns the jobs that the storage holds of the records.
func (p *pair) find(records []*record) map[pawl.ID]*pawl.Job {
	p.Helper()
	found := map[pawl.ID]*pawl.Job{}
	for part := range slices.Chunk(records, pawl.MaxStep) {
		ids := make([]pawl.ID, len(part))
		for i, r := range part {
			ids[i] = r.ID
		}
		jobs, err := p.s.Get(p.ctx, "", ids...)
		p.ok(err)
		for _, j := range jobs {
			if j != nil {
				found[j.ID] = j
			}
		}
	}
	return found
}

// follow does with a record what the storage did, as j shows, if that was due.
// Whatever else is different stays so, for verify to report.
func (p *pair) follow(r *record, j *pawl.Job) {
	p.Helper()
	now := p.now()
	p.followRescue(r, j)
	if r.expired(now) && (j == nil || j.State == pawl.Canceled) {
		p.m.keep(r, r.end(pawl.Canceled, pawl.ReasonExpired, now))
	}
	if r.State == pawl.Scheduled && r.due(now) && j != nil && j.State == pawl.Ready {
		r.State = pawl.Ready
	}
	if r.over(0, now) && j == nil {
		delete(p.m.jobs, r.ID)
	}
}

// followRescue rescues the record if its claim was ended.
func (p *pair) followRescue(r *record, j *pawl.Job) {
	p.Helper()
	if !r.abandoned(p.now()) || j != nil && j.Fence == r.Fence {
		return
	}
	r.rescue(p.now())
	if r.State != pawl.Buried {
		p.adoptDelay(r, j)
	}
}

// adoptDelay takes over when a rescued job is due, within the bounds of
// RescueDelay. A job that is gone may have expired since.
func (p *pair) adoptDelay(r *record, j *pawl.Job) {
	p.Helper()
	if j == nil || r.Rescued <= 1 {
		return
	}
	longest := min(time.Second<<min(r.Rescued-2, 10), time.Minute)
	if d := j.RunAt.Sub(p.now()); d < longest/2 || d > longest {
		p.Fatalf("%s: rescue %d waits for %v, want %v to %v", p.variant, r.Rescued, d, longest/2, longest)
	}
	r.RunAt = j.RunAt
}
