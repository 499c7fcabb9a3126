package storagetest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/pawlq/pawl"
)

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
	// given changes what a sweep is given.
	given := func(f func(spec *pawl.SweepSpec)) func(*reference) pawl.Storage {
		return func(s *reference) pawl.Storage {
			b := breaking(s)
			b.sweep = func(ctx context.Context, spec pawl.SweepSpec) (pawl.Swept, error) {
				f(&spec)
				return s.Sweep(ctx, spec)
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
		{"completed jobs have no limit", given(func(spec *pawl.SweepSpec) { spec.MaxCompleted = 0 }),
			[]string{"rules/MaxCompleted deletes the oldest", "rules/ends at one time", "concurrent/sweeps of completed jobs"}},
		{"limits are mixed up", given(func(spec *pawl.SweepSpec) {
			spec.MaxCompleted, spec.MaxCanceled = spec.MaxCanceled, spec.MaxCompleted
		}), []string{"rules/MaxCanceled deletes the oldest", "rules/numbers are counted by state and queue"}},
		{"a limit deletes one more", given(func(spec *pawl.SweepSpec) { spec.MaxBuried = max(1, spec.MaxBuried-1) * min(1, spec.MaxBuried) }),
			[]string{"rules/MaxBuried deletes the oldest", "concurrent/sweeps of buried jobs"}},
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

func enqueueMutants() []mutant {
	return []mutant{
		{"requests of a call are looked at from the last on", func(s *reference) pawl.Storage {
			b := breaking(s)
			b.enqueue = func(ctx context.Context, reqs []*pawl.Request) ([]pawl.Receipt, error) {
				reqs = slices.Clone(reqs)
				slices.Reverse(reqs)
				s.inside(func(m *model, _ time.Time) {
					if len(reqs) > 1 {
						delete(m.jobs, reqs[len(reqs)-1].ID) // as if others were that fast
					}
				})
				all, err := s.Enqueue(ctx, reqs)
				slices.Reverse(all)
				return all, err
			}
			return b
		}, []string{"concurrent/requests of a call are in order"}},
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
		}, []string{"rules/enqueue is all or none", "rules/a refused enqueue changes nothing", "model/random"}},
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
	}
}

func changeMutants() []mutant {
	return []mutant{
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
	}
}

func readMutants() []mutant {
	return []mutant{
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
		{"get of many ends early", func(s *reference) pawl.Storage {
			b := breaking(s)
			b.get = func(ctx context.Context, queue string, ids ...pawl.ID) ([]*pawl.Job, error) {
				jobs, err := s.Get(ctx, queue, ids...)
				clear(jobs[min(len(jobs), 500):])
				return jobs, err
			}
			return b
		}, []string{"rules/get of many", "rules/more IDs than jobs"}},
		{"get returns the payload of another job", func(s *reference) pawl.Storage {
			b := breaking(s)
			var mu sync.Mutex
			var last []byte
			b.get = func(ctx context.Context, queue string, ids ...pawl.ID) ([]*pawl.Job, error) {
				jobs, err := s.Get(ctx, queue, ids...)
				mu.Lock()
				defer mu.Unlock()
				for _, j := range jobs {
					if j != nil {
						j.Payload, last = last, j.Payload
					}
				}
				return jobs, err
			}
			return b
		}, []string{"concurrent/reads are of one moment"}},
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
	}
}

func callMutants() []mutant {
	return []mutant{
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
		{"events come all at once", func(s *reference) pawl.Storage {
			b := breaking(s)
			b.watch = func(ctx context.Context, f func(pawl.Event)) error {
				var wg sync.WaitGroup
				defer wg.Wait()
				return s.Watch(ctx, func(e pawl.Event) {
					for range 8 {
						wg.Go(func() { f(e) })
					}
				})
			}
			return b
		}, []string{"watch/events come one at a time"}},
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

func txMutants() []mutant {
	flawed := func(f txFlaw) func(*reference) pawl.Storage {
		return func(s *reference) pawl.Storage {
			s.flaw = f
			return s
		}
	}
	return []mutant{
		{"a failed call leaves a part in the transaction", flawed(partial), []string{
			"tx/a refused enqueue in a transaction",
			"tx/a context that ends inside enqueue in a transaction", "tx/a context that ends inside settle in a transaction",
		}},
		{"a failed call begins the transaction anew", flawed(anew), []string{
			"tx/a refused enqueue in a transaction",
			"tx/a context that ends inside enqueue in a transaction", "tx/a context that ends inside settle in a transaction",
		}},
		{"held jobs are not told", flawed(silent), []string{
			"tx/settle does not wait for an open transaction", "tx/cycle claims also when settle is busy",
		}},
	}
}
