package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/torture/history"
	"github.com/pawlq/pawl/torture/load"
)

// A handler runs jobs as their classes say.
type handler struct {
	q      *pawl.Queue
	s      *store
	log    *history.Writer
	lease  time.Duration
	spared bool // jobs that end their process are handed back
}

// exitCode is that of processes which a job has ended.
const exitCode = 3

var (
	errFailed = errors.New("failed, as it should")
	errUndone = errors.New("rolled back, as it should be")
)

// start writes down that a job runs.
func (h *handler) start(j *pawl.Job) {
	h.log.Write(history.Event{Kind: history.Start, ID: j.ID, Fence: j.Fence, A: j.RunAt.UnixMicro(), B: j.ClaimedAt.UnixMicro()})
	if !bytes.Equal(j.Payload, load.Payload(j.ID)) {
		h.log.Write(history.Event{Kind: history.Corrupt, ID: j.ID, Fence: j.Fence})
	}
}

func (h *handler) run(ctx context.Context, j *pawl.Job) error {
	h.start(j)
	class := load.ClassOf(j.Kind)
	if h.spared && class.Deadly() {
		return pawl.Snooze(50 * time.Millisecond)
	}
	switch class {
	case load.Flaky:
		if j.Counts.Retries < 1+int(load.Hash(j.ID)%2) {
			return pawl.RetryAfter(20*time.Millisecond+time.Duration(load.Hash(j.ID)%100)*time.Millisecond, errFailed)
		}
	case load.Hopeless:
		return pawl.RetryAfter(10*time.Millisecond, errFailed)
	case load.Permanent:
		return pawl.Permanent(errFailed)
	case load.Snoozer:
		if j.Counts.Snoozes < 1 {
			return pawl.Snooze(30 * time.Millisecond)
		}
	case load.Panicker:
		if j.Counts.Retries < 1 {
			panic(errFailed)
		}
	case load.Goexiter:
		if j.Counts.Retries < 1 {
			runtime.Goexit()
		}
	case load.Slow:
		return sleep(ctx, h.lease*13/10)
	case load.Keyed:
		return sleep(ctx, 50*time.Millisecond) // for others to ask for its key
	case load.TxAck:
		return h.ack(ctx, j, false)
	case load.TxRolled:
		return h.ack(ctx, j, j.Counts.Retries < 1)
	case load.Exiter:
		if j.Counts.Rescues < 1 {
			os.Exit(exitCode)
		}
	case load.Poison:
		os.Exit(exitCode)
	}
	return nil
}

// ack completes a job together with its effect, or pretends to.
func (h *handler) ack(ctx context.Context, j *pawl.Job, undo bool) error {
	if h.s.inTx == nil {
		return nil
	}
	err := h.s.inTx(ctx, func(t tx) error {
		if err := t.note(ctx, effectTable, j.Ref); err != nil {
			return err
		}
		if load.Hash(j.ID)%8 == 0 {
			_ = sleep(ctx, 50*time.Millisecond) // others may wait for the connection
		}
		if err := h.q.WithTx(t.w).Ack(ctx, j, nil); err != nil {
			return err
		}
		if undo {
			return errUndone
		}
		return nil
	})
	if errors.Is(err, errUndone) {
		return nil // as a handler does that overlooks it; the pool must not
	}
	if err != nil {
		return pawl.RetryAfter(20*time.Millisecond, fmt.Errorf("ack in a transaction: %w", err))
	}
	return nil
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
