package linear

import (
	"fmt"

	"github.com/anishathalye/porcupine"

	"github.com/pawlq/pawl"
)

// numJobs is how many jobs a history is about.
const numJobs = 5

const (
	maxAttempts = 2
	maxRescues  = 1
)

// kinds says what the jobs are. There is one key.
var kinds = [numJobs]struct {
	priority int
	goes     bool // leaves no record
	keyed    bool
	mode     pawl.UniqueMode
}{
	{},
	{goes: true},
	{priority: -3, keyed: true},
	{keyed: true},
	{keyed: true, mode: pawl.UniqueUntilClaimed},
}

// verb is what is called.
type verb int

const (
	enqueue verb = iota
	claim
	settle
	extend
	sweep // for one job
	get
	change
)

func (v verb) String() string {
	return [...]string{"enqueue", "claim", "settle", "extend", "sweep", "get", "change"}[v]
}

// A call is what was asked for.
type call struct {
	verb    verb
	now     int64 // by the storage's clock, in µs, as all times here
	made    int64 // number of the call that this is a part of
	alone   bool  // no other call was made beside it
	jobs    []int
	delay   int64
	most    int
	fence   int64
	outcome pawl.Verb
	again   bool
	change  pawl.ChangeVerb
}

func (c *call) String() string {
	text := fmt.Sprintf("at %d s %v", c.now/1e6%1e4, c.verb)
	switch c.verb {
	case enqueue:
		return fmt.Sprintf("%s %v in %d s", text, c.jobs, c.delay/1e6)
	case claim:
		return fmt.Sprintf("%s %d", text, c.most)
	case settle:
		return fmt.Sprintf("%s %v of claim %d of %v, delay %d s, again %v", text, c.outcome, c.fence, c.jobs, c.delay/1e6, c.again)
	case extend:
		return fmt.Sprintf("%s claim %d of %v", text, c.fence, c.jobs)
	case change:
		return fmt.Sprintf("%s %v %v", text, c.change, c.jobs)
	default:
		return fmt.Sprintf("%s %v", text, c.jobs)
	}
}

// A reply is the answer to a call.
type reply struct {
	receipts []receipt
	jobs     []view  // of claim and get
	rescued  []int64 // fences that ended
	no       bool    // lost
	busy     bool
	status   pawl.ChangeStatus
	holder   int
}

type receipt struct {
	status pawl.ReceiptStatus
	job    int
}

// A view is what is seen of a job. The model keeps its jobs in the same form.
type view struct {
	job               int
	state             pawl.State // 0: it is not there
	fence             int64      // of the current claim
	attempt, rescued  int
	runAt, leaseUntil int64
	counts            pawl.Counts
}

func (v view) String() string {
	return fmt.Sprintf("{%d %v, claim %d until %d s, attempt %d, due at %d s, rescued %d, %+v}", v.job, v.state, v.fence, v.leaseUntil/1e6%1e4, v.attempt,
		v.runAt/1e6%1e4, v.rescued, v.counts)
}

func (r *reply) String() string {
	return fmt.Sprintf("%s %v%v%v", r.sort(), r.receipts, r.jobs, r.rescued)
}

// sort says what sort of answer it is.
func (r *reply) sort() string {
	switch {
	case r.busy:
		return "busy"
	case r.no:
		return "lost"
	case r.status != 0:
		return r.status.String()
	case len(r.rescued) > 0:
		return "rescued"
	case len(r.receipts) > 0:
		return r.receipts[len(r.receipts)-1].status.String()
	case len(r.jobs) > 0:
		return "jobs"
	default:
		return "nothing"
	}
}

// A job is what the model knows of one.
type job struct {
	view
	top       int64 // the greatest fence that its ID had, also before it was deleted
	leaseFrom int64 // the lease may have ended here already, if an extension was none
	lastFence int64
	lastVerb  pawl.Verb
	keyed     bool // it holds the key
	ripe      bool // its time has come, whatever the clock has been set to since
}

// state is all that the model knows.
type state [numJobs]job

// model is the queue as porcupine sees it.
func model(s *Subject) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return state{} },
		Step: func(before, in, out any) (bool, any) {
			m := machine{before.(state), s, in.(*call), out.(*reply)}
			m.ripen()
			ok := m.step()
			return ok, m.state
		},
		DescribeOperation: func(in, out any) string { return fmt.Sprintf("%v: %v", in, out) },
	}
}

// A machine makes one step.
type machine struct {
	state
	s   *Subject
	in  *call
	out *reply
}

// ripen notes which jobs may have been promoted by now.
func (m *machine) ripen() {
	for i := range m.state {
		if j := &m.state[i]; j.state == pawl.Scheduled && j.runAt <= m.in.now {
			j.ripe = true
		}
	}
}

// step changes the state, and reports whether the answer is what it must be.
func (m *machine) step() bool {
	switch m.in.verb {
	case enqueue:
		return m.enqueue()
	case claim:
		return m.claim()
	case settle:
		return m.settle()
	case extend:
		return m.extend()
	case sweep:
		return m.sweep()
	case get:
		return m.get()
	default:
		return m.change()
	}
}

// fitsEverywhere says whether a call changes nothing, and its answer is right in any state.
func (s *Subject) fitsEverywhere(in *call, out *reply) bool {
	crowded := s.Skips && !in.alone
	switch in.verb {
	case settle:
		return out.busy
	case claim:
		return crowded && len(out.jobs) == 0
	case sweep:
		return (crowded || s.Hesitates) && len(out.rescued) == 0
	default:
		return false
	}
}

// crowded says that others may have been in the way of the call, where that counts.
func (m *machine) crowded() bool { return m.s.Skips && !m.in.alone }

func (m *machine) enqueue() bool {
	for i, n := range m.in.jobs {
		j := &m.state[n]
		want := receipt{pawl.Stored, n}
		if holder, held := m.holder(); j.state != 0 {
			want.status = pawl.Exists
		} else if kinds[n].keyed && held {
			want = receipt{pawl.Duplicate, holder}
		}
		if m.out.receipts[i] != want {
			return false
		}
		if want.status == pawl.Stored {
			*j = job{view: view{job: n}, top: j.top, keyed: kinds[n].keyed}
			j.wait(m.in.now, m.in.delay)
		}
	}
	return true
}

// holder is who has the key.
func (m *machine) holder() (n int, held bool) {
	for i := range m.state {
		if m.state[i].keyed {
			return i, true
		}
	}
	return 0, false
}

// wait makes the job due after a delay.
func (j *job) wait(now, delay int64) {
	j.runAt, j.ripe = now+delay, false
	j.state = pawl.Ready
	if delay > 0 {
		j.state = pawl.Scheduled
	}
}

// claimable says whether the job may, and whether it must be found by a claim.
func (j *job) claimable(now int64) (may, must bool) {
	must = j.state == pawl.Ready || j.state == pawl.Scheduled && j.runAt <= now
	return must || j.state == pawl.Scheduled && j.ripe, must
}

func (m *machine) claim() bool {
	for _, got := range m.out.jobs {
		j := &m.state[got.job]
		may, _ := j.claimable(m.in.now)
		if !may || got.fence <= j.top || !m.s.Skips && m.passedBy(got.job) {
			return false
		}
		j.attempt++
		j.state, j.fence, j.top = pawl.Running, got.fence, got.fence
		j.leaseUntil = m.in.now + lease.Microseconds()
		j.leaseFrom = j.leaseUntil
		if kinds[got.job].mode == pawl.UniqueUntilClaimed {
			j.keyed = false
		}
		if !m.same(j, &got) {
			return false
		}
	}
	return len(m.out.jobs) == m.in.most || m.crowded() || !m.passedBy(-1)
}

// passedBy says whether a job that must be found comes before job n, or is there at all if
// n is -1.
func (m *machine) passedBy(n int) bool {
	for i := range m.state {
		_, must := m.state[i].claimable(m.in.now)
		if must && (n < 0 || m.before(i, n)) {
			return true
		}
	}
	return false
}

// before says whether a claim takes job a before job b, whichever was inserted first.
func (m *machine) before(a, b int) bool {
	if kinds[a].priority != kinds[b].priority {
		return kinds[a].priority < kinds[b].priority
	}
	return m.state[a].runAt < m.state[b].runAt
}

// same says whether a job was seen as the model has it.
func (m *machine) same(j *job, seen *view) bool {
	want := j.view
	if j.ripe && want.state == pawl.Scheduled && seen.state == pawl.Ready {
		want.state = pawl.Ready // somebody has promoted it
	}
	if m.s.Skips { // an extension may have been none
		want.counts.Extends = seen.counts.Extends
		if seen.leaseUntil >= j.leaseFrom && seen.leaseUntil <= j.leaseUntil {
			want.leaseUntil = seen.leaseUntil
		}
	}
	return want == *seen
}

func (m *machine) settle() bool {
	j := &m.state[m.in.jobs[0]]
	switch {
	case m.out.busy:
		return true // nothing has changed
	case j.state == 0:
		return m.out.no != m.in.again
	case j.state == pawl.Running && j.fence == m.in.fence:
		m.end(j)
		return !m.out.no
	default:
		return m.out.no != (j.lastFence == m.in.fence && j.lastVerb == m.in.outcome)
	}
}

// end settles the current claim of a job.
func (m *machine) end(j *job) {
	j.lastFence, j.lastVerb = j.fence, m.in.outcome
	j.release()
	switch m.in.outcome {
	case pawl.Ack:
		j.finish(pawl.Completed)
	case pawl.Bury:
		j.finish(pawl.Buried)
	case pawl.Nack:
		if j.attempt >= maxAttempts {
			j.finish(pawl.Buried)
			return
		}
		j.counts.Retries++
		j.wait(m.in.now, m.in.delay)
	default:
		j.attempt--
		j.counts.Releases++
		if m.in.delay > 0 {
			j.wait(m.in.now, m.in.delay)
		} else {
			j.state = pawl.Ready // keeps its place
		}
	}
}

// release ends the fence.
func (j *job) release() { j.fence, j.leaseUntil, j.leaseFrom = 0, 0, 0 }

// finish ends the job.
func (j *job) finish(s pawl.State) {
	if kinds[j.job].goes && s != pawl.Buried {
		j.forget()
		return
	}
	j.state, j.keyed = s, false
}

// forget deletes the job. What fences its ID had stays true.
func (j *job) forget() { *j = job{top: j.top} }

func (m *machine) extend() bool {
	j := &m.state[m.in.jobs[0]]
	current := j.state == pawl.Running && j.fence == m.in.fence
	if current {
		until := m.in.now + lease.Microseconds()
		from := until
		if m.crowded() {
			from, until = min(j.leaseFrom, until), max(j.leaseUntil, until)
		}
		j.leaseFrom, j.leaseUntil = from, until
		j.counts.Extends++
	}
	return m.out.no != current
}

func (m *machine) sweep() bool {
	j := &m.state[m.in.jobs[0]]
	running := j.state == pawl.Running
	if len(m.out.rescued) == 0 {
		return !running || j.leaseUntil > m.in.now || m.crowded() || m.s.Hesitates
	}
	if len(m.out.rescued) > 1 || !running || j.fence != m.out.rescued[0] || j.leaseFrom > m.in.now {
		return false
	}
	j.release()
	j.attempt--
	if j.rescued >= maxRescues {
		j.finish(pawl.Buried)
		return true
	}
	j.rescued++
	j.counts.Rescues++
	j.wait(m.in.now, 0)
	return true
}

func (m *machine) get() bool {
	j := &m.state[m.in.jobs[0]]
	if len(m.out.jobs) == 0 {
		return j.state == 0
	}
	return j.state != 0 && m.same(j, &m.out.jobs[0])
}

func (m *machine) change() bool {
	j := &m.state[m.in.jobs[0]]
	before := j.state
	holder, held := m.holder()
	takes := kinds[m.in.jobs[0]].keyed && kinds[m.in.jobs[0]].mode == pawl.UniqueUntilFinal
	switch {
	case before == 0:
		return m.out.status == pawl.NotFound
	case m.in.change == pawl.Delete:
		j.forget()
	case m.in.change == pawl.Cancel && !before.Final():
		j.release()
		j.finish(pawl.Canceled)
	case m.in.change == pawl.Kick && before.Final() && takes && held:
		return m.out.status == pawl.Conflict && m.out.holder == holder
	case m.in.change == pawl.Kick && before.Final():
		j.attempt, j.rescued, j.keyed = 0, 0, takes
		j.counts.Kicks++
		j.wait(m.in.now, 0)
	default:
		return m.out.status == pawl.WrongState
	}
	return m.out.status == pawl.Done
}
