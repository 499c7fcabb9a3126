package postgres

import (
	"context"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/text"
)

// changes collects what becomes of records that are locked, to be written at
// once.
type changes struct {
	s          *Store
	run        runner
	waits      bool // for rows that others have locked
	saved      []*record
	removed    []string // IDs
	gone       []int64  // seqs, of whose leases nothing shall stay
	noProgress []int64  // seqs
	events     events
}

// end saves a record that finish has made final, or removes it.
func (c *changes) end(r *record, keep bool) {
	if keep {
		c.saved = append(c.saved, r)
		return
	}
	c.remove(r)
}

func (c *changes) remove(r *record) {
	c.removed = append(c.removed, r.id.String())
	c.gone = append(c.gone, r.seq)
}

// records reads jobs by ID, in order of the IDs, without those that are
// missing or, with tryLockByID, locked, and without payloads and results.
func (s *Store) records(ctx context.Context, run runner, sql string, ids []string) (found []*record, err error) {
	err = run.each(ctx, func(row scanner) error {
		r := new(record)
		found = append(found, r)
		var ord int
		var c claimed
		err := r.scan(row, append(append(r.leaseFields(), c.fields()...), &ord)...)
		r.derive(&c)
		return err
	}, sql, ids)
	return found, err
}

// time is the storage's time in microseconds.
func (s *Store) time(ctx context.Context, run runner) (now int64, err error) {
	err = run.each(ctx, func(row scanner) error { return row.Scan(&now) }, s.q.now, s.clock())
	return now, err
}

// write writes it all.
func (c *changes) write(ctx context.Context) error {
	if len(c.saved) > 0 {
		if err := c.run.exec(ctx, c.s.q.save, saveArgs(c.saved)...); err != nil {
			return err
		}
	}
	if len(c.removed) > 0 {
		if err := c.run.exec(ctx, c.s.q.remove, c.removed); err != nil {
			return err
		}
	}
	if len(c.gone) > 0 {
		if err := c.run.exec(ctx, c.s.q.forgetLeases, c.gone); err != nil {
			return err
		}
	}
	if len(c.noProgress) > 0 {
		return c.run.exec(ctx, c.s.q.forgetProgress, c.noProgress)
	}
	return nil
}

// saveArgs are the arguments of the statement save.
func saveArgs(records []*record) []any {
	n := len(records)
	var (
		ids, kinds, reasons, failures, metas = make([]string, n), make([]string, n), make([]string, n), make([]string, n), make([]string, n)
		states, priorities, modes            = make([]int16, n), make([]int16, n), make([]int16, n)
		runAts, befores, finished, purges    = make([]int64, n), make([]int64, n), make([]int64, n), make([]int64, n)
		leases, timeouts, retains, windows   = make([]int64, n), make([]int64, n), make([]int64, n), make([]int64, n)
		attempts, rescued, rescues, kicks    = make([]int32, n), make([]int32, n), make([]int32, n), make([]int32, n)
		maxAttempts, maxRescues              = make([]int32, n), make([]int32, n)
		helds, newMetas, newPayloads, clears = make([]bool, n), make([]bool, n), make([]bool, n), make([]bool, n)
		payloads                             = make([][]byte, n)
		fences, claimedAts, startedAts       = make([]int64, n), make([]int64, n), make([]int64, n)
		workers                              = make([]string, n)
	)
	for i, r := range records {
		fences[i], claimedAts[i], startedAts[i], workers[i] = r.fence, r.claimedAt, r.startedAt, r.worker
		ids[i], kinds[i], reasons[i], metas[i] = r.id.String(), r.kind, r.reason, r.meta
		states[i], priorities[i], modes[i] = int16(r.state), int16(r.priority), int16(r.umode)
		runAts[i], befores[i], finished[i], purges[i] = r.runAt, r.startBefore, r.finishedAt, r.purgeAt
		leases[i], timeouts[i], retains[i], windows[i] = r.lease, r.timeout, r.retention, r.uwindow
		attempts[i], rescued[i], rescues[i], kicks[i] = int32(r.attempt), int32(r.rescued), int32(r.counts.Rescues), int32(r.counts.Kicks)
		maxAttempts[i], maxRescues[i] = int32(r.maxAttempts), int32(r.maxRescues)
		helds[i], newMetas[i], newPayloads[i], clears[i] = r.held, r.newMeta, r.newPayload, r.noResult
		if f := r.failure; f != nil {
			failures[i] = toJSON(failureJSON{At: micros(f.At), Attempt: f.Attempt, Worker: f.WorkerID,
				Error: text.Clean(f.Error, pawl.MaxErrorText)})
		}
		if r.newPayload && len(r.payload) > 0 {
			payloads[i] = r.payload
		}
	}
	return []any{ids, states, kinds, priorities, reasons, runAts, befores, finished, purges, leases, timeouts, retains,
		attempts, rescued, maxAttempts, maxRescues, modes, windows, helds, rescues, kicks, failures, newMetas, metas,
		newPayloads, payloads, clears, fences, workers, claimedAts, startedAts}
}
