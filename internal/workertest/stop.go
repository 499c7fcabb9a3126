package workertest

import (
	"context"
	"errors"
	"fmt"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/worker"
)

// softStop stops while a handler is at work.
func (f *fixture) softStop() {
	p := f.start(f.run, worker.Options{Concurrency: 1, Prefetch: worker.NoPrefetch})
	id := f.enqueue("slow")
	f.await("slow", 1)
	f.beginStop(p)
	late := f.enqueue("late")
	close(f.hold)
	f.stop()
	f.want(id, pawl.Completed, "")
	f.want(late, pawl.Ready, "")
	if s := p.Stats(); s.Completed != 1 || s.Claimed != 1 {
		f.t.Errorf("stats %+v", s)
	}
}

// hardStop stops handlers that wait for the end of their context. They have all
// slots, or a claim under way could get again what is handed back.
func (f *fixture) hardStop() {
	p := f.start(func(ctx context.Context, j *pawl.Job) ([]byte, error) {
		<-ctx.Done()
		switch string(j.Payload) {
		case "finishes":
			return nil, nil
		case "fails":
			return nil, pawl.Permanent(errHandler)
		}
		if cause := context.Cause(ctx); !errors.Is(cause, worker.ErrStopping) {
			return nil, pawl.Permanent(cause)
		}
		return nil, ctx.Err()
	}, worker.Options{StopTimeout: often, Concurrency: 3, Prefetch: worker.NoPrefetch})
	heeds, finishes, fails := f.enqueue("heeds"), f.enqueue("finishes"), f.enqueue("fails")
	for _, payload := range []string{"heeds", "finishes", "fails"} {
		f.await(payload, 1)
	}
	f.stop()
	if j := f.want(heeds, pawl.Ready, pawl.ReasonRelease); j.Attempt != 0 || j.Counts.Releases != 1 {
		f.t.Errorf("attempt %d, counts %+v", j.Attempt, j.Counts)
	}
	f.want(finishes, pawl.Completed, "")
	f.want(fails, pawl.Buried, pawl.ReasonBury)
	if s := p.Stats(); s.Completed != 1 || s.Released != 1 || s.Buried != 1 {
		f.t.Errorf("stats %+v", s)
	}
}

// prefetched starts a pool whose one slot is busy and that has claimed five
// jobs more, of seven that wait.
func (f *fixture) prefetched() (p *pool, waiting []pawl.ID) {
	f.t.Helper()
	f.enqueue("slow")
	for i := range 7 {
		waiting = append(waiting, f.enqueue(fmt.Sprint(i)))
	}
	p = f.start(f.run, worker.Options{Concurrency: 1, Prefetch: 5})
	f.await("slow", 1)
	if s := p.Stats(); s.Running != 1 || s.Prefetched != 5 {
		f.t.Fatalf("stats %+v", s)
	}
	return p, waiting
}

func (f *fixture) wantHandedBack(p *pool, waiting []pawl.ID) {
	f.t.Helper()
	for i, id := range waiting {
		reason := pawl.ReasonRelease
		if i >= 5 {
			reason = ""
		}
		if j := f.want(id, pawl.Ready, reason); j.Attempt != 0 {
			f.t.Errorf("attempt %d", j.Attempt)
		}
	}
	if s := p.Stats(); s.Started != 1 || s.Completed != 1 || s.Released != 5 {
		f.t.Errorf("stats %+v", s)
	}
}

func (f *fixture) stopHandsBack() {
	p, waiting := f.prefetched()
	f.beginStop(p)
	close(f.hold)
	f.stop()
	f.wantHandedBack(p, waiting)
}

// pauseHandsBack pauses a queue of which jobs are prefetched, and resumes it.
func (f *fixture) pauseHandsBack() {
	p, waiting := f.prefetched()
	settles := make(chan string, 1)
	f.disturb(seeing(settles, "Settle", "Cycle"))
	f.must(f.q.Pause(f.t.Context(), pawl.DefaultQueue))
	receive(f, settles, "settle") // though no run has ended
	close(f.hold)
	f.stop()
	f.wantHandedBack(p, waiting)
	p = f.start(f.run, worker.Options{})
	f.must(f.q.Resume(f.t.Context(), pawl.DefaultQueue))
	for i := range waiting {
		f.await(fmt.Sprint(i), 1)
	}
	f.stop()
	if s := p.Stats(); s.Completed != int64(len(waiting)) {
		f.t.Errorf("stats %+v", s)
	}
}
