package workertest

import (
	"context"
	"fmt"
	"math"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/worker"
)

// weights lets three queues share slots by weight.
func (f *fixture) weights() {
	const each = 100
	queues := []worker.Queue{{Name: "a", Weight: 6}, {Name: "b", Weight: 3}, {Name: "c", Weight: 1}}
	for _, q := range queues {
		reqs := make([]*pawl.Request, each)
		for i := range reqs {
			reqs[i] = &pawl.Request{Queue: q.Name, Kind: "k", Payload: []byte(q.Name)}
		}
		_, err := f.q.EnqueueMany(f.t.Context(), reqs)
		f.must(err)
	}
	p := f.start(f.run, worker.Options{Queues: queues, Concurrency: 4})
	const loaded = 150 // starts while none is empty
	for range loaded {
		f.ran[receive(f, f.runs, "run")]++
	}
	for _, q := range queues {
		got, want := float64(f.ran[q.Name])/loaded, float64(q.Weight)/10
		if math.Abs(got-want) > 0.04 { // the slots' runs begin in any order
			f.t.Errorf("%.3f of the starts were of %s, want %.1f", got, q.Name, want)
		}
	}
	for _, q := range queues {
		f.await(q.Name, each)
	}
	f.stop()
	if s := p.Stats(); s.Completed != 3*each || fmt.Sprint(f.ran) != "map[a:100 b:100 c:100]" {
		f.t.Errorf("ran %v, stats %+v", f.ran, s)
	}
}

// concurrency changes how many jobs run at the same time, while they do.
func (f *fixture) concurrency() {
	const n = 100
	for range n {
		f.enqueue("slow")
	}
	p := f.start(f.run, worker.Options{Concurrency: 3, Prefetch: worker.NoPrefetch})
	f.await("slow", 3)
	f.must(p.SetConcurrency(pawl.DefaultQueue, 12))
	f.await("slow", 12)
	f.must(p.SetConcurrency(pawl.DefaultQueue, 2))
	if s := p.Stats(); s.Running != 12 || s.Slots != 2 {
		f.t.Errorf("stats %+v", s)
	}
	close(f.hold)
	f.await("slow", n)
	f.stop()
	if s := p.Stats(); s.Completed != n || s.Lost != 0 || f.ran["slow"] != n {
		f.t.Errorf("%d runs, stats %+v", f.ran["slow"], s)
	}
}

// events subscribes to what happens to three jobs, in the pool and by hand.
func (f *fixture) events() {
	var events worker.Events
	sub := events.Subscribe(&worker.SubscribeOptions{DeadLetters: 1, Depth: 1})
	defer sub.Close()
	told := make(map[worker.EventType]int)
	await := func(t worker.EventType) {
		f.t.Helper()
		ctx, cancel := context.WithTimeout(f.t.Context(), patience)
		defer cancel()
		for told[t] == 0 {
			e, err := sub.Next(ctx)
			f.must(err)
			told[e.Type]++
		}
	}
	p := f.start(func(ctx context.Context, j *pawl.Job) ([]byte, error) {
		switch string(j.Payload) {
		case "fails":
			return nil, pawl.Permanent(errHandler)
		case "canceled":
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return nil, nil
	}, worker.Options{Events: &events, CountEvery: often})
	f.enqueue("completes")
	await(worker.EventCompleted)
	f.enqueue("fails")
	await(worker.EventBuried)
	await(worker.EventDeadLetters)
	id := f.enqueue("canceled")
	f.await("canceled", 1)
	f.must(f.q.Cancel(f.t.Context(), "", id))
	await(worker.EventCanceled) // whether an event or a heartbeat tells the pool
	f.must(f.q.Pause(f.t.Context(), pawl.DefaultQueue))
	await(worker.EventPaused)
	f.enqueue("waits")
	await(worker.EventDepth)
	f.must(f.q.Resume(f.t.Context(), pawl.DefaultQueue))
	await(worker.EventResumed)
	f.await("waits", 1)
	f.stop()
	if n := told[worker.EventFailed]; n != 1 || len(sub.Dropped()) > 0 {
		f.t.Errorf("%d failures, dropped %v", n, sub.Dropped())
	}
	s := p.Stats()
	if len(s.Queues) != 1 || s.Queues[0].Buried != 1 || s.Queues[0].Canceled != 1 || s.Completed != 2 {
		f.t.Errorf("stats %+v", s)
	}
}

// room lets an enqueue wait until the pool has made room.
func (f *fixture) room() {
	const n = 30
	p := f.start(f.run, worker.Options{Concurrency: 1, Prefetch: worker.NoPrefetch})
	f.enqueue("slow")
	f.await("slow", 1)
	stored := make(chan error)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for i := range n {
			r := pawl.Request{Kind: "k", Payload: fmt.Append(nil, i), MaxDepth: 2, WhenFull: pawl.Block}
			_, err := f.pq.Enqueue(f.t.Context(), &r)
			stored <- err
		}
	}()
	for range 2 {
		f.must(receive(f, stored, "enqueue"))
	}
	counts, err := f.q.Stats(f.t.Context(), pawl.DefaultQueue)
	f.must(err)
	if counts[0].Ready != 2 {
		f.t.Errorf("counts %+v", counts[0])
	}
	close(f.hold)
	for range n - 2 {
		f.must(receive(f, stored, "enqueue"))
	}
	<-ended
	for i := range n {
		f.await(fmt.Sprint(i), 1)
	}
	f.stop()
	f.wantOnce(n+1, p.Stats())
}
