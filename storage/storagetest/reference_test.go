package storagetest

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/pawlq/pawl"
)

// A reference is the model with the methods of a storage. It tests the suite
// before, and apart from, any engine.
type reference struct {
	clock func() time.Time

	mu       sync.Mutex
	m        *model
	claim    func(pawl.ClaimSpec, time.Time) []*pawl.Job
	held     map[pawl.ID]bool // settled in open transactions
	flaw     txFlaw
	watchers map[int]func(pawl.Event)
	watched  int
	joined   func() // called once a Watch listens; may be nil
}

func newReference(clock func() time.Time) *reference {
	s := &reference{clock: clock, m: newModel(), held: map[pawl.ID]bool{}, watchers: map[int]func(pawl.Event){}}
	s.claim = func(spec pawl.ClaimSpec, now time.Time) []*pawl.Job {
		for _, ask := range spec.Queues {
			s.m.promote(ask.Queue, now)
			s.m.expire(ask.Queue, now)
		}
		return copies(s.m.claim(spec, now, nil))
	}
	return s
}

func referenceHarness() Harness {
	return Harness{
		Open: func(_ testing.TB, clock func() time.Time) pawl.Storage { return newReference(clock) },
		Reopen: func(_ testing.TB, s pawl.Storage, _ func() time.Time) pawl.Storage {
			return s
		},
		Begin: func(_ testing.TB, s pawl.Storage) (pawl.Writer, func() error, func() error) {
			x := s.(interface{ transaction() *refTx }).transaction()
			return x, x.commit, x.rollback
		},
	}
}

func TestReference(t *testing.T) { Run(t, referenceHarness()) }

// begin locks the model and returns the time, to the microsecond.
func (s *reference) begin(ctx context.Context) (time.Time, error) {
	if err := ctx.Err(); err != nil {
		return time.Time{}, err
	}
	s.mu.Lock()
	return s.clock().UTC().Truncate(time.Microsecond), nil
}

func (s *reference) Enqueue(ctx context.Context, reqs []*pawl.Request) ([]pawl.Receipt, error) {
	now, err := s.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	receipts, err := s.m.enqueue(reqs, now)
	if err == nil {
		s.tell(pawl.Event{Kind: pawl.EventReady})
	}
	return receipts, err
}

func (s *reference) Settle(ctx context.Context, outcomes []pawl.Outcome) ([]pawl.Ref, error) {
	now, err := s.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	s.tell(pawl.Event{Kind: pawl.EventReady})
	var busy pawl.BusyError
	free := slices.DeleteFunc(slices.Clone(outcomes), func(o pawl.Outcome) bool {
		if s.held[o.Ref.ID] {
			busy.Refs = append(busy.Refs, o.Ref)
		}
		return s.held[o.Ref.ID]
	})
	lost := s.m.settle(free, now)
	if len(busy.Refs) > 0 {
		return lost, &busy
	}
	return lost, nil
}

func (s *reference) Claim(ctx context.Context, spec pawl.ClaimSpec) (pawl.Claimed, error) {
	now, err := s.begin(ctx)
	if err != nil {
		return pawl.Claimed{}, err
	}
	defer s.mu.Unlock()
	c := pawl.Claimed{Jobs: s.claim(spec, now)}
	if len(c.Jobs) < spec.Max {
		c.NextDue = s.m.nextDue(spec, now)
	}
	return c, nil
}

func (s *reference) Extend(ctx context.Context, renewals []pawl.Renewal) ([]pawl.Ref, error) {
	now, err := s.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	return s.m.extend(renewals, now), nil
}

func (s *reference) Sweep(ctx context.Context, spec pawl.SweepSpec) (pawl.Swept, error) {
	now, err := s.begin(ctx)
	if err != nil {
		return pawl.Swept{}, err
	}
	defer s.mu.Unlock()
	s.tell(pawl.Event{Kind: pawl.EventReady})
	return s.m.limited(spec, now), nil
}

func (s *reference) Get(ctx context.Context, queue string, ids ...pawl.ID) ([]*pawl.Job, error) {
	if _, err := s.begin(ctx); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	jobs := make([]*pawl.Job, len(ids))
	for i, id := range ids {
		if r := s.m.jobs[id]; r != nil && in(queue, r.Queue) {
			jobs[i] = r.copy()
		}
	}
	return jobs, nil
}

// position is the place in a list of the last job of a page.
type position struct {
	Job pawl.Job
	Seq int
}

func (s *reference) List(ctx context.Context, spec pawl.ListSpec) (pawl.Page, error) {
	if _, err := s.begin(ctx); err != nil {
		return pawl.Page{}, err
	}
	defer s.mu.Unlock()
	var after position
	if spec.Cursor != "" && json.Unmarshal([]byte(spec.Cursor), &after) != nil {
		return pawl.Page{}, &pawl.InvalidError{Field: "Cursor", Limit: "a Next of this list"}
	}
	page, size := pawl.Page{}, 0
	for _, r := range s.m.list(spec.Filter) {
		if spec.Cursor != "" && inList(r, &record{Job: after.Job, seq: after.Seq}) <= 0 {
			continue
		}
		if len(page.Jobs) == spec.Limit || size >= pawl.MaxPageBytes {
			next, err := json.Marshal(after)
			page.Next = string(next)
			return page, err
		}
		j := r.copy()
		if !spec.Payloads {
			j.Payload, j.Result = nil, nil
		}
		size += len(j.Payload) + len(j.Result)
		page.Jobs, after = append(page.Jobs, j), position{r.Job, r.seq}
		after.Job.Payload, after.Job.Result = nil, nil
	}
	return page, nil
}

func (s *reference) Count(ctx context.Context, queues ...string) ([]pawl.QueueStats, error) {
	now, err := s.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	all := s.m.count(now)
	if len(queues) == 0 {
		return all, nil
	}
	var named []pawl.QueueStats
	for _, q := range slices.Sorted(slices.Values(queues)) {
		i := slices.IndexFunc(all, func(s pawl.QueueStats) bool { return s.Queue == q })
		if i < 0 {
			named = append(named, pawl.QueueStats{Queue: q})
			continue
		}
		named = append(named, all[i])
	}
	return named, nil
}

func (s *reference) Change(ctx context.Context, c pawl.Change) ([]pawl.Changed, error) {
	now, err := s.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	for _, id := range c.IDs {
		if s.held[id] {
			return nil, context.DeadlineExceeded // as if it had waited
		}
	}
	for _, id := range c.IDs {
		if r := s.m.jobs[id]; r != nil && r.State == pawl.Running && c.Verb != pawl.Kick {
			s.tell(pawl.Event{Kind: pawl.EventEnded, Queue: r.Queue, Ref: r.Ref})
		}
	}
	s.tell(pawl.Event{Kind: pawl.EventReady})
	return s.m.change(c, now), nil
}

func (s *reference) Configure(ctx context.Context, queue string, q pawl.QueueSettings) error {
	if _, err := s.begin(ctx); err != nil {
		return err
	}
	defer s.mu.Unlock()
	if q.Paused == nil {
		return nil
	}
	s.m.paused[queue] = *q.Paused
	kind := pawl.EventReady
	if *q.Paused {
		kind = pawl.EventPaused
	}
	s.tell(pawl.Event{Kind: kind, Queue: queue})
	return nil
}

func (s *reference) tell(e pawl.Event) {
	for _, f := range s.watchers {
		f(e)
	}
}

func (s *reference) Watch(ctx context.Context, f func(pawl.Event)) error {
	if _, err := s.begin(ctx); err != nil {
		return err
	}
	s.watched++
	id := s.watched
	s.watchers[id] = f
	s.mu.Unlock()
	if s.joined != nil {
		s.joined()
	}
	<-ctx.Done()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.watchers, id)
	return ctx.Err()
}

func (s *reference) Cycle(ctx context.Context, outcomes []pawl.Outcome, spec pawl.ClaimSpec) ([]pawl.Ref, pawl.Claimed, error) {
	var busy *pawl.BusyError
	lost, settled := s.Settle(ctx, outcomes)
	if settled != nil && !errors.As(settled, &busy) {
		return nil, pawl.Claimed{}, settled
	}
	c, err := s.Claim(ctx, spec)
	return lost, c, errors.Join(settled, err)
}

func copies(records []*record) []*pawl.Job {
	var jobs []*pawl.Job
	for _, r := range records {
		jobs = append(jobs, r.copy())
	}
	return jobs
}

// copy returns the job with nothing shared.
func (r *record) copy() *pawl.Job {
	j := r.Job
	j.Payload, j.Result = slices.Clone(j.Payload), slices.Clone(j.Result)
	j.Meta, j.Failures = maps.Clone(j.Meta), slices.Clone(j.Failures)
	if j.Progress != nil {
		p := *j.Progress
		p.Counters = maps.Clone(p.Counters)
		j.Progress = &p
	}
	return &j
}

// limited is sweep within the bounds of a spec.
func (m *model) limited(spec pawl.SweepSpec, now time.Time) (s pawl.Swept) {
	full := func(n int) bool {
		s.More = s.More || n == spec.Limit
		return n == spec.Limit
	}
	n := 0
	for _, r := range m.where(func(r *record) bool { return r.abandoned(now) }) {
		if full(n) {
			break
		}
		n++
		ref := r.Ref
		if r.rescue(now); r.State == pawl.Buried {
			s.Buried = append(s.Buried, ref)
		} else {
			s.Rescued = append(s.Rescued, ref)
		}
	}
	for _, r := range m.where(func(r *record) bool { return r.State == pawl.Scheduled && r.due(now) }) {
		if full(s.Promoted) {
			break
		}
		r.State = pawl.Ready
		s.Promoted++
	}
	for _, r := range m.where(func(r *record) bool { return r.expired(now) }) {
		if full(s.Expired) {
			break
		}
		m.keep(r, r.end(pawl.Canceled, pawl.ReasonExpired, now))
		s.Expired++
	}
	for _, r := range m.excess(spec, now) {
		if full(s.Purged) {
			break
		}
		delete(m.jobs, r.ID)
		s.Purged++
	}
	s.NextDue = m.nextWork(spec, now)
	return s
}

// excess returns what a sweep may purge: what is over, and of the rest what is
// beyond the numbers, the oldest first.
func (m *model) excess(spec pawl.SweepSpec, now time.Time) []*record {
	over := m.where(func(r *record) bool { return r.over(spec.BuriedRetention, now) })
	final := m.where(func(r *record) bool { return r.State.Final() && !r.over(spec.BuriedRetention, now) })
	slices.SortStableFunc(final, func(a, b *record) int { return b.FinishedAt.Compare(a.FinishedAt) })
	type line struct {
		queue string
		state pawl.State
	}
	kept := map[line]int{}
	limits := map[pawl.State]int{pawl.Completed: spec.MaxCompleted, pawl.Buried: spec.MaxBuried, pawl.Canceled: spec.MaxCanceled}
	var beyond []*record
	for _, r := range final {
		l, limit := line{r.Queue, r.State}, limits[r.State]
		if kept[l]++; limit > 0 && kept[l] > limit && !now.Before(r.FinishedAt.Add(r.window())) {
			beyond = append(beyond, r)
		}
	}
	slices.Reverse(beyond)
	return append(over, beyond...)
}

// nextWork is when the next sweep has something to do.
func (m *model) nextWork(spec pawl.SweepSpec, now time.Time) (next time.Duration) {
	at := func(t time.Time) {
		if d := t.Sub(now); d > 0 && (next == 0 || d < next) {
			next = d
		}
	}
	for _, r := range m.jobs {
		switch {
		case r.State == pawl.Scheduled:
			at(r.RunAt)
		case r.State == pawl.Running:
			at(r.LeaseUntil)
		case r.State == pawl.Completed, r.State == pawl.Canceled:
			at(r.FinishedAt.Add(max(r.Retention, r.window())))
		case r.State == pawl.Buried && spec.BuriedRetention > 0:
			at(r.FinishedAt.Add(max(spec.BuriedRetention, r.window())))
		}
		if r.State.Waiting() && !r.StartBefore.IsZero() {
			at(r.StartBefore)
		}
	}
	return next
}
