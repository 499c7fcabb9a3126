package main

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/pawlq/pawl"
)

// engine is a storage of pawl with no dispatch: claimers that settle one batch
// and claim the next, and call the handler in between. It shows what the pool
// costs. It can only drain.
type engine struct {
	*pawlSystem
	batch int
}

// engineClaimers keep the server busy while one of them is between calls.
const engineClaimers = 2

func enginePostgres() *Contender {
	return &Contender{Name: "engine", Storage: "postgres", Variants: engineVariants,
		Open: func(ctx context.Context, p *Place, v Variant) (System, error) {
			s, _, closeAll, err := openPostgresStores(ctx, p, v)
			if err != nil {
				return nil, err
			}
			return &engine{newPawl(v, s, s, closeAll), v.Batch}, nil
		}}
}

func engineSQLite() *Contender {
	return &Contender{Name: "engine", Storage: "sqlite", Variants: engineVariants,
		Open: func(ctx context.Context, p *Place, v Variant) (System, error) {
			s, err := openSQLiteStore(ctx, p)
			if err != nil {
				return nil, err
			}
			return &engine{newPawl(v, s, s, s.Close), v.Batch}, nil
		}}
}

func engineVariants(w *Workload) []Variant {
	if w.Name != "drain" {
		return nil
	}
	var all []Variant
	for _, retention := range []string{history, deleteNow} {
		for _, batch := range []int{pawl.MaxStep, 100, 300} {
			all = append(all, Variant{Retention: retention, Batch: batch, Extra: batch == 300})
		}
	}
	return all
}

// Work implements [System].
func (e *engine) Work(ctx context.Context, h Handler) (Workers, error) {
	ctx, cancel := context.WithCancel(ctx)
	w := &engineWorkers{cancel: cancel}
	for range engineClaimers {
		w.wg.Go(func() {
			if err := w.run(ctx, e, h); err != nil {
				w.failed.CompareAndSwap(nil, &err)
			}
		})
	}
	return w, nil
}

type engineWorkers struct {
	cancel  context.CancelFunc
	wg      sync.WaitGroup
	settled atomic.Int64
	failed  atomic.Pointer[error]
}

func (w *engineWorkers) run(ctx context.Context, e *engine, h Handler) error {
	var outcomes []pawl.Outcome
	for ctx.Err() == nil {
		_, c, err := e.q.Cycle(ctx, outcomes, pawlAsk(e.batch, queueName))
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		w.settled.Add(int64(len(outcomes)))
		for range c.Jobs {
			if err := h(ctx, 0); err != nil {
				return err
			}
		}
		outcomes = pawlAcks(c.Jobs)
	}
	return nil
}

func (w *engineWorkers) Settled(_ context.Context, n int64) (bool, error) {
	if err := w.failed.Load(); err != nil {
		return false, *err
	}
	return w.settled.Load() >= n, nil
}

func (w *engineWorkers) Stop() error {
	w.cancel()
	w.wg.Wait()
	if err := w.failed.Load(); err != nil {
		return *err
	}
	return nil
}
