package check

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/torture/history"
	"github.com/pawlq/pawl/torture/load"
)

// judgeWhole judges what is not about one job.
func (c *checker) judgeWhole() {
	c.judgeRescues()
	c.judgeCauses()
	c.judgeVain()
	c.judgeReturns()
	c.judgeMemory()
	c.judgeKeys()
	c.judgeSamples()
	for _, n := range c.in.Orders {
		c.r.Orders += int64(n)
	}
	for _, n := range c.in.Effects {
		c.r.Effects += int64(n)
	}
	c.r.Changes = c.in.Changes
	if c.in.Witnessed && c.in.Changes < c.r.Jobs {
		c.r.add(Transition, "the storage's own witness has seen %d changes of %d jobs, and each has changed at least once", c.in.Changes, c.r.Jobs)
	}
	for _, text := range c.in.Illegal {
		c.r.add(Transition, "%s", text)
	}
	for _, id := range c.in.Twice {
		c.r.add(Transition, "job %v was completed more than once", id)
	}
	for _, text := range c.in.Orphans {
		c.r.add(Orphans, "%s", text)
	}
	if c.in.Waiting > 0 {
		c.r.add(Drain, "%d jobs had not ended when time was up", c.in.Waiting)
	}
}

// judgeRescues compares when jobs were taken back with when their workers died. A death counts
// once, by the last job that was taken back, and only if nothing else was wrong meanwhile.
func (c *checker) judgeRescues() {
	c.r.Samples = int64(len(c.samples))
	c.r.Bound = c.in.Lease + c.in.Sweep*5/4 + c.in.Slack
	diedAt := map[string]int64{}
	for number, at := range c.died {
		diedAt[c.workers[number]] = at
	}
	last := map[string]int64{} // rescue, by the name of the worker that died
	for _, r := range c.rescues {
		if r.class == load.Manual {
			continue // whose leases are let end on purpose
		}
		// One that could not reach the server as it stopped could not hand back either.
		if stopped, ok := c.stopped[r.worker]; ok && r.at > stopped && !c.wasDown(stopped-stopping.Microseconds(), stopped) {
			c.r.add(Stop, "%s stopped in order and left a job of class %v to rescue", r.worker, r.class)
		}
		if died, ok := diedAt[r.worker]; ok && r.at >= died {
			last[r.worker] = max(last[r.worker], r.at)
		}
	}
	for name, at := range last {
		died := diedAt[name]
		if c.hindered(died, at) {
			continue
		}
		took := micros(at - died)
		c.r.Recoveries = append(c.r.Recoveries, took)
		if took > c.r.Bound+c.in.Grace {
			c.r.add(Recovery, "a job of %s was taken back %v after the worker's death", name, took)
		}
	}
	slices.Sort(c.r.Recoveries)
	if r := c.r.Recoveries; r.Telling() && r.P99() > c.r.Bound {
		c.r.add(Recovery, "one in a hundred deaths was over after %v or later, and it must be %v", r.P99(), c.r.Bound)
	}
}

// Recoveries are the times from deaths to the last rescue of each, the shortest first.
type Recoveries []time.Duration

// P99 is the time that one in a hundred exceeds, or takes.
func (r Recoveries) P99() time.Duration { return r[len(r)*99/100] }

// Telling reports whether there are enough of them for one in a hundred.
func (r Recoveries) Telling() bool { return len(r) >= 100 }

func (r Recoveries) String() string {
	if len(r) == 0 {
		return "none"
	}
	return fmt.Sprintf("p50 %.2f s, p99 %.2f s, max %.2f s of %d", r[len(r)/2].Seconds(), r.P99().Seconds(), r[len(r)-1].Seconds(), len(r))
}

// hindered reports whether something else than deaths was wrong in between: the server could
// not be reached or was slow, or a process that could have swept stood still.
func (c *checker) hindered(from, to int64) bool {
	in := func(h hit) bool { return h.from < to && h.to > from }
	return c.wasDown(from, to) || slices.ContainsFunc(c.hits[Away], in) || slices.ContainsFunc(c.hits[Paused], in)
}

// stopping is how long before its end a worker may have made the last claim that it
// did not get.
const stopping = 10 * time.Second

func micros(us int64) time.Duration { return time.Duration(us) * time.Microsecond }

// wasDown reports whether the server could not be reached at some time in between.
func (c *checker) wasDown(from, to int64) bool {
	for _, w := range c.downs {
		if w.to == 0 {
			w.to = math.MaxInt64
		}
		if w.from < to && w.to > from {
			return true
		}
	}
	return false
}

// A holder is a job that had a unique key: surely since its receipt came, and for as
// long as nobody had offered its end.
type holder struct {
	id              pawl.ID
	since, released int64
}

func (c *checker) judgeKeys() {
	byKey := map[string][]holder{}
	for id, j := range c.jobs {
		if j.class == load.Keyed && j.status == pawl.Stored && (j.verdict == history.Accepted || j.verdict == history.Resolved) {
			key := load.Key(id)
			byKey[key] = append(byKey[key], holder{id, j.answered, j.firstOffer()})
		}
	}
	for key, holders := range byKey {
		slices.SortFunc(holders, func(a, b holder) int { return cmp.Compare(a.since, b.since) })
		var active []holder
		for _, h := range holders {
			active = slices.DeleteFunc(active, func(o holder) bool { return o.released <= h.since })
			if h.released <= h.since {
				continue // it may have been over before the receipt came
			}
			for _, o := range active {
				c.r.add(Unique, "key %q: job %v held it while job %v did", key, h.id, o.id)
			}
			active = append(active, h)
		}
	}
}

// firstOffer is when the first outcome was sent that could end the job.
func (j *job) firstOffer() int64 {
	first := int64(math.MaxInt64)
	for i := range j.claims {
		if j.claims[i].offered != 0 {
			first = min(first, j.claims[i].offered)
		}
	}
	return first
}

// judgeSamples compares the numbers of queues with how many jobs there must, and
// can, have been at the time.
func (c *checker) judgeSamples() {
	var sure, maybe []int64
	for _, j := range c.jobs {
		if j.class == load.Gone || j.intended == 0 {
			continue
		}
		undone := j.verdict == history.RolledBack || j.verdict == history.Refused || j.status == pawl.Duplicate
		if undone {
			continue
		}
		maybe = append(maybe, j.intended)
		if j.verdict == history.Accepted || j.verdict == history.Resolved {
			sure = append(sure, j.answered)
		}
	}
	slices.Sort(sure)
	slices.Sort(maybe)
	for _, s := range c.samples {
		least, _ := slices.BinarySearch(sure, s.before)
		most, _ := slices.BinarySearch(maybe, s.after)
		if s.total < int64(least) || s.total > int64(most) {
			c.r.add(Counts, "the queues hold %d jobs, and it must be between %d and %d", s.total, least, most)
		}
	}
}
