package postgres

import (
	"bytes"
	"context"
	"errors"
	"slices"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/text"
)

func (s *Store) settle(ctx context.Context, outcomes []pawl.Outcome) ([]pawl.Ref, error) {
	if len(outcomes) == 0 {
		return nil, nil
	}
	st := s.newSettlement(outcomes)
	if err := s.pipelined(ctx, st.first); err != nil {
		return nil, err
	}
	err := st.rest(ctx)
	return st.lost(), err
}

// settlement is one call of Settle.
type settlement struct {
	s        *Store
	outcomes []pawl.Outcome
	status   []int // by outcome; 0 is done
	// rounds are places of outcomes. No job is twice in one round: the statement
	// would not see what it has just done itself.
	rounds [][]int
	events events
	over   []int64 // claims of which nothing is left, whose rows can go
	locked bool    // the statements for acks have met a lock
}

func (s *Store) newSettlement(outcomes []pawl.Outcome) *settlement {
	st := &settlement{s: s, outcomes: outcomes, status: make([]int, len(outcomes))}
	seen := make(map[pawl.ID]int, len(outcomes))
	for i := range outcomes {
		o := &outcomes[i]
		n := seen[o.Ref.ID]
		seen[o.Ref.ID] = n + 1
		if n == len(st.rounds) {
			st.rounds = append(st.rounds, nil)
		}
		st.rounds[n] = append(st.rounds[n], i)
		if o.Verb != pawl.Ack && o.Verb != pawl.Bury {
			st.events.due(o.Ref.Queue, o.Delay)
		}
	}
	for _, round := range st.rounds {
		// All lock rows in the same order.
		slices.SortFunc(round, func(a, b int) int { return bytes.Compare(outcomes[a].Ref.ID[:], outcomes[b].Ref.ID[:]) })
	}
	return st
}

// first puts the first round into a pipeline.
func (st *settlement) first(p *pipeline) {
	if len(st.rounds) == 0 {
		return
	}
	st.over = append(st.over, st.s.batches.take()...)
	if len(st.over) > 0 {
		p.exec(st.s.q.dropClaims, st.over)
	}
	gone, kept, others := st.split(st.rounds[0])
	st.addAcks(p, gone, kept)
	st.add(p, others)
}

// lockedTries is how often a settle looks again at jobs that others have
// locked: a call of this package lets go within milliseconds, an open
// transaction may not.
const lockedTries = 6

// rest runs the other rounds, and tries the jobs that were locked again.
func (st *settlement) rest(ctx context.Context) error {
	for n, round := range st.rounds {
		todo := round
		if n == 0 {
			todo = st.with(round, statusUnsure)
		}
		if err := st.again(ctx, todo); err != nil {
			return err
		}
		for try := 1; try < lockedTries; try++ {
			locked := st.with(round, statusLocked)
			if len(locked) == 0 {
				break
			}
			if err := pause(ctx, try); err != nil {
				break // most of the call is done, and BusyError says so
			}
			if err := st.again(ctx, locked); err != nil {
				return err
			}
		}
	}
	st.note()
	st.s.publish(&st.events)
	if locked := st.with(st.all(), statusLocked); len(locked) > 0 {
		busy := new(pawl.BusyError)
		for _, i := range locked {
			busy.Refs = append(busy.Refs, st.outcomes[i].Ref)
		}
		return busy
	}
	return nil
}

// note lets the Store forget what is settled, or lost.
func (st *settlement) note() {
	st.s.batches.mu.Lock()
	defer st.s.batches.mu.Unlock()
	for i, o := range st.outcomes {
		switch {
		case st.status[i] == 0:
			st.s.batches.settled(o.Ref)
		case st.status[i] != statusLocked:
			st.s.batches.leave(o.Ref)
		}
	}
}

// refs are those of all outcomes.
func (st *settlement) refs() []pawl.Ref {
	refs := make([]pawl.Ref, len(st.outcomes))
	for i, o := range st.outcomes {
		refs[i] = o.Ref
	}
	return refs
}

func (st *settlement) again(ctx context.Context, places []int) error {
	if len(places) == 0 {
		return nil
	}
	return st.s.pipelined(ctx, func(p *pipeline) { st.add(p, places) })
}

// add puts the settling of some places into a pipeline.
func (st *settlement) add(p *pipeline, places []int) {
	if len(places) == 0 {
		return
	}
	for _, i := range places {
		st.status[i] = 0
	}
	p.each(st.read(places), st.s.q.settle, st.args(places)...)
}

// inTx settles in a caller's transaction, which waits for locks.
func (st *settlement) inTx(ctx context.Context, run runner) error {
	for _, round := range st.rounds {
		for range oneTries {
			if err := run.each(ctx, st.read(round), st.s.q.settleTx, st.args(round)...); err != nil {
				return err
			}
			if len(st.with(round, statusUnseen)) > 0 {
				return errUnseen
			}
			if round = st.with(round, statusLocked); len(round) == 0 {
				break
			}
			for _, i := range round { // gone or moved while it was waited for
				st.status[i] = 0
			}
		}
		if len(round) > 0 {
			return errAgain
		}
	}
	return nil
}

// errUnseen is that of a transaction at a higher isolation level that was begun
// before the claim. An update would fail there with a serialization failure.
var errUnseen = errors.New("the claim was made after the snapshot of the transaction was taken")

func (st *settlement) all() []int {
	all := make([]int, len(st.outcomes))
	for i := range all {
		all[i] = i
	}
	return all
}

// with returns the places that have a status.
func (st *settlement) with(places []int, status int) (found []int) {
	for _, i := range places {
		if st.status[i] == status {
			found = append(found, i)
		}
	}
	return found
}

// lost lists the claims that were not current.
func (st *settlement) lost() (refs []pawl.Ref) {
	for i := range st.outcomes {
		if st.isLost(i) && !st.againInCall(i) {
			refs = append(refs, st.outcomes[i].Ref)
		}
	}
	return refs
}

func (st *settlement) isLost(i int) bool {
	return st.status[i] == statusLost || st.status[i] == statusUnseen || st.status[i] == statusMissing && !st.outcomes[i].Repeat
}

// againInCall reports whether the same outcome earlier in the call was success:
// what came after it may have removed the record, or ended another claim.
func (st *settlement) againInCall(i int) bool {
	o := &st.outcomes[i]
	for k := range i {
		p := &st.outcomes[k]
		same := p.Verb == o.Verb && p.Ref.ID == o.Ref.ID && p.Ref.Fence == o.Ref.Fence
		if same && st.status[k] != statusLocked && !st.isLost(k) {
			return true
		}
	}
	return false
}

// read takes the statuses of a round's places.
func (st *settlement) read(round []int) func(scanner) error {
	return func(row scanner) error {
		var ord, status int
		err := row.Scan(&ord, &status)
		if err == nil && ord >= 1 && ord <= len(round) {
			st.status[round[ord-1]] = status
		}
		return err
	}
}

// args are those of the statement for a round.
func (st *settlement) args(round []int) []any {
	n := len(round)
	var (
		ids, errs, stacks = make([]string, n), make([]string, n), make([]string, n)
		fences, delays    = make([]int64, n), make([]int64, n)
		verbs             = make([]int16, n)
		urgencies         = make([]*int16, n)
		results           = make([][]byte, n)
	)
	for k, i := range round {
		o := &st.outcomes[i]
		ids[k], fences[k], verbs[k] = o.Ref.ID.String(), o.Ref.Fence, int16(o.Verb)
		switch o.Verb {
		case pawl.Ack:
			if len(o.Result) > 0 {
				results[k] = o.Result
			}
			continue
		case pawl.Nack, pawl.Bury:
			errs[k], stacks[k] = text.Clean(o.Error, pawl.MaxErrorText), text.Clean(o.Stack, pawl.MaxErrorText)
		case pawl.Release:
			if o.Priority != nil {
				p := int16(*o.Priority)
				urgencies[k] = &p
			}
		}
		delays[k] = max(0, microseconds(o.Delay))
	}
	return []any{st.s.clock(), ids, fences, verbs, delays, urgencies, results, errs, stacks}
}
