package storagetest

import (
	"slices"
	"strings"

	"github.com/pawlq/pawl"
)

// verify compares all jobs and numbers of the storage with the model.
func (p *pair) verify(when string) {
	p.Helper()
	got := p.world.list(pawl.ListSpec{Limit: pawl.MaxStep, Payloads: true})
	p.listed(when, got, p.m.list(pawl.Filter{}))
	p.counted(when)
}

// listed compares a list job by job, and its order as far as it is fixed.
func (p *pair) listed(when string, got []*pawl.Job, want []*record) {
	p.Helper()
	found := map[pawl.ID]*pawl.Job{}
	for _, j := range got {
		if found[j.ID] != nil {
			p.Fatalf("%s: %s: List returned job %v twice", p.variant, when, j.ID)
		}
		found[j.ID] = j
	}
	for _, r := range want {
		p.same(when+": the record", found[r.ID], &r.Job)
		delete(found, r.ID)
	}
	for _, j := range found {
		p.Fatalf("%s: %s: List returned a job that should not be there or not match: %v, %v", p.variant, when, j.ID, j.State)
	}
	last := map[place]*record{}
	for i, j := range got { // the records are equal, so the model's say what order is right
		r := p.m.jobs[j.ID]
		if i > 0 {
			p.inOrder(when, p.m.jobs[got[i-1].ID], r)
		}
		at := place{r.Queue, r.part}
		if before := last[at]; before != nil {
			p.inOrder(when, before, r)
		}
		last[at] = r
	}
}

// inOrder fails if a job that was listed before b should come after it. The order
// of claims is that of each part.
func (p *pair) inOrder(when string, a, b *record) {
	p.Helper()
	apart := a.Queue == b.Queue && a.State == pawl.Running && b.State == pawl.Running && a.part != b.part
	if !apart && (a.Queue > b.Queue || a.Queue == b.Queue && (a.State > b.State || a.State == b.State && a.listed(b) > 0)) {
		p.Fatalf("%s: %s: List returned %v before %v", p.variant, when, describe(a), describe(b))
	}
}

func describe(r *record) string {
	return strings.Join([]string{r.Queue, r.State.String(), r.ID.String()}, "/")
}

// counted compares the numbers of all queues. Whether a queue without jobs is
// still known after it was resumed is left open.
func (p *pair) counted(when string) {
	p.Helper()
	got, err := p.s.Count(p.ctx)
	p.ok(err)
	got = slices.DeleteFunc(got, func(s pawl.QueueStats) bool {
		_, set := p.m.paused[s.Queue]
		return set && s == pawl.QueueStats{Queue: s.Queue}
	})
	p.same(when+": numbers of Count", got, p.m.count(p.now()))
}
