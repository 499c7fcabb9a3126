package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/pawlq/pawl"
)

const (
	customers = 16              // that send orders at the same time
	stalled   = 2 * time.Minute // that nothing happens until the load gives up
)

// A sent order is one and its answer.
type sent struct {
	order
	jobs []pawl.ID
	took time.Duration
	err  error
}

// load sends orders over HTTP, which is all that it knows of the service.
type load struct {
	c      config
	url    string
	client *http.Client
}

// runLoad sends the orders while workers are killed, waits until the jobs have
// ended, and reconciles. Its error says which sums are off.
func runLoad(ctx context.Context, c config, url string, s *shop, w *crew, out, progress io.Writer) error {
	l := &load{c, url, &http.Client{
		Timeout:   time.Minute,
		Transport: &http.Transport{MaxIdleConnsPerHost: customers},
	}}
	defer l.client.CloseIdleConnections()
	var (
		answers = make(chan sent, c.load)
		shown   watcher
		all     []sent
	)
	stop := shown.start(ctx, s, w, c.load, progress)
	defer stop()
	err := together(ctx,
		func(ctx context.Context) error { return l.send(ctx, answers) },
		func(ctx context.Context) (err error) {
			all, err = collect(ctx, c, answers, w, &shown)
			return err
		},
	)
	if err != nil {
		return err
	}
	r := newReport(all)
	if err := r.wait(ctx, s.queue); err != nil {
		return err
	}
	stop()
	r.kills = w.kills()
	if err := r.reconcile(ctx, s); err != nil {
		return err
	}
	r.print(out)
	return r.check(c)
}

// send sends all orders.
func (l *load) send(ctx context.Context, answers chan<- sent) error {
	var next atomic.Int64
	var all sync.WaitGroup
	for range customers {
		all.Go(func() {
			for ctx.Err() == nil && next.Add(1) <= int64(l.c.load) {
				answers <- l.one(ctx)
			}
		})
	}
	all.Wait()
	return ctx.Err()
}

// one sends an order.
func (l *load) one(ctx context.Context) sent {
	s := sent{order: order{ID: uuid.New(), Total: 1 + rand.Int64N(100_000), Card: "good"}}
	if rand.Float64() < l.c.rollback {
		s.Card = noMoney
	}
	began := time.Now()
	s.jobs, s.err = l.post(ctx, s.order)
	s.took = time.Since(began)
	return s
}

// post returns the IDs of the order's jobs, also if they were rolled back.
func (l *load) post(ctx context.Context, o order) ([]pawl.ID, error) {
	body, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, "POST", l.url+"/orders", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	w, err := l.client.Do(r)
	if err != nil {
		return nil, err
	}
	defer w.Body.Close()
	var answer placed
	if err := json.NewDecoder(w.Body).Decode(&answer); err != nil {
		return nil, err
	}
	_, _ = io.Copy(io.Discard, w.Body) // so that the connection can be used again
	want := http.StatusCreated
	if o.Card == noMoney {
		want = http.StatusPaymentRequired
	}
	if w.StatusCode != want || len(answer.Jobs) != 2 {
		return nil, fmt.Errorf("order %s: status %s, want %d: %s", o.ID, w.Status, want, answer.Error)
	}
	return answer.Jobs, nil
}

// collect takes the answers, and kills a worker after each so many of them.
func collect(ctx context.Context, c config, answers <-chan sent, w *crew, shown *watcher) (all []sent, err error) {
	kills := 0
	for len(all) < c.load {
		select {
		case a := <-answers:
			if a.err != nil {
				return nil, a.err
			}
			all = append(all, a)
			shown.answered.Store(int64(len(all)))
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if kills < c.kills && len(all) > (kills+1)*c.load/(c.kills+1) {
			kills++
			if err := w.kill(ctx); err != nil {
				return nil, fmt.Errorf("kill number %d: %w", kills, err)
			}
		}
	}
	for ; kills < c.kills; kills++ { // where orders are few
		if err := w.kill(ctx); err != nil {
			return nil, fmt.Errorf("kill number %d: %w", kills+1, err)
		}
	}
	return all, nil
}

// watcher shows how far the load is.
type watcher struct{ answered atomic.Int64 }

// start shows a line a second until the function that it returns is called.
func (v *watcher) start(ctx context.Context, s *shop, w *crew, of int, out io.Writer) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var done sync.WaitGroup
	done.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			stats, err := s.queue.Stats(ctx, "invoice", "notify")
			if errors.Is(err, context.Canceled) {
				return
			}
			if err != nil {
				fmt.Fprintln(out, "progress:", err)
				continue
			}
			fmt.Fprintf(out, "%d of %d orders answered, %d jobs wait, %d run, %d workers killed\n", v.answered.Load(), of,
				stats[0].Ready+stats[1].Ready+stats[0].Scheduled+stats[1].Scheduled, stats[0].Running+stats[1].Running, w.kills())
		}
	})
	return func() {
		cancel()
		done.Wait()
	}
}
