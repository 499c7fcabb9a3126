package postgres

import (
	"context"
	"slices"
	"time"

	"github.com/pawlq/pawl"
)

func (s *Store) extend(ctx context.Context, renewals []pawl.Renewal) ([]pawl.Ref, error) {
	x := &extension{s: s, renewals: renewals, status: make([]int, len(renewals))}
	todo := make([]int, len(renewals))
	for i := range todo {
		todo[i] = i
	}
	for len(todo) > 0 {
		var round []int
		round, todo = x.round(todo)
		if err := x.run(ctx, round); err != nil {
			return nil, err
		}
	}
	var lost []pawl.Ref
	for i, status := range x.status {
		if status == statusLost {
			lost = append(lost, renewals[i].Ref)
		}
	}
	s.batches.leaveAll(lost)
	return lost, nil
}

// extension is one call of Extend.
type extension struct {
	s        *Store
	renewals []pawl.Renewal
	status   []int
}

// round takes from places those with different jobs.
func (x *extension) round(places []int) (round, rest []int) {
	seen := make(map[pawl.ID]struct{}, len(places))
	for _, i := range places {
		id := x.renewals[i].Ref.ID
		if _, ok := seen[id]; ok {
			rest = append(rest, i)
			continue
		}
		seen[id] = struct{}{}
		round = append(round, i)
	}
	slices.SortFunc(round, func(a, b int) int { return slices.Compare(x.renewals[a].Ref.ID[:], x.renewals[b].Ref.ID[:]) })
	return round, rest
}

// rescueWait is how long an extend waits for rescues to be committed.
const rescueWait = time.Second

// run extends the renewals of a round. What is locked then may be so by a rescue that is
// just being committed, so it is tried again while there is none. What is locked still
// is held by an open transaction, and that claim is alive.
func (x *extension) run(ctx context.Context, round []int) error {
	if err := x.s.pipelined(ctx, func(p *pipeline) { x.add(p, round) }); err != nil {
		return err
	}
	round = slices.DeleteFunc(slices.Clone(round), func(i int) bool { return x.status[i] != statusLocked })
	if len(round) == 0 {
		return nil
	}
	tired := false
	return x.s.pipelined(ctx, func(p *pipeline) {
		if p.locked = &tired; !tired {
			p.exec(setLockTimeout, rescueWait.String())
			p.exec(x.s.q.lock, x.s.rescueHash())
		}
		x.add(p, round)
	})
}

// add puts the extending of some places into a pipeline.
func (x *extension) add(p *pipeline, places []int) {
	for _, i := range places {
		x.status[i] = 0
	}
	p.each(func(row scanner) error {
		var ord, status int
		err := row.Scan(&ord, &status)
		if err == nil && ord >= 1 && ord <= len(places) {
			x.status[places[ord-1]] = status
		}
		return err
	}, x.s.q.extend, x.args(places)...)
}

func (x *extension) args(round []int) []any {
	n := len(round)
	ids, progress := make([]string, n), make([]string, n)
	fences, leases := make([]int64, n), make([]int64, n)
	for k, i := range round {
		r := &x.renewals[i]
		ids[k], fences[k], leases[k] = r.Ref.ID.String(), r.Ref.Fence, microseconds(max(r.Lease, time.Microsecond))
		if p := r.Progress; p != nil {
			progress[k] = toJSON(progressJSON{Percent: p.Percent, Stage: p.Stage, Message: p.Message, Counters: p.Counters})
		}
	}
	return []any{x.s.clock(), ids, fences, leases, progress}
}
