package redis

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/pawlq/pawl"
)

// queuesPerSweep bounds a step of Sweep, in which the server does nothing else.
const queuesPerSweep = 50

// sweep is one call of Sweep.
type sweep struct {
	s     *Store
	spec  pawl.SweepSpec
	swept pawl.Swept
	empty []string // queues that hold nothing
}

func (s *Store) sweep(ctx context.Context, spec pawl.SweepSpec) (pawl.Swept, error) {
	tokens, err := s.client.HGetAll(ctx, s.names.register).Result()
	if err != nil {
		return pawl.Swept{}, err
	}
	w := &sweep{s: s, spec: spec}
	for some := range slices.Chunk(slices.Sorted(maps.Keys(tokens)), queuesPerSweep) {
		for _, queues := range calls(s, some) {
			if err := w.run(ctx, queues); err != nil {
				return w.swept, err
			}
		}
	}
	for _, queue := range w.empty {
		if err := s.forget(ctx, queue, tokens[queue]); err != nil {
			return w.swept, err
		}
	}
	return w.swept, nil
}

func (w *sweep) run(ctx context.Context, queues []string) error {
	reply, err := w.s.run(ctx, w.s.scripts.sweep, w.s.names.queues(queues), []byte(*w.message(len(queues))))
	if err != nil {
		return err
	}
	l, err := items(reply, 10)
	if err != nil {
		return err
	}
	w.swept.Promoted, w.swept.Expired, w.swept.Purged = int(number(l[1])), int(number(l[2])), int(number(l[3]))
	w.swept.More = w.swept.More || number(l[4]) == 1
	if next := time.Duration(number(l[5])) * time.Microsecond; next > 0 && (w.swept.NextDue == 0 || next < w.swept.NextDue) {
		w.swept.NextDue = next
	}
	if w.swept.Rescued, err = appendRefs(w.swept.Rescued, queues, l[6]); err != nil {
		return err
	}
	if w.swept.Buried, err = appendRefs(w.swept.Buried, queues, l[7]); err != nil {
		return err
	}
	if n := number(l[9]); n > 0 {
		w.s.log.WarnContext(ctx, "pawl/redis: put right what something else than pawl has damaged", "records", n)
	}
	empty, err := items(l[8], len(queues))
	if err != nil {
		return err
	}
	for i, queue := range queues {
		if number(empty[i]) == 1 {
			w.empty = append(w.empty, queue)
		}
	}
	return nil
}

func (w *sweep) message(queues int) *message {
	m := w.s.begin(6)
	m.field("queues", int64(queues))
	m.field("limit", int64(w.spec.Limit))
	m.field("retention", microseconds(w.spec.BuriedRetention))
	m.field("most", int64(w.spec.MaxBuried))
	m.string("seed")
	m.float(rand.Float64())
	m.string("before")
	m.array(4)
	m.int(int64(len(w.swept.Rescued) + len(w.swept.Buried)))
	m.int(int64(w.swept.Promoted))
	m.int(int64(w.swept.Expired))
	m.int(int64(w.swept.Purged))
	return m
}

// appendRefs reads claims, each as the number of its queue, ID and fence.
func appendRefs(refs []pawl.Ref, queues []string, reply any) ([]pawl.Ref, error) {
	l, err := items(reply, 0)
	if err != nil {
		return nil, err
	}
	for _, entry := range l {
		e, err := items(entry, 3)
		if err != nil {
			return nil, err
		}
		id, err := parseID(e[1])
		n := int(number(e[0])) - 1
		if err != nil || n < 0 || n >= len(queues) {
			return nil, errReply
		}
		refs = append(refs, pawl.Ref{Queue: queues[n], ID: id, Fence: number(e[2])})
	}
	return refs, nil
}

// forget takes a queue that holds nothing from the register, unless somebody has
// entered it anew since its token was read.
func (s *Store) forget(ctx context.Context, queue, token string) error {
	gone, err := s.run(ctx, s.scripts.forget, s.names.queue(nil, queue), []byte(*s.begin(0)))
	if err != nil || number(gone) == 0 {
		return err
	}
	_, err = s.run(ctx, s.scripts.unregister, []string{s.names.register}, queue, token)
	return err
}
