package storagetest

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/pawlq/pawl"
)

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
		{"lost refs lose their Locator", func(s *reference) pawl.Storage {
			b := breaking(s)
			b.settle = func(ctx context.Context, outcomes []pawl.Outcome) ([]pawl.Ref, error) {
				lost, err := s.Settle(ctx, outcomes)
				for i := range lost {
					lost[i].Locator = 0
				}
				return lost, err
			}
			return b
		}, []string{"rules/lost refs come back as given"}},
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
		{"a claim promotes only a step", before(func(m *model, _ *pawl.ClaimSpec, now time.Time) {
			due := m.where(func(r *record) bool { return r.State == pawl.Scheduled && r.due(now) })
			for i, r := range due {
				if i >= pawl.MaxStep {
					r.RunAt = now.Add(time.Second)
				}
			}
		}), []string{"rules/claim order of many due jobs"}},
		{"pause is ignored", before(func(m *model, _ *pawl.ClaimSpec, _ time.Time) { clear(m.paused) }),
			[]string{"rules/paused queue yields nothing", "rules/pause is seen by other handles", "model/random"}},
		{"number of a queue is ignored", before(func(_ *model, spec *pawl.ClaimSpec, _ time.Time) {
			for i := range spec.Queues {
				spec.Queues[i].Max = spec.Max
			}
		}), []string{"rules/claim empties queues in strict order", "model/random"}},
		{"a claim leaves one", before(func(_ *model, spec *pawl.ClaimSpec, _ time.Time) {
			for i := range spec.Queues {
				spec.Queues[i].Max = max(1, min(spec.Queues[i].Max, spec.Max)-1)
			}
		}), []string{"concurrent/claims until fewer come"}},
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
		{"next due counts what is being claimed", func(s *reference) pawl.Storage {
			b := breaking(s)
			b.claim = func(ctx context.Context, spec pawl.ClaimSpec) (pawl.Claimed, error) {
				var next time.Duration
				s.inside(func(m *model, now time.Time) { next = m.nextDue(spec, now.Add(-time.Nanosecond)) })
				c, err := s.Claim(ctx, spec)
				if next > 0 && c.NextDue > 0 {
					c.NextDue = next
				}
				return c, err
			}
			return b
		}, []string{"rules/claim says when the next job is due after others were claimed"}},
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
