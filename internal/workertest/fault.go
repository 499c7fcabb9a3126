package workertest

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/storagetest"
	"github.com/pawlq/pawl/worker"
)

func faultCases() (cases []testCase) {
	for _, after := range []bool{false, true} {
		when := "before their effect"
		if after {
			when = "after their effect"
		}
		for _, method := range []string{"Claim", "Settle", "Extend", "Sweep"} {
			name := fmt.Sprintf("calls of %s fail %s", method, when)
			cases = append(cases, testCase{name, func(f *fixture) { f.faults(after, method) }})
		}
		cases = append(cases, testCase{"outage, calls fail " + when, func(f *fixture) { f.outage(after) }})
	}
	return cases
}

// faults lets the first calls of a method fail, and those of Cycle too where it
// takes the method's place: each job runs once and completes.
func (f *fixture) faults(after bool, method string) {
	var failed atomic.Int64
	var once sync.Once
	over := make(chan struct{})
	f.disturb(func(c storagetest.Call) storagetest.Fault {
		if c.Method != method && (c.Method != "Cycle" || method != "Claim" && method != "Settle") {
			return storagetest.Fault{}
		}
		if failed.Add(1) <= 3 {
			return storagetest.Fault{Err: storagetest.ErrFault, After: after}
		}
		once.Do(func() { close(over) })
		return storagetest.Fault{}
	})
	p := f.start(func(ctx context.Context, j *pawl.Job) ([]byte, error) {
		if string(j.Payload) == "first" { // with claims to extend
			select {
			case <-over:
			case <-ctx.Done():
			}
		}
		return nil, ctx.Err()
	}, worker.Options{Concurrency: 4})
	f.enqueue("first")
	n := f.enqueueUntil(over)
	f.stop()
	f.wantOnce(n+1, p.Stats())
}

// enqueueUntil enqueues some jobs after another, until over.
func (f *fixture) enqueueUntil(over <-chan struct{}) (n int) {
	f.t.Helper()
	for began := time.Now(); time.Since(began) < patience; {
		for i := range 5 {
			f.enqueue(fmt.Sprint(n + i))
		}
		for range 5 {
			f.await(fmt.Sprint(n), 1)
			n++
		}
		select {
		case <-over:
			return n
		default:
		}
	}
	f.t.Fatal("the calls have not failed")
	return n
}

// outage lets all calls fail for a while.
func (f *fixture) outage(after bool) {
	const n = 20
	p := f.start(f.run, worker.Options{Concurrency: 2, Prefetch: worker.NoPrefetch})
	f.enqueue("slow")
	f.await("slow", 1)
	failures := make(chan string, 1000)
	f.disturb(func(c storagetest.Call) storagetest.Fault {
		if c.Method == storagetest.Event {
			return storagetest.Fault{}
		}
		failures <- c.Method
		return storagetest.Fault{Err: storagetest.ErrFault, After: after}
	})
	for i := range n {
		f.enqueue(fmt.Sprint(i))
	}
	close(f.hold) // what ends meanwhile can't be settled
	for seen := map[string]int{}; seen["Claim"]+seen["Cycle"] < 4 || seen["Settle"]+seen["Cycle"] < 4; {
		seen[receive(f, failures, "call")]++
	}
	f.disturb(nil)
	for i := range n {
		f.await(fmt.Sprint(i), 1)
	}
	f.stop()
	f.wantOnce(n+1, p.Stats())
}

// hints loses some events and doubles others.
func (f *fixture) hints() {
	const n = 30
	f.disturb(func(c storagetest.Call) storagetest.Fault {
		if c.Method != storagetest.Event {
			return storagetest.Fault{}
		}
		return storagetest.Fault{Copies: c.Nth%3 - 1}
	})
	p := f.start(f.run, worker.Options{})
	for i := range n {
		f.enqueue(fmt.Sprint(i))
		f.await(fmt.Sprint(i), 1)
	}
	f.stop()
	f.wantOnce(n, p.Stats())
}

// blind lets no watch begin, so that the pool polls.
func (f *fixture) blind() {
	const n = 10
	f.disturb(func(c storagetest.Call) storagetest.Fault {
		if c.Method != "Watch" {
			return storagetest.Fault{}
		}
		return storagetest.Fault{Err: storagetest.ErrFault}
	})
	p := f.start(f.run, worker.Options{})
	for i := range n {
		f.enqueue(fmt.Sprint(i))
		f.await(fmt.Sprint(i), 1)
	}
	f.stop()
	f.wantOnce(n, p.Stats())
}
