package sqlite

import (
	"context"
	"slices"

	"github.com/pawlq/pawl"
)

func (s *Store) change(ctx context.Context, c pawl.Change) (changed []pawl.Changed, err error) {
	run := func(b *batch) (err error) {
		changed, err = b.change(c)
		return err
	}
	err = s.mending(ctx, func() error {
		return s.writer.do(&request{
			ctx: ctx, class: classChange, jobs: len(c.IDs), bytes: len(c.IDs) * len(c.Edit.Payload), run: run,
		})
	})
	if err != nil {
		return nil, err
	}
	return changed, nil
}

func (b *batch) change(c pawl.Change) ([]pawl.Changed, error) {
	from := c.From
	if len(from) == 0 {
		from = c.Verb.From()
	}
	changed := make([]pawl.Changed, len(c.IDs))
	for i, id := range c.IDs {
		changed[i] = pawl.Changed{ID: id, Status: pawl.NotFound}
		r, err := b.find(id, 0)
		if err != nil {
			return nil, err
		}
		if r == nil || c.Queue != "" && r.queue != c.Queue {
			continue
		}
		changed[i].Before = r.state
		if !slices.Contains(from, r.state) || !slices.Contains(c.Verb.From(), r.state) {
			changed[i].Status = pawl.WrongState
			continue
		}
		changed[i].Status = pawl.Done
		if err := b.changeOne(r, &c, &changed[i]); err != nil {
			return nil, err
		}
	}
	return changed, nil
}

func (b *batch) changeOne(r *record, c *pawl.Change, changed *pawl.Changed) error {
	if r.state == pawl.Running {
		b.events.ended(r.ref())
	}
	switch c.Verb {
	case pawl.Kick:
		return b.kick(r, changed)
	case pawl.Cancel:
		return b.end(r, r.finish(pawl.Canceled, pawl.ReasonCancel, b.now))
	case pawl.Delete:
		return b.remove(r.seq)
	case pawl.Reschedule:
		r.runAt = b.now
		if c.Delay > 0 {
			r.runAt += microseconds(c.Delay)
		} else if !c.RunAt.IsZero() {
			r.runAt = max(b.now, micros(c.RunAt))
		}
		r.wait(b.now)
		b.events.due(r.queue, r.runAt)
		return b.save(r)
	default:
		return b.edit(r, &c.Edit)
	}
}

// kick makes a final job ready again, if its unique key is free.
func (b *batch) kick(r *record, changed *pawl.Changed) error {
	if r.ukey != "" && r.umode != pawl.UniqueUntilClaimed {
		holder, err := b.holder(r.queue, r.ukey)
		if err != nil {
			return err
		}
		if holder != nil && holder.id != r.id {
			changed.Status, changed.Holder = pawl.Conflict, holder.id
			return nil
		}
		r.held = true
	}
	r.attempt, r.rescued, r.reason, r.startBefore, r.purgeAt = 0, 0, "", 0, 0
	r.progress.Valid = false
	r.count(func(c *pawl.Counts) { c.Kicks++ })
	r.runAt = b.now
	r.wait(b.now)
	if err := b.setResult(r, nil); err != nil {
		return err
	}
	b.events.due(r.queue, r.runAt)
	return b.save(r)
}

func (b *batch) edit(r *record, e *pawl.EditFields) error {
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
		if err := b.setPayload(r, e.Payload); err != nil {
			return err
		}
	}
	r.place(r.state, r.runAt)
	b.events.due(r.queue, r.runAt)
	return b.save(r)
}

func (s *Store) configure(ctx context.Context, queue string, set pawl.QueueSettings) error {
	if set.Paused == nil {
		return nil
	}
	paused := *set.Paused
	return s.writer.do(&request{
		ctx: ctx, class: classChange,
		run: func(b *batch) error {
			to := b.q.resume
			if paused {
				to = b.q.pause
				b.events.other = append(b.events.other, pawl.Event{Kind: pawl.EventPaused, Queue: queue})
			} else {
				b.events.due(queue, b.now)
			}
			_, err := b.run.exec(b.ctx, to, queue)
			return err
		},
	})
}
