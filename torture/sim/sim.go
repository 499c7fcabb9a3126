// Package sim simulates hours of pools on a storage in memory, in time that does not
// pass, with workers that die, pause and come back, and a clock that is set. All
// follows from one seed. Its tests are what it is for.
package sim

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/pawlq/pawl"
)

// Kinds of jobs.
const (
	goodKind = "good"
	slowKind = "slow"
	failKind = "fail" // once
	badKind  = "bad"  // until it is buried
)

// errDead is what a process gets that has died, so that what it still does comes to
// an end without any effect.
var errDead = errors.New("sim: this process is dead")

// A host stands between a pool and the storage: the pool's process may be paused, so
// that nothing it does takes effect until it goes on, or die.
type host struct {
	pawl.Storage
	ledger *ledger

	mu   sync.Mutex
	gate chan struct{} // closed while the process runs
	dead chan struct{}
}

func newHost(s pawl.Storage, l *ledger) *host {
	h := &host{Storage: s, ledger: l, gate: make(chan struct{}), dead: make(chan struct{})}
	close(h.gate)
	return h
}

// pause stops the process until resume.
func (h *host) pause() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.gate = make(chan struct{})
}

func (h *host) resume() {
	h.mu.Lock()
	defer h.mu.Unlock()
	close(h.gate)
}

func (h *host) kill() { close(h.dead) }

// pass waits while the process is paused.
func (h *host) pass() error {
	h.mu.Lock()
	gate := h.gate
	h.mu.Unlock()
	select {
	case <-h.dead:
		return errDead
	default:
	}
	select {
	case <-gate:
		return nil
	case <-h.dead:
		return errDead
	}
}

// Unwrap lets the pool find the storage's events.
func (h *host) Unwrap() pawl.Storage { return h.Storage }

// A paused process does not notice that its calls' contexts end, so calls are made
// without them when it goes on. The ledger is locked during calls, so that it sees
// them in the order in which they took effect.

func (h *host) Claim(ctx context.Context, spec pawl.ClaimSpec) (pawl.Claimed, error) {
	if err := h.pass(); err != nil {
		return pawl.Claimed{}, err
	}
	h.ledger.mu.Lock()
	defer h.ledger.mu.Unlock()
	c, err := h.Storage.Claim(context.WithoutCancel(ctx), spec)
	h.ledger.claimed(c.Jobs)
	return c, err
}

func (h *host) Settle(ctx context.Context, outcomes []pawl.Outcome) ([]pawl.Ref, error) {
	if err := h.pass(); err != nil {
		return nil, err
	}
	h.ledger.mu.Lock()
	defer h.ledger.mu.Unlock()
	lost, err := h.Storage.Settle(context.WithoutCancel(ctx), outcomes)
	if err == nil {
		h.ledger.settled(outcomes, lost)
	}
	return lost, err
}

// Cycle implements [pawl.Cycler].
func (h *host) Cycle(ctx context.Context, outcomes []pawl.Outcome, spec pawl.ClaimSpec) ([]pawl.Ref, pawl.Claimed, error) {
	lost, err := h.Settle(ctx, outcomes)
	if err != nil {
		return nil, pawl.Claimed{}, err
	}
	c, err := h.Claim(ctx, spec)
	return lost, c, err
}

func (h *host) Extend(ctx context.Context, renewals []pawl.Renewal) ([]pawl.Ref, error) {
	if err := h.pass(); err != nil {
		return nil, err
	}
	h.ledger.mu.Lock()
	defer h.ledger.mu.Unlock()
	lost, err := h.Storage.Extend(context.WithoutCancel(ctx), renewals)
	if err == nil {
		h.ledger.extended(renewals, lost)
	}
	return lost, err
}

func (h *host) Sweep(ctx context.Context, spec pawl.SweepSpec) (pawl.Swept, error) {
	if err := h.pass(); err != nil {
		return pawl.Swept{}, err
	}
	return h.Storage.Sweep(context.WithoutCancel(ctx), spec)
}

func (h *host) Get(ctx context.Context, queue string, ids ...pawl.ID) ([]*pawl.Job, error) {
	if err := h.pass(); err != nil {
		return nil, err
	}
	return h.Storage.Get(context.WithoutCancel(ctx), queue, ids...)
}

// A clock is that of the storage: virtual time, and what it was set by.
type clock struct {
	mu sync.Mutex
	by time.Duration
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Add(c.by)
}

func (c *clock) step(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.by += d
}
