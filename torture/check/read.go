package check

import (
	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/torture/history"
	"github.com/pawlq/pawl/torture/load"
)

// A checker is what is known while the histories are read.
type checker struct {
	in   *Input
	r    *Report
	jobs map[pawl.ID]*job

	workers map[int64]string // by number of the process
	died    map[int64]int64  // by number, in µs by the wall clock
	stopped map[string]int64 // in order: when, in µs by the wall clock
	downs   []window         // in µs by the wall clock
	samples []sample
	rescues []rescue
	hits    map[Cause][]hit
	vain    map[int64]int64 // runs under claims of a process that died, by number
	unrest  map[int64]bool  // stopped before all had come to rest, by number
	acks    map[int64]int64 // by time in steps
	ended   int64           // when the last job was acked
	memory  map[string][]int64
	process int64 // whose history is being read
	wall    int64 // what to add to times of events in µs to have them by the wall clock
}

type window struct{ from, to int64 }

type sample struct{ before, after, total int64 }

// A rescue is a job that was taken back.
type rescue struct {
	id     pawl.ID
	worker string
	at     int64 // µs by the storage's clock
	class  load.Class
}

// A job is all that was witnessed of one.
type job struct {
	class    load.Class
	way      load.Way
	verdict  history.Kind       // the last word of its enqueue, 0 if it was never heard
	status   pawl.ReceiptStatus // of the receipt
	stored   int                // receipts that said Stored
	unknown  bool               // its enqueue was, at some time
	intended int64
	producer int64 // that meant to enqueue it
	asking   bool  // and has had no answer
	answered int64
	claims   []claim
	end      end
}

// end is what the storage holds in the end.
type end struct {
	found    bool
	state    pawl.State
	reason   pawl.Reason
	counts   pawl.Counts
	failures int
}

// A claim is all that was witnessed of one.
type claim struct {
	fence      int64
	process    int64 // that had it
	at         int64 // when the reply came; 0 if none was seen
	claimedAt  int64 // µs by the storage's clock
	leaseUntil int64 // as far as is known
	hopedUntil int64 // what an extension promised that may have been none
	counts     int64
	started    int64
	offered    int64 // first
	verb       pawl.Verb
	delay      int64 // of the outcome offered first
	settled    pawl.Verb
	settledAt  int64 // when that was first answered
	extended   int64 // when the last extension was sent that was accepted
	starts     uint16
	open       uint16 // outcomes of which nothing is known
	live       int    // outcomes that were not refused
	unanswered int    // outcomes of which its process never heard
	mixed      bool   // several outcomes were offered
}

func (c *checker) read() error {
	names, err := history.Processes(c.in.Dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		c.process = 0
		if err := history.Read(c.in.Dir, name, func(e history.Event) { c.take(name, &e) }); err != nil {
			return err
		}
	}
	return nil
}

// take takes in an event of a process.
func (c *checker) take(name string, e *history.Event) {
	switch k := e.Kind; {
	case k <= history.Resolved:
		c.takeRequest(e)
	case k <= history.Extended:
		c.takeClaim(e)
	case k <= history.Corrupt:
		c.takeRun(e)
	case k == history.Began:
		c.process = e.Fence
		c.workers[e.Fence] = name
		c.wall = e.A - e.At/1000
	case k == history.Stopped && e.A == 0:
		c.stopped[name] = e.Fence
	case k == history.Counted:
		c.samples = append(c.samples, sample{e.At, e.Fence, e.A})
	case k == history.Down:
		c.downs = append(c.downs, window{from: e.Fence})
	case k == history.Up && len(c.downs) > 0:
		c.downs[len(c.downs)-1].to = e.Fence
	case k == history.Stopped:
		c.unrest[c.process] = true
	case k == history.Fault && Cause(e.A) == Died:
		c.died[e.B] = e.Fence
		c.r.Deaths++
	case k == history.Fault:
		c.takeFault(e)
	case k == history.Late:
		c.hits[Slow] = append(c.hits[Slow], hit{window{e.At/1000 + c.wall, e.Fence}, Slow, c.process})
	case k == history.Measured:
		c.memory[name] = append(c.memory[name], e.A)
	case k == history.Left:
		c.takeLeft(name, e)
	}
}

// takeLeft takes in what a process had left when it had closed all.
func (c *checker) takeLeft(name string, e *history.Event) {
	c.r.Closed++
	if e.A > 0 || e.B > 0 {
		c.r.add(Leaks, "%s has left %d goroutines and %d open files when all was closed", name, e.A, e.B)
	}
}

func (c *checker) job(id pawl.ID) *job {
	j := c.jobs[id]
	if j == nil {
		j = new(job)
		c.jobs[id] = j
	}
	return j
}

func (c *checker) takeRequest(e *history.Event) {
	j := c.job(e.ID)
	switch e.Kind {
	case history.Intend:
		j.class, j.way, j.intended = load.Class(e.A), load.Way(e.B), e.At
		j.producer, j.asking = c.process, true
		return
	case history.Unknown:
		j.unknown = true
		if j.transactional() {
			c.r.UnknownTx++
		} else {
			c.r.Unknown++
			c.r.Failed += e.B
		}
	case history.Accepted, history.Resolved:
		if e.Kind == history.Resolved {
			c.r.Resolved++
		}
		j.status = pawl.ReceiptStatus(e.A)
		if j.status == pawl.Stored {
			j.stored++
		}
	}
	if c.process == j.producer {
		j.asking = false
	}
	if e.Kind == history.Unknown && (j.verdict == history.Accepted || j.verdict == history.Resolved) {
		return // of another process, whose history is read later
	}
	j.verdict, j.answered = e.Kind, e.At
}

func (j *job) transactional() bool { return j.way == load.InTx || j.way == load.RollBack }

// claim finds what is known of a claim.
func (j *job) claim(fence int64) *claim {
	for i := range j.claims {
		if j.claims[i].fence == fence {
			return &j.claims[i]
		}
	}
	j.claims = append(j.claims, claim{fence: fence})
	return &j.claims[len(j.claims)-1]
}

func (c *checker) takeClaim(e *history.Event) {
	switch e.Kind {
	case history.Stale:
		c.r.StaleOffered++
		return
	case history.Fenced:
		c.r.StaleRefused++
		return
	case history.Forgiven:
		c.r.add(StaleWrite, "job %v: %v of the claim %d, which was over, was accepted", e.ID, pawl.Verb(e.A), e.Fence)
		return
	}
	k := c.job(e.ID).claim(e.Fence)
	switch e.Kind {
	case history.Claimed:
		c.takeClaimed(e, k)
	case history.Offered:
		c.r.Offered++
		c.takeOffered(e, k)
	case history.Settled:
		c.r.Settled++
		c.countAck(e)
		k.unanswered--
		k.settled = pawl.Verb(e.A)
		if k.settledAt == 0 || e.At < k.settledAt {
			k.settledAt = e.At
		}
	case history.Lost:
		c.r.Superseded++
		k.unanswered--
		k.live--
	case history.Open:
		c.r.Open++
		k.unanswered--
		k.open++
	case history.Extended:
		until := e.A + e.B/1000
		if c.in.Hopeful {
			k.hopedUntil = max(k.hopedUntil, until)
			return
		}
		k.extended = max(k.extended, e.At)
		k.leaseUntil = max(k.leaseUntil, until)
	}
}

func (c *checker) takeClaimed(e *history.Event, k *claim) {
	if k.process != 0 && k.process != c.process {
		c.r.add(Claims, "job %v: fence %d was given to %s and to %s", e.ID, e.Fence, c.workers[k.process], c.workers[c.process])
	}
	k.process = c.process
	if k.at == 0 || e.At < k.at {
		k.at = e.At
	}
	k.counts = e.A
	k.leaseUntil = max(k.leaseUntil, e.B)
}

func (c *checker) takeOffered(e *history.Event, k *claim) {
	k.live++
	k.unanswered++
	switch verb := pawl.Verb(e.A); {
	case k.offered == 0:
		k.offered, k.verb, k.delay = e.At, verb, e.B
	case k.verb != verb:
		k.mixed = true
	}
}

func (c *checker) takeRun(e *history.Event) {
	j := c.job(e.ID)
	k := j.claim(e.Fence)
	switch e.Kind {
	case history.Start:
		c.r.Executions++
		k.starts++
		k.started, k.claimedAt = e.At, e.B
	case history.Corrupt:
		c.r.add(Payload, "job %v came to its handler changed", e.ID)
	}
}

// stored takes in a job that the storage holds in the end.
func (c *checker) stored(p *pawl.Job) {
	j := c.job(p.ID)
	if j.end.found {
		c.r.add(Claims, "job %v is there twice", p.ID)
	}
	j.end = end{found: true, state: p.State, reason: p.Reason, counts: p.Counts, failures: len(p.Failures)}
	c.r.Rescues += int64(p.Counts.Rescues)
	c.r.Kicks += int64(p.Counts.Kicks)
	told := 0
	for _, f := range p.Failures {
		if f.Error == leaseExpired {
			told++
			c.rescues = append(c.rescues, rescue{p.ID, f.WorkerID, f.At.UnixMicro(), j.class})
		}
	}
	c.r.Untold += int64(max(p.Counts.Rescues-told, 0)) // a job keeps its last failures only
}

// leaseExpired is the text of the failure that a rescue leaves.
const leaseExpired = "lease expired"
