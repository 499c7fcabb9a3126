package redis

import (
	"context"
	"slices"

	"github.com/pawlq/pawl"
)

func (s *Store) change(ctx context.Context, c pawl.Change) ([]pawl.Changed, error) {
	changed := make([]pawl.Changed, len(c.IDs))
	for i, id := range c.IDs {
		changed[i] = pawl.Changed{ID: id, Status: pawl.NotFound}
	}
	found := func(i int) bool { return changed[i].Status != pawl.NotFound }
	return changed, s.search(ctx, c.Queue, c.IDs, found, func(t tag, places []int) error {
		return s.changeIn(ctx, t, &c, changed, places)
	})
}

// asked lists the queues that a call is about: one, or all.
func (s *Store) asked(ctx context.Context, queue string) ([]string, error) {
	if queue != "" {
		return []string{queue}, checkQueue(queue)
	}
	return s.registered(ctx)
}

// changeIn changes the jobs at some places that are under a tag.
func (s *Store) changeIn(ctx context.Context, t tag, c *pawl.Change, changed []pawl.Changed, places []int) error {
	reply, err := s.run(ctx, s.scripts.change, s.names.queue(t), []byte(*s.changeMessage(c, places)))
	if err != nil {
		return err
	}
	l, err := items(reply, 3*len(places))
	if err != nil {
		return err
	}
	for _, i := range places {
		changed[i].Status, changed[i].Before = pawl.ChangeStatus(number(l[0])), pawl.State(number(l[1]))
		if changed[i].Status == pawl.Conflict {
			if changed[i].Holder, err = parseID(l[2]); err != nil {
				return err
			}
		}
		l = l[3:]
	}
	return nil
}

func (s *Store) changeMessage(c *pawl.Change, places []int) *message {
	m := s.begin(6)
	m.field("verb", int64(c.Verb))
	m.field("delay", microseconds(max(c.Delay, 0)))
	m.field("at", micros(c.RunAt))
	m.string("from")
	m.array(len(pawl.States()))
	for _, state := range pawl.States() {
		asked := len(c.From) == 0 || slices.Contains(c.From, state)
		m.bool(asked && slices.Contains(c.Verb.From(), state))
	}
	m.string("ids")
	m.array(len(places))
	for _, i := range places {
		m.bytes(c.IDs[i][:])
	}
	m.string("edit")
	appendEdit(m, &c.Edit)
	return m
}

// appendEdit writes the fields that are given.
func appendEdit(m *message, e *pawl.EditFields) {
	var fields message
	n := 0
	number := func(name string, v int64) {
		fields.field(name, v)
		n++
	}
	bytes := func(name string, v []byte) {
		fields.string(name)
		fields.bytes(v)
		n++
	}
	if e.Payload != nil {
		bytes("payload", e.Payload)
	}
	if e.Meta != nil {
		bytes("meta", metaBytes(e.Meta))
	}
	if e.Priority != nil {
		number("priority", int64(*e.Priority))
	}
	if e.Timeout != nil {
		number("timeout", microseconds(*e.Timeout))
	}
	if e.Lease != nil {
		number("lease", microseconds(*e.Lease))
	}
	if e.MaxAttempts != nil {
		number("attempts", int64(*e.MaxAttempts))
	}
	if e.StartBefore != nil {
		number("before", micros(*e.StartBefore))
	}
	if e.Retention != nil {
		number("retention", microseconds(*e.Retention))
	}
	m.object(n)
	*m = append(*m, fields...)
}

func (s *Store) configure(ctx context.Context, queue string, set pawl.QueueSettings) error {
	if set.Paused == nil {
		return nil
	}
	if err := checkQueue(queue); err != nil {
		return err
	}
	for _, t := range s.shards.tags(queue) {
		if err := s.register(ctx, t); err != nil {
			return err
		}
		m := s.begin(1)
		m.string("paused")
		m.flag(*set.Paused)
		if _, err := s.run(ctx, s.scripts.configure, s.names.queue(t), []byte(*m)); err != nil {
			return err
		}
	}
	return nil
}
