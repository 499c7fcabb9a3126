package check

import (
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/torture/history"
	"github.com/pawlq/pawl/torture/load"
)

// tolerance is how much clocks may differ that are read one after the other, and
// slewed.
const tolerance = 3 * time.Millisecond

// judge judges one job.
func (c *checker) judge(id pawl.ID, j *job) {
	if j.intended == 0 {
		c.r.add(Ghost, "job %v is there, but nobody enqueued it", id)
		return
	}
	c.judgeEnqueue(id, j)
	c.judgeRows(id, j)
	if j.end.found {
		c.r.Jobs++
		c.judgeEnd(id, j)
		c.judgeRuns(id, j)
	} else if j.class == load.Gone {
		c.judgeGone(id, j)
	}
	c.judgeClaims(id, j)
}

// ran reports whether anybody had the job.
func (j *job) ran() bool { return j.end.found || len(j.claims) > 0 }

func (c *checker) judgeEnqueue(id pawl.ID, j *job) {
	switch {
	case j.verdict == history.RolledBack || j.verdict == history.Refused && !j.unknown:
		if j.ran() {
			c.r.add(Ghost, "job %v of class %v is there, but its enqueue was undone", id, j.class)
		}
	case j.transactional() && (j.verdict == history.Unknown || j.verdict == 0):
		// Whether it was committed, its order says.
	case j.verdict == history.Unknown || j.verdict == 0:
		c.r.add(Unresolved, "job %v of class %v: nobody learned what became of its enqueue", id, j.class)
	case j.status == pawl.Duplicate:
		if j.ran() {
			c.r.add(Ghost, "job %v is there, but its enqueue was answered: duplicate", id)
		}
	case !j.end.found && j.class != load.Gone:
		c.r.add(Lost, "job %v of class %v was accepted (%v) and is not there; it had %d claims", id, j.class, j.status, len(j.claims))
	}
	if j.stored > 1 && j.class != load.Gone {
		c.r.add(Unresolved, "job %v was stored %d times", id, j.stored)
	}
}

// judgeRows compares the rows that were written in the transactions of enqueues and
// acks.
func (c *checker) judgeRows(id pawl.ID, j *job) {
	if c.in.Orders == nil {
		return
	}
	orders, effects := c.in.Orders[id], c.in.Effects[id]
	gone := j.class == load.Gone // and has left no trace but its order
	switch {
	case j.transactional() && orders > 0 && !j.end.found && !gone && j.class != load.Keyed:
		c.r.add(Lost, "job %v is not there, but the order of its transaction is", id)
	case j.transactional() && orders == 0 && j.ran():
		c.r.add(Ghost, "job %v is there, but not the order of its transaction", id)
	case j.transactional() && j.verdict == history.Accepted && orders != 1:
		c.r.add(Lost, "order %v was committed and is there %d times", id, orders)
	}
	want := 0
	if j.class.Transactional() && j.end.state == pawl.Completed {
		want = 1
	}
	if effects != want {
		c.r.add(Effects, "job %v of class %v is %v and has %d effects", id, j.class, j.end.state, effects)
	}
}

func (c *checker) judgeEnd(id pawl.ID, j *job) {
	e := &j.end
	switch {
	case !e.state.Final():
		c.r.add(Drain, "job %v of class %v is still %v (%s)", id, j.class, e.state, e.reason)
	case e.reason == pawl.ReasonRescues && j.class != load.Poison:
		c.r.add(Buried, "job %v of class %v, which kills nobody, was buried after %d rescues", id, j.class, e.counts.Rescues)
	case e.state != j.class.Fate():
		c.r.add(Lost, "job %v of class %v ended as %v (%s)", id, j.class, e.state, e.reason)
	case j.class == load.Poison && (e.reason != pawl.ReasonRescues || e.counts.Rescues != load.PoisonRescues):
		c.r.add(Buried, "job %v, which kills its workers, was buried (%s) after %d rescues, not %d", id, e.reason, e.counts.Rescues, load.PoisonRescues)
	case j.class == load.Poison:
		c.r.Poisonous++
	}
}

// judgeRuns compares how often a job ran with what it counts.
func (c *checker) judgeRuns(id pawl.ID, j *job) {
	n := j.end.counts
	most := 1 + n.Retries + n.Rescues + n.Releases + n.Snoozes + n.Skips + n.Kicks
	if j.end.state == pawl.Canceled {
		most--
	}
	runs, claims := 0, 0
	for i := range j.claims {
		k := &j.claims[i]
		runs += int(k.starts)
		if k.at != 0 {
			claims++
		}
	}
	c.r.Extra += int64(max(runs-1, 0))
	switch {
	case runs > most || claims > most:
		c.r.add(Executions, "job %v of class %v ran %d times, had %d claims, and counts %+v", id, j.class, runs, claims, n)
	case c.in.Exact && (claims != most || runs+n.Releases+n.Rescues < most):
		c.r.add(Executions, "job %v of class %v ran %d times, had %d claims, and counts %+v, without any fault", id, j.class, runs, claims, n)
	}
}

// judgeGone judges a job of which no record is to be left: somebody must have
// acked it while it was theirs.
func (c *checker) judgeGone(id pawl.ID, j *job) {
	accepted := j.verdict == history.Accepted || j.verdict == history.Resolved || j.transactional() && c.in.Orders[id] > 0
	if !accepted || j.status == pawl.Duplicate {
		return
	}
	c.r.Jobs++
	runs := 0
	acked := false
	for i := range j.claims {
		runs += int(j.claims[i].starts)
		acked = acked || j.claims[i].mayHaveAcked()
	}
	c.r.Extra += int64(max(runs-1, 0))
	if !acked {
		c.r.add(Lost, "job %v of class %v is gone, and nobody had acked it", id, j.class)
	}
}

// mayHaveAcked reports whether an ack was sent and not refused.
func (k *claim) mayHaveAcked() bool {
	return k.offered != 0 && k.live > 0 && (k.verb == pawl.Ack || k.mixed)
}

// mayBeAgain reports whether the job may have been enqueued again when it was gone: its ID was
// new then.
func (j *job) mayBeAgain() bool {
	return j.class == load.Gone && !j.transactional() && (j.unknown || j.verdict == history.Resolved)
}

// judgeClaims compares the claims of a job, in the order of their fences.
func (c *checker) judgeClaims(id pawl.ID, j *job) {
	due := j.intended + int64(load.Delay(id, j.class)-tolerance)
	before := 0 // claims that were seen
	for i := range j.claims {
		k := &j.claims[i]
		if k.starts > 1 {
			c.r.add(Executions, "job %v ran %d times under the claim %d", id, k.starts, k.fence)
		}
		if k.at != 0 {
			if n := history.Sum(k.counts); before > n {
				c.r.add(Executions, "job %v of class %v had %d claims before %d, which counts %d", id, j.class, before, k.fence, n)
			}
			before++
		}
		if j.mayBeAgain() && k.mayHaveAcked() {
			before = 0
		}
		if k.started != 0 && k.started < due {
			c.r.add(Early, "job %v of class %v started %v too early", id, j.class, time.Duration(due-k.started))
		}
		c.judgeWrites(id, j, i)
		if i+1 < len(j.claims) {
			c.judgeNext(id, j, k, &j.claims[i+1])
		}
	}
}

// judgeWrites looks for writes of a claim that were accepted although a newer one
// was known by then. An outcome that was offered before that may have been
// accepted then, and repeated.
func (c *checker) judgeWrites(id pawl.ID, j *job, i int) {
	k := &j.claims[i]
	for _, later := range j.claims[i+1:] {
		if later.at == 0 {
			continue
		}
		// Of a record that is gone, a repeated outcome is believed.
		if k.settled != 0 && !k.mixed && k.offered > later.at && j.class != load.Gone {
			c.r.add(StaleWrite, "job %v: %v of the claim %d was sent %v after the claim %d had come, and accepted",
				id, k.settled, k.fence, time.Duration(k.offered-later.at), later.fence)
		}
		if k.extended > later.at {
			c.r.add(StaleWrite, "job %v: an extension of the claim %d was sent %v after the claim %d had come, and accepted",
				id, k.fence, time.Duration(k.extended-later.at), later.fence)
		}
	}
}

// judgeNext compares a claim with the next one.
func (c *checker) judgeNext(id pawl.ID, j *job, k, next *claim) {
	kicked := j.end.counts.Kicks > 0
	claimedAt := next.claimedAt
	if c.in.OldClock || claimedAt == 0 { // what never began did not say when it was claimed
		claimedAt = next.at/1000 + c.wall
	}
	if k.live == 0 && claimedAt < k.hopedUntil-tolerance.Microseconds() && next.at != 0 {
		c.r.Misled++
		if c.in.Exact && !j.class.Transactional() {
			c.r.add(Overlap, "job %v was claimed again (%d) %d µs before the end of what an extension of the claim %d had promised, without any fault",
				id, next.fence, k.hopedUntil-claimedAt, k.fence)
		}
	}
	switch {
	case k.ended(j, kicked, next):
		c.r.add(Final, "job %v of class %v had the claim %d after %v of the claim %d was accepted", id, j.class, next.fence, k.settled, k.fence)
	case k.live == 0 && !kicked && !j.class.Transactional() && next.at != 0 && k.at != 0 &&
		claimedAt < k.leaseUntil-tolerance.Microseconds():
		c.r.add(Overlap, "job %v was claimed again (%d) %d µs before the lease of the claim %d was over", id, next.fence, k.leaseUntil-claimedAt, k.fence)
	case k.settled != 0 && !k.mixed && k.delay > 0 && next.at != 0 && k.at != 0 && history.Sum(next.counts) == history.Sum(k.counts)+1 &&
		next.at < k.offered+k.delay-int64(tolerance):
		c.r.add(Early, "job %v of class %v was claimed %v too early after %v", id, j.class, time.Duration(k.offered+k.delay-next.at), k.settled)
	}
}

// ended reports whether a claim had ended the job before the next one. Of a record that is gone
// a repeated outcome is believed, but only after the ack that has removed it.
func (k *claim) ended(j *job, kicked bool, next *claim) bool {
	switch {
	case k.settled == pawl.Bury:
		return !kicked
	case k.settled != pawl.Ack:
		return false
	case j.class == load.Gone:
		return next.at > k.settledAt && !j.mayBeAgain()
	default:
		return true
	}
}
