package sim

import (
	"fmt"
	"sync"

	"github.com/pawlq/pawl"
)

// A ledger is what was witnessed of jobs.
type ledger struct {
	mu       sync.Mutex
	jobs     map[pawl.ID]*entry
	problems []string

	runs, lost, rescues, extra int
}

type entry struct {
	runs  int
	fence int64     // of the newest claim
	ran   int64     // the fence that ran last
	ended pawl.Verb // accepted
	bad   bool      // it is to be buried
}

func newLedger() *ledger { return &ledger{jobs: map[pawl.ID]*entry{}} }

// shown is how many problems are kept.
const shown = 20

func (l *ledger) problem(format string, args ...any) {
	if len(l.problems) < shown {
		l.problems = append(l.problems, fmt.Sprintf(format, args...))
	}
}

func (l *ledger) add(reqs []*pawl.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range reqs {
		l.jobs[r.ID] = &entry{bad: r.Kind == badKind}
	}
}

// claimed takes in what a claim has answered. It is called with mu held, as are the
// next two.
func (l *ledger) claimed(jobs []*pawl.Job) {
	for _, j := range jobs {
		e := l.jobs[j.ID]
		if e.ended != 0 {
			l.problem("job %v was claimed after %v was accepted", j.ID, e.ended)
		}
		if j.Fence <= e.fence { // no reply gets lost here, so no claim is made again
			l.problem("job %v got the fence %d after %d", j.ID, j.Fence, e.fence)
		}
		e.fence = max(e.fence, j.Fence)
	}
}

// settled takes in what a settle has answered.
func (l *ledger) settled(outcomes []pawl.Outcome, lost []pawl.Ref) {
	isLost := map[pawl.Ref]bool{}
	for _, ref := range lost {
		isLost[ref] = true
	}
	for i := range outcomes {
		o := &outcomes[i]
		e := l.jobs[o.Ref.ID]
		if isLost[o.Ref] {
			l.lost++
			continue
		}
		if e.fence > o.Ref.Fence {
			l.problem("job %v: %v of the claim %d was accepted after the claim %d", o.Ref.ID, o.Verb, o.Ref.Fence, e.fence)
		}
		if o.Verb == pawl.Ack || o.Verb == pawl.Bury {
			e.ended = o.Verb
		}
	}
}

func (l *ledger) extended(renewals []pawl.Renewal, lost []pawl.Ref) {
	isLost := map[pawl.Ref]bool{}
	for _, ref := range lost {
		isLost[ref] = true
	}
	for _, r := range renewals {
		if e := l.jobs[r.Ref.ID]; !isLost[r.Ref] && e.fence > r.Ref.Fence {
			l.problem("job %v: the claim %d was extended after the claim %d", r.Ref.ID, r.Ref.Fence, e.fence)
		}
	}
}

// ran notes a run.
func (l *ledger) ran(j *pawl.Job) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.jobs[j.ID]
	if e.ran == j.Fence {
		l.problem("job %v ran twice under the claim %d", j.ID, j.Fence)
	}
	e.ran = j.Fence
	e.runs++
	l.runs++
}

// close compares what is stored in the end.
func (l *ledger) close(stored map[pawl.ID]*pawl.Job) {
	for id, e := range l.jobs {
		j := stored[id]
		if j == nil {
			l.problem("job %v is lost", id)
			continue
		}
		n := j.Counts
		l.rescues += n.Rescues
		l.extra += max(e.runs-1, 0)
		most := 1 + n.Retries + n.Rescues + n.Releases + n.Snoozes + n.Skips + n.Kicks
		want := pawl.Completed
		if e.bad {
			want = pawl.Buried
		}
		switch {
		case j.State != want:
			l.problem("job %v is %v (%s), want %v; counts %+v", id, j.State, j.Reason, want, n)
		case e.runs > most:
			l.problem("job %v ran %d times and counts %+v", id, e.runs, n)
		case e.runs == 0:
			l.problem("job %v is %v and never ran", id, j.State)
		}
	}
}
