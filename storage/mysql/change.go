package mysql

import (
	"context"
	"slices"

	"github.com/pawlq/pawl"
)

func (s *Store) change(ctx context.Context, c pawl.Change) (changed []pawl.Changed, err error) {
	if len(c.IDs) == 0 {
		return nil, nil
	}
	err = s.inTx(ctx, func(b *batch) (err error) {
		changed, err = b.change(c)
		return err
	})
	return changed, err
}

// change waits for jobs that others have locked: whoever changes jobs by hand
// wants to know what became of them.
func (b *batch) change(c pawl.Change) ([]pawl.Changed, error) {
	if err := b.lookAtClock(); err != nil {
		return nil, err
	}
	f, err := b.lockAndWait(c.IDs)
	if err != nil {
		return nil, err
	}
	from := c.From
	if len(from) == 0 {
		from = c.Verb.From()
	}
	changed := make([]pawl.Changed, len(c.IDs))
	for i, id := range c.IDs {
		changed[i] = pawl.Changed{ID: id, Status: pawl.NotFound}
		r := f.all[id]
		if r == nil || r.gone || c.Queue != "" && r.queue != c.Queue {
			continue
		}
		changed[i].Before = r.state
		if !slices.Contains(from, r.state) || !slices.Contains(c.Verb.From(), r.state) {
			changed[i].Status = pawl.WrongState
			continue
		}
		changed[i].Status = pawl.Done
		if err := b.changeOne(f, r, &c, &changed[i]); err != nil {
			return nil, err
		}
	}
	return changed, b.flush(f.records())
}

func (b *batch) lockAndWait(ids []pawl.ID) (*jobs, error) {
	ids = slices.Clone(ids)
	slices.SortFunc(ids, compareIDs)
	f := &jobs{all: make(map[pawl.ID]*record, len(ids))}
	found, err := b.lock(b.withTime(slices.Compact(ids)).add(" FOR UPDATE"))
	for _, r := range found {
		f.all[r.id] = r
	}
	return f, err
}

func (b *batch) changeOne(f *jobs, r *record, c *pawl.Change, changed *pawl.Changed) error {
	if r.state == pawl.Running {
		b.events.ended(r.ref())
	}
	switch c.Verb {
	case pawl.Kick:
		return b.kick(f, r, changed)
	case pawl.Cancel:
		r.finish(pawl.Canceled, pawl.ReasonCancel, b.now)
	case pawl.Delete:
		r.remove()
	case pawl.Reschedule:
		r.runAt = b.now
		if c.Delay > 0 {
			r.runAt += microseconds(c.Delay)
		} else if !c.RunAt.IsZero() {
			r.runAt = max(b.now, micros(c.RunAt))
		}
		r.wait(b.now)
		b.due(r.queue, r.runAt)
	default:
		b.edit(r, &c.Edit)
	}
	return nil
}

// kick makes a final job ready again, if its unique key is free.
func (b *batch) kick(f *jobs, r *record, changed *pawl.Changed) error {
	if len(r.ukey) > 0 && r.umode != pawl.UniqueUntilClaimed {
		holder, err := b.takeKey(f, r)
		if err != nil {
			return err
		}
		if holder != nil {
			changed.Status, changed.Holder = pawl.Conflict, holder.id
			return nil
		}
	}
	r.attempt, r.rescued, r.reason, r.startBefore, r.progress = 0, 0, "", 0, nil
	r.count(func(c *pawl.Counts) { c.Kicks++ })
	r.runAt = b.now
	r.wait(b.now)
	r.store(resultPart, nil)
	b.due(r.queue, r.runAt)
	return nil
}

// takeKey gives r its key, or returns the job that holds it. What the call has
// done before is stored first: it may have given that key up.
func (b *batch) takeKey(f *jobs, r *record) (*record, error) {
	if err := b.flush(f.records()); err != nil {
		return nil, err
	}
	h, err := b.holders([]string{r.key()}, true)
	if err != nil {
		return nil, err
	}
	if holder := h[r.key()]; holder != nil && holder.id != r.id {
		if holder.holdsAt(b.now) {
			return holder, nil
		}
		if mine := f.all[holder.id]; mine != nil {
			holder = mine // one record of a job is enough
		}
		holder.giveUpKey()
		if err := b.flush([]*record{holder}); err != nil {
			return nil, err
		}
	} else if holder != nil {
		r.held = true
		return nil, nil
	}
	r.held, r.dirty = true, true
	return nil, b.insertKeys([]*record{r})
}

func (b *batch) edit(r *record, e *pawl.EditFields) {
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
		r.meta = metaJSON(e.Meta)
	}
	if e.Payload != nil {
		r.store(payloadPart, e.Payload)
	}
	r.dirty = true
	r.place(r.state, r.runAt)
	b.due(r.queue, r.runAt)
}

func (s *Store) configure(ctx context.Context, queue string, set pawl.QueueSettings) error {
	if set.Paused == nil {
		return nil
	}
	return s.inTx(ctx, func(b *batch) error {
		if *set.Paused {
			b.events.other = append(b.events.other, pawl.Event{Kind: pawl.EventPaused, Queue: queue})
		} else {
			b.events.dueIn(queue, 0)
		}
		t := b.sql("INSERT INTO pawl_queue (name, paused) VALUES (").name(queue).add(",").flag(*set.Paused)
		_, err := b.exec(t.add(") ON DUPLICATE KEY UPDATE paused = VALUES(paused)"))
		return err
	})
}
