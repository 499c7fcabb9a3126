// Manual controls jobs by hand, as clients of beanstalkd do, and prints the
// numbers of the queue as it goes. In beanstalkd's words and pawl's:
//
//	put        Enqueue       bury       Bury
//	reserve    Claim         kick       KickAll
//	touch      Extend        kick-job   Kick
//	release    Release       peek-*     Peek
//	delete     Ack, Delete   stats-tube Stats
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/memory"
)

// tube is the queue's name; beanstalkd calls queues tubes.
const tube = "mail"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, out io.Writer) error {
	store := memory.New(nil)
	defer store.Close()
	t := &tour{q: pawl.New(store, nil), out: out}
	for _, stop := range []func(context.Context) error{t.put, t.touch, t.release, t.bury, t.late, t.last} {
		if err := stop(ctx); err != nil {
			return err
		}
	}
	return nil
}

type tour struct {
	q   *pawl.Queue
	out io.Writer
}

// put enqueues three letters. The one put last is the most urgent: as in
// beanstalkd, the smaller number goes first.
func (t *tour) put(ctx context.Context) error {
	_, err := t.q.EnqueueMany(ctx, []*pawl.Request{
		{Queue: tube, Kind: "letter", Payload: []byte("postcard")},
		{Queue: tube, Kind: "letter", Payload: []byte("parcel")},
		{Queue: tube, Kind: "letter", Payload: []byte("telegram"), Priority: -10},
	})
	return t.tell(ctx, err, "put a postcard, a parcel and an urgent telegram")
}

// touch reserves a letter for a second, asks for a minute more, and is done
// with it.
func (t *tour) touch(ctx context.Context) error {
	job, err := t.reserve(ctx, time.Second)
	if err != nil {
		return err
	}
	err = t.q.Extend(ctx, job, &pawl.ExtendOptions{Lease: time.Minute})
	if err := t.tell(ctx, err, "touch the %s", job.Payload); err != nil {
		return err
	}
	err = t.q.Ack(ctx, job, nil)
	return t.tell(ctx, err, "ack the %s", job.Payload)
}

// release hands a letter back for a while, and makes it less urgent. Meanwhile
// the next one comes.
func (t *tour) release(ctx context.Context) error {
	job, err := t.reserve(ctx, time.Minute)
	if err != nil {
		return err
	}
	const delay = 200 * time.Millisecond
	err = t.q.Release(ctx, job, &pawl.ReleaseOptions{Delay: delay, Priority: new(10)})
	if err := t.tell(ctx, err, "release the %s with a delay of %v", job.Payload, delay); err != nil {
		return err
	}
	next, err := t.q.Peek(ctx, tube, pawl.Scheduled)
	if err != nil {
		return err
	}
	return t.tell(ctx, nil, "peek at the next delayed: the %s", next.Payload)
}

// bury puts a letter aside, looks at it, and kicks it back.
func (t *tour) bury(ctx context.Context) error {
	job, err := t.reserve(ctx, time.Minute)
	if err != nil {
		return err
	}
	err = t.q.Bury(ctx, job, errors.New("no such street"))
	if err := t.tell(ctx, err, "bury the %s", job.Payload); err != nil {
		return err
	}
	dead, err := t.q.Peek(ctx, tube, pawl.Buried)
	if err != nil {
		return err
	}
	if err := t.tell(ctx, nil, "peek at the first buried: the %s, %q", dead.Payload, dead.Failures[0].Error); err != nil {
		return err
	}
	n, err := t.q.KickAll(ctx, pawl.Filter{Queue: tube}, 10)
	return t.tell(ctx, err, "kick up to 10: %d", n)
}

// late lets a lease end. The letter goes to someone else, and the one that was
// late can do no harm any more: the fence of its claim has ended.
func (t *tour) late(ctx context.Context) error {
	const lease = 50 * time.Millisecond
	first, err := t.reserve(ctx, lease)
	if err != nil {
		return err
	}
	time.Sleep(lease)
	// Waiting claimers and pools sweep every few seconds. This does it now.
	swept, err := t.q.Sweep(ctx)
	if err := t.tell(ctx, err, "sleep too long: %d lease ended", len(swept.Rescued)); err != nil {
		return err
	}
	second, err := t.reserve(ctx, time.Minute)
	if err != nil {
		return err
	}
	if err := t.q.Ack(ctx, first, nil); !errors.Is(err, pawl.ErrLost) {
		return fmt.Errorf("a lost claim was acked: %w", err)
	}
	if err := t.tell(ctx, nil, "ack the %s too late: refused", first.Payload); err != nil {
		return err
	}
	err = t.q.Ack(ctx, second, nil)
	return t.tell(ctx, err, "ack the %s", second.Payload)
}

// last waits for what was delayed.
func (t *tour) last(ctx context.Context) error {
	job, err := t.reserve(ctx, time.Minute)
	if err != nil {
		return err
	}
	err = t.q.Ack(ctx, job, nil)
	return t.tell(ctx, err, "ack the %s", job.Payload)
}

// reserve waits for a letter.
func (t *tour) reserve(ctx context.Context, lease time.Duration) (*pawl.Job, error) {
	job, err := t.q.Claim(ctx, &pawl.ClaimOptions{Queues: []string{tube}, Lease: lease})
	if err != nil {
		return nil, err
	}
	return job, t.tell(ctx, nil, "reserve the %s for %v", job.Payload, lease)
}

// tell prints what was done and how the queue stands, unless err is not nil.
func (t *tour) tell(ctx context.Context, err error, format string, args ...any) error {
	if err != nil {
		return err
	}
	stats, err := t.q.Stats(ctx, tube)
	if err != nil {
		return err
	}
	s := stats[0]
	_, err = fmt.Fprintf(t.out, "%-55s ready %d, delayed %d, reserved %d, done %d, buried %d\n",
		fmt.Sprintf(format, args...), s.Ready, s.Scheduled, s.Running, s.Completed, s.Buried)
	return err
}
