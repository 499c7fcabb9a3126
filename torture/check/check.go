// Package check compares what processes of a torture run have witnessed with what
// the storage holds in the end, and says which of pawl's guarantees do not hold. Its
// time grows with the number of events, and with the logarithm of the number of jobs.
package check

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/pawlq/pawl"
)

// Names of invariants.
const (
	Lost        = "lost"        // what was accepted ends in the state that its class says
	Ghost       = "ghost"       // what was rolled back or refused is not there and never ran
	Unresolved  = "unresolved"  // an unknown enqueue is one job after it was made again
	Executions  = "executions"  // runs ≤ 1 + counts, and equal without faults
	Claims      = "claims"      // a fence is given to one claim of one process
	StaleWrite  = "stale"       // only the newest claim writes
	Overlap     = "overlap"     // leases of a job are disjoint, by the storage's clock
	Final       = "final"       // nothing runs after its end
	Effects     = "effects"     // effects in the transaction of an ack are as many as completed jobs
	Early       = "early"       // nothing starts before its time
	Attribution = "attribution" // each rescue has its fault, and few runs were in vain
	Recovery    = "recovery"    // what a dead worker held is taken back within lease + sweep
	Counts      = "counts"      // numbers of queues add up at any moment
	Unique      = "unique"      // one job holds a key
	Buried      = "buried"      // what kills its process is buried in time, and nothing else
	Stop        = "stop"        // a worker that stopped in order leaves nothing to rescue
	Transition  = "transition"  // only the changes of state that the table has
	Orphans     = "orphans"     // nothing is left of jobs that are gone
	Payload     = "payload"     // handlers get what was enqueued
	Leaks       = "leaks"       // nothing is left of a process's goroutines and connections when it has closed all
	Drain       = "drain"       // when faults stop, all ends
)

// Input is what there is besides the histories.
type Input struct {
	Dir string // of the histories
	// Jobs calls f with each job that the storage holds in the end.
	Jobs func(f func(*pawl.Job)) error
	// Orders and Effects are how many rows there are for each job. nil if the
	// storage has no transactions.
	Orders, Effects map[pawl.ID]int
	// Changes are how many rows went from one state to another, by the triggers of
	// the storage, if it has any, and Illegal which of them must not be. Twice are jobs that were completed
	// more than once by them.
	// Witnessed says that it has.
	Changes   int64
	Witnessed bool
	Illegal   []string
	Twice     []pawl.ID
	Orphans   []string // found in the storage
	Waiting   int64    // jobs that did not end in time

	Lease, Sweep time.Duration
	// Slack is how much later than lease and sweep the last rescue after a death may be, but
	// for one in a hundred, and Grace how much later still that one.
	Slack, Grace time.Duration
	// Settle is what is added to the end of an outage for clients to come back. 0 is not to
	// measure what happens then.
	Settle time.Duration
	// Slots are the jobs that a worker runs at the same time. Buffer are the outcomes that wait
	// to be settled when it dies, in the mean, and Owed how many there may be at most. Slots of
	// 0 are unknown.
	Slots, Buffer, Owed int
	Exact               bool // there were no faults: all numbers must be equal
	// OldClock says that a claim's time can be from before it waited for others, so
	// that only the time of its reply tells whether a lease was over.
	OldClock bool
	// Hopeful says that an extension of a job that somebody has locked is answered
	// with yes, as the contract allows, also if it is a rescue that holds the lock.
	Hopeful bool
}

// A Violation is what does not hold.
type Violation struct {
	Invariant string
	Text      string
}

// A Report is what was found.
type Report struct {
	Violations []Violation    // the first ones of each invariant
	Broken     map[string]int // how many there are of each

	Jobs, Executions, Extra    int64 // extra executions are those beyond the first of each job
	Unknown, Resolved          int64 // enqueues
	Failed                     int64 // of the unknown ones, those that had time left
	UnknownTx                  int64 // transactions that ended with an error
	Offered, Settled, Open     int64 // outcomes: sent, accepted, unknown
	Superseded                 int64 // outcomes that were refused
	Misled                     int64 // extensions answered with yes although the claim was being given away
	StaleOffered, StaleRefused int64
	Rescues, Samples           int64
	Untold                     int64         // rescues of which the job does not say more than that they were
	Recoveries                 Recoveries    // of workers that died
	Bound                      time.Duration // of these, but for one in a hundred
	Effects, Orders, Changes   int64
	Deaths, Kicks              int64     // deaths of processes
	WorkerDeaths               int64     // those of workers, by whomever: a signal, or a job that ends its process
	Phases                     Phases    // in which they died
	Poisonous                  int64     // jobs buried since they kill their process
	Causes, RunsAgain          Causes    // of rescues, and of runs under the claims that these ended
	MostRunsAgain              int64     // of one death
	Returns                    []float64 // jobs each second after a server's return, as a part of those before
	Closed                     int64     // processes that said what they had left
	Memory                     []Drift
}

// shown is how many violations of each invariant a report keeps.
const shown = 10

func (r *Report) add(invariant, format string, args ...any) {
	if r.Broken[invariant]++; r.Broken[invariant] <= shown {
		r.Violations = append(r.Violations, Violation{invariant, fmt.Sprintf(format, args...)})
	}
}

// Clean reports whether all invariants hold.
func (r *Report) Clean() bool { return len(r.Broken) == 0 }

// Write prints the report.
func (r *Report) Write(w io.Writer) {
	fmt.Fprintf(w, "jobs %d, executions %d (%d beyond the first), rescues %d (%d told nothing more), kicks %d\n",
		r.Jobs, r.Executions, r.Extra, r.Rescues, r.Untold, r.Kicks)
	fmt.Fprintf(w, "deaths of processes %d, of workers, also by their jobs, %d; with %v\n", r.Deaths, r.WorkerDeaths, r.Phases)
	fmt.Fprintf(w, "enqueues of unknown outcome %d (%d had time left), resolved %d; transactions of unknown outcome %d\n", r.Unknown, r.Failed, r.Resolved, r.UnknownTx)
	fmt.Fprintf(w, "outcomes sent %d, accepted %d, refused %d, unknown %d; stale ones offered %d, refused %d\n",
		r.Offered, r.Settled, r.Superseded, r.Open, r.StaleOffered, r.StaleRefused)
	if r.Misled > 0 {
		fmt.Fprintf(w, "extensions that were answered with yes while the claim was given away: %d\n", r.Misled)
	}
	fmt.Fprintf(w, "from a worker's death to the last of its rescues, with no outage or pause between: %v; p99 must be %v at most\n", r.Recoveries, r.Bound)
	fmt.Fprintf(w, "rescues by cause: %v\nruns in vain by cause: %v; at most %d when a worker died\n", r.Causes, r.RunsAgain, r.MostRunsAgain)
	if len(r.Returns) > 0 {
		fmt.Fprintf(w, "jobs each second, 8 to 10 s after a server's return, against before: %.2f\n", r.Returns)
	}
	for _, d := range r.Memory {
		fmt.Fprintf(w, "memory of %v\n", d)
	}
	fmt.Fprintf(w, "workers that closed all and left nothing: %d\n", r.Closed-int64(r.Broken[Leaks]))
	fmt.Fprintf(w, "effects %d, orders %d, changes of rows %d, samples of numbers %d\n", r.Effects, r.Orders, r.Changes, r.Samples)
	for _, v := range r.Violations {
		fmt.Fprintf(w, "VIOLATED %s: %s\n", v.Invariant, v.Text)
	}
	for _, name := range slices.Sorted(maps.Keys(r.Broken)) {
		fmt.Fprintf(w, "violations of %s: %d\n", name, r.Broken[name])
	}
}

// Run reads the histories and judges.
func Run(in *Input) (*Report, error) {
	c := &checker{in: in, r: &Report{Broken: map[string]int{}}, jobs: map[pawl.ID]*job{}, workers: map[int64]string{}, died: map[int64]int64{},
		stopped: map[string]int64{},
		hits:    map[Cause][]hit{}, vain: map[int64]int64{}, unrest: map[int64]bool{}, acks: map[int64]int64{}, memory: map[string][]int64{}}
	if err := c.read(); err != nil {
		return nil, err
	}
	if err := in.Jobs(c.stored); err != nil {
		return nil, err
	}
	for id, j := range c.jobs {
		slices.SortFunc(j.claims, func(a, b claim) int { return cmp.Compare(a.fence, b.fence) })
		c.judge(id, j)
	}
	c.sortDeaths()
	c.judgeWhole()
	return c.r, nil
}
