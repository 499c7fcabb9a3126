package mysql

import (
	"context"

	"github.com/pawlq/pawl"
)

type groups struct{}

func (g *groups) start(*Store) {}
func (g *groups) stop()        {}

func (s *Store) enqueue(ctx context.Context, reqs []*pawl.Request) ([]pawl.Receipt, error) {
	if len(reqs) == 0 {
		return nil, nil
	}
	return s.enqueueAlone(ctx, reqs)
}
