package storagetest

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/pawlq/pawl"
)

// A model is the contract in its plainest form: a map of records, walked from
// end to end for everything. A storage is compared with it after each step.
type model struct {
	jobs   map[pawl.ID]*record
	paused map[string]bool
	seq    int
	fence  int64
	part   func(q *pawl.Request) int // of its queue
	// ended says which of several jobs that could be dropped was.
	ended func(r *record) bool
}

// newModel returns a model whose queues are whole.
func newModel() *model {
	return &model{
		jobs: map[pawl.ID]*record{}, paused: map[string]bool{},
		part: Harness{}.part, ended: func(*record) bool { return false },
	}
}

// clone copies m so far that a change of the copy does not show in m. What
// records point to is never changed in place.
func (m *model) clone() *model {
	c := *m
	c.jobs = make(map[pawl.ID]*record, len(m.jobs))
	for id, r := range m.jobs {
		dup := *r
		c.jobs[id] = &dup
	}
	return &c
}

// where returns the records that match, in order of insertion.
func (m *model) where(match func(*record) bool) []*record {
	var found []*record
	for _, r := range m.jobs {
		if match(r) {
			found = append(found, r)
		}
	}
	slices.SortFunc(found, func(a, b *record) int { return a.seq - b.seq })
	return found
}

func (m *model) keep(r *record, stays bool) {
	if !stays {
		delete(m.jobs, r.ID)
	}
}

func (m *model) enqueue(reqs []*pawl.Request, now time.Time) ([]pawl.Receipt, error) {
	next := m.clone()
	receipts := make([]pawl.Receipt, len(reqs))
	for i, q := range reqs {
		status, id, err := next.enqueueOne(q, now)
		if err != nil {
			return nil, err
		}
		receipts[i] = pawl.Receipt{ID: id, Queue: q.Queue, Status: status}
	}
	*m = *next
	return receipts, nil
}

func (m *model) enqueueOne(q *pawl.Request, now time.Time) (pawl.ReceiptStatus, pawl.ID, error) {
	if _, ok := m.jobs[q.ID]; ok {
		return pawl.Exists, q.ID, nil
	}
	if h := m.holder(q.Queue, q.UniqueKey, now); h != nil {
		if q.OnDuplicate == pawl.KeepFirst || !h.State.Waiting() {
			return pawl.Duplicate, h.ID, nil
		}
		h.rewrite(q, now)
		return pawl.Replaced, h.ID, nil
	}
	if err := m.makeRoom(q, now); err != nil {
		return 0, q.ID, err
	}
	m.seq++
	m.jobs[q.ID] = newRecord(q, m.seq, now)
	m.jobs[q.ID].part = m.part(q)
	return pawl.Stored, q.ID, nil
}

func (m *model) holder(queue, key string, now time.Time) *record {
	if key == "" {
		return nil
	}
	found := m.where(func(r *record) bool {
		return r.Queue == queue && r.UniqueKey == key && r.holds(now)
	})
	if len(found) == 0 {
		return nil
	}
	return found[0]
}

func (m *model) makeRoom(q *pawl.Request, now time.Time) error {
	if q.MaxDepth == pawl.Unlimited {
		return nil
	}
	waiting := m.where(func(r *record) bool { return r.Queue == q.Queue && r.State.Waiting() })
	if len(waiting) < q.MaxDepth {
		return nil
	}
	if q.WhenFull != pawl.DropOldest {
		return &pawl.FullError{Queue: q.Queue, Limit: q.MaxDepth}
	}
	first := m.leastUrgent(waiting)
	m.keep(first, first.end(pawl.Canceled, pawl.ReasonDropped, now))
	return nil
}

// leastUrgent returns the waiting job that gives way to a new one. Where jobs of
// several parts tie, it is one of those that the storage has ended.
func (m *model) leastUrgent(waiting []*record) *record {
	worse := func(a, b *record) int {
		if a.State != b.State {
			return cmp.Compare(b.State, a.State) // Ready before Scheduled
		}
		if a.State == pawl.Ready && a.Priority != b.Priority {
			return b.Priority - a.Priority
		}
		return a.RunAt.Compare(b.RunAt)
	}
	slices.SortStableFunc(waiting, worse) // they were in order of insertion
	seen := map[int]bool{}
	for _, r := range waiting {
		if worse(waiting[0], r) == 0 && !seen[r.part] && r.part != waiting[0].part && m.ended(r) && !m.ended(waiting[0]) {
			return r
		}
		seen[r.part] = true
	}
	return waiting[0]
}

// claim returns what a claim does, of which got is what it returned where the
// contract leaves that open.
func (m *model) claim(spec pawl.ClaimSpec, now time.Time, got []*pawl.Job) []*record {
	if again := m.claimed(spec, got); spec.Repeat && len(again) > 0 {
		return again
	}
	var taken []*record
	for _, ask := range spec.Queues {
		if m.paused[ask.Queue] {
			continue
		}
		next := follow(m.claimable(ask.Queue, now), got)
		next = next[:min(len(next), ask.Max, spec.Max-len(taken))]
		for _, r := range next {
			m.fence++
			r.claim(spec, m.fence, now)
		}
		taken = append(taken, next...)
	}
	return taken
}

// claimed returns what runs under the token, as it was claimed.
func (m *model) claimed(spec pawl.ClaimSpec, got []*pawl.Job) (mine []*record) {
	for _, ask := range spec.Queues {
		some := m.where(func(r *record) bool {
			return r.Queue == ask.Queue && r.State == pawl.Running && r.token == spec.Token
		})
		slices.SortFunc(some, func(a, b *record) int { return cmp.Compare(a.order, b.order) })
		mine = append(mine, follow(some, got)...)
	}
	return mine
}

// claimable returns what can be claimed from a queue, in that order.
func (m *model) claimable(queue string, now time.Time) []*record {
	found := m.where(func(r *record) bool { return r.Queue == queue && r.due(now) && !r.expired(now) })
	slices.SortFunc(found, (*record).earlier)
	return found
}

// late returns the jobs of which time has made more due than a promotion, so
// that a Sweep has work with them.
func (m *model) late(now time.Time) []*record {
	return m.where(func(r *record) bool { return r.abandoned(now) || r.expired(now) || r.over(0, now) })
}

func (m *model) promote(queue string, now time.Time) int {
	due := m.where(func(r *record) bool {
		return in(queue, r.Queue) && r.State == pawl.Scheduled && r.due(now)
	})
	for _, r := range due {
		r.State = pawl.Ready
	}
	return len(due)
}

func (m *model) expire(queue string, now time.Time) int {
	late := m.where(func(r *record) bool { return in(queue, r.Queue) && r.expired(now) })
	for _, r := range late {
		m.keep(r, r.end(pawl.Canceled, pawl.ReasonExpired, now))
	}
	return len(late)
}

func in(filter, queue string) bool { return filter == "" || filter == queue }

func (m *model) settle(outcomes []pawl.Outcome, now time.Time) (lost []pawl.Ref) {
	type done struct {
		ref  pawl.Ref
		verb pawl.Verb
	}
	settled := map[done]bool{} // in this call
	for _, o := range outcomes {
		r, same := m.jobs[o.Ref.ID], done{o.Ref, o.Verb}
		same.ref.Locator = 0
		switch {
		case settled[same], r == nil && o.Repeat:
		case r != nil && r.current(o.Ref):
			m.keep(r, r.settle(o, now))
		case r != nil && o.Ref.Fence != 0 && r.lastFence == o.Ref.Fence && r.lastVerb == o.Verb:
		default:
			lost = append(lost, o.Ref)
			continue
		}
		settled[same] = true
	}
	return lost
}

func (r *record) current(ref pawl.Ref) bool {
	return r.State == pawl.Running && r.Fence == ref.Fence
}

func (m *model) extend(renewals []pawl.Renewal, now time.Time) (lost []pawl.Ref) {
	for _, n := range renewals {
		if r := m.jobs[n.Ref.ID]; r != nil && r.current(n.Ref) {
			r.extend(n, now)
			continue
		}
		lost = append(lost, n.Ref)
	}
	return lost
}

// sweep does all that time has made due, without a limit. MaxBuried and its like are
// not modelled: which of several jobs that ended at one time are the oldest is free.
func (m *model) sweep(buried time.Duration, now time.Time) pawl.Swept {
	var s pawl.Swept
	for _, r := range m.where(func(r *record) bool {
		return r.abandoned(now)
	}) {
		ref := r.Ref
		r.rescue(now)
		if r.State == pawl.Buried {
			s.Buried = append(s.Buried, ref)
			continue
		}
		s.Rescued = append(s.Rescued, ref)
	}
	s.Promoted, s.Expired = m.promote("", now), m.expire("", now)
	for _, r := range m.where(func(r *record) bool { return r.over(buried, now) }) {
		delete(m.jobs, r.ID)
		s.Purged++
	}
	return s
}

func (m *model) change(c pawl.Change, now time.Time) []pawl.Changed {
	var done []pawl.Changed
	for _, id := range c.IDs {
		done = append(done, m.changeOne(c, id, now))
	}
	return done
}

func (m *model) changeOne(c pawl.Change, id pawl.ID, now time.Time) pawl.Changed {
	r := m.jobs[id]
	if r == nil || !in(c.Queue, r.Queue) {
		return pawl.Changed{ID: id, Status: pawl.NotFound}
	}
	was := pawl.Changed{ID: id, Before: r.State, Status: pawl.WrongState}
	if !slices.Contains(c.Verb.From(), r.State) || len(c.From) > 0 && !slices.Contains(c.From, r.State) {
		return was
	}
	was.Status = pawl.Done
	switch c.Verb {
	case pawl.Kick:
		if h := m.holder(r.Queue, r.UniqueKey, now); h != nil && h != r && r.UniqueMode != pawl.UniqueUntilClaimed {
			was.Status, was.Holder = pawl.Conflict, h.ID
			return was
		}
		r.kick(now)
	case pawl.Cancel:
		m.keep(r, r.end(pawl.Canceled, pawl.ReasonCancel, now))
	case pawl.Delete:
		delete(m.jobs, id)
	case pawl.Reschedule:
		r.waitUntil(dueTime(c.RunAt, c.Delay, now), now)
	case pawl.Edit:
		r.edit(c.Edit)
	}
	return was
}

// list returns the jobs that match, in the order of List.
func (m *model) list(f pawl.Filter) []*record {
	found := m.where(func(r *record) bool { return matches(f, r) })
	slices.SortFunc(found, inList)
	return found
}

func inList(a, b *record) int {
	return cmp.Or(strings.Compare(a.Queue, b.Queue), cmp.Compare(a.State, b.State), a.listed(b), a.seq-b.seq)
}

func matches(f pawl.Filter, r *record) bool {
	return in(f.Queue, r.Queue) && in(f.Kind, r.Kind) && in(f.UniqueKey, r.UniqueKey) && in(f.WorkerID, r.WorkerID) &&
		(len(f.States) == 0 || slices.Contains(f.States, r.State)) &&
		(f.CreatedFrom.IsZero() || !r.CreatedAt.Before(f.CreatedFrom)) &&
		(f.CreatedBefore.IsZero() || r.CreatedAt.Before(f.CreatedBefore))
}

// listed compares two records of one state.
func (r *record) listed(o *record) int {
	switch {
	case r.State == pawl.Ready && r.part == o.part:
		return r.earlier(o)
	case r.State == pawl.Ready:
		return r.rank(o)
	case r.State == pawl.Scheduled:
		return r.RunAt.Compare(o.RunAt)
	case r.State == pawl.Running:
		return r.ClaimedAt.Compare(o.ClaimedAt)
	}
	return r.FinishedAt.Compare(o.FinishedAt)
}

// count returns the numbers of all queues that hold a job or are paused, by
// name.
func (m *model) count(now time.Time) []pawl.QueueStats {
	stats := map[string]*pawl.QueueStats{}
	of := func(queue string) *pawl.QueueStats {
		if stats[queue] == nil {
			stats[queue] = &pawl.QueueStats{Queue: queue, Paused: m.paused[queue]}
		}
		return stats[queue]
	}
	for queue, paused := range m.paused {
		if paused {
			of(queue)
		}
	}
	for _, r := range m.jobs {
		tally(of(r.Queue), r, now)
	}
	var all []pawl.QueueStats
	for _, s := range stats {
		all = append(all, *s)
	}
	slices.SortFunc(all, func(a, b pawl.QueueStats) int { return strings.Compare(a.Queue, b.Queue) })
	return all
}

func tally(s *pawl.QueueStats, r *record, now time.Time) {
	*numberOf(s, r.State)++
	if r.State == pawl.Scheduled && (r.Reason == pawl.ReasonRetry || r.Reason == pawl.ReasonRescue) {
		s.Retrying++
	}
	if r.State == pawl.Ready {
		s.OldestReady = max(s.OldestReady, now.Sub(r.RunAt))
	}
}

func numberOf(s *pawl.QueueStats, state pawl.State) *int64 {
	return map[pawl.State]*int64{
		pawl.Scheduled: &s.Scheduled, pawl.Ready: &s.Ready, pawl.Running: &s.Running,
		pawl.Completed: &s.Completed, pawl.Buried: &s.Buried, pawl.Canceled: &s.Canceled,
	}[state]
}

// nextDue is how long until a claim of the asked queues finds a scheduled job.
func (m *model) nextDue(spec pawl.ClaimSpec, now time.Time) (next time.Duration) {
	for _, r := range m.jobs {
		asked := slices.ContainsFunc(spec.Queues, func(a pawl.QueueAsk) bool { return a.Queue == r.Queue })
		if !asked || r.State != pawl.Scheduled || r.due(now) {
			continue
		}
		if d := r.RunAt.Sub(now); next == 0 || d < next {
			next = d
		}
	}
	return next
}
