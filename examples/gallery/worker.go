package main

import (
	"context"
	"database/sql"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/task"
)

// thumbnails is the queue of this program.
const thumbnails = "thumbnails"

// makeThumb asks for the thumbnail of a picture.
type makeThumb struct {
	Picture int64 `json:"picture"`
}

func (makeThumb) Kind() string { return "thumbnail" }

// Defaults say how the jobs are enqueued.
func (makeThumb) Defaults() pawl.Request {
	return pawl.Request{Queue: thumbnails, MaxAttempts: 10}
}

// trouble is what the flags inject into every run of a job.
type trouble struct {
	flaky float64       // how likely it fails, 0 to 1
	slow  time.Duration // how long it takes longer
}

var errInjected = errors.New("injected by -flaky: the lights went out")

func (t trouble) happen(ctx context.Context) error {
	if t.slow > 0 {
		select {
		case <-time.After(t.slow):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if rand.Float64() < t.flaky {
		return errInjected
	}
	return nil
}

// handler makes thumbnails. A picture that can't be decoded never will be, so
// its job goes to the dead-letter queue at once; all else may pass and is tried
// again.
func handler(p *pictures, t trouble) func(context.Context, *task.Job[makeThumb]) error {
	return func(ctx context.Context, job *task.Job[makeThumb]) error {
		content, err := p.content(ctx, job.Args.Picture)
		if errors.Is(err, sql.ErrNoRows) {
			return pawl.Permanent(errors.New("the picture was deleted"))
		}
		if err != nil {
			return err
		}
		if err := t.happen(ctx); err != nil {
			return err
		}
		thumb, err := makeThumbnail(content)
		if err != nil {
			return pawl.Permanent(err)
		}
		return p.setThumbnail(ctx, job.Args.Picture, thumb)
	}
}
