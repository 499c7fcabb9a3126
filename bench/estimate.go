package main

import "time"

// quickBudget is the time in which a quick run over everything ends, also on a
// machine that is slower than the estimate has it.
const quickBudget = 9*time.Minute + 30*time.Second

// limits are those that cells of a quick run may get, so that it ends in time.
var limits = []time.Duration{quickLimit, 1500 * time.Millisecond, time.Second, 500 * time.Millisecond}

// opening is about how long it takes to make a place with a system in it, and to
// remove it.
var opening = map[string]time.Duration{
	"postgres": 600 * time.Millisecond, "sqlite": 200 * time.Millisecond, "redis": 300 * time.Millisecond,
	"mysql": 700 * time.Millisecond, "memory": 10 * time.Millisecond,
}

// Rates that estimates are made with, in jobs a second. Of pawl's shape are pawl,
// the engine and raw statements.
const (
	fillRate                = 40_000
	pawlsDrain, peersDrain  = 30_000, 2_500
	memoryDrain, memoryFill = 600_000, 300_000
)

// estimate is about how long one repetition of a cell takes, all in all.
func (c *Cell) estimate() time.Duration {
	if c.W.Lacks[c.C.Name] != "" {
		return 0
	}
	d := c.Limit
	if c.W.Takes != nil {
		d = c.W.Takes(c)
	}
	return opening[c.C.Storage] + d
}

// filling is about how long it takes to store n jobs.
func (c *Cell) filling(n int) time.Duration {
	if c.C.Storage == "memory" {
		return at(n, memoryFill)
	}
	return at(n, fillRate)
}

// draining is about how long workers need for n jobs.
func (c *Cell) draining(n int) time.Duration {
	switch {
	case c.C.Storage == "memory":
		return at(n, memoryDrain)
	case c.C.Name == "pawl" || c.C.Name == "raw" || c.C.Name == "engine":
		return at(n, pawlsDrain)
	}
	return at(n, peersDrain)
}

func at(n, perSecond int) time.Duration {
	return time.Duration(n) * time.Second / time.Duration(perSecond)
}

// estimate is about how long all repetitions of the groups take.
func estimate(groups []group) (sum time.Duration) {
	for _, g := range groups {
		for _, c := range g {
			sum += time.Duration(c.Reps) * c.estimate()
		}
	}
	return sum
}

// remaining is how long the rest of the run takes: its estimate, and for each cell
// what those up to now took more, or less, than theirs. That is nearly all time of
// preparation, since the time of a cell itself is bounded.
func (r *runner) remaining(estimated time.Duration) time.Duration {
	const enough = 10 // cells to judge by
	if r.ran < enough {
		return estimated
	}
	more := (time.Since(r.began) - r.planned) / time.Duration(r.ran)
	return max(estimated+more*time.Duration(r.total-r.ran), 0)
}

// fit gives the cells that are left the greatest limit that the budget allows.
func (r *runner) fit(left []group) {
	if r.budget == 0 {
		return
	}
	for _, limit := range limits {
		setLimit(left, limit)
		r.left = estimate(left)
		if limit == limits[len(limits)-1] || time.Since(r.began)+r.remaining(r.left) <= r.budget {
			r.setLimit(limit)
			return
		}
	}
}

// setLimit notes a limit, and says so if it is a new one.
func (r *runner) setLimit(limit time.Duration) {
	if r.limit > 0 && limit != r.limit {
		r.say("cells of %v from here on, to end in time", limit)
	}
	r.limit = limit
	if r.shortest == 0 || limit < r.shortest {
		r.shortest = limit
	}
}

func setLimit(groups []group, limit time.Duration) {
	for _, g := range groups {
		for _, c := range g {
			c.Limit = limit
		}
	}
}
