package workertest

import (
	"fmt"
	"math"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/worker"
)

// weights lets three queues share slots by weight.
func (f *fixture) weights() {
	const each = 200
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
	const loaded = 300 // starts while none is empty
	for range loaded {
		f.ran[receive(f, f.runs, "run")]++
	}
	for _, q := range queues {
		got, want := float64(f.ran[q.Name])/loaded, float64(q.Weight)/10
		if math.Abs(got-want) > 0.03 { // the slots' runs begin in any order
			f.t.Errorf("%.3f of the starts were of %s, want %.1f", got, q.Name, want)
		}
	}
	for _, q := range queues {
		f.await(q.Name, each)
	}
	f.stop()
	if s := p.Stats(); s.Completed != 3*each || fmt.Sprint(f.ran) != "map[a:200 b:200 c:200]" {
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
