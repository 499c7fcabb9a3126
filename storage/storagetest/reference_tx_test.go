package storagetest

import (
	"context"
	"slices"

	"github.com/pawlq/pawl"
)

// A refTx is a caller's transaction on a reference: a copy of the model that
// its calls work on, and those calls once more, for the commit.
type refTx struct {
	s     *reference
	m     *model
	calls []func(m *model)
	held  []pawl.ID
	flaw  txFlaw
}

// A txFlaw is a bug of transactions.
type txFlaw int

const (
	none    txFlaw = iota
	partial        // a failed call leaves a part
	anew           // a failed call loses what was before, and the next begins anew
	silent         // a held job gives no BusyError
)

func (s *reference) transaction() *refTx {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &refTx{s: s, m: s.m.clone(), flaw: s.flaw}
}

func (x *refTx) Enqueue(ctx context.Context, reqs []*pawl.Request) (receipts []pawl.Receipt, err error) {
	now, err := x.s.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer x.s.mu.Unlock()
	for part := range slices.Chunk(reqs, x.step(len(reqs))) {
		if err := ctx.Err(); err != nil {
			return nil, x.failed(err)
		}
		got, err := x.m.enqueue(part, now)
		if err != nil {
			return nil, x.failed(err)
		}
		receipts = append(receipts, got...)
		x.calls = append(x.calls, func(m *model) { _, _ = m.enqueue(part, now) })
	}
	return receipts, nil
}

func (x *refTx) Settle(ctx context.Context, outcomes []pawl.Outcome) (lost []pawl.Ref, err error) {
	now, err := x.s.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer x.s.mu.Unlock()
	for part := range slices.Chunk(outcomes, x.step(len(outcomes))) {
		if err := ctx.Err(); err != nil {
			return nil, x.failed(err)
		}
		x.hold(part)
		lost = append(lost, x.m.settle(part, now)...)
		x.calls = append(x.calls, func(m *model) { m.settle(part, now) })
	}
	return lost, nil
}

// step is how much of n a call does at once.
func (x *refTx) step(n int) int {
	if x.flaw == partial || x.flaw == anew {
		return 1
	}
	return max(n, 1)
}

func (x *refTx) hold(outcomes []pawl.Outcome) {
	for _, o := range outcomes {
		if r := x.m.jobs[o.Ref.ID]; r != nil && r.current(o.Ref) {
			x.held = append(x.held, o.Ref.ID)
			x.s.held[o.Ref.ID] = x.flaw != silent
		}
	}
}

// failed is what a flawed transaction does about an error.
func (x *refTx) failed(err error) error {
	if x.flaw == anew {
		x.m, x.calls = x.s.m.clone(), nil
	}
	return err
}

func (x *refTx) commit() error {
	x.s.mu.Lock()
	for _, call := range x.calls {
		call(x.s.m)
	}
	x.s.mu.Unlock()
	return x.rollback()
}

func (x *refTx) rollback() error {
	x.s.mu.Lock()
	defer x.s.mu.Unlock()
	for _, id := range x.held {
		delete(x.s.held, id)
	}
	return nil
}
