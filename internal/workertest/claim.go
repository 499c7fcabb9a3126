package workertest

import (
	"context"
	"errors"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/storagetest"
	"github.com/pawlq/pawl/worker"
)

// endedByHand ends a job while it runs, which ends its handler's context.
func (f *fixture) endedByHand(v pawl.ChangeVerb) {
	causes := make(chan error, 1)
	p := f.start(func(ctx context.Context, j *pawl.Job) ([]byte, error) {
		<-ctx.Done()
		causes <- context.Cause(ctx)
		return nil, nil // which must not count
	}, worker.Options{})
	id := f.enqueue("job")
	f.await("job", 1)
	if v == pawl.Cancel {
		f.must(f.q.Cancel(f.t.Context(), "", id))
	} else {
		f.must(f.q.Delete(f.t.Context(), "", id))
	}
	if cause := receive(f, causes, "end of the context"); !errors.Is(cause, pawl.ErrLost) {
		f.t.Errorf("cause %v", cause)
	}
	f.stop()
	if v == pawl.Cancel {
		f.want(id, pawl.Canceled, pawl.ReasonCancel)
	} else {
		f.wantGone(id)
	}
	if s := p.Stats(); s.Lost != 1 || s.Completed+s.Failed != 0 || f.ran["job"] != 1 {
		f.t.Errorf("stats %+v", s)
	}
}

// heartbeat lets a job run for some heartbeats.
func (f *fixture) heartbeat() {
	extends := make(chan string)
	f.start(f.run, worker.Options{})
	id := f.enqueue("slow")
	f.await("slow", 1)
	f.disturb(seeing(extends, "Extend"))
	for range 3 {
		receive(f, extends, "heartbeat")
	}
	f.disturb(nil)
	close(f.hold)
	f.stop()
	if j := f.want(id, pawl.Completed, ""); j.Counts.Extends < 2 || j.Counts.Rescues > 0 {
		f.t.Errorf("counts %+v", j.Counts)
	}
}

// seeing is a plan that tells of calls of the methods, each if one waits for it
// or there is room.
func seeing(calls chan<- string, methods ...string) func(storagetest.Call) storagetest.Fault {
	return func(c storagetest.Call) storagetest.Fault {
		for _, m := range methods {
			if c.Method == m {
				select {
				case calls <- m:
				default:
				}
			}
		}
		return storagetest.Fault{}
	}
}

// rescue lets a worker claim a job and die; when it comes back, it has lost it.
func (f *fixture) rescue() {
	j := f.claim(pawl.Request{Payload: []byte("job")}, pawl.MinLease)
	p := f.start(f.run, worker.Options{})
	f.await("job", 1)
	f.stop()
	if j := f.want(j.ID, pawl.Completed, ""); j.Counts.Rescues != 1 || j.Attempt != 1 {
		f.t.Errorf("attempt %d, counts %+v", j.Attempt, j.Counts)
	}
	if err := f.q.Nack(f.t.Context(), j, errHandler); !errors.Is(err, pawl.ErrLost) {
		f.t.Errorf("Nack by the first worker: %v", err)
	}
	if s := p.Stats(); s.Rescued != 1 || s.Completed != 1 {
		f.t.Errorf("stats %+v", s)
	}
}

func (f *fixture) buriedByRescue() {
	j := f.claim(pawl.Request{Payload: []byte("job"), MaxRescues: pawl.NoRescues}, pawl.MinLease)
	p := f.start(f.run, worker.Options{})
	if id := receive(f, f.dead, "call of OnBury"); id != j.ID {
		f.t.Errorf("OnBury was told of %v, want %v", id, j.ID)
	}
	f.stop()
	f.want(j.ID, pawl.Buried, pawl.ReasonRescues)
	if s := p.Stats(); s.RescueBuried != 1 || s.Started != 0 {
		f.t.Errorf("stats %+v", s)
	}
}

// leftover lets a handler ignore that its pool stops.
func (f *fixture) leftover() {
	release := make(chan struct{})
	returned := make(chan struct{})
	p := f.start(func(context.Context, *pawl.Job) ([]byte, error) {
		defer close(returned)
		<-release
		return []byte("too late"), nil
	}, worker.Options{Lease: time.Second, StopTimeout: often})
	f.pools = nil // this one does not stop well
	id := f.enqueue("job")
	f.await("job", 1)
	f.must(p.Stop(context.Background()))
	var left *worker.StopError
	if err := <-p.ended; !errors.As(err, &left) || len(left.Running) != 1 || left.Running[0].Ref.ID != id {
		f.t.Errorf("Run: %v", err)
	}
	f.start(f.run, worker.Options{})
	f.await("job", 2)
	f.stop()
	close(release)
	<-returned
	if j := f.want(id, pawl.Completed, ""); j.Result != nil || j.Counts.Rescues != 1 {
		f.t.Errorf("result %q, counts %+v", j.Result, j.Counts)
	}
}
