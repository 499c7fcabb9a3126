package check

import (
	"fmt"
	"math"
	"strings"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/torture/history"
	"github.com/pawlq/pawl/torture/load"
)

// A Cause is why a job had to be rescued. Died, Paused, Away and Cut are also the sorts
// of the Faults that the controller writes down: At is when one began, Fence, in µs by
// the wall clock, when it was over, and B the process's number if it was about one.
type Cause int64

const (
	Died   Cause = iota + 1000 // the process ended out of order
	Paused                     // the process stood still
	Away                       // the server could not be reached, or was slow
	Cut                        // connections were ended
	ByHand                     // the lease was let end on purpose
	Unrest                     // the worker stopped before all had come to rest
	Slow                       // the process, or a call of it, took too long by itself
	numCauses
)

var causeNames = [numCauses - Died]string{"killed", "paused", "server", "cut", "by hand", "stopped", "slow machine"}

func (c Cause) String() string { return causeNames[c-Died] }

// Causes counts rescues by their causes.
type Causes [numCauses - Died]int64

func (n Causes) String() string {
	var parts []string
	for i, count := range n {
		if count > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", causeNames[i], count))
		}
	}
	return strings.Join(parts, ", ")
}

// A hit is a fault, or something that took long, in µs by the wall clock.
type hit struct {
	window
	cause   Cause
	process int64 // 0 is all of them
}

// judgeCauses looks for the fault behind each rescue, and counts the runs that it
// made necessary: those under the claim that was taken back.
func (c *checker) judgeCauses() {
	most := (c.in.Lease + c.in.Sweep*5/4 + c.in.Slack + c.in.Grace).Microseconds()
	numbers := map[string]int64{}
	for number, name := range c.workers {
		numbers[name] = number
	}
	for _, r := range c.rescues {
		number := numbers[r.worker]
		k := c.jobs[r.id].taken(number, r.at-c.wall)
		cause, ok := c.cause(&r, number, k, most)
		if !ok {
			c.r.add(Attribution, "job %v of class %v was taken from %s, which no fault had hit while its lease ran out, nor in the %v before", r.id, r.class, r.worker, micros(most))
			continue
		}
		c.r.Causes[cause-Died]++
		if k != nil && k.starts > 0 {
			c.r.RunsAgain[cause-Died]++
			if cause == Died {
				c.vain[number]++
			}
		}
	}
	if c.r.Untold > 1+c.r.Rescues/100 {
		c.r.add(Attribution, "%d of %d rescues can't be attributed, since their jobs tell no more of them", c.r.Untold, c.r.Rescues)
	}
}

// judgeVain compares what was run in vain by workers that died with what they could have in
// hand: what was running, and what had run and was not settled.
func (c *checker) judgeVain() {
	for _, n := range c.vain {
		c.r.MostRunsAgain = max(c.r.MostRunsAgain, n)
	}
	if c.in.Slots == 0 {
		return
	}
	if bound := c.r.WorkerDeaths * int64(c.in.Slots+c.in.Buffer); c.r.RunsAgain[0] > bound {
		c.r.add(Attribution, "%d runs were in vain because of %d deaths of workers, and it must be at most %d", c.r.RunsAgain[0], c.r.WorkerDeaths, bound)
	}
	if bound := int64(c.in.Slots + c.in.Owed); c.r.MostRunsAgain > bound {
		c.r.add(Attribution, "%d runs were in vain because of one death, and it must be at most %d", c.r.MostRunsAgain, bound)
	}
}

// cause finds why a job was taken from a process, whose claim k was, if it is known.
func (c *checker) cause(r *rescue, number int64, k *claim, most int64) (Cause, bool) {
	if died, ok := c.died[number]; ok && died <= r.at+slightly {
		return Died, true
	}
	if r.class == load.Manual {
		return ByHand, true
	}
	from, known := c.ranOut(r, k, most)
	for _, cause := range []Cause{Paused, Away} {
		if c.wasHit(cause, number, from, r.at) {
			return cause, true
		}
	}
	// Connections are cut all the time: only who did not learn what had become of a
	// claim, or an outcome, is hindered by it.
	switch {
	case (!known || k.open > 0) && c.wasHit(Cut, 0, from, r.at):
		return Cut, true
	case c.unrest[number]:
		return Unrest, true
	case c.wasHit(Slow, number, from, r.at):
		return Slow, true
	}
	return 0, false
}

// ranOut is when the lease began that had run out when a job was taken back: what kept its
// worker from settling the job, or from extending the lease, has gone on since then. If k is
// not known to be the claim that was ended, it is the earliest time at which that can have been.
func (c *checker) ranOut(r *rescue, k *claim, most int64) (from int64, known bool) {
	if k == nil || k.at == 0 || k.settled != 0 {
		return r.at - most, false
	}
	until := k.leaseUntil
	if k.hopedUntil <= r.at+slightly { // else the job was being taken back already
		until = max(until, k.hopedUntil)
	}
	return max(r.at-most, until-c.in.Lease.Microseconds()), true
}

// slightly is how much the clocks of a server and of the controller, which notices
// deaths late, may differ, in µs.
const slightly = 100_000

func (c *checker) wasHit(cause Cause, process, from, to int64) bool {
	for _, h := range c.hits[cause] {
		if (h.process == 0 || h.process == process) && h.from < to && h.to > from {
			return true
		}
	}
	if cause == Away {
		return c.wasDown(from, to)
	}
	return false
}

// taken is the last claim of a process before a rescue, nil if none was seen. The time is
// in µs by the clock of histories.
func (j *job) taken(process, at int64) (last *claim) {
	for i := range j.claims {
		k := &j.claims[i]
		if k.process == process && k.at/1000 <= at && (last == nil || k.fence > last.fence) {
			last = k
		}
	}
	return last
}

// takeFault takes in a fault that the controller has made.
func (c *checker) takeFault(e *history.Event) {
	if cause := Cause(e.A); cause > Died && cause <= Cut {
		c.hits[cause] = append(c.hits[cause], hit{window{e.At/1000 + c.wall, e.Fence}, cause, e.B})
	}
}

// judgeReturns compares how many jobs were acked each second before the server went
// away, and from eight to ten seconds after it was back, where nothing else kept it away
// in that time.
func (c *checker) judgeReturns() {
	if c.in.Settle == 0 {
		return
	}
	const before, after, gap = 4_000_000, 8_000_000, 2_000_000
	for i, w := range c.downs {
		until := int64(math.MaxInt64)
		if i+1 < len(c.downs) {
			until = c.downs[i+1].from
		}
		back := w.to - c.in.Settle.Microseconds()
		quiet := (i == 0 || c.downs[i-1].to < w.from-before) && until > back+after+gap && c.ended > back+after+gap
		if w.to == 0 || !quiet {
			continue
		}
		was, is := c.acked(w.from-before, w.from)/(before/1e6), c.acked(back+after, back+after+gap)/(gap/1e6)
		if was > 0 {
			c.r.Returns = append(c.r.Returns, is/was)
		}
	}
}

// acked counts acks in a time.
func (c *checker) acked(from, to int64) (n float64) {
	for at := from / ackStep; at < to/ackStep; at++ {
		n += float64(c.acks[at])
	}
	return n
}

// ackStep is the unit of time in which acks are counted, in µs.
const ackStep = 100_000

func (c *checker) countAck(e *history.Event) {
	if pawl.Verb(e.A) != pawl.Ack {
		return
	}
	at := e.At/1000 + c.wall
	c.acks[at/ackStep]++
	c.ended = max(c.ended, at)
}
