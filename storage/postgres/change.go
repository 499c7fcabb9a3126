package postgres

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/google/uuid"

	"github.com/pawlq/pawl"
)

// change first does all that nobody else has locked, and then waits for the
// others one by one, so that it never waits with a lock in its hand.
func (s *Store) change(ctx context.Context, c pawl.Change) ([]pawl.Changed, error) {
	if len(c.From) == 0 {
		c.From = c.Verb.From()
	}
	changed := make([]pawl.Changed, len(c.IDs))
	for i, id := range c.IDs {
		changed[i] = pawl.Changed{ID: id, Status: pawl.NotFound}
	}
	todo := make([]int, len(c.IDs))
	for i := range todo {
		todo[i] = i
	}
	for len(todo) > 0 {
		round, rest := distinct(c.IDs, todo)
		if err := s.changeRound(ctx, &c, changed, round); err != nil {
			return nil, err
		}
		todo = rest
	}
	return changed, nil
}

// distinct takes from places those with different IDs, in order of the IDs.
func distinct(ids []pawl.ID, places []int) (round, rest []int) {
	seen := make(map[pawl.ID]struct{}, len(places))
	for _, i := range places {
		if _, ok := seen[ids[i]]; ok {
			rest = append(rest, i)
			continue
		}
		seen[ids[i]] = struct{}{}
		round = append(round, i)
	}
	slices.SortFunc(round, func(a, b int) int { return bytes.Compare(ids[a][:], ids[b][:]) })
	return round, rest
}

// changeRound changes different jobs.
func (s *Store) changeRound(ctx context.Context, c *pawl.Change, changed []pawl.Changed, round []int) error {
	missed, err := s.changeAt(ctx, c, changed, round, false)
	if err != nil {
		return err
	}
	for _, i := range missed {
		there := false
		err := s.read(ctx, func(scanner) error {
			there = true
			return nil
		}, s.q.exists, c.IDs[i].String())
		if err != nil {
			return err
		}
		if !there {
			continue
		}
		if _, err := s.changeAt(ctx, c, changed, []int{i}, true); err != nil {
			return err
		}
	}
	return nil
}

// changeAt changes the jobs at some places in one transaction, and returns the
// places of those that it did not find or, unless it waits, that have to do with
// a row that others have locked.
func (s *Store) changeAt(ctx context.Context, c *pawl.Change, changed []pawl.Changed, round []int, waits bool) (missed []int, err error) {
	lock := s.q.tryLockByID
	if waits {
		lock = s.q.lockByID
	}
	var told events
	err = s.inTx(ctx, func(run runner) error {
		missed = nil
		ids := make([]string, len(round))
		for k, i := range round {
			ids[k] = c.IDs[i].String()
		}
		found, err := s.records(ctx, run, lock, ids)
		if err != nil {
			return err
		}
		if found, err = s.standStill(ctx, run, found); err != nil {
			return err
		}
		now, err := s.time(ctx, run)
		if err != nil {
			return err
		}
		byID := make(map[pawl.ID]*record, len(found))
		for _, r := range found {
			byID[r.id] = r
		}
		w := &changes{s: s, run: run, waits: waits}
		for _, i := range round {
			r := byID[c.IDs[i]]
			if r == nil {
				missed = append(missed, i)
				continue
			}
			done, err := w.apply(ctx, c, r, now)
			switch {
			case errors.Is(err, errHeld):
				missed = append(missed, i)
			case err != nil:
				return err
			default:
				changed[i] = done
			}
		}
		told = w.events
		return w.write(ctx)
	})
	if err == nil {
		s.publish(&told)
	}
	return missed, err
}

// standStill sees to it that no claim takes one of the jobs, whose rows are
// locked: of a fresh one that is no lock. Nobody who has the lock of a queue waits
// for a row, so this can't end in a deadlock.
func (s *Store) standStill(ctx context.Context, run runner, found []*record) ([]*record, error) {
	locks := map[int64]struct{}{}
	ids := make([]string, len(found))
	for i, r := range found {
		ids[i] = r.id.String()
		if r.fresh && r.state == pawl.Ready {
			locks[s.claimHash(r.queue)] = struct{}{}
		}
	}
	if len(locks) == 0 {
		return found, nil
	}
	if err := run.exec(ctx, s.q.locks, slices.Sorted(maps.Keys(locks))); err != nil {
		return nil, err
	}
	return s.records(ctx, run, s.q.rowsByID, ids)
}

// apply changes a record that is locked.
func (w *changes) apply(ctx context.Context, c *pawl.Change, r *record, now int64) (pawl.Changed, error) {
	done := pawl.Changed{ID: r.id, Status: pawl.NotFound}
	if c.Queue != "" && r.queue != c.Queue {
		return done, nil
	}
	done.Before = r.state
	if !slices.Contains(c.From, r.state) || !slices.Contains(c.Verb.From(), r.state) {
		done.Status = pawl.WrongState
		return done, nil
	}
	done.Status = pawl.Done
	if r.state == pawl.Running {
		w.events.ended(r.ref())
	}
	switch c.Verb {
	case pawl.Kick:
		return w.kick(ctx, r, done, now)
	case pawl.Cancel:
		w.end(r, r.finish(pawl.Canceled, pawl.ReasonCancel, now))
	case pawl.Delete:
		w.remove(r)
	case pawl.Reschedule:
		r.runAt = now
		if c.Delay > 0 {
			r.runAt += microseconds(c.Delay)
		} else if !c.RunAt.IsZero() {
			r.runAt = max(now, micros(c.RunAt))
		}
		r.wait(now)
		w.wait(r, now)
	default:
		r.edit(&c.Edit)
		w.wait(r, now)
	}
	return done, nil
}

// wait saves a job that waits, and tells of it.
func (w *changes) wait(r *record, now int64) {
	w.events.due(r.queue, toDuration(max(0, r.runAt-now)))
	w.saved = append(w.saved, r)
}

// kick makes a final job ready again, if its unique key is free.
func (w *changes) kick(ctx context.Context, r *record, done pawl.Changed, now int64) (pawl.Changed, error) {
	if r.ukey != "" && r.umode != pawl.UniqueUntilClaimed {
		holder, err := w.takeKey(ctx, r)
		if err != nil {
			return done, err
		}
		if holder != r.id {
			done.Status, done.Holder = pawl.Conflict, holder
			return done, nil
		}
		r.held = true
	}
	r.attempt, r.rescued, r.reason, r.startBefore = 0, 0, "", 0
	r.counts.Kicks++
	r.noResult = true
	r.runAt = now
	r.wait(now)
	w.noProgress = append(w.noProgress, r.seq)
	w.wait(r, now)
	if r.held {
		// The key is taken before the next kick of the call looks for it.
		err := w.run.exec(ctx, w.s.q.save, saveArgs([]*record{r})...)
		w.saved = w.saved[:len(w.saved)-1]
		return done, err
	}
	return done, nil
}

// errHeld is that others have locked the holder of a unique key.
var errHeld = errors.New("pawl/postgres: the holder of the unique key is locked")

// takeKey returns who holds the unique key of r: r itself if it is free. A key
// whose window is over is taken from its holder.
func (w *changes) takeKey(ctx context.Context, r *record) (pawl.ID, error) {
	if !w.waits {
		locked := false
		err := w.run.each(ctx, func(scanner) error {
			locked = true
			return nil
		}, w.s.q.tryHolder, r.queue, r.ukey)
		if err != nil || locked {
			return r.id, cmp.Or(err, errHeld)
		}
	}
	var (
		id          string
		state, over int
	)
	err := w.run.each(ctx, func(row scanner) error { return row.Scan(&id, &state, &over) },
		w.s.q.holder, w.s.clock(), r.queue, r.ukey)
	if err != nil || id == "" {
		return r.id, err
	}
	if over == 1 {
		return r.id, w.run.exec(ctx, w.s.q.releaseKey, id)
	}
	return uuid.Parse(id)
}

func (r *record) edit(e *pawl.EditFields) {
	if e.Priority != nil {
		r.priority = *e.Priority
	}
	if e.Timeout != nil {
		r.timeout = microseconds(*e.Timeout)
	}
	if e.Lease != nil {
		r.lease = microseconds(*e.Lease)
	}
	if e.MaxAttempts != nil {
		r.maxAttempts = *e.MaxAttempts
	}
	if e.StartBefore != nil {
		r.startBefore = micros(*e.StartBefore)
	}
	if e.Retention != nil {
		r.retention = microseconds(*e.Retention)
	}
	if e.Meta != nil {
		r.meta, r.newMeta = metaJSON(e.Meta), true
	}
	if e.Payload != nil {
		r.payload, r.newPayload = e.Payload, true
	}
}

func (s *Store) configure(ctx context.Context, queue string, set pawl.QueueSettings) error {
	if set.Paused == nil {
		return nil
	}
	sql := s.q.resume
	var told events
	if *set.Paused {
		sql = s.q.pause
		told.other = append(told.other, pawl.Event{Kind: pawl.EventPaused, Queue: queue})
	} else {
		told.due(queue, 0)
	}
	if err := s.pipelined(ctx, func(p *pipeline) { p.exec(sql, queue) }); err != nil {
		return err
	}
	s.publish(&told)
	return nil
}
