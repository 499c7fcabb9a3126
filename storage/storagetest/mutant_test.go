package storagetest

import (
	"context"
	"errors"
	"flag"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pawlq/pawl"
)

// TestMain keeps random checks that are meant to fail from looking long for a
// smaller failure, and from writing it down.
func TestMain(m *testing.M) {
	flag.Parse()
	for name, value := range map[string]string{"rapid.nofailfile": "true", "rapid.shrinktime": "10ms"} {
		if err := flag.Set(name, value); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// A mutant is a correct storage with one bug, and the cases that must see it.
type mutant struct {
	bug  string
	of   func(s *reference) pawl.Storage
	seen []string
}

func TestMutantsAreSeen(t *testing.T) {
	for _, m := range mutants() {
		t.Run(m.bug, func(t *testing.T) {
			t.Parallel()
			h := referenceHarness()
			h.Open = func(_ testing.TB, clock func() time.Time) pawl.Storage { return m.of(newReference(clock)) }
			h.patience = time.Second
			for _, name := range m.seen {
				r := failingCase(t, h, name)
				if !r.Failed() {
					t.Errorf("%s did not fail", name)
				}
				if !strings.Contains(r.log.String(), "the contract says: ") {
					t.Errorf("%s failed without the sentence of the contract:\n%s", name, &r.log)
				}
			}
		})
	}
}

// broken is a storage some of whose methods are replaced.
type broken struct {
	*reference
	enqueue func(context.Context, []*pawl.Request) ([]pawl.Receipt, error)
	settle  func(context.Context, []pawl.Outcome) ([]pawl.Ref, error)
	claim   func(context.Context, pawl.ClaimSpec) (pawl.Claimed, error)
	extend  func(context.Context, []pawl.Renewal) ([]pawl.Ref, error)
	sweep   func(context.Context, pawl.SweepSpec) (pawl.Swept, error)
	list    func(context.Context, pawl.ListSpec) (pawl.Page, error)
	count   func(context.Context, ...string) ([]pawl.QueueStats, error)
	change  func(context.Context, pawl.Change) ([]pawl.Changed, error)
	watch   func(context.Context, func(pawl.Event)) error
}

func breaking(s *reference) *broken {
	return &broken{
		s, s.Enqueue, s.Settle, s.Claim, s.Extend, s.Sweep, s.List, s.Count, s.Change, s.Watch,
	}
}

func (b *broken) Enqueue(ctx context.Context, reqs []*pawl.Request) ([]pawl.Receipt, error) {
	return b.enqueue(ctx, reqs)
}
func (b *broken) Settle(ctx context.Context, o []pawl.Outcome) ([]pawl.Ref, error) {
	return b.settle(ctx, o)
}
func (b *broken) Claim(ctx context.Context, spec pawl.ClaimSpec) (pawl.Claimed, error) {
	return b.claim(ctx, spec)
}
func (b *broken) Extend(ctx context.Context, n []pawl.Renewal) ([]pawl.Ref, error) {
	return b.extend(ctx, n)
}
func (b *broken) Sweep(ctx context.Context, spec pawl.SweepSpec) (pawl.Swept, error) {
	return b.sweep(ctx, spec)
}
func (b *broken) List(ctx context.Context, spec pawl.ListSpec) (pawl.Page, error) {
	return b.list(ctx, spec)
}
func (b *broken) Count(ctx context.Context, queues ...string) ([]pawl.QueueStats, error) {
	return b.count(ctx, queues...)
}
func (b *broken) Change(ctx context.Context, c pawl.Change) ([]pawl.Changed, error) {
	return b.change(ctx, c)
}
func (b *broken) Watch(ctx context.Context, f func(pawl.Event)) error { return b.watch(ctx, f) }

// inside runs f on the model of the storage.
func (s *reference) inside(f func(m *model, now time.Time)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s.m, s.clock())
}

func mutants() []mutant {
	return slices.Concat(settleMutants(), claimMutants(), sweepMutants(), otherMutants())
}

func settleMutants() []mutant {
	// after lets f change the records that a settle has touched.
	after := func(f func(r *record, o pawl.Outcome)) func(*reference) pawl.Storage {
		return func(s *reference) pawl.Storage {
			b := breaking(s)
			b.settle = func(ctx context.Context, outcomes []pawl.Outcome) ([]pawl.Ref, error) {
				lost, err := s.Settle(ctx, outcomes)
				s.inside(func(m *model, _ time.Time) {
					for _, o := range outcomes {
						if r := m.jobs[o.Ref.ID]; r != nil && r.lastFence == o.Ref.Fence && !slices.Contains(lost, o.Ref) {
							f(r, o)
						}
					}
				})
				return lost, err
			}
			return b
		}
	}
	return []mutant{
		{"fence is not checked", func(s *reference) pawl.Storage {
			b := breaking(s)
			b.settle = func(ctx context.Context, outcomes []pawl.Outcome) ([]pawl.Ref, error) {
				outcomes = slices.Clone(outcomes)
				s.inside(func(m *model, _ time.Time) {
					for i, o := range outcomes {
						if r := m.jobs[o.Ref.ID]; r != nil && r.State == pawl.Running {
							outcomes[i].Ref.Fence = r.Fence
						}
					}
				})
				return s.Settle(ctx, outcomes)
			}
			return b
		}, []string{
			"rules/settle after rescue is lost", "rules/fence is never reused", "rules/one outcome never hinders another",
			"table/running (claimed) × a foreign fence", "model/random",
		}},
		{"settle is not idempotent", func(s *reference) pawl.Storage {
			b := breaking(s)
			b.settle = func(ctx context.Context, outcomes []pawl.Outcome) ([]pawl.Ref, error) {
				lost, err := s.Settle(ctx, outcomes)
				s.inside(func(m *model, _ time.Time) {
					for _, o := range outcomes {
						if r := m.jobs[o.Ref.ID]; r != nil {
							r.lastFence = 0
						}
					}
				})
				return lost, err
			}
			return b
		}, []string{"rules/settle can be repeated", "table/completed (acked) × ack", "model/random"}},
		{"any verb counts as the same again", func(s *reference) pawl.Storage {
			b := breaking(s)
			b.settle = func(ctx context.Context, outcomes []pawl.Outcome) ([]pawl.Ref, error) {
				lost, err := s.Settle(ctx, outcomes)
				s.inside(func(m *model, _ time.Time) {
					lost = slices.DeleteFunc(lost, func(ref pawl.Ref) bool {
						r := m.jobs[ref.ID]
						return r != nil && r.lastFence == ref.Fence
					})
				})
				return lost, err
			}
			return b
		}, []string{"rules/settle by another verb is lost", "concurrent/settles of one claim have one winner"}},
		{"attempt is not refunded", after(func(r *record, o pawl.Outcome) {
			if o.Verb >= pawl.Release {
				r.Attempt = 1
			}
		}), []string{"rules/hand back spends no attempt", "table/running (claimed) × snooze"}},
		{"unique key is not released", after(func(r *record, o pawl.Outcome) {
			if r.State.Final() && r.UniqueKey != "" {
				r.taken, r.UniqueMode, r.UniqueWindow = true, pawl.UniqueUntilWindow, 1000*time.Hour
			}
		}), []string{"rules/unique until final", "table/running (claimed) × bury", "model/random"}},
		{"failures are not bounded", after(func(r *record, o pawl.Outcome) {
			if o.Verb == pawl.Nack && len(r.Failures) == pawl.MaxFailures {
				r.Failures = append(r.Failures, r.Failures[0])
			}
		}), []string{"rules/failures are bounded"}},
		{"nack before the last attempt buries", after(func(r *record, o pawl.Outcome) {
			if o.Verb == pawl.Nack && r.MaxAttempts == r.Attempt+1 {
				r.State, r.Reason = pawl.Buried, pawl.ReasonAttempts
			}
		}), []string{"rules/nack spends an attempt"}},
		{"one lost ref stops the others", func(s *reference) pawl.Storage {
			b := breaking(s)
			b.settle = func(ctx context.Context, outcomes []pawl.Outcome) ([]pawl.Ref, error) {
				for i := range outcomes {
					if lost, err := s.Settle(ctx, outcomes[i:i+1]); err != nil || len(lost) > 0 {
						return lost, err
					}
				}
				return nil, nil
			}
			return b
		}, []string{"rules/one outcome never hinders another", "model/random"}},
	}
}

func claimMutants() []mutant {
	// before lets f change the model or the spec before a claim.
	before := func(f func(m *model, spec *pawl.ClaimSpec, now time.Time)) func(*reference) pawl.Storage {
		return func(s *reference) pawl.Storage {
			b := breaking(s)
			b.claim = func(ctx context.Context, spec pawl.ClaimSpec) (pawl.Claimed, error) {
				spec.Queues = slices.Clone(spec.Queues)
				s.inside(func(m *model, now time.Time) { f(m, &spec, now) })
				return s.Claim(ctx, spec)
			}
			return b
		}
	}
	// after lets f change what a claim returns.
	after := func(f func(spec pawl.ClaimSpec, c *pawl.Claimed)) func(*reference) pawl.Storage {
		return func(s *reference) pawl.Storage {
			b := breaking(s)
			b.claim = func(ctx context.Context, spec pawl.ClaimSpec) (pawl.Claimed, error) {
				c, err := s.Claim(ctx, spec)
				f(spec, &c)
				return c, err
			}
			return b
		}
	}
	return []mutant{
		{"claim is early", before(func(m *model, _ *pawl.ClaimSpec, now time.Time) { m.promote("", now.Add(time.Microsecond)) }),
			[]string{"rules/never early", "rules/run time is rounded up"}},
		{"scheduled jobs need a sweep", before(func(m *model, _ *pawl.ClaimSpec, now time.Time) {
			for _, r := range m.jobs {
				if r.State == pawl.Scheduled && r.due(now) {
					r.RunAt = now.Add(time.Second)
				}
			}
		}), []string{"rules/never early", "table/scheduled (enqueued) × claim when due", "model/random"}},
		{"newest job first", before(func(m *model, _ *pawl.ClaimSpec, _ time.Time) {
			for _, r := range m.jobs {
				r.seq = -max(r.seq, -r.seq)
			}
		}), []string{"rules/claim order", "rules/enqueue of many", "model/random"}},
		{"pause is ignored", before(func(m *model, _ *pawl.ClaimSpec, _ time.Time) { clear(m.paused) }),
			[]string{"rules/paused queue yields nothing", "rules/pause is seen by other handles", "model/random"}},
		{"number of a queue is ignored", before(func(_ *model, spec *pawl.ClaimSpec, _ time.Time) {
			for i := range spec.Queues {
				spec.Queues[i].Max = spec.Max
			}
		}), []string{"rules/claim empties queues in strict order", "model/random"}},
		{"StartBefore is ignored", before(func(m *model, _ *pawl.ClaimSpec, now time.Time) {
			for _, r := range m.jobs {
				if r.expired(now) {
					r.StartBefore = time.Time{}
				}
			}
		}), []string{"rules/claim does not return late jobs"}},
		{"token is ignored", before(func(_ *model, spec *pawl.ClaimSpec, _ time.Time) { spec.Repeat = false }),
			[]string{"rules/claim can be repeated", "model/random"}},
		{"a repeat returns nothing but the old jobs", func(s *reference) pawl.Storage {
			b := breaking(s)
			b.claim = func(ctx context.Context, spec pawl.ClaimSpec) (pawl.Claimed, error) {
				before := s.clone()
				c, err := s.Claim(ctx, spec)
				if spec.Repeat && len(c.Jobs) > 0 && before.jobs[c.Jobs[0].ID].State != pawl.Running {
					return pawl.Claimed{}, err
				}
				return c, err
			}
			return b
		}, []string{"rules/repeat returns only what is still running", "model/random"}},
		{"the lease of a job is ignored", func(s *reference) pawl.Storage {
			b := breaking(s)
			b.claim = func(ctx context.Context, spec pawl.ClaimSpec) (pawl.Claimed, error) {
				c, err := s.Claim(ctx, spec)
				s.inside(func(m *model, now time.Time) {
					for _, j := range c.Jobs {
						m.jobs[j.ID].LeaseUntil = m.jobs[j.ID].ClaimedAt.Add(spec.Lease)
						j.LeaseUntil = j.ClaimedAt.Add(spec.Lease)
					}
				})
				return c, err
			}
			return b
		}, []string{"rules/claim sets the record", "model/random"}},
		{"returned jobs are out of order", after(func(_ pawl.ClaimSpec, c *pawl.Claimed) { slices.Reverse(c.Jobs) }),
			[]string{"rules/claim order", "rules/claim empties queues in strict order"}},
		{"next due is not told", after(func(_ pawl.ClaimSpec, c *pawl.Claimed) { c.NextDue = 0 }),
			[]string{"rules/claim says when the next job is due", "model/random"}},
		{"next due is told early", after(func(_ pawl.ClaimSpec, c *pawl.Claimed) { c.NextDue /= 2 }),
			[]string{"rules/claim says when the next job is due", "model/random"}},
		{"fences are reused", func(s *reference) pawl.Storage {
			b := breaking(s)
			b.claim = func(ctx context.Context, spec pawl.ClaimSpec) (pawl.Claimed, error) {
				c, err := s.Claim(ctx, spec)
				s.inside(func(m *model, _ time.Time) {
					for _, j := range c.Jobs {
						j.Fence = int64(j.Attempt)
						m.jobs[j.ID].Fence = j.Fence
					}
				})
				return c, err
			}
			return b
		}, []string{"rules/fence is never reused", "model/random"}},
		{"a job is given to two claimers", func(s *reference) pawl.Storage {
			b := breaking(s)
			var mu sync.Mutex
			var last []*pawl.Job
			b.claim = func(ctx context.Context, spec pawl.ClaimSpec) (pawl.Claimed, error) {
				c, err := s.Claim(ctx, spec)
				mu.Lock()
				defer mu.Unlock()
				if len(c.Jobs) > 0 && len(last) > 0 {
					c.Jobs[0] = last[0]
				}
				last = c.Jobs
				return c, err
			}
			return b
		}, []string{"concurrent/claims are distinct"}},
	}
}

func sweepMutants() []mutant {
	// after lets f change the model after a sweep, given how it was before.
	after := func(f func(before, m *model, s *pawl.Swept, now time.Time)) func(*reference) pawl.Storage {
		return func(s *reference) pawl.Storage {
			b := breaking(s)
			b.sweep = func(ctx context.Context, spec pawl.SweepSpec) (pawl.Swept, error) {
				before := s.clone()
				swept, err := s.Sweep(ctx, spec)
				s.inside(func(m *model, now time.Time) { f(before, m, &swept, now) })
				return swept, err
			}
			return b
		}
	}
	rescued := func(f func(r *record)) func(*reference) pawl.Storage {
		return after(func(_, m *model, s *pawl.Swept, _ time.Time) {
			for _, ref := range s.Rescued {
				f(m.jobs[ref.ID])
			}
		})
	}
	return []mutant{
		{"retention is ignored", after(func(before, m *model, s *pawl.Swept, _ time.Time) {
			for id, r := range before.jobs {
				m.jobs[id] = or(m.jobs[id], r)
			}
			s.Purged = 0
		}), []string{"rules/retention keeps the record", "rules/purge frees the ID", "table/completed (acked) × sweep after retention", "model/random"}},
		{"retention is cut short", after(func(_, m *model, _ *pawl.Swept, now time.Time) {
			for id, r := range m.jobs {
				if r.over(0, now.Add(time.Microsecond)) {
					delete(m.jobs, id)
				}
			}
		}), []string{"rules/retention keeps the record", "rules/unique until window", "table/completed (acked) × sweep after retention"}},
		{"rescue spends the attempt", rescued(func(r *record) { r.Attempt++ }),
			[]string{"rules/rescue", "table/running (claimed) × sweep when due", "model/random"}},
		{"rescue is not counted", rescued(func(r *record) { r.Rescued-- }), []string{"rules/rescue", "rules/rescue delay"}},
		{"rescue never waits", rescued(func(r *record) { r.State, r.RunAt = pawl.Ready, r.Failures[len(r.Failures)-1].At }),
			[]string{"rules/rescue delay", "model/random"}},
		{"rescue leaves no trace", rescued(func(r *record) { r.Failures = r.Failures[:len(r.Failures)-1] }),
			[]string{"rules/rescue", "table/running (lease expired) × sweep when due"}},
		{"rescue keeps the fence", after(func(before, m *model, s *pawl.Swept, _ time.Time) {
			for _, ref := range s.Rescued {
				m.jobs[ref.ID] = before.jobs[ref.ID]
			}
		}), []string{"rules/settle after rescue is lost", "rules/rescue"}},
		{"sweep hides its limit", after(func(_, _ *model, s *pawl.Swept, _ time.Time) { s.More = false }),
			[]string{"rules/sweep is bounded"}},
		{"sweep hides when it is due", after(func(_, _ *model, s *pawl.Swept, _ time.Time) { s.NextDue = 0 }),
			[]string{"rules/sweep says when it is next needed"}},
	}
}

func (s *reference) clone() *model {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.m.clone()
}

func otherMutants() []mutant {
	return []mutant{
		{"enqueue is not atomic", func(s *reference) pawl.Storage {
			b := breaking(s)
			b.enqueue = func(ctx context.Context, reqs []*pawl.Request) (all []pawl.Receipt, err error) {
				for i := range reqs {
					got, err := s.Enqueue(ctx, reqs[i:i+1])
					if err != nil {
						return nil, err
					}
					all = append(all, got...)
				}
				return all, nil
			}
			return b
		}, []string{"rules/enqueue is all or none", "model/random"}},
		{"depth limit is off by one", func(s *reference) pawl.Storage {
			b := breaking(s)
			b.enqueue = func(ctx context.Context, reqs []*pawl.Request) ([]pawl.Receipt, error) {
				looser := slices.Clone(reqs)
				for i, q := range reqs {
					c := *q
					if c.MaxDepth > 0 {
						c.MaxDepth++
					}
					looser[i] = &c
				}
				return s.Enqueue(ctx, looser)
			}
			return b
		}, []string{"rules/depth limit", "rules/drop the oldest", "concurrent/depth under concurrent enqueues", "model/random"}},
		{"two jobs of one key", func(s *reference) pawl.Storage {
			b := breaking(s)
			b.enqueue = func(ctx context.Context, reqs []*pawl.Request) ([]pawl.Receipt, error) {
				s.inside(func(m *model, _ time.Time) {
					for _, r := range m.jobs {
						r.taken = r.taken && r.State != pawl.Running
					}
				})
				return s.Enqueue(ctx, reqs)
			}
			return b
		}, []string{"rules/unique until final", "table/running (claimed) × enqueue of the same key", "model/random"}},
		{"kick ignores the key", func(s *reference) pawl.Storage {
			b := breaking(s)
			b.change = func(ctx context.Context, c pawl.Change) ([]pawl.Changed, error) {
				s.inside(func(m *model, _ time.Time) {
					for _, r := range m.jobs {
						if c.Verb == pawl.Kick && !slices.Contains(c.IDs, r.ID) {
							r.taken = false
						}
					}
				})
				return s.Change(ctx, c)
			}
			return b
		}, []string{"rules/kick into a held key names the holder", "model/random"}},
		{"change ignores From", func(s *reference) pawl.Storage {
			b := breaking(s)
			b.change = func(ctx context.Context, c pawl.Change) ([]pawl.Changed, error) {
				c.From = nil
				return s.Change(ctx, c)
			}
			return b
		}, []string{"rules/change keeps to From", "model/random"}},
		{"extend of a lost claim", func(s *reference) pawl.Storage {
			b := breaking(s)
			b.extend = func(ctx context.Context, renewals []pawl.Renewal) ([]pawl.Ref, error) {
				_, err := s.Extend(ctx, renewals)
				return nil, err
			}
			return b
		}, []string{"rules/extend returns what is lost", "rules/change ends the fence", "table/completed (acked) × extend", "model/random"}},
		{"a page repeats a job", func(s *reference) pawl.Storage {
			b := breaking(s)
			last := map[string]*pawl.Job{}
			b.list = func(ctx context.Context, spec pawl.ListSpec) (pawl.Page, error) {
				again := last[spec.Cursor]
				if again != nil && spec.Limit > 1 {
					spec.Limit--
				}
				page, err := s.List(ctx, spec)
				if n := len(page.Jobs); n > 0 {
					last[page.Next] = page.Jobs[n-1]
				}
				if again != nil {
					page.Jobs = append([]*pawl.Job{again}, page.Jobs...)
				}
				return page, err
			}
			return b
		}, []string{"rules/list pages", "rules/list filters", "model/random"}},
		{"any cursor is taken", func(s *reference) pawl.Storage {
			b := breaking(s)
			b.list = func(ctx context.Context, spec pawl.ListSpec) (pawl.Page, error) {
				page, err := s.List(ctx, spec)
				if errors.Is(err, pawl.ErrInvalid) {
					spec.Cursor = ""
					return s.List(ctx, spec)
				}
				return page, err
			}
			return b
		}, []string{"rules/list refuses a corrupt cursor"}},
		{"payloads are always read", func(s *reference) pawl.Storage {
			b := breaking(s)
			b.list = func(ctx context.Context, spec pawl.ListSpec) (pawl.Page, error) {
				spec.Payloads = true
				return s.List(ctx, spec)
			}
			return b
		}, []string{"rules/list without payloads"}},
		{"rescued jobs are not retrying", func(s *reference) pawl.Storage {
			b := breaking(s)
			b.count = func(ctx context.Context, queues ...string) ([]pawl.QueueStats, error) {
				all, err := s.Count(ctx, queues...)
				for i := range all {
					all[i].Retrying = min(all[i].Retrying, 1)
				}
				return all, err
			}
			return b
		}, []string{"rules/count tells retrying jobs"}},
		{"a context that is over is ignored", func(s *reference) pawl.Storage {
			b := breaking(s)
			b.claim = func(ctx context.Context, spec pawl.ClaimSpec) (pawl.Claimed, error) {
				return s.Claim(context.WithoutCancel(ctx), spec)
			}
			return b
		}, []string{"rules/a call whose context is over"}},
		{"memory is shared", func(s *reference) pawl.Storage {
			b := breaking(s)
			b.claim = func(ctx context.Context, spec pawl.ClaimSpec) (pawl.Claimed, error) {
				c, err := s.Claim(ctx, spec)
				s.inside(func(m *model, _ time.Time) {
					for _, j := range c.Jobs {
						j.Payload = m.jobs[j.ID].Payload
					}
				})
				return c, err
			}
			return b
		}, []string{"rules/no aliasing"}},
		{"requests are changed", func(s *reference) pawl.Storage {
			b := breaking(s)
			b.enqueue = func(ctx context.Context, reqs []*pawl.Request) ([]pawl.Receipt, error) {
				receipts, err := s.Enqueue(ctx, reqs)
				for _, q := range reqs {
					q.RunAt = time.Time{}
				}
				return receipts, err
			}
			return b
		}, []string{"rules/no aliasing"}},
		{"wake-ups are lost", func(s *reference) pawl.Storage {
			b := breaking(s)
			b.watch = func(ctx context.Context, f func(pawl.Event)) error {
				return s.Watch(ctx, func(e pawl.Event) {
					if e.Kind == pawl.EventReady {
						f(e)
					}
				})
			}
			return b
		}, []string{"watch/ended after cancel", "watch/paused"}},
		{"watch leaves a goroutine", func(s *reference) pawl.Storage {
			b := breaking(s)
			b.watch = func(ctx context.Context, f func(pawl.Event)) error {
				go func() { <-context.WithoutCancel(ctx).Done() }()
				return s.Watch(ctx, f)
			}
			return b
		}, []string{"watch/watch ends with its context"}},
	}
}
